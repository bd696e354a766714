// Save: chunks of all tensors in key order, merged with those of the base step.
//
// 1. The plan says what is written: owners, aliases, this rank's chunks, values, structure.
// 2. The base step's chunk records are scanned in key order beside the plan's own chunks, which are
//    produced in the same order, or looked up where they are few among many; equal keys with equal
//    sizes are candidates for reuse.
// 3. Chunks gather in windows of bounded bytes. Candidates of a window are digested by all cores,
//    while this one writes the window before and gathers the next. Of those that changed the base's
//    page digests are read, in one batch a window; then, in order, each chunk becomes a reference
//    to the base's bytes, or is appended, whole or only the pages that changed (page_runs.h).
// 4. Records, values, structure, commit. Until the commit nothing of this is a step. Of several
//    ranks, those but rank 0 hand their part in; rank 0 puts all parts together and checks them.

#include "core/save/internal/save.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <limits>
#include <utility>

#include "core/base/internal/progress_meter.h"
#include "core/save/internal/chunk_source.h"
#include "core/save/internal/chunk_writer.h"
#include "core/save/internal/device_save.h"
#include "core/save/internal/rank_merge.h"
#include "core/step/contents.h"
#include "core/step/internal/records.h"
#include "kv/key.h"
#include "kv/step_info.h"
#include "kv/step_records.h"

namespace cairn::core::internal {
namespace {

// A base record that cannot be read costs the saving of one chunk, never the save: the bytes to be
// stored are at hand. Key and sizes equal and the bytes too, it is the same chunk, whatever dtype
// the base gave these bytes.
void SetBase(std::span<const std::byte> record, PlannedChunk& chunk) {
  auto decoded = DecodeChunk(chunk.key, record);
  if (decoded && decoded->info.box.sizes == chunk.sizes &&
      decoded->info.length_bytes() == chunk.length_bytes) {
    chunk.base = std::move(decoded->info);
  }
}

// Feeds all chunks to the writer, those with a base chunk of the same key together with it.
Result<void> MergeWithBase(const kv::Snapshot& base, const kv::StepInfo& base_step,
                           uint64_t own_chunks, ChunkSource& chunks, ChunkWriter& writer) {
  // A lookup costs as much as some ten records of a scan.
  constexpr uint64_t kLookupCost = 16;
  if (base_step.chunk_count > own_chunks * kLookupCost) {
    while (!chunks.done()) {
      PlannedChunk chunk = chunks.Take();
      CAIRN_TRY_ASSIGN(const auto record,
                       base.Get(kv::Column::kChunks, base_step.generation, chunk.key));
      if (record) SetBase(*record, chunk);
      CAIRN_TRY(writer.Add(std::move(chunk)));
    }
    return {};
  }
  return base.Scan(kv::Column::kChunks, base_step.generation, "",
                   [&](std::string_view key, std::span<const std::byte> record) -> Result<bool> {
                     while (!chunks.done() && chunks.Peek().key < key)
                       CAIRN_TRY(writer.Add(chunks.Take()));
                     if (chunks.done()) return false;
                     if (chunks.Peek().key != key) return true;
                     PlannedChunk chunk = chunks.Take();
                     SetBase(record, chunk);
                     CAIRN_TRY(writer.Add(std::move(chunk)));
                     return true;
                   });
}

// The pieces of the plan, without chunks.
std::vector<SavedChunks::Piece> PiecesToRemember(const SavePlan& plan) {
  std::vector<SavedChunks::Piece> pieces;
  pieces.reserve(plan.pieces.size());
  for (const PlannedShard& piece : plan.pieces) {
    const TensorInfo& tensor = plan.tensors[piece.tensor];
    pieces.push_back({.fqn = tensor.fqn,
                      .dtype = tensor.dtype,
                      .box = piece.grid.box(),
                      .first_chunk = piece.first_chunk,
                      .device = piece.source.device,
                      .first_page_digest = piece.first_page_digest,
                      .chunks = {}});
    pieces.back().chunks.reserve(piece.chunk_count());
  }
  return pieces;
}

// What each rank says of its state: alike on most, and so kept once. In three parts, as a key that
// each rank has of its own makes their trees or values differ, not what they say of tensors.
Result<void> AddShared(const SavePlan& plan, kv::StepWriter& writer) {
  const kv::SharedRecord structure[] = {
      {.column = kv::Column::kStructures, .key = "", .value = plan.structure}};
  CAIRN_TRY(writer.AddShared(structure));
  std::vector<kv::SharedRecord> tensors;
  tensors.reserve(plan.tensors.size());
  for (TensorInfo tensor : plan.tensors) {
    tensor.chunk_count = 0;
    tensors.push_back({.column = kv::Column::kTensors,
                       .key = kv::FqnKey(tensor.fqn),
                       .value = EncodeTensor(tensor)});
  }
  if (!tensors.empty()) CAIRN_TRY(writer.AddShared(tensors));
  std::vector<kv::SharedRecord> values;
  values.reserve(plan.values.size());
  for (const auto& [fqn, record] : plan.values) {
    values.push_back({.column = kv::Column::kValues, .key = kv::FqnKey(fqn), .value = record});
  }
  return values.empty() ? Result<void>() : writer.AddShared(values);
}

// Rank 0 of several: takes over what the others wrote, and commits.
Result<kv::StepInfo> CommitAll(const SavePlan& plan, std::optional<uint64_t> base_step,
                               kv::StepWriter& writer) {
  RankMerge merge;
  CAIRN_TRY(merge.AddOwn(plan));
  CAIRN_TRY(writer.Gather(
      [&merge](uint32_t rank, kv::Column column, std::string_view key,
               std::span<const std::byte> value) { return merge.Add(rank, column, key, value); }));
  CAIRN_TRY_ASSIGN(const MergedStep merged, merge.Finish());
  for (const TensorInfo& tensor : merged.tensors) {
    CAIRN_TRY(writer.AddRecord(kv::Column::kTensors, kv::FqnKey(tensor.fqn), EncodeTensor(tensor)));
  }
  for (const auto& [fqn, record] : merged.values) {
    CAIRN_TRY(writer.AddRecord(kv::Column::kValues, kv::FqnKey(fqn), record));
  }
  CAIRN_TRY(writer.SetStructure(EncodeTree(merged.tree)));
  return writer.Commit({.base_step = base_step,
                        .tensor_count = merged.tensor_count,
                        .value_count = merged.values.size(),
                        .logical_bytes = merged.logical_bytes});
}

// The only rank there is.
Result<kv::StepInfo> CommitAlone(const SavePlan& plan, std::optional<uint64_t> base_step,
                                 kv::StepWriter& writer) {
  if (plan.has_shards) {
    RankMerge merge;
    CAIRN_TRY(merge.AddOwn(plan));
    CAIRN_TRY(merge.Finish());
  }
  for (const auto& [fqn, record] : plan.values) {
    CAIRN_TRY(writer.AddRecord(kv::Column::kValues, kv::FqnKey(fqn), record));
  }
  CAIRN_TRY(writer.SetStructure(plan.structure));
  return writer.Commit({.base_step = base_step,
                        .tensor_count = plan.tensor_count,
                        .value_count = plan.values.size(),
                        .logical_bytes = plan.logical_bytes});
}

Result<kv::StepInfo> Finish(const SavePlan& plan, const RankInWorld& place, bool wait,
                            std::optional<uint64_t> base_step, kv::StepWriter& writer) {
  if (place.world_size == 1) return CommitAlone(plan, base_step, writer);
  if (place.rank == 0) return CommitAll(plan, base_step, writer);
  CAIRN_TRY(writer.Prepare({.base_step = base_step, .logical_bytes = plan.own_bytes}));
  return wait ? writer.AwaitDecision() : Result<kv::StepInfo>();
}

}  // namespace

Result<std::optional<SaveSession::Base>> SaveSession::FindBase(kv::Store& store,
                                                       const SaveOptions& options) {
  if (!options.incremental) return std::nullopt;
  CAIRN_TRY_ASSIGN(auto snapshot, store.Latest());
  if (!options.base_step && snapshot->steps().empty()) return std::nullopt;
  CAIRN_TRY_ASSIGN(kv::StepInfo step, snapshot->FindStep(options.base_step));
  return Base{std::move(snapshot), std::move(step)};
}

Result<SaveSession> SaveSession::Begin(kv::Store& store, const SaveAttempt& attempt, const RankInWorld& place,
                               const SaveOptions& options) {
  SaveSession run;
  run.step_ = attempt.step;
  run.place_ = place;
  run.report_.step = attempt.step;
  CAIRN_TRY_ASSIGN(run.base_, FindBase(store, options));
  CAIRN_TRY_ASSIGN(run.writer_,
                   store.Begin(attempt.step, {.overwrite = options.overwrite,
                                              .rank = place.rank,
                                              .world_size = place.world_size,
                                              .attempt = attempt.name,
                                              .deadline = attempt.deadline,
                                              .decision_deadline = attempt.decision_deadline}));
  return run;
}

Result<void> SaveSession::UseDevice(DeviceSave& device) {
  device_ = &device;
  return writer_->UseBlocks(device.blocks());
}

Result<void> SaveSession::Write(const SavePlan& plan, const SaveOptions& options, WorkerPool& pool,
                            SavedChunks* saved) {
  uint64_t own_chunks = 0;
  for (const PlannedShard& piece : plan.pieces) own_chunks += piece.chunk_count();
  if (place_.world_size > 1) CAIRN_TRY(AddShared(plan, *writer_));
  ProgressMeter progress(options.progress, plan.own_bytes);
  ChunkSource chunks(plan);
  if (saved != nullptr) saved->pieces = PiecesToRemember(plan);
  ChunkWriter chunk_writer({.plan = plan,
                            .writer = *writer_,
                            .pool = pool,
                            .progress = progress,
                            .step = step_,
                            .base = base_ ? base_->snapshot.get() : nullptr,
                            .saved = saved,
                            .device = device_});
  if (base_) {
    CAIRN_TRY(MergeWithBase(*base_->snapshot, base_->step, own_chunks, chunks, chunk_writer));
  }
  while (!chunks.done()) CAIRN_TRY(chunk_writer.Add(chunks.Take()));
  CAIRN_TRY(chunk_writer.Finish());
  report_.logical_bytes += plan.own_bytes;
  report_.chunks += chunk_writer.chunks();
  report_.chunks_reused += chunk_writer.chunks_reused();
  return {};
}

std::optional<uint64_t> SaveSession::base_step() const {
  return base_ ? std::optional(base_->step.step) : std::nullopt;
}

bool SaveSession::IsBase(const kv::StepInfo& step) const {
  return base_ && base_->step.generation == step.generation && base_->step.step == step.step;
}

SaveReport SaveSession::report() const {
  SaveReport report = report_;
  report.written_bytes = writer_->written_bytes();
  if (device_ != nullptr) {
    report.device_bytes = device_->brought_bytes();
    report.direct_bytes = device_->direct_bytes();
  }
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start_;
  report.seconds = elapsed.count();
  return report;
}

Result<SaveReport> RunSave(kv::Store& store, const SaveAttempt& attempt, SavePlan& plan,
                           const RankInWorld& place, const SaveOptions& options, WorkerPool& pool,
                           SavedChunks* saved, DeviceSave* device) {
  CAIRN_TRY_ASSIGN(SaveSession run, SaveSession::Begin(store, attempt, place, options));
  if (device != nullptr) CAIRN_TRY(run.UseDevice(*device));
  if (device != nullptr && !device->is_digested()) {
    const bool comparable =
        saved != nullptr && saved->chunk_bytes == options.chunk_bytes && run.IsBase(saved->step);
    CAIRN_TRY(device->Digest(plan, comparable ? saved : nullptr));
  }
  if (device != nullptr && device->compared() && !run.IsBase(*device->compared())) {
    return Fail(kv::BaseReplacedError(attempt.step));
  }
  SavedChunks remembered;
  CAIRN_TRY(run.Write(plan, options, pool, saved == nullptr ? nullptr : &remembered));
  if (device != nullptr) CAIRN_TRY(device->Staged());
  SaveReport report = run.report();
  CAIRN_TRY_ASSIGN(const kv::StepInfo info,
                   Finish(plan, place, attempt.wait, run.base_step(), run.writer()));
  if (saved != nullptr) {
    remembered.step = info;
    remembered.chunk_bytes = options.chunk_bytes;
    if (device != nullptr) remembered.page_digests = device->TakePageDigests();
    *saved = std::move(remembered);
  }
  report.seconds = run.report().seconds;
  return report;
}

}  // namespace cairn::core::internal
