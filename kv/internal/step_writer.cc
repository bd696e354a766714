// Writing one step: segments, manifest, commit.

#include "kv/internal/step_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "kv/block_filler.h"
#include "kv/internal/commit/attempt_files.h"
#include "kv/internal/commit/commit.h"
#include "kv/internal/io/fault_point.h"
#include "kv/step_info.h"
#include "kv/step_writer.h"

namespace cairn::kv {

using internal::ChunkEntry;
using internal::FaultPoint;
using internal::FooterEntry;
using internal::StepEntry;

namespace {

int64_t UnixNow() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace

StepWriter::StepWriter(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
StepWriter::~StepWriter() = default;

Result<StepWriter::Appended> StepWriter::Append(uint64_t length_bytes, Placement placement,
                                                const PageSource& pages,
                                                std::span<const uint64_t> page_digests,
                                                std::span<const std::byte> memory) {
  return impl_->Append(length_bytes, placement, pages, page_digests, memory);
}
Result<StepWriter::Appended> StepWriter::AppendFilled(uint64_t length_bytes, Placement placement,
                                                      std::span<const uint64_t> page_digests,
                                                      const Fill& fill) {
  return impl_->AppendFilled(length_bytes, placement, page_digests, fill);
}
Result<void> StepWriter::UseFiller(BlockFiller& filler, std::shared_ptr<BlockPool> blocks) {
  return impl_->UseFiller(filler, std::move(blocks));
}
Result<void> StepWriter::Drain() { return impl_->Drain(); }
Result<void> StepWriter::AddRecord(Column column, std::string_view key,
                                   std::span<const std::byte> record) {
  return impl_->AddRecord(column, key, record);
}
Result<std::vector<Extent>> StepWriter::AppendRuns(uint64_t length_bytes,
                                                   std::span<const PageRange> runs,
                                                   const PageSource& pages,
                                                   std::span<const uint64_t> page_digests,
                                                   std::span<const std::byte> memory) {
  return impl_->AppendRuns(length_bytes, runs, pages, page_digests, memory);
}
Result<std::vector<Extent>> StepWriter::AppendRunsFilled(uint64_t length_bytes,
                                                         std::span<const PageRange> runs,
                                                         std::span<const uint64_t> page_digests,
                                                         const Fill& fill) {
  return impl_->AppendRunsFilled(length_bytes, runs, page_digests, fill);
}
Result<void> StepWriter::AddChunk(std::string_view key, std::span<const uint64_t> sizes,
                                  const Extents& extents, const Digest& digest, uint64_t since_step,
                                  bool reused) {
  return impl_->AddChunk(key, sizes, extents, digest, since_step, reused);
}
Result<void> StepWriter::SetStructure(std::span<const std::byte> record) {
  return impl_->SetStructure(record);
}
Result<void> StepWriter::AddShared(std::span<const SharedRecord> records) {
  return impl_->AddShared(records);
}
Result<void> StepWriter::Gather(const RankRecordCallback& on_record) {
  return impl_->Gather(on_record);
}
Result<void> StepWriter::Prepare(const Summary& summary) { return impl_->Prepare(summary); }
Result<StepInfo> StepWriter::AwaitDecision() { return impl_->AwaitDecision(); }
Result<StepInfo> StepWriter::Commit(const Summary& summary) { return impl_->Commit(summary); }
uint64_t StepWriter::written_bytes() const { return impl_->written_bytes(); }

StepWriter::Impl::Impl(std::shared_ptr<internal::StoreState> state, uint64_t step,
                       const BeginOptions& options, std::string attempt)
    : state_(std::move(state)),
      step_(step),
      options_(options),
      attempt_(std::move(attempt)),
      created_unix_ns_(UnixNow()) {}

StepWriter::Impl::~Impl() {
  segment_.reset();  // waits for its writes and unlinks it
  for (Closing& closing : closing_) {
    const Result<SegmentInfo> info = closing.sealed.get();
    if (info) sealed_.push_back(*info);
    closing.segment.reset();
  }
  if (!finished_ && !state_->outcome_unknown) RemoveOwnFiles();
  if (has_ranks() && options_.rank == 0) RetireAttempts();
  state_->step_writer_alive = false;
}

void StepWriter::Impl::RemoveOwnFiles() {
  // What cannot be removed now is swept at the next open for writing.
  for (const SegmentInfo& segment : sealed_) {
    (void)internal::RemoveFile(state_->paths.segments() + "/" + segment.name);
  }
  manifest_.reset();
  if (has_ranks()) {  // the others' files are theirs, and rank 0's word stays for them to read
    (void)internal::RemoveFile(ManifestPath());
    (void)internal::RemoveFile(state_->paths.pending_manifest(attempt_, options_.rank));
  } else {
    (void)internal::RemoveTree(state_->paths.attempt(attempt_));
  }
}

Result<void> StepWriter::Impl::Start() {
  CAIRN_TRY(internal::MakeDirectory(state_->paths.attempt(attempt_)));
  const internal::ManifestHeader header{.store_uuid = state_->uuid,
                                        .step = step_,
                                        .rank = options_.rank,
                                        // That of rank 0 takes up all others.
                                        .world_size = state_->joined ? options_.world_size : 1,
                                        .created_unix_ns = created_unix_ns_,
                                        .attempt = attempt_};
  CAIRN_TRY_ASSIGN(manifest_, internal::ManifestWriter::Create(ManifestPath(), header));
  return {};
}

std::string StepWriter::Impl::ManifestPath() const {
  const std::string path = state_->paths.pending_manifest(attempt_, options_.rank);
  return state_->joined ? path + ".part" : path;
}

Result<void> StepWriter::Impl::AddEntry(Column column, std::string_view key,
                                        std::span<const std::byte> value) {
  if (has_ranks() && !state_->joined) collected_.Add(column, key, value);
  return manifest_->Add(column, key, value);
}

Result<void> StepWriter::Impl::CheckUsable() const {
  if (!failed_ && !finished_) return {};
  return Fail(Error{.code = ErrorCode::kFailedPrecondition,
                    .message = "this attempt has failed or is committed; begin a new one",
                    .step = step_});
}

uint64_t StepWriter::Impl::SegmentIdOf(uint32_t rank, uint64_t n) const {
  return Checksum64(internal::AsBytes(fmt::format("{}/{}/{}", attempt_, rank, n)));
}

Result<void> StepWriter::Impl::StartSegment() {
  if (queue_ == nullptr) {
    CAIRN_TRY_ASSIGN(queue_, internal::IoQueue::Make(state_->options.io->uring,
                                                     state_->options.io->queue_depth));
  }
  segment_id_ = SegmentIdOf(options_.rank, segment_counter_++);
  const internal::SegmentHeader header{.store_uuid = state_->uuid,
                                       .segment_id = segment_id_,
                                       .step = step_,
                                       .rank = options_.rank,
                                       .created_unix_ns = created_unix_ns_};
  BlockPool* const pool = blocks_ != nullptr ? blocks_.get() : state_->pool.get();
  CAIRN_TRY_ASSIGN(segment_, internal::SegmentWriter::Create(state_->paths.segments(), header,
                                                             state_->options.io->direct, pool,
                                                             queue_.get(), filler_));
  return {};
}

// The runs in the segment at hand know only the index of their first leaf, until it is sealed.
Extents StepWriter::Impl::WithPageDigestOffsets(const Extents& extents, uint64_t page_digests_offset_bytes) const {
  std::vector<Extent> runs(extents.begin(), extents.end());
  for (Extent& run : runs) {
    if (run.segment_id != segment_id_) continue;
    run.page_digests_offset_bytes = page_digests_offset_bytes + 8 * run.page_digests_offset_bytes;
  }
  return Extents(runs);
}

Result<void> StepWriter::Impl::SealSegment() {
  CAIRN_TRY(CloseSegment());
  for (; !closing_.empty(); closing_.pop_front()) {
    CAIRN_TRY(AddSealed(closing_.front().sealed.get()));
  }
  return {};
}

Result<void> StepWriter::Impl::CloseSegment() {
  if (segment_ == nullptr) return {};
  const uint64_t page_digests_offset_bytes = segment_->page_digests_offset_bytes();
  for (PendingChunk& chunk : pending_chunks_) {
    chunk.entry.extents = WithPageDigestOffsets(chunk.entry.extents, page_digests_offset_bytes);
    std::vector<std::byte> record = internal::EncodeChunk(chunk.entry);
    CAIRN_TRY(AddEntry(Column::kChunks, chunk.key, record));
    footer_entries_.push_back(
        {.column = Column::kChunks, .key = std::move(chunk.key), .value = std::move(record)});
  }
  CAIRN_TRY(segment_->Finish(attempt_, footer_entries_));
  pending_chunks_.clear();
  footer_entries_.clear();
  last_tensor_used_ = false;  // its chunks may go on in the next segment
  if (filler_ == nullptr) {
    auto sealed = segment_->Complete();
    CAIRN_TRY(AddSealed(std::move(sealed)));
    segment_.reset();
    return {};
  }
  std::shared_future<Result<SegmentInfo>> before;
  if (!closing_.empty()) before = closing_.back().sealed;
  Closing& closing = closing_.emplace_back();
  closing.queue = std::move(queue_);
  closing.segment = std::move(segment_);
  const auto complete = [before, segment = closing.segment.get()]() -> Result<SegmentInfo> {
    if (before.valid()) before.wait();
    try {
      return segment->Complete();
    } catch (const std::bad_alloc&) {
      return Fail(ErrorCode::kResourceExhausted, "not enough memory to seal a segment");
    }
  };
  try {
    closing.sealed = std::async(std::launch::async, complete).share();
  } catch (const std::system_error&) {  // no thread to be had: this one then
    std::promise<Result<SegmentInfo>> done;
    done.set_value(complete());
    closing.sealed = done.get_future().share();
  }
  return {};
}

Result<void> StepWriter::Impl::ReapClosed() {
  while (!closing_.empty() &&
         closing_.front().sealed.wait_for(std::chrono::seconds(0)) == std::future_status::ready) {
    const Result<SegmentInfo> info = closing_.front().sealed.get();
    closing_.pop_front();
    CAIRN_TRY(AddSealed(info));
  }
  return {};
}

Result<void> StepWriter::Impl::AddSealed(Result<SegmentInfo> info) {
  CAIRN_TRY(info);
  CAIRN_TRY(
      AddEntry(Column::kSegments, NumberKey(info->segment_id), internal::EncodeSegment(*info)));
  sealed_.push_back(*std::move(info));
  return {};
}

Result<void> StepWriter::Impl::MakeRoom(uint64_t length_bytes) {
  CAIRN_TRY(ReapClosed());
  if (segment_ != nullptr && segment_->IsFull(length_bytes)) CAIRN_TRY(CloseSegment());
  return segment_ == nullptr ? StartSegment() : Result<void>();
}

Result<void> StepWriter::Impl::UseFiller(BlockFiller& filler, std::shared_ptr<BlockPool> blocks) {
  CAIRN_CHECK(filler_ == nullptr);
  CAIRN_TRY(CheckUsable());
  failed_ = true;  // until the end, as in AppendWith
  CAIRN_TRY(SealSegment());
  filler_ = &filler;
  blocks_ = std::move(blocks);
  failed_ = false;
  return {};
}

Result<void> StepWriter::Impl::Drain() {
  CAIRN_TRY(CheckUsable());
  failed_ = true;  // until the end, as in AppendWith
  for (const Closing& closing : closing_) closing.sealed.wait();
  CAIRN_TRY(ReapClosed());
  if (segment_ != nullptr) CAIRN_TRY(segment_->Drain());
  failed_ = false;
  return {};
}

Result<StepWriter::Appended> StepWriter::Impl::Append(uint64_t length_bytes, Placement placement,
                                                      const PageSource& pages,
                                                      std::span<const uint64_t> page_digests,
                                                      std::span<const std::byte> memory) {
  return AppendWith(length_bytes, [&] {
    return segment_->Append(length_bytes, placement, pages, page_digests, memory);
  });
}

Result<StepWriter::Appended> StepWriter::Impl::AppendFilled(uint64_t length_bytes,
                                                            Placement placement,
                                                            std::span<const uint64_t> page_digests,
                                                            const Fill& fill) {
  return AppendWith(length_bytes,
                    [&] { return segment_->AppendFilled(length_bytes, placement, page_digests, fill); });
}

template <typename AppendTo>
Result<StepWriter::Appended> StepWriter::Impl::AppendWith(uint64_t length_bytes,
                                                          const AppendTo& append) {
  CAIRN_TRY(CheckUsable());
  failed_ = true;  // until the end: a half-appended chunk must not be committed
  CAIRN_TRY(MakeRoom(length_bytes));
  CAIRN_TRY_ASSIGN(const auto appended, append());
  segment_->CountChunk();
  written_bytes_ += length_bytes;
  failed_ = false;
  return Appended{.extent = Extent{.segment_id = segment_id_,
                                   .offset_bytes = appended.offset_bytes,
                                   .length_bytes = length_bytes,
                                   .page_digests_offset_bytes = appended.first_page_digest},
                  .digest = appended.digest};
}

Result<std::vector<Extent>> StepWriter::Impl::AppendRuns(uint64_t length_bytes,
                                                         std::span<const PageRange> runs,
                                                         const PageSource& pages,
                                                         std::span<const uint64_t> page_digests,
                                                         std::span<const std::byte> memory) {
  CAIRN_CHECK(page_digests.size() == PageCount(length_bytes));
  return AppendRunsWith(length_bytes, runs, [&](const PageRange& run, uint64_t run_bytes) {
    const auto pages_of_run = [&](uint64_t page, std::span<std::byte> scratch) {
      return pages(run.begin_page + page, scratch);
    };
    return segment_->Append(
        run_bytes, Placement::kAlign4096, pages_of_run,
        page_digests.subspan(run.begin_page, run.end_page - run.begin_page),
        memory.empty() ? memory : memory.subspan(run.begin_page * kPageBytes, run_bytes));
  });
}

Result<std::vector<Extent>> StepWriter::Impl::AppendRunsFilled(uint64_t length_bytes,
                                                               std::span<const PageRange> runs,
                                                               std::span<const uint64_t> page_digests,
                                                               const Fill& fill) {
  CAIRN_CHECK(page_digests.size() == PageCount(length_bytes));
  return AppendRunsWith(length_bytes, runs, [&](const PageRange& run, uint64_t run_bytes) {
    const uint64_t run_begin = run.begin_page * kPageBytes;
    Fill fill_run{.start =
                      [&](uint64_t begin_bytes, std::span<std::byte> target) {
                        return fill.start(run_begin + begin_bytes, target);
                      },
                  .write = nullptr};
    if (fill.write) {
      fill_run.write = [&](uint64_t begin_bytes, uint64_t part_bytes, int fd, uint64_t offset) {
        return fill.write(run_begin + begin_bytes, part_bytes, fd, offset);
      };
    }
    return segment_->AppendFilled(run_bytes, Placement::kAlign4096,
                                  page_digests.subspan(run.begin_page, run.end_page - run.begin_page),
                                  fill_run);
  });
}

template <typename AppendRun>
Result<std::vector<Extent>> StepWriter::Impl::AppendRunsWith(uint64_t length_bytes,
                                                             std::span<const PageRange> runs,
                                                             const AppendRun& append) {
  CAIRN_TRY(CheckUsable());
  failed_ = true;  // until the end, as in AppendWith
  const auto bytes_of = [&](const PageRange& run) {
    CAIRN_CHECK(run.begin_page < run.end_page && run.end_page <= PageCount(length_bytes));
    return std::min(run.end_page * kPageBytes, length_bytes) - run.begin_page * kPageBytes;
  };
  uint64_t total_bytes = 0;
  for (const PageRange& run : runs) total_bytes += bytes_of(run);
  CAIRN_TRY(MakeRoom(total_bytes));
  std::vector<Extent> extents;
  for (const PageRange& run : runs) {
    CAIRN_TRY_ASSIGN(const auto appended, append(run, bytes_of(run)));
    extents.push_back({.segment_id = segment_id_,
                       .offset_bytes = appended.offset_bytes,
                       .length_bytes = bytes_of(run),
                       .page_digests_offset_bytes = appended.first_page_digest});
  }
  segment_->CountChunk();
  written_bytes_ += total_bytes;
  failed_ = false;
  return extents;
}

Result<void> StepWriter::Impl::AddRecord(Column column, std::string_view key,
                                         std::span<const std::byte> record) {
  CAIRN_TRY(CheckUsable());
  CAIRN_CHECK(column == Column::kTensors || column == Column::kValues);
  if (column == Column::kTensors) {
    last_tensor_ = {.column = column,
                    .key = std::string(key),
                    .value = std::vector<std::byte>(record.begin(), record.end())};
    last_tensor_used_ = false;
    if (has_ranks() && !gathered_) return {};
  }
  return AddEntry(column, key, record);
}

Result<void> StepWriter::Impl::AddChunk(std::string_view key, std::span<const uint64_t> sizes,
                                        const Extents& extents, const Digest& digest,
                                        uint64_t since_step, bool reused) {
  CAIRN_TRY(CheckUsable());
  ++chunk_count_;
  ChunkEntry entry{.sizes = std::vector<uint64_t>(sizes.begin(), sizes.end()),
                   .extents = extents,
                   .digest = digest,
                   .since_step = since_step};
  for (const Extent& run : extents) {
    if (reused || run.segment_id != segment_id_) referenced_.insert(run.segment_id);
  }
  if (reused) {
    ++reused_chunk_count_;
    return AddEntry(Column::kChunks, key, internal::EncodeChunk(entry));
  }
  // Its page digests' place is known only when the segment is sealed.
  CAIRN_CHECK(segment_ != nullptr &&
              std::ranges::find(extents, segment_id_, &Extent::segment_id) != extents.end());
  if (!last_tensor_used_ && !last_tensor_.key.empty() && key.starts_with(last_tensor_.key)) {
    footer_entries_.push_back(last_tensor_);
    last_tensor_used_ = true;
  }
  pending_chunks_.push_back({.key = std::string(key), .entry = std::move(entry)});
  return {};
}

Result<void> StepWriter::Impl::SetStructure(std::span<const std::byte> record) {
  CAIRN_TRY(CheckUsable());
  CAIRN_CHECK(!has_structure_);
  structure_ = PayloadDigest(record);
  has_structure_ = true;
  return AddEntry(Column::kStructures, "", record);
}

Result<void> StepWriter::Impl::AddReferencedSegments() {
  // So that the manifest alone can bring the step back, even if the step that wrote them is gone.
  std::shared_ptr<internal::Index> index;
  {
    const std::lock_guard lock(state_->mutex);  // a reader's index is replaced by newer ones
    index = state_->index;
  }
  for (const uint64_t segment_id : referenced_) {
    CAIRN_TRY_ASSIGN(const auto record, index->Get(Column::kSegments, NumberKey(segment_id)));
    if (!record) {
      return Fail(
          Error{.code = ErrorCode::kConflict,
                .message = fmt::format("the base step's segment {:016x} was deleted meanwhile; "
                                       "save again",
                                       segment_id),
                .step = step_});
    }
    CAIRN_TRY(AddEntry(Column::kSegments, NumberKey(segment_id), *record));
  }
  return {};
}

StepInfo StepWriter::Impl::InfoOf(const Summary& summary) const {
  return StepInfo{.step = step_,
                  .generation = 0,  // given by the commit
                  .created_unix_ns = created_unix_ns_,
                  .world_size = options_.world_size,
                  .attempt = attempt_,
                  .base_step = summary.base_step,
                  .tensor_count = summary.tensor_count,
                  .value_count = summary.value_count,
                  .chunk_count = chunk_count_,
                  .reused_chunk_count = reused_chunk_count_,
                  .logical_bytes = summary.logical_bytes,
                  .written_bytes = written_bytes_,
                  .structure = structure_};
}

Result<void> StepWriter::Impl::WriteStepRecord(const Summary& summary) {
  const StepEntry entry{.info = InfoOf(summary), .manifests = {}};
  return AddEntry(Column::kSteps, NumberKey(step_), internal::EncodeStep(entry));
}

Result<StepInfo> StepWriter::Impl::Commit(const Summary& summary) {
  CAIRN_TRY(CheckUsable());
  CAIRN_CHECK(has_structure_ && !state_->joined && gathered_ == has_ranks());
  failed_ = true;
  CAIRN_TRY(SealSegment());
  if (!sealed_.empty()) {
    CAIRN_TRY(internal::SyncDirectory(state_->paths.segments(), "segment.directory_sync"));
  }
  // From here to the index write no delete may take away what the manifest refers to.
  std::lock_guard write_lock(state_->write_mutex);
  CAIRN_TRY(internal::CheckOutcomeKnown(*state_));
  if (has_ranks() && std::chrono::steady_clock::now() > options_.deadline) {
    return Fail(Error{.code = ErrorCode::kUnavailable,
                      .message = "the deadline passed before the commit; allow more time",
                      .step = step_});
  }
  CAIRN_TRY(AddReferencedSegments());
  CAIRN_TRY(WriteStepRecord(summary));
  CAIRN_TRY_ASSIGN(manifest_ref_, manifest_->Finish());
  manifest_.reset();
  CAIRN_TRY(internal::SyncDirectory(state_->paths.attempt(attempt_), "manifest.directory_sync"));
  CAIRN_TRY(internal::SyncDirectory(state_->paths.pending(), "manifest.directory_sync"));
  CAIRN_TRY_ASSIGN(const StepEntry entry, CommitLocked());
  return entry.info;
}

Result<StepEntry> StepWriter::Impl::CommitLocked() {
  uint64_t generation = 0;
  std::vector<StepEntry> replaced;
  {
    std::lock_guard lock(state_->mutex);
    generation = state_->next_generation++;
    for (const StepEntry& entry : state_->steps) {
      if (entry.info.step == step_) replaced.push_back(entry);
    }
  }
  internal::Removal removal;
  CAIRN_TRY_ASSIGN(const StepEntry entry, IndexRecords(generation, replaced, &removal));
  finished_ = true;  // the step exists: nothing of it may be removed any more
  failed_ = false;
  {
    const std::lock_guard lock(state_->mutex);
    state_->committed_attempt = attempt_;
  }
  // A failure below leaves the step committed; the next open does what is missing.
  if (Result<void> moved = MoveManifest(entry); !moved) {
    Error error = std::move(moved).error().WithStep(step_);
    error.message = fmt::format(
        "step {} is committed and readable, but its manifest could not be put "
        "in place: {}",
        step_, error.message);
    (void)internal::RefreshSteps(*state_);
    return Fail(std::move(error));
  }
  if (has_ranks()) {
    // A rank that this does not reach finds the step in the index when its deadline passes.
    (void)internal::PublishCommitted(state_->paths, attempt_, entry.info.generation);
  }
  internal::FinishRemoval(*state_, removal);
  CAIRN_TRY(internal::RefreshSteps(*state_));
  (void)FaultPoint("commit.done");
  return entry;
}

Result<StepEntry> StepWriter::Impl::IndexRecords(uint64_t generation,
                                                 const std::vector<StepEntry>& replaced,
                                                 internal::Removal* removal) {
  if (has_ranks() && collected_.complete()) {
    return internal::IndexStep(*state_, collected_, manifest_ref_, generation, replaced, removal);
  }
  const std::vector<internal::ManifestFile> manifests = {
      {.path = state_->paths.pending_manifest(attempt_, options_.rank), .rank = options_.rank}};
  return internal::IndexStep(*state_, manifests, generation, replaced, removal);
}

Result<void> StepWriter::Impl::MoveManifest(const StepEntry& entry) {
  CAIRN_TRY(internal::Rename(state_->paths.pending_manifest(attempt_, options_.rank),
                             state_->paths.manifest(entry.info.generation, options_.rank),
                             "commit.rename"));
  CAIRN_TRY(internal::SyncDirectory(state_->paths.commits(), "commit.directory_sync"));
  return has_ranks() ? Result<void>() : internal::RemoveTree(state_->paths.attempt(attempt_));
}

}  // namespace cairn::kv
