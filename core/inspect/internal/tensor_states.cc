// A step that shares tables with the step before is read as a list of records that replace those
// before; any other step is read completely, and compared while both lists are walked in key order.

#include "core/inspect/internal/tensor_states.h"

#include <cairn_schema/chunk_generated.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <unordered_map>
#include <utility>

#include "kv/base/digest.h"
#include "kv/base/key.h"

namespace cairn::core::internal {
namespace {

using Kind = TensorChange::Kind;

constexpr uint64_t kMaxReservedStates = 1 << 20;

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

void AddValues(const ChunkState& chunk, double weight_before, TensorValues& values) {
  const kv::ChunkStatistics& part = *chunk.values;
  values.zeros += part.zeros;
  values.nans += part.nans;
  values.infs += part.infs;
  values.min = std::fmin(values.min, part.min);  // the other one if one is NaN
  values.max = std::fmax(values.max, part.max);
  if (!std::isfinite(part.mean)) return;
  const double weight = static_cast<double>(chunk.length_bytes);
  values.mean += (part.mean - values.mean) * (weight / (weight_before + weight));
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

}  // namespace

double TensorValues::abs_max() const {
  const double largest = std::fmax(std::fabs(min), std::fabs(max));
  return std::isnan(largest) ? 0 : largest;
}

void TensorChange::SetBefore(const TensorValues& values) {
  were_known = values.is_known;
  had_nans = values.nans > 0;
  had_infs = values.infs > 0;
  mean_before = values.mean;
  abs_max_before = values.abs_max();
}

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

void TensorStates::SetChunks(std::span<const ChunkState> chunks, std::vector<ChunkState>& all,
                             TensorState& tensor) {
  if (all.empty() || chunks.data() < all.data() || chunks.data() >= all.data() + all.size()) {
    tensor.first_chunk = all.size();
    all.insert(all.end(), chunks.begin(), chunks.end());
  }
  tensor.chunk_count = chunks.size();
  tensor.bytes = tensor.stored_bytes = 0;
  tensor.values = {.is_known = true};
  double weight = 0;
  for (const ChunkState& chunk : chunks) {
    tensor.bytes += chunk.length_bytes;
    tensor.stored_bytes += chunk.stored_bytes;
    if (!chunk.values) {
      tensor.values.is_known = false;
      continue;
    }
    AddValues(chunk, weight, tensor.values);
    if (std::isfinite(chunk.values->mean)) weight += static_cast<double>(chunk.length_bytes);
  }
  if (weight == 0) tensor.values.mean = std::numeric_limits<double>::quiet_NaN();
  if (!tensor.values.is_known) tensor.values = {};
}

const TensorState* TensorStates::Find(std::string_view fqn) const {
  const auto found = std::ranges::lower_bound(tensors_, fqn, {}, &TensorState::fqn);
  return found != tensors_.end() && found->fqn == fqn ? &*found : nullptr;
}

Result<std::vector<TensorChange>> TensorStates::ReadAll(const kv::Snapshot& snapshot,
                                                        const kv::StepInfo& step) {
  std::vector<TensorState> tensors;
  std::vector<ChunkState> chunks;
  std::vector<TensorChange> changes;
  // Bounded, because a damaged step may state any number.
  const size_t expected = std::min<uint64_t>(step.chunk_count, kMaxReservedStates);
  tensors.reserve(std::min<uint64_t>(step.tensor_count, expected));
  chunks.reserve(expected);
  size_t at = 0;  // in tensors_
  const auto skip_removed_before = [&](const std::string_view* fqn) {
    for (; at < tensors_.size() && (fqn == nullptr || tensors_[at].fqn < *fqn); ++at) {
      changes.push_back({.kind = Kind::kRemoved,
                         .removed_node = tensors_[at].node,
                         .changed_bytes = tensors_[at].bytes});
    }
  };
  std::vector<ChunkState> states;
  Reader reader([&](std::string_view fqn, std::span<const ReadChunk> read) {
    skip_removed_before(&fqn);
    states.clear();
    for (const ReadChunk& chunk : read) states.push_back(*chunk.state);
    TensorState& tensor = tensors.emplace_back();
    tensor.fqn = fqn;
    SetChunks(states, chunks, tensor);
    tensor.last_changed_step = step.step;
    const size_t index = tensors.size() - 1;
    if (at == tensors_.size() || tensors_[at].fqn != fqn) {
      changes.push_back({.kind = Kind::kAdded, .tensor = index, .changed_bytes = tensor.bytes});
      return;
    }
    const TensorState& before = tensors_[at++];
    tensor.node = before.node;
    const uint64_t changed = ChangedBytes(ChunksOf(before), states);
    if (changed == 0) {
      tensor.last_changed_step = before.last_changed_step;
    } else {
      changes.push_back({.kind = Kind::kChanged, .tensor = index, .changed_bytes = changed});
      changes.back().SetBefore(before.values);
    }
  });
  CAIRN_TRY(snapshot.Scan(kv::Column::kChunks, step, "",
                          [&](std::string_view key, std::span<const std::byte> record) {
                            ++record_count_;
                            return reader.Add(key, record);
                          }));
  reader.Finish();
  skip_removed_before(nullptr);
  tensors_ = std::move(tensors);
  chunks_ = std::move(chunks);
  return changes;
}

void TensorStates::Apply(std::string_view fqn, std::span<const ReadChunk> read,
                         std::vector<TensorChange>& changes, std::vector<TensorState>& added) {
  const auto found = std::ranges::lower_bound(tensors_, fqn, {}, &TensorState::fqn);
  const bool exists = found != tensors_.end() && found->fqn == fqn;
  const std::span<const ChunkState> before =
      exists ? ChunksOf(*found) : std::span<const ChunkState>();
  std::vector<ChunkState> after(before.begin(), before.end());
  ChunkIndex chunk_index(before);
  for (size_t i = 0; i < read.size(); ++i) {
    const auto at = chunk_index.Find(read[i].offsets_checksum, i);
    if (at) {
      after[*at] = read[i].state.value_or(ChunkState{});  // without bytes if it was removed
    } else if (read[i].state) {
      after.push_back(*read[i].state);
    }
  }
  std::erase_if(after, [](const ChunkState& chunk) { return chunk.length_bytes == 0; });
  const uint64_t changed = ChangedBytes(before, after);
  if (!exists) {
    if (after.empty()) return;
    TensorState& tensor = added.emplace_back();
    tensor.fqn = fqn;
    SetChunks(after, chunks_, tensor);
    tensor.last_changed_step = step_->step;
    changes.push_back({.kind = Kind::kAdded, .changed_bytes = tensor.bytes});
    return;
  }
  const auto index = static_cast<size_t>(found - tensors_.begin());
  if (after.empty()) {
    changes.push_back(
        {.kind = Kind::kRemoved, .removed_node = found->node, .changed_bytes = found->bytes});
    found->chunk_count = 0;
    return;
  }
  if (changed > 0) {
    changes.push_back({.kind = Kind::kChanged, .tensor = index, .changed_bytes = changed});
    changes.back().SetBefore(found->values);
    found->last_changed_step = step_->step;
  }
  // Records without a change may have other locations, because a compaction has moved the bytes.
  if (after.size() == found->chunk_count) {
    std::ranges::copy(after, chunks_.begin() + static_cast<ptrdiff_t>(found->first_chunk));
    SetChunks(ChunksOf(*found), chunks_, *found);
  } else {
    SetChunks(after, chunks_, *found);
  }
}

void TensorStates::Merge(std::vector<TensorState> added, std::vector<TensorChange>& changes) {
  std::erase_if(tensors_, [](const TensorState& tensor) { return tensor.chunk_count == 0; });
  const auto middle = static_cast<ptrdiff_t>(tensors_.size());
  std::ranges::move(added, std::back_inserter(tensors_));
  std::ranges::inplace_merge(tensors_, tensors_.begin() + middle, {}, &TensorState::fqn);
  // Changes are in key order, and so are the tensors that changed in this step.
  size_t at = 0;
  for (TensorChange& change : changes) {
    if (change.kind == Kind::kRemoved) continue;
    while (tensors_[at].last_changed_step != step_->step) ++at;
    change.tensor = at++;
  }
}

Result<std::optional<std::vector<TensorChange>>> TensorStates::ReadUnshared(
    const kv::Snapshot& snapshot, const kv::StepInfo& step) {
  const kv::StepInfo base = *std::exchange(step_, step);
  std::vector<TensorChange> changes;
  std::vector<TensorState> added;
  Reader reader([&](std::string_view fqn, std::span<const ReadChunk> chunks) {
    Apply(fqn, chunks, changes, added);
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
  Merge(std::move(added), changes);
  RemoveGarbage();
  return changes;
}

void TensorStates::RemoveGarbage() {
  size_t used = 0;
  for (const TensorState& tensor : tensors_) used += tensor.chunk_count;
  if (chunks_.size() < 2 * used + 1024) return;
  std::vector<ChunkState> chunks;
  chunks.reserve(used);
  for (TensorState& tensor : tensors_) {
    const auto own = ChunksOf(tensor);
    tensor.first_chunk = chunks.size();
    chunks.insert(chunks.end(), own.begin(), own.end());
  }
  chunks_ = std::move(chunks);
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
  for (TensorState& tensor : tensors_) {
    tensor.last_changed_step = std::min(tensor.last_changed_step, step.step);
  }
  return changes;
}

}  // namespace cairn::core::internal
