// A save, step by step:
//
// 1. The plan lists what is written: owners, aliases, this rank's chunks, values, structure. If it
//    equals the plan of the last save, and all bytes are unchanged (unchanged_state.h), the step is
//    committed with the records of that save.
// 2. The chunks of the plan are merged with the chunk records of the base step: both are scanned in
//    key order, or, if the plan has few chunks and the base many, each chunk is looked up. A chunk
//    of the base with the same key and sizes is a candidate for reuse.
// 3. Chunks are written in windows (chunk_writer.h). The candidates of a window are digested on all
//    cores; for changed ones, the page digests of the base are read, in one batch per window. Then,
//    in order, each chunk becomes a reference to the bytes of the base, or is appended, completely
//    or only the pages that changed (changed_pages.h).
// 4. Records, values and structure are added, and the step is committed. Until then nothing of it
//    is visible. In a multi-rank store, ranks 1 and up prepare their parts; rank 0 merges and
//    checks all parts (rank_merge.h) and commits.

#include "core/save/internal/save.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <limits>
#include <optional>
#include <utility>

#include "core/base/internal/progress_meter.h"
#include "core/save/internal/chunk_writer.h"
#include "core/save/internal/device_save.h"
#include "core/save/internal/rank_merge.h"
#include "core/save/internal/save_planner.h"
#include "core/save/internal/unchanged_state.h"
#include "core/step/contents.h"
#include "core/step/internal/tensor_records.h"
#include "kv/base/key.h"
#include "kv/base/step_info.h"

namespace cairn::core::internal {
namespace {

// Adds the records of this rank's state, which are the same on most ranks and therefore stored
// once. They are in three groups: a key that only one rank has makes its tree or values differ from
// other ranks, but not its tensors.
Result<void> AddShared(const SavePlan& plan, kv::StepWriter& writer) {
  const kv::SharedRecord structure[] = {
      {.column = kv::Column::kStructures, .key = "", .value = plan.layout->structure}};
  CAIRN_TRY(writer.AddShared(structure));
  std::vector<kv::SharedRecord> tensors;
  tensors.reserve(plan.tensors().size());
  TensorEncoder encoder;
  for (TensorEntry tensor : plan.tensors()) {
    tensor.chunk_count = 0;
    const auto record = encoder.Encode(tensor);
    tensors.push_back({.column = kv::Column::kTensors,
                       .key = std::string(tensor.key()),
                       .value = {record.begin(), record.end()}});
  }
  if (!tensors.empty()) CAIRN_TRY(writer.AddShared(tensors));
  std::vector<kv::SharedRecord> values;
  values.reserve(plan.values.size());
  for (const auto& [fqn, record] : plan.values) {
    const kv::SharedRecord value{
        .column = kv::Column::kValues, .key = kv::FqnKey(fqn), .value = record};
    // A record with the bytes of a long value is separate: rank 0 does not have it.
    if (record.size() <= kMaxInlineValueBytes) {
      values.push_back(value);
    } else {
      CAIRN_TRY(writer.AddShared({&value, 1}));
    }
  }
  return values.empty() ? Result<void>() : writer.AddShared(values);
}

// Rank 0 of several: takes over what the other ranks wrote, and commits.
Result<kv::StepInfo> CommitAll(const SavePlan& plan, const SaveContext& context,
                               SaveSession& session) {
  kv::StepWriter& writer = session.writer();
  RankMerge merge;
  CAIRN_TRY(merge.AddOwn(plan));
  CAIRN_TRY(writer.Gather(merge));
  CAIRN_TRY_ASSIGN(MergedStep merged, merge.Finish());
  CAIRN_TRY(session.WriteLongValues(merged, context.options, context.pool));
  for (const TensorInfo& tensor : merged.tensors) {
    CAIRN_TRY(writer.AddRecord(kv::Column::kTensors, kv::FqnKey(tensor.fqn), EncodeTensor(tensor)));
  }
  for (const auto& [fqn, record] : merged.values) {
    CAIRN_TRY(writer.AddRecord(kv::Column::kValues, kv::FqnKey(fqn), record));
  }
  CAIRN_TRY(writer.SetStructure(EncodeTree(merged.tree)));
  return writer.Commit({.base_step = session.base_step(),
                        .tensor_count = merged.tensor_count,
                        .value_count = merged.values.size(),
                        .logical_bytes = merged.logical_bytes});
}

// The only rank: commits its plan.
Result<kv::StepInfo> CommitAlone(const SavePlan& plan, SaveSession& session) {
  kv::StepWriter& writer = session.writer();
  if (plan.has_shards) {
    RankMerge merge;
    CAIRN_TRY(merge.AddOwn(plan));
    CAIRN_TRY(merge.Finish());
  }
  for (const auto& [fqn, record] : plan.values) {
    CAIRN_TRY(writer.AddRecord(kv::Column::kValues, kv::FqnKey(fqn), record));
  }
  CAIRN_TRY(writer.SetStructure(plan.layout->structure));
  return writer.Commit({.base_step = session.base_step(),
                        .tensor_count = plan.tensor_count,
                        .value_count = plan.values.size(),
                        .logical_bytes = plan.logical_bytes});
}

Result<kv::StepInfo> Finish(const SavePlan& plan, const SaveContext& context,
                            SaveSession& session) {
  if (context.self.world_size == 1) return CommitAlone(plan, session);
  if (context.self.rank == 0) return CommitAll(plan, context, session);
  CAIRN_TRY(session.writer().Prepare(
      {.base_step = session.base_step(), .logical_bytes = plan.own_bytes}));
  return session.writer().AwaitDecision();
}

}  // namespace

Result<SaveSession> SaveSession::Begin(kv::Store& store, const SaveAttempt& attempt,
                                       const RankInWorld& self, const SaveOptions& options,
                                       CompressionRates& rates) {
  SaveSession session;
  session.step_ = attempt.step;
  session.self_ = self;
  session.report_.step = attempt.step;
  CAIRN_TRY_ASSIGN(auto snapshot, store.Latest());
  session.rates_ = &rates;
  const bool by_default = options.compress_if_fast ? rates.Choose() : snapshot->compresses_saves();
  session.compress_ = options.compress.value_or(by_default);
  if (options.incremental && (options.base_step || !snapshot->step_numbers().empty())) {
    CAIRN_TRY_ASSIGN(kv::StepInfo base, snapshot->FindStep(options.base_step));
    session.base_ = {
        .snapshot = std::move(snapshot), .step = std::move(base), .directory = store.directory()};
  }
  CAIRN_TRY_ASSIGN(session.writer_,
                   store.Begin(attempt.step, {.overwrite = options.overwrite,
                                              .rank = self.rank,
                                              .world_size = self.world_size,
                                              .attempt = attempt.name,
                                              .deadline = attempt.deadline,
                                              .decision_deadline = attempt.decision_deadline,
                                              .metrics = options.metrics,
                                              .note = options.note,
                                              .tags = options.tags,
                                              .parent = options.parent,
                                              .run = options.run,
                                              .continuation = attempt.continuation}));
  for (const auto& [name, data] : options.records) {
    if (self.rank != 0) break;
    CAIRN_TRY(AddApplicationRecord(name, data, *session.writer_));
  }
  return session;
}

Result<void> SaveSession::UseDevice(DeviceSave& device) {
  CAIRN_CHECK(device_ == nullptr);
  device_ = &device;
  return writer_->UseBlocks(device.blocks());
}

Result<void> SaveSession::Write(const SavePlan& plan, const SaveOptions& options,
                                kv::WorkerPool& pool, SavedChunks* saved, uint64_t reported_bytes) {
  const bool has_state = !plan.layout->structure.empty();  // unlike the plan of WriteLongValues
  if (self_.world_size > 1 && has_state) CAIRN_TRY(AddShared(plan, *writer_));
  ProgressMeter progress(options.progress, plan.own_bytes, reported_bytes);
  const auto start = std::chrono::steady_clock::now();
  CAIRN_TRY_ASSIGN(const WrittenChunks written, WriteChunks({.plan = plan,
                                                             .writer = *writer_,
                                                             .pool = pool,
                                                             .progress = progress,
                                                             .options = options,
                                                             .step = step_,
                                                             .base = base(),
                                                             .compress = compress_,
                                                             .saved = saved,
                                                             .device = device_}));
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  rates_->Add(compress_, written.bytes, elapsed.count());
  if (device_ != nullptr) CAIRN_TRY(device_->CheckUnchanged(plan));
  if (options.check_memory) {
    CAIRN_TRY(writer_->Drain());  // large tensors are written from their own memory
    CAIRN_TRY(options.check_memory());
  }
  report_.logical_bytes += plan.own_bytes;
  report_.chunks += written.chunks;
  report_.chunks_reused += written.reused;
  return {};
}

Result<void> SaveSession::WriteLongValues(MergedStep& merged, const SaveOptions& options,
                                          kv::WorkerPool& pool) {
  std::vector<std::pair<std::string, Value>> values;
  for (auto& [fqn, record] : merged.values) {
    if (record.size() <= kMaxInlineValueBytes) continue;
    CAIRN_TRY_ASSIGN(Value value, DecodeValue(record));
    if (!IsLong(value)) continue;
    CAIRN_TRY_ASSIGN(const ChunkedValue chunked, WithoutBytes(value));
    CAIRN_TRY_ASSIGN(record, EncodeValue(chunked));
    values.emplace_back(fqn, std::move(value));
  }
  if (values.empty()) return {};
  CAIRN_TRY_ASSIGN(const SavePlan plan, PlanLongValues(values, options));
  SaveOptions quiet = options;
  quiet.progress = {};
  CAIRN_TRY(Write(plan, quiet, pool));
  merged.logical_bytes += plan.logical_bytes;
  return writer_->Drain();
}

Result<kv::StepInfo> SaveSession::CommitUnchanged() {
  CAIRN_CHECK(base_ && self_.world_size == 1);
  CAIRN_TRY_ASSIGN(kv::StepInfo info, writer_->CommitSame(base_->step));
  report_.chunks = info.chunk_count;
  report_.chunks_reused = info.reused_chunk_count;
  report_.logical_bytes = info.logical_bytes;
  return info;
}

std::optional<uint64_t> SaveSession::base_step() const {
  return base_ ? std::optional(base_->step.step) : std::nullopt;
}

bool SaveSession::IsBase(const kv::StepInfo& step) const {
  return base_ && base_->step.HasRecordsOf(step);
}

SaveReport SaveSession::report() const {
  SaveReport report = report_;
  report.written_bytes = writer_->written_bytes();
  if (device_ != nullptr) report.device_bytes = device_->copied_bytes();
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start_;
  report.seconds = elapsed.count();
  return report;
}

namespace {

// Commits a state of which every chunk is as in `saved`.
Result<SaveReport> SaveUnchanged(const SavePlan& plan, SaveSession& session, SavedChunks& saved) {
  CAIRN_TRY_ASSIGN(saved.step, session.CommitUnchanged());
  for (SavedChunks::Chunk& chunk : saved.chunks) chunk.reused = true;
  saved.layout = plan.layout;  // has the same records, and is shared with the next plan
  return session.report();
}

// Without a grace period, a compaction may remove what a save reads of its base. The save can be
// repeated, as if the base had been replaced. Other errors kNotFound have other reasons.
Error OfLostBase(Error error, const SaveContext& context, const SaveSession& session) {
  if (error.code != ErrorCode::kNotFound || !session.base_step()) return error;
  const auto latest = context.store.Latest();
  if (!latest) return error;
  const auto base = (*latest)->FindStep(session.base_step());
  return base && session.IsBase(*base) ? error : kv::BaseReplacedError(context.attempt.step);
}

}  // namespace

Result<SaveReport> RunSave(SavePlan& plan, const SaveContext& context) {
  const SaveOptions& options = context.options;
  SavedChunks* const saved = context.saved;
  DeviceSave* const device = context.device;
  CAIRN_CHECK(device != nullptr || !DeviceSave::IsNeeded(plan));
  CAIRN_TRY_ASSIGN(SaveSession session, SaveSession::Begin(context.store, context.attempt,
                                                           context.self, options, context.rates));
  if (session.base() != nullptr) {
    UnmarkRenamed(plan, *session.base(), context.attempt.step, context.trees);
  }
  if (device != nullptr) CAIRN_TRY(session.UseDevice(*device));
  if (device != nullptr && !device->is_digested()) {
    const bool comparable = saved != nullptr && saved->chunk_bytes == options.chunk_bytes &&
                            session.IsBase(saved->step);
    CAIRN_TRY(device->Digest(plan, comparable ? saved : nullptr));
  }
  if (device != nullptr && device->compared() && !session.IsBase(*device->compared())) {
    return Fail(kv::BaseReplacedError(context.attempt.step));
  }
  StateComparison comparison;
  const bool has_statistics = saved != nullptr && saved->has_statistics;
  const bool has_records = !options.records.empty() || (saved != nullptr && saved->has_records);
  if (context.has_same_records && (has_statistics || !options.statistics) && !has_records &&
      session.IsBase(saved->step)) {
    CAIRN_TRY_ASSIGN(comparison, CompareState(plan, *saved, context.pool, options.progress));
    if (comparison.is_unchanged) return SaveUnchanged(plan, session, *saved);
  }
  SavedChunks recorded;
  auto written = session.Write(plan, options, context.pool, saved == nullptr ? nullptr : &recorded,
                               comparison.compared_bytes);
  if (!written) return Fail(OfLostBase(std::move(written).error(), context, session));
  if (device == nullptr) plan.pages = {};  // the plan may be used again, with other bytes
  if (device != nullptr) CAIRN_TRY(device->MarkStaged());
  auto info = Finish(plan, context, session);
  // The error of another rank is returned unchanged.
  if (!info && context.self.world_size > 1) return Fail(std::move(info).error());
  if (!info) return Fail(OfLostBase(std::move(info).error(), context, session));
  if (saved != nullptr) {
    recorded.step = *info;
    recorded.chunk_bytes = options.chunk_bytes;
    recorded.has_statistics = options.statistics;
    recorded.has_records = !options.records.empty();
    if (device != nullptr) recorded.page_digests = device->TakePageDigests();
    *saved = std::move(recorded);
  }
  return session.report();
}

}  // namespace cairn::core::internal
