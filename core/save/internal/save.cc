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
#include "core/save/internal/device_save.h"
#include "core/save/internal/page_ranges.h"
#include "core/save/internal/rank_merge.h"
#include "core/step/contents.h"
#include "core/step/internal/records.h"
#include "core/step/internal/stored_page_digests.h"
#include "core/tensor/strided_copy.h"
#include "kv/key.h"
#include "kv/step_info.h"

namespace cairn::core::internal {
namespace {

constexpr uint64_t kWindowBytes = 64 << 20;  // source bytes digested in one go
constexpr size_t kWindowChunks = 2048;
// Where a chunk changed all over, those behind it in the tensor mostly did, too: only each so many
// is held against the base's page digests then, so that a state of which everything changes, as an
// optimizer's does, costs next to no reads.
constexpr uint32_t kProbeEach = 16;

// One chunk that is written.
struct WorkItem {
  size_t piece = 0;   // in the plan
  size_t tensor = 0;  // in the plan
  const TensorView* source = nullptr;
  std::string key;
  Shape sizes;
  uint64_t begin_bytes = 0;  // in the row-major payload from source->data on
  uint64_t length_bytes = 0;
  kv::StepWriter::Placement placement = kv::StepWriter::Placement::kFollow;
  std::optional<ChunkInfo> base;
  std::vector<uint64_t> page_digests;  // of candidates
  kv::Digest digest;
  bool bytes_at_hand = true;  // false: the digest is known and must be the base's
  /// Of tensors in device memory: pages that are known to differ from the base's; null: not known.
  const std::vector<bool>* changed_pages = nullptr;
  std::optional<PageRanges> runs;  // pages to write, if not all

  bool is_candidate() const { return base && bytes_at_hand; }
  bool is_unchanged() const { return base && base->digest == digest; }

  bool on_device() const { return source->device != kHostDevice; }
  bool is_digested() const { return !page_digests.empty() || !bytes_at_hand; }

  /// The payload, if it lies in one piece of host memory; else nothing.
  std::span<const std::byte> memory() const {
    if (on_device() || !IsContiguous(source->shape, source->strides)) return {};
    return {source->data + begin_bytes, length_bytes};
  }
};

std::span<const std::byte> PageOf(const WorkItem& item, uint64_t page,
                                  std::span<std::byte> scratch) {
  const uint64_t begin = page * kv::kPageBytes;
  const uint64_t count = std::min(kv::kPageBytes, item.length_bytes - begin);
  if (const auto memory = item.memory(); !memory.empty()) return memory.subspan(begin, count);
  GatherBytes(*item.source, item.begin_bytes + begin, scratch.first(count));
  return scratch.first(count);
}

// Produces the plan's chunks in key order.
class ItemSource {
 public:
  explicit ItemSource(const SavePlan& plan) : plan_(plan) { NextTensor(); }

  bool done() const { return at_ == chunks_.size(); }

  /// The next item; the same until Advance. Requires !done().
  WorkItem& Peek() {
    if (!current_) current_ = Make();
    return *current_;
  }
  WorkItem Take() {
    WorkItem item = std::move(Peek());
    current_.reset();
    if (++at_ == chunks_.size()) NextTensor();
    return item;
  }

 private:
  struct Chunk {
    size_t piece = 0;
    uint64_t index = 0;
  };

  // Lists the chunks of the next tensor that has some: those of several pieces may lie between each
  // other.
  void NextTensor() {
    at_ = 0;
    chunks_.clear();
    if (piece_ == plan_.pieces.size()) return;
    const size_t first = piece_;
    const size_t tensor = plan_.pieces[first].tensor;
    for (; piece_ < plan_.pieces.size() && plan_.pieces[piece_].tensor == tensor; ++piece_) {
      const PlannedShard& piece = plan_.pieces[piece_];
      for (uint64_t i = piece.first_chunk; i < piece.end_chunk; ++i) chunks_.push_back({piece_, i});
    }
    if (piece_ - first == 1) return;
    const auto offsets = [this](const Chunk& chunk) {
      return plan_.pieces[chunk.piece].grid.chunk(chunk.index).offsets;
    };
    std::ranges::sort(chunks_, {}, offsets);
  }

  WorkItem Make() const {
    const auto [piece_index, chunk] = chunks_[at_];
    const PlannedShard& piece = plan_.pieces[piece_index];
    const TensorInfo& tensor = plan_.tensors[piece.tensor];
    Box box = piece.grid.chunk(chunk);
    WorkItem item{.piece = piece_index,
                  .tensor = piece.tensor,
                  .source = &piece.source,
                  .key = kv::ChunkKey(tensor.fqn, box.offsets),
                  .sizes = std::move(box.sizes),
                  .begin_bytes = piece.grid.offset_bytes(chunk) - piece.skipped_bytes,
                  .length_bytes = piece.grid.length_bytes(chunk)};
    if (const uint64_t i = chunk - piece.first_chunk;
        !piece.unchanged.empty() && piece.unchanged[i]) {
      item.digest = *piece.unchanged[i];
      item.bytes_at_hand = false;
    } else if (!piece.pages.empty()) {
      item.page_digests = piece.pages[i].page_digests;
      item.digest = kv::RootDigest(item.page_digests, item.length_bytes);
      if (!piece.pages[i].changed.empty()) item.changed_pages = &piece.pages[i].changed;
    }
    if (chunk == piece.first_chunk) {
      item.placement = piece.end_bytes() - piece.begin_bytes() >= kLargePieceBytes
                           ? kv::StepWriter::Placement::kAlign4096
                           : kv::StepWriter::Placement::kAlign64;
    }
    return item;
  }

  const SavePlan& plan_;
  size_t piece_ = 0;           // the next that is not yet in chunks_
  std::vector<Chunk> chunks_;  // of one tensor
  size_t at_ = 0;              // in chunks_
  std::optional<WorkItem> current_;
};

// Writes items in windows: digests the candidates together, then reuses or appends. Each tensor's
// record goes before its chunks, so that the footer of their segment can hold both.
class ItemWriter {
 public:
  ItemWriter(const SavePlan& plan, kv::StepWriter& writer, WorkerPool& pool,
             ProgressMeter& progress, uint64_t step, const kv::Snapshot* base, SavedChunks* saved,
             DeviceSave* device)
      : plan_(plan),
        writer_(writer),
        pool_(pool),
        progress_(progress),
        step_(step),
        base_(base),
        saved_(saved),
        device_(device),
        scratch_(pool.thread_count(), std::vector<std::byte>(kv::kPageBytes)) {}

  ~ItemWriter() { pool_.Finish(); }  // after an error digests may still be made

  Result<void> Add(WorkItem item) {
    filling_.bytes += item.length_bytes;
    filling_.items.push_back(std::move(item));
    if (filling_.bytes < kWindowBytes && filling_.items.size() < kWindowChunks) return {};
    return FlushWindow();
  }

  /// Writes what is left: the last windows, and records of tensors without chunks.
  Result<void> Finish() {
    CAIRN_TRY(FlushWindow());
    CAIRN_TRY(FlushWindow());
    return AddTensorRecords(plan_.tensors.size());
  }

  uint64_t chunks() const { return chunks_; }
  uint64_t chunks_reused() const { return chunks_reused_; }

 private:
  struct Window {
    std::vector<WorkItem> items;
    uint64_t bytes = 0;
  };

  // The filled window's candidates begin to be digested while the one before it is written.
  Result<void> FlushWindow() {
    pool_.Finish();
    Window ready = std::exchange(digested_, std::exchange(filling_, {}));
    candidates_.clear();
    for (WorkItem& item : digested_.items) {
      if (item.is_candidate() && !item.is_digested()) candidates_.push_back(&item);
    }
    pool_.Start(candidates_.size(),
                [this](size_t i, size_t worker) { DigestItem(*candidates_[i], scratch_[worker]); });
    PlanRuns(ready);
    for (const WorkItem& item : ready.items) {
      CAIRN_TRY(AddTensorRecords(item.tensor + 1));
      CAIRN_TRY(Write(item));
    }
    return {};
  }

  static void DigestItem(WorkItem& item, std::span<std::byte> scratch) {
    const uint64_t pages = kv::PageCount(item.length_bytes);
    item.page_digests.reserve(pages);
    for (uint64_t page = 0; page < pages; ++page) {
      item.page_digests.push_back(kv::PageDigest(PageOf(item, page, scratch)));
    }
    item.digest = kv::RootDigest(item.page_digests, item.length_bytes);
  }

  // Finds out which pages of the changed chunks are to be written.
  void PlanRuns(Window& window) {
    std::vector<WorkItem*> probed;
    std::vector<const ChunkInfo*> bases;
    for (WorkItem& item : window.items) {
      if (!item.is_candidate() || item.is_unchanged()) continue;
      if (item.changed_pages != nullptr) {
        item.runs = PlanPageRanges(*item.changed_pages, item.base->extents);
        continue;
      }
      if (!IsWorthProbing(item)) continue;
      probed.push_back(&item);
      bases.push_back(&*item.base);
    }
    if (probed.empty()) return;
    const auto page_digests = ReadStoredPageDigests(*base_, bases);
    for (size_t i = 0; i < probed.size(); ++i) {
      WorkItem& item = *probed[i];
      if (!page_digests[i].empty()) {
        item.runs = PlanPageRanges(ChangedPages(item.page_digests, page_digests[i]), item.base->extents);
      }
      changed_all_over_ = item.runs ? std::nullopt : std::optional(item.tensor);
    }
  }

  // Chunks of one page have nothing to keep.
  bool IsWorthProbing(const WorkItem& item) {
    if (item.page_digests.size() < 2) return false;
    if (changed_all_over_ != item.tensor) {
      unprobed_ = 0;
      return true;
    }
    unprobed_ = (unprobed_ + 1) % kProbeEach;
    return unprobed_ == 0;
  }

  Result<void> AddTensorRecords(size_t end) {
    for (; next_tensor_ < end; ++next_tensor_) {
      const TensorInfo& info = plan_.tensors[next_tensor_];
      CAIRN_TRY(writer_.AddRecord(kv::Column::kTensors, kv::FqnKey(info.fqn), EncodeTensor(info)));
    }
    return {};
  }

  Result<void> Write(const WorkItem& item) {
    ++chunks_;
    if (item.is_unchanged()) {
      ++chunks_reused_;
      CAIRN_TRY(writer_.AddChunk(item.key, item.sizes, item.base->extents, item.base->digest,
                                 item.base->since_step, /*reused=*/true));
      Record(item, item.digest, /*reused=*/true);
      return progress_.Add(item.length_bytes);
    }
    if (!item.bytes_at_hand) {
      return Fail(Error{.code = ErrorCode::kConflict,
                        .message = "the base step was deleted or replaced while this save, which "
                                   "refers to it, was waiting; save again",
                        .key = plan_.tensors[item.tensor].fqn,
                        .step = step_});
    }
    CAIRN_TRY_ASSIGN(const Stored stored, Append(item));
    CAIRN_TRY(writer_.AddChunk(item.key, item.sizes, stored.extents, stored.digest, step_,
                               /*reused=*/false));
    Record(item, stored.digest, /*reused=*/false);
    return progress_.Add(item.length_bytes);
  }

  struct Stored {
    kv::Extents extents;
    kv::Digest digest;
  };

  Result<Stored> Append(const WorkItem& item) {
    if (item.on_device()) return AppendFromDevice(item);
    const auto pages = [&](uint64_t page, std::span<std::byte> scratch) {
      return PageOf(item, page, scratch);
    };
    if (item.runs) {
      CAIRN_TRY_ASSIGN(const std::vector<kv::Extent> appended,
                       writer_.AppendRuns(item.length_bytes, item.runs->written, pages, item.page_digests,
                                          item.memory()));
      return Stored{.extents = item.runs->Join(appended), .digest = item.digest};
    }
    CAIRN_TRY_ASSIGN(
        const kv::StepWriter::Appended appended,
        writer_.Append(item.length_bytes, item.placement, pages, item.page_digests, item.memory()));
    return Stored{.extents = appended.extent, .digest = appended.digest};
  }

  Result<Stored> AppendFromDevice(const WorkItem& item) {
    const kv::StepWriter::Fill fill{
        .start =
            [&](uint64_t begin_bytes, std::span<std::byte> target) {
              return device_->Start(*item.source, item.begin_bytes + begin_bytes, target);
            },
        .write =
            [&](uint64_t begin_bytes, uint64_t length_bytes, int fd, uint64_t offset_bytes) {
              return device_->StartWrite(*item.source, item.begin_bytes + begin_bytes, length_bytes,
                                         fd, offset_bytes);
            }};
    if (item.runs) {
      CAIRN_TRY_ASSIGN(
          const std::vector<kv::Extent> appended,
          writer_.AppendRunsFilled(item.length_bytes, item.runs->written, item.page_digests, fill));
      return Stored{.extents = item.runs->Join(appended), .digest = item.digest};
    }
    CAIRN_TRY_ASSIGN(const kv::StepWriter::Appended appended,
                     writer_.AppendFilled(item.length_bytes, item.placement, item.page_digests, fill));
    return Stored{.extents = appended.extent, .digest = appended.digest};
  }

  void Record(const WorkItem& item, const kv::Digest& digest, bool reused) {
    if (saved_ != nullptr) saved_->pieces[item.piece].chunks.push_back({digest, reused});
  }

  const SavePlan& plan_;
  kv::StepWriter& writer_;
  WorkerPool& pool_;
  ProgressMeter& progress_;
  uint64_t step_;
  const kv::Snapshot* base_;                     // null: no item has a base
  SavedChunks* saved_;                           // may be null
  DeviceSave* device_;                           // null: all in host memory
  size_t next_tensor_ = 0;                       // whose record is not yet added
  std::vector<std::vector<std::byte>> scratch_;  // one page a worker
  Window filling_;
  Window digested_;                         // or being digested
  std::vector<WorkItem*> candidates_;       // of digested_
  std::optional<size_t> changed_all_over_;  // the tensor of the last chunk that was probed, if so
  uint32_t unprobed_ = 0;                   // chunks of it since one was
  uint64_t chunks_ = 0;
  uint64_t chunks_reused_ = 0;
};

// A base record that cannot be read costs the saving of one chunk, never the save: the bytes to be
// stored are at hand. Key and sizes equal and the bytes too, it is the same chunk, whatever dtype
// the base gave these bytes.
void SetBase(std::span<const std::byte> record, WorkItem& item) {
  auto decoded = DecodeChunk(item.key, record);
  if (decoded && decoded->info.box.sizes == item.sizes &&
      decoded->info.length_bytes() == item.length_bytes) {
    item.base = std::move(decoded->info);
  }
}

// Feeds all items to the writer, those with a base chunk of the same key together with it.
Result<void> MergeWithBase(const kv::Snapshot& base, const kv::StepInfo& base_step,
                           uint64_t own_chunks, ItemSource& items, ItemWriter& writer) {
  // A lookup costs as much as some ten records of a scan.
  constexpr uint64_t kLookupCost = 16;
  if (base_step.chunk_count > own_chunks * kLookupCost) {
    while (!items.done()) {
      WorkItem item = items.Take();
      CAIRN_TRY_ASSIGN(const auto record,
                       base.Get(kv::Column::kChunks, base_step.generation, item.key));
      if (record) SetBase(*record, item);
      CAIRN_TRY(writer.Add(std::move(item)));
    }
    return {};
  }
  return base.Scan(kv::Column::kChunks, base_step.generation, "",
                   [&](std::string_view key, std::span<const std::byte> record) -> Result<bool> {
                     while (!items.done() && items.Peek().key < key)
                       CAIRN_TRY(writer.Add(items.Take()));
                     if (items.done()) return false;
                     if (items.Peek().key != key) return true;
                     WorkItem item = items.Take();
                     SetBase(record, item);
                     CAIRN_TRY(writer.Add(std::move(item)));
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
  const kv::StepWriter::SharedRecord structure[] = {
      {.column = kv::Column::kStructures, .key = "", .value = plan.structure}};
  CAIRN_TRY(writer.AddShared(structure));
  std::vector<kv::StepWriter::SharedRecord> tensors;
  tensors.reserve(plan.tensors.size());
  for (TensorInfo tensor : plan.tensors) {
    tensor.chunk_count = 0;
    tensors.push_back({.column = kv::Column::kTensors,
                       .key = kv::FqnKey(tensor.fqn),
                       .value = EncodeTensor(tensor)});
  }
  if (!tensors.empty()) CAIRN_TRY(writer.AddShared(tensors));
  std::vector<kv::StepWriter::SharedRecord> values;
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
  return writer_->UseFiller(device, device.blocks());
}

Result<void> SaveSession::Write(const SavePlan& plan, const SaveOptions& options, WorkerPool& pool,
                            SavedChunks* saved) {
  uint64_t own_chunks = 0;
  for (const PlannedShard& piece : plan.pieces) own_chunks += piece.chunk_count();
  if (place_.world_size > 1) CAIRN_TRY(AddShared(plan, *writer_));
  ProgressMeter progress(options.progress, plan.own_bytes);
  ItemSource items(plan);
  if (saved != nullptr) saved->pieces = PiecesToRemember(plan);
  ItemWriter item_writer(plan, *writer_, pool, progress, step_,
                         base_ ? base_->snapshot.get() : nullptr, saved, device_);
  if (base_) {
    CAIRN_TRY(MergeWithBase(*base_->snapshot, base_->step, own_chunks, items, item_writer));
  }
  while (!items.done()) CAIRN_TRY(item_writer.Add(items.Take()));
  CAIRN_TRY(item_writer.Finish());
  report_.logical_bytes += plan.own_bytes;
  report_.chunks += item_writer.chunks();
  report_.chunks_reused += item_writer.chunks_reused();
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
    return Fail(Error{.code = ErrorCode::kConflict,
                      .message = "the base step was deleted or replaced while this save, which was "
                                 "compared with it, was waiting; save again",
                      .step = attempt.step});
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
