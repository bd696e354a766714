// A step that shares tables with the step before is read as a list of records that replace those
// before; any other step is read completely, and compared while both lists are walked in key order.

#include "core/inspect/internal/tensor_states.h"

#include <cairn_schema/chunk_generated.h>

#include <algorithm>
#include <cmath>
#include <unordered_map>
#include <utility>

#include "core/state_dict/value.h"
#include "core/step/internal/combined_statistics.h"
#include "core/step/internal/lookup.h"
#include "kv/base/digest.h"
#include "kv/base/key.h"

namespace cairn::core::internal {
namespace {

using Kind = TensorChange::Kind;

uint64_t OffsetsChecksum(std::string_view key, std::string_view fqn) {
  return kv::Checksum64(std::as_bytes(std::span(key.substr(std::min(key.size(), fqn.size() + 1)))));
}

ChunkState StateOf(const kv::ChunkView& chunk, uint64_t offsets_checksum) {
  ChunkState state{.offsets_checksum = offsets_checksum,
                   .digest = chunk.record().digest()->lo(),
                   .length_bytes = chunk.length_bytes(),
                   .values = kv::ReadStatistics(chunk.record())};
  chunk.extents().ForEach(
      [&](const kv::Extent& extent) { state.stored_bytes += extent.length_bytes; });
  return state;
}

/// The chunks of one tensor by their offsets.
class ChunkIndex {
 public:
  explicit ChunkIndex(std::span<const ChunkState> chunks) : chunks_(chunks) {}

  /// Returns the position of a chunk, or nothing. Cost: constant if it is at `guess`.
  std::optional<size_t> Find(uint64_t offsets_checksum, size_t guess) {
    if (guess < chunks_.size() && chunks_[guess].offsets_checksum == offsets_checksum) return guess;
    if (by_offsets_.empty()) {
      for (size_t i = 0; i < chunks_.size(); ++i) by_offsets_[chunks_[i].offsets_checksum] = i;
    }
    const auto found = by_offsets_.find(offsets_checksum);
    if (found == by_offsets_.end()) return std::nullopt;
    return found->second;
  }

 private:
  std::span<const ChunkState> chunks_;
  std::unordered_map<uint64_t, size_t> by_offsets_;  // filled when it is first needed
};

/// Returns the bytes of the chunks of `after` that `before` does not have; at least 1 if a chunk of
/// `before` has no successor.
uint64_t ChangedBytes(std::span<const ChunkState> before, std::span<const ChunkState> after) {
  uint64_t changed = 0;
  ChunkIndex index(before);
  for (size_t i = 0; i < after.size(); ++i) {
    const auto found = index.Find(after[i].offsets_checksum, i);
    const bool is_same = found && before[*found].digest == after[i].digest &&
                         before[*found].length_bytes == after[i].length_bytes;
    if (!is_same) changed += after[i].length_bytes;
  }
  if (changed == 0 && before.size() != after.size()) return before.empty() ? 0 : 1;
  return changed;
}

/// Returns the state of a tensor that has these chunks in `step`, without its node.
TensorState AddUp(std::vector<ChunkState> chunks, uint64_t step) {
  TensorState tensor{.chunks = std::move(chunks), .last_changed_step = step};
  CombinedStatistics values;
  bool is_known = true;
  for (const ChunkState& chunk : tensor.chunks) {
    tensor.bytes += chunk.length_bytes;
    tensor.stored_bytes += chunk.stored_bytes;
    is_known &= chunk.values.has_value();
    if (!chunk.values) continue;
    const bool has_mean = std::isfinite(chunk.values->mean);
    values.Add(*chunk.values, has_mean ? static_cast<double>(chunk.length_bytes) : 0);
  }
  tensor.nans = values.sum.nans;
  tensor.infs = values.sum.infs;
  if (is_known) tensor.values = StoredStatistics{values.sum};
  return tensor;
}

/// Adds the change from one state of a tensor to the next, if there is one, and sets what `after`
/// has in common with `before`.
void AddChange(const TensorState& before, TensorStateMap::value_type& after,
               std::vector<TensorChange>& changes) {
  after.second.node = before.node;
  const uint64_t changed = ChangedBytes(before.chunks, after.second.chunks);
  if (changed == 0) after.second.last_changed_step = before.last_changed_step;
  const bool has_same_values = before.values.has_value() == after.second.values.has_value() &&
                               before.nans == after.second.nans && before.infs == after.second.infs;
  if (changed == 0 && has_same_values) return;
  changes.push_back({.kind = Kind::kChanged,
                     .tensor = &after,
                     .changed_bytes = changed,
                     .values_before = before.values,
                     .nans_before = before.nans,
                     .infs_before = before.infs});
}

TensorChange Added(TensorStateMap::value_type& tensor) {
  return {.kind = Kind::kAdded, .tensor = &tensor, .changed_bytes = tensor.second.bytes};
}

TensorChange Removed(const TensorState& tensor) {
  return {.kind = Kind::kRemoved, .removed_node = tensor.node, .changed_bytes = tensor.bytes};
}

}  // namespace

/// Collects the chunks of one FQN after the other.
class TensorStates::Reader {
 public:
  using Visit = std::function<void(std::string_view fqn, std::span<const ReadChunk> chunks)>;

  explicit Reader(Visit visit) : visit_(std::move(visit)) {}

  Result<bool> Add(std::string_view key, std::span<const std::byte> record) {
    const std::string_view fqn = key.substr(0, key.find('\0'));
    if (fqn != fqn_ || chunks_.empty()) {
      Finish();
      fqn_ = fqn;
    }
    const uint64_t offsets = OffsetsChecksum(key, fqn);
    ReadChunk& chunk = chunks_.emplace_back(ReadChunk{.offsets_checksum = offsets});
    if (record.empty()) return true;
    CAIRN_TRY(view_.Set(key, record));
    chunk.state = StateOf(view_, offsets);
    return true;
  }

  void Finish() {
    if (!chunks_.empty()) visit_(fqn_, chunks_);
    chunks_.clear();
  }

 private:
  Visit visit_;
  std::string fqn_;
  std::vector<ReadChunk> chunks_;
  kv::ChunkView view_;
};

Result<std::vector<TensorChange>> TensorStates::ReadAll(const kv::Snapshot& snapshot,
                                                        const kv::StepInfo& step) {
  TensorStateMap tensors;
  std::vector<TensorChange> changes;
  auto before = tensors_.begin();
  CAIRN_TRY_ASSIGN(long_values_, FindLongValues(snapshot, step));
  Reader reader([&](std::string_view fqn, std::span<const ReadChunk> read) {
    if (long_values_.contains(fqn)) return;
    for (; before != tensors_.end() && before->first < fqn; ++before) {
      changes.push_back(Removed(before->second));
    }
    std::vector<ChunkState> chunks;
    chunks.reserve(read.size());
    for (const ReadChunk& chunk : read) chunks.push_back(*chunk.state);
    auto& tensor = *tensors.emplace_hint(tensors.end(), fqn, AddUp(std::move(chunks), step.step));
    if (before != tensors_.end() && before->first == fqn) {
      AddChange((before++)->second, tensor, changes);
    } else {
      changes.push_back(Added(tensor));
    }
  });
  CAIRN_TRY(snapshot.Scan(kv::Column::kChunks, step, "",
                          [&](std::string_view key, std::span<const std::byte> record) {
                            ++record_count_;
                            return reader.Add(key, record);
                          }));
  reader.Finish();
  for (; before != tensors_.end(); ++before) changes.push_back(Removed(before->second));
  tensors_.swap(tensors);  // the changes refer to what was read
  ++complete_reads_;
  return changes;
}

Result<std::optional<std::vector<TensorChange>>> TensorStates::ReadUnshared(
    const kv::Snapshot& snapshot, const kv::StepInfo& step) {
  const kv::StepInfo base = *std::exchange(step_, step);
  std::vector<TensorChange> changes;
  if (step.value_count > 0 || !long_values_.empty()) {
    CAIRN_TRY_ASSIGN(
        const bool is_read,
        snapshot.ScanUnshared(kv::Column::kValues, base, step,
                              [&](std::string_view key, std::span<const std::byte> record) {
                                const std::string fqn(key.substr(0, key.find('\0')));
                                const auto value = DecodeValue(record);
                                if (value && std::holds_alternative<ChunkedValue>(*value)) {
                                  long_values_.insert(fqn);
                                } else {
                                  long_values_.erase(fqn);
                                }
                                return Result<bool>(true);
                              }));
    if (!is_read) return std::nullopt;
  }
  Reader reader([&](std::string_view fqn, std::span<const ReadChunk> read) {
    const auto found = tensors_.find(fqn);
    if (long_values_.contains(fqn)) {
      if (found == tensors_.end()) return;
      changes.push_back(Removed(found->second));
      tensors_.erase(found);
      return;
    }
    const std::span<const ChunkState> known =
        found == tensors_.end() ? std::span<const ChunkState>() : found->second.chunks;
    std::vector<ChunkState> chunks(known.begin(), known.end());
    ChunkIndex index(known);
    for (size_t i = 0; i < read.size(); ++i) {
      const auto at = index.Find(read[i].offsets_checksum, i);
      if (at) {
        chunks[*at] = read[i].state.value_or(ChunkState{});  // without bytes if it was removed
      } else if (read[i].state) {
        chunks.push_back(*read[i].state);
      }
    }
    std::erase_if(chunks, [](const ChunkState& chunk) { return chunk.length_bytes == 0; });
    if (chunks.empty()) {
      if (found == tensors_.end()) return;
      changes.push_back(Removed(found->second));
      tensors_.erase(found);
      return;
    }
    TensorState after = AddUp(std::move(chunks), step.step);
    if (found == tensors_.end()) {
      changes.push_back(Added(*tensors_.emplace(fqn, std::move(after)).first));
      return;
    }
    // Records without a change may have other locations, because a compaction has moved the bytes.
    const TensorState before = std::exchange(found->second, std::move(after));
    AddChange(before, *found, changes);
  });
  CAIRN_TRY_ASSIGN(
      const bool is_read,
      snapshot.ScanUnshared(kv::Column::kChunks, base, step,
                            [&](std::string_view key, std::span<const std::byte> record) {
                              ++record_count_;
                              return reader.Add(key, record);
                            }));
  if (!is_read) return std::nullopt;
  reader.Finish();
  return changes;
}

Result<std::vector<TensorChange>> TensorStates::MoveTo(const kv::Snapshot& snapshot,
                                                       const kv::StepInfo& step) {
  if (step_) {
    auto changes = ReadUnshared(snapshot, step);
    if (!changes) {
      step_.reset();
      return Fail(std::move(changes).error());
    }
    if (*changes) return **std::move(changes);
  }
  step_.reset();
  CAIRN_TRY_ASSIGN(auto changes, ReadAll(snapshot, step));
  step_ = step;
  return changes;
}

Result<std::vector<TensorChange>> TensorStates::StartAgainAt(const kv::Snapshot& snapshot,
                                                             const kv::StepInfo& step) {
  CAIRN_TRY_ASSIGN(auto changes, MoveTo(snapshot, step));
  for (auto& [fqn, tensor] : tensors_) {
    tensor.last_changed_step = std::min(tensor.last_changed_step, step.step);
  }
  return changes;
}

}  // namespace cairn::core::internal
