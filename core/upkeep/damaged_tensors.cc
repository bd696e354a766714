// Groups of tensors are read together; the tensors of a group that fails, one by one.

#include "core/upkeep/damaged_tensors.h"

#include <map>
#include <string>
#include <utility>

#include "core/base/internal/progress_meter.h"
#include "core/upkeep/payload_reader.h"

namespace cairn::core {
namespace {

constexpr uint64_t kGroupBytes = 64 << 20;
constexpr size_t kGroupTensors = 256;

using Damaged = std::map<std::string, Error>;  // by FQN

// Adds the damaged tensors of `group`, which has no aliases.
Result<void> SearchGroup(const CheckpointStore& store, const kv::StepInfo& step,
                         std::span<const TensorInfo> group, Damaged& damaged) {
  const auto read = [&](std::span<const TensorInfo> tensors) {
    return ReadRowMajor(LoaderOf(store, step), tensors,
                        [](auto, auto, auto) -> Result<void> { return {}; });
  };
  Result<uint64_t> done = read(group);
  if (done) return {};
  if (done.error().code != ErrorCode::kDataLoss) return Fail(std::move(done).error());
  for (const TensorInfo& tensor : group) {
    if (group.size() > 1) done = read({&tensor, 1});
    if (done) continue;
    Error error = std::move(done).error();
    if (error.code != ErrorCode::kDataLoss) return Fail(std::move(error));
    error.key = tensor.fqn;
    error.step = step.step;
    damaged.emplace(tensor.fqn, std::move(error));
  }
  return {};
}

}  // namespace

Result<std::vector<Error>> FindDamagedTensors(const CheckpointStore& store,
                                              const kv::StepInfo& step,
                                              std::span<const TensorInfo> tensors,
                                              const Progress& progress) {
  std::map<std::string, TensorInfo> owners;
  uint64_t total_bytes = 0;
  for (const TensorInfo& tensor : tensors) {
    const std::string& fqn = tensor.alias_of ? *tensor.alias_of : tensor.fqn;
    if (owners.contains(fqn)) continue;
    TensorInfo owner = tensor;
    if (tensor.alias_of) {
      CAIRN_TRY_ASSIGN(owner, store.FindTensor(step, fqn));
    }
    total_bytes += owner.nbytes;
    owners.emplace(fqn, std::move(owner));
  }
  std::vector<TensorInfo> list;
  for (auto& [fqn, owner] : owners) list.push_back(std::move(owner));
  internal::ProgressMeter meter(progress, total_bytes);
  Damaged damaged;
  for (size_t begin = 0; begin < list.size();) {
    size_t end = begin;
    uint64_t bytes = 0;
    do {
      bytes += list[end++].nbytes;
    } while (end < list.size() && end - begin < kGroupTensors &&
             bytes + list[end].nbytes <= kGroupBytes);
    CAIRN_TRY(SearchGroup(store, step, std::span(list).subspan(begin, end - begin), damaged));
    CAIRN_TRY(meter.Add(bytes));
    begin = end;
  }
  std::vector<Error> errors;
  for (const TensorInfo& tensor : tensors) {
    const auto found = damaged.find(tensor.alias_of ? *tensor.alias_of : tensor.fqn);
    if (found == damaged.end()) continue;
    errors.push_back(found->second);
    errors.back().key = tensor.fqn;
  }
  return errors;
}

}  // namespace cairn::core
