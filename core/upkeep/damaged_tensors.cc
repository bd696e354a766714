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

class DamageSearch {
 public:
  DamageSearch(const CheckpointStore& store, const kv::StepInfo& step, const Progress& progress,
               uint64_t total_bytes)
      : store_(store), step_(step), progress_(progress, total_bytes) {}

  /// Reads tensors that are not aliases.
  Result<void> Search(std::span<const TensorInfo> owners) {
    for (size_t begin = 0; begin < owners.size();) {
      size_t end = begin;
      uint64_t bytes = 0;
      do {
        bytes += owners[end++].nbytes;
      } while (end < owners.size() && end - begin < kGroupTensors &&
               bytes + owners[end].nbytes <= kGroupBytes);
      CAIRN_TRY(SearchGroup(owners.subspan(begin, end - begin)));
      CAIRN_TRY(progress_.Add(bytes));
      begin = end;
    }
    return {};
  }

  const std::map<std::string, Error>& damaged() const { return damaged_; }

 private:
  Result<void> Read(std::span<const TensorInfo> tensors) {
    CAIRN_TRY(
        ReadRowMajor(store_, step_, tensors, [](auto, auto, auto) -> Result<void> { return {}; }));
    return {};
  }

  Result<void> SearchGroup(std::span<const TensorInfo> group) {
    Result<void> read = Read(group);
    if (read || read.error().code != ErrorCode::kDataLoss) return read;
    for (const TensorInfo& tensor : group) {
      if (group.size() > 1) read = Read({&tensor, 1});
      if (read) continue;
      if (read.error().code != ErrorCode::kDataLoss) return read;
      Error error = std::move(read).error();
      error.key = tensor.fqn;
      error.step = step_.step;
      damaged_.emplace(tensor.fqn, std::move(error));
    }
    return {};
  }

  const CheckpointStore& store_;
  const kv::StepInfo& step_;
  internal::ProgressMeter progress_;
  std::map<std::string, Error> damaged_;  // by FQN
};

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
  DamageSearch search(store, step, progress, total_bytes);
  CAIRN_TRY(search.Search(list));
  std::vector<Error> errors;
  for (const TensorInfo& tensor : tensors) {
    const auto found = search.damaged().find(tensor.alias_of ? *tensor.alias_of : tensor.fqn);
    if (found == search.damaged().end()) continue;
    errors.push_back(found->second);
    errors.back().key = tensor.fqn;
  }
  return errors;
}

}  // namespace cairn::core
