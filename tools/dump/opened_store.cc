// Stores opened for kv-dump, which tolerates damage.

#include "tools/dump/opened_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "kv/read/snapshot.h"
#include "tools/common/text.h"

namespace cairn::tools {

Result<OpenedStore> OpenStore(const std::string& address, const kv::StoreOptions& options) {
  OpenedStore opened;
  CAIRN_TRY_ASSIGN(opened.address, ParseAddress(address));
  CAIRN_TRY_ASSIGN(opened.store,
                   core::CheckpointStore::Open(opened.address.store, kv::OpenMode::kRead, options));
  return opened;
}

Result<OpenedStore> OpenWithoutStep(const std::string& address, std::string_view verb) {
  CAIRN_TRY_ASSIGN(OpenedStore opened, OpenStore(address));
  if (opened.address.step) {
    return Fail(
        ErrorCode::kInvalidArgument,
        fmt::format("{} takes a store without a step; omit @{}", verb, *opened.address.step));
  }
  return opened;
}

std::string StoreText(const OpenedStore& opened) {
  return JsonText(AddressDirectory(opened.address.store));
}

Result<kv::StepInfo> FindStep(const OpenedStore& opened) {
  CAIRN_TRY_ASSIGN(const auto snapshot, opened.store->kv().Latest());
  return snapshot->FindStep(opened.address.step);
}

Result<void> ForEachTensorGroup(const OpenedStore& opened, const kv::StepInfo& step,
                                const core::KeyPatterns& patterns, const TensorGroupVisitor& visit,
                                bool has_values) {
  constexpr uint64_t kFirstRecords = 2'000;
  constexpr uint64_t kMaxRecords = 64'000;
  std::vector<core::TensorInfo> group;
  uint64_t records = 0;  // records of the tensors and chunks of the group
  uint64_t max_records = kFirstRecords;
  const auto finish = [&]() -> Result<void> {
    records = 0;
    max_records = std::min(2 * max_records, kMaxRecords);
    return visit(std::exchange(group, {}));
  };
  const auto add = [&](const core::TensorInfo& tensor) -> Result<void> {
    // Hidden tensors follow all others.
    const bool ascends = group.empty() || group.back().fqn < tensor.fqn;
    if (!ascends || records >= max_records) CAIRN_TRY(finish());
    group.push_back(tensor);
    records += 1 + tensor.chunk_count;
    return {};
  };
  const auto add_bytes = [&](const core::ValueInfo& value) -> Result<void> {
    if (!has_values || !std::holds_alternative<core::ChunkedValue>(value.value)) return {};
    CAIRN_TRY_ASSIGN(const core::TensorInfo bytes, opened.store->FindTensor(step, value.fqn));
    return add(bytes);
  };
  auto listed = opened.store->ForEachKey(step, patterns, add, add_bytes);
  if (!group.empty()) CAIRN_TRY(visit(group));  // after an error, what was read before it is useful
  return listed;
}

Result<void> ForEachStatistics(const OpenedStore& opened, const kv::StepInfo& step,
                               const core::KeyPatterns& patterns, const StatisticsVisitor& visit) {
  return ForEachTensorGroup(
      opened, step, patterns, [&](std::span<const core::TensorInfo> tensors) -> Result<void> {
        CAIRN_TRY_ASSIGN(const auto statistics,
                         core::FindStatistics(opened.store->kv(), step, tensors));
        for (size_t i = 0; i < tensors.size(); ++i) visit(tensors[i], statistics[i]);
        return {};
      });
}

/// Longer values are described by their length.
constexpr uint64_t kMaxShownValueBytes = 16 << 20;

Result<FoundKey> FindKey(const core::CheckpointStore& store, const kv::StepInfo& step,
                         const std::string& fqn) {
  auto tensor = store.FindTensor(step, fqn);
  const bool may_be_value = tensor ? tensor->hidden : tensor.error().code == ErrorCode::kNotFound;
  if (!may_be_value) return tensor;
  core::KeyPatterns patterns;  // of `fqn` and keys below it; without a name, the root is a value
  if (!fqn.empty()) {
    CAIRN_TRY_ASSIGN(patterns, core::KeyPatterns::Parse({core::LiteralPattern(fqn)}));
  }
  std::optional<core::ValueInfo> found;
  CAIRN_TRY(store.ForEachKey(
      step, patterns, [](const core::TensorInfo&) { return Result<void>(); },
      [&](const core::ValueInfo& value) -> Result<void> {
        if (value.fqn == fqn) found = value;
        return {};
      }));
  if (!found) return tensor;
  const auto* const chunked = std::get_if<core::ChunkedValue>(&found->value);
  if (chunked != nullptr && chunked->length_bytes <= kMaxShownValueBytes) {
    CAIRN_TRY(store.LoadValues(step, {&*found, 1}));
  }
  return *std::move(found);
}

}  // namespace cairn::tools
