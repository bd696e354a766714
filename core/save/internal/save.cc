// A save, step by step:
//
// 1. The plan lists what is written: owners, aliases, this rank's chunks, values, structure. If it
//    equals the plan of the last save, and all bytes are unchanged (CompareState), the step is
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

#include <algorithm>
#include <atomic>
#include <utility>

#include "core/base/internal/groups.h"
#include "core/base/internal/progress_meter.h"
#include "core/save/internal/chunk_writer.h"
#include "core/save/internal/device_save.h"
#include "core/save/internal/rank_merge.h"
#include "core/save/internal/save_planner.h"
#include "core/save/internal/tensor_payload.h"
#include "core/step/contents.h"
#include "core/step/internal/tensor_records.h"
#include "kv/base/digest.h"
#include "kv/base/key.h"

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

// Whether the bytes of a complete state equal the bytes that the last save wrote.
struct StateComparison {
  bool is_unchanged = false;
  uint64_t compared_bytes = 0;  // reported as progress
};

/// The comparison of CompareState. Threads: one, which works on the pool.
class Comparison {
 public:
  Comparison(SavePlan& plan, const SavedChunks& saved, kv::WorkerPool& pool)
      : plan_(plan),
        saved_(saved),
        pool_(pool),
        scratch_(pool.thread_count(), std::vector<std::byte>(kv::kPageBytes)) {
    CAIRN_CHECK(saved.chunks.size() == plan.layout->chunks.size());
    CAIRN_CHECK(plan.unchanged.empty() && plan.pages.empty());
    chunks_.reserve(std::min(kRoundChunks, saved.chunks.size()));
  }

  Result<StateComparison> Run(const Progress& progress) {
    ProgressMeter meter(progress, plan_.own_bytes);
    StateComparison comparison;
    while (const uint64_t bytes = ListRound()) {
      page_digests_.resize(page_count_);
      const auto groups = GroupByBytes(
          std::span(chunks_), [](const Chunk& chunk) { return chunk.payload.length_bytes(); });
      pool_.Run(groups.size(), [&](size_t i, size_t worker) {
        for (Chunk& chunk : groups[i]) {
          if (!has_change_.load(std::memory_order_relaxed)) Compare(chunk, worker);
        }
      });
      for (const Chunk& chunk : chunks_) {
        if (chunk.is_digested && IsKept(chunk)) kept_.emplace_back(chunk.index, chunk.first_page);
      }
      if (has_change_) break;
      comparison.compared_bytes += bytes;
      CAIRN_TRY(meter.Add(bytes));
    }
    comparison.is_unchanged = !has_change_;
    if (has_change_) KeepPageDigests();
    return comparison;
  }

 private:
  // Threads wait for each other, and progress is reported, after this many bytes or chunks.
  static constexpr uint64_t kRoundBytes = 256 << 20;
  static constexpr size_t kRoundChunks = 32 << 10;
  // The digests of smaller chunks are computed again if there is a change, which costs less than to
  // remember them.
  static constexpr uint64_t kMinKeptBytes = kv::kPageBytes / 16;

  // Contains all that Compare needs: while all threads read tensors, a cache miss in the plan takes
  // as long as digesting several KiB.
  struct Chunk {
    size_t index = 0;  // into PlanLayout::chunks
    HostPayload payload;
    size_t first_page = 0;  // in page_digests_, if it is kept
    const SavedChunks::Chunk* saved = nullptr;
    bool is_digested = false;
  };
  static bool IsKept(const Chunk& chunk) { return chunk.payload.length_bytes() >= kMinKeptBytes; }

  // Lists the chunks of the next round. Returns their bytes, with those that are not compared.
  uint64_t ListRound() {
    uint64_t bytes = 0;
    chunks_.clear();
    for (; next_shard_ < plan_.shards().size(); ++next_shard_) {
      const PlannedShard& shard = plan_.shards()[next_shard_];
      CAIRN_CHECK(!shard.on_device());
      const TensorRef source = plan_.SourceOf(next_shard_);
      for (; next_chunk_ < shard.end_chunk; ++next_chunk_) {
        if (bytes >= kRoundBytes || chunks_.size() == kRoundChunks) return bytes;
        const ShardChunk& chunk = plan_.layout->chunks[next_chunk_];
        bytes += chunk.length_bytes;
        if (plan_.IsTakenFromBase(next_shard_, next_chunk_)) continue;
        chunks_.push_back({.index = next_chunk_,
                           .payload = {source, chunk.begin_bytes, chunk.length_bytes},
                           .first_page = page_count_,
                           .saved = &saved_.chunks[next_chunk_]});
        if (IsKept(chunks_.back())) page_count_ += kv::PageCount(chunk.length_bytes);
      }
    }
    return bytes;
  }

  void Compare(Chunk& chunk, size_t worker) {
    const uint64_t length_bytes = chunk.payload.length_bytes();
    uint64_t only_page = 0;
    const auto kept = std::span(page_digests_).subspan(chunk.first_page);
    const auto pages =
        IsKept(chunk) ? kept.first(kv::PageCount(length_bytes)) : std::span(&only_page, 1);
    chunk.payload.DigestPages(scratch_[worker], pages);
    chunk.is_digested = true;
    if (kv::RootDigest(pages, length_bytes) != chunk.saved->digest) has_change_ = true;
  }

  void KeepPageDigests() {
    if (!kept_.empty()) plan_.pages.resize(kept_.back().first + 1);
    for (const auto& [index, first_page] : kept_) {
      const auto begin = page_digests_.begin() + static_cast<ptrdiff_t>(first_page);
      const uint64_t pages = kv::PageCount(plan_.layout->chunks[index].length_bytes);
      plan_.pages[index].page_digests.assign(begin, begin + static_cast<ptrdiff_t>(pages));
    }
  }

  SavePlan& plan_;
  const SavedChunks& saved_;
  kv::WorkerPool& pool_;
  std::vector<std::vector<std::byte>> scratch_;  // one page per worker
  size_t next_shard_ = 0;
  size_t next_chunk_ = 0;      // of all shards
  std::vector<Chunk> chunks_;  // of the current round
  size_t page_count_ = 0;
  std::vector<uint64_t> page_digests_;
  std::vector<std::pair<size_t, size_t>> kept_;  // index and first page, ascending
  std::atomic<bool> has_change_ = false;
};

/// Digests the chunks of the plan, except chunks that are taken from the base, in order, on all
/// threads of the pool, until one has another digest than in `saved`. The page digests of the
/// chunks up to there, except small ones, are then in SavePlan::pages, so that the save does not
/// compute them again. Requires tensors in host memory, and that `saved` has the shards and chunks
/// of the plan. Memory: 4 MiB, and 24 bytes per 64 KiB page. kCancelled: as asked by `progress`.
Result<StateComparison> CompareState(SavePlan& plan, const SavedChunks& saved, kv::WorkerPool& pool,
                                     const Progress& progress) {
  return Comparison(plan, saved, pool).Run(progress);
}

// Commits a state of which every chunk is as in `saved`.
Result<SaveReport> SaveUnchanged(const SavePlan& plan, SaveSession& session, SavedChunks& saved) {
  CAIRN_TRY_ASSIGN(saved.step, session.CommitUnchanged());
  for (SavedChunks::Chunk& chunk : saved.chunks) chunk.reused = true;
  saved.layout = plan.layout;  // has the same records, and is shared with the next plan
  return session.report();
}

// Explains an error of a read of the base. Without a grace period, a compaction may remove what is
// read, and the save can be repeated, as if the base had been replaced; other errors kNotFound have
// other reasons.
Error OfLostBase(Error error, const SaveContext& context, const SaveSession& session) {
  if (error.code == ErrorCode::kDataLoss && session.base_step()) {
    error.message += "; a save that is not incremental does not read this step";
  }
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
