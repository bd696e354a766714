#include "core/save/internal/chunk_writer.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/internal/groups.h"
#include "core/codec/internal/delta_encoder.h"
#include "core/save/internal/chunk_deltas.h"
#include "core/save/internal/chunk_source.h"
#include "core/save/internal/chunk_statistics.h"
#include "core/save/internal/equal_chunks.h"
#include "core/save/internal/save_planner.h"
#include "core/save/internal/tensor_payload.h"
#include "core/step/internal/compress.h"
#include "core/step/internal/stored_page_digests.h"
#include "core/step/internal/tensor_records.h"
#include "kv/base/catch_exhaustion.h"
#include "kv/base/key.h"
#include "kv/base/mutex.h"
#include "kv/base/payload.h"
#include "kv/base/step_info.h"

namespace cairn::core::internal {
namespace {

constexpr uint64_t kWindowBytes = 64 << 20;  // length of chunks that are digested together
constexpr size_t kWindowChunks = 512;
// If every page of a chunk has changed, most pages of the following chunks have changed too. Then
// only every N-th chunk of the tensor is compared with the base's page digests, so that a state in
// which everything changes, such as an optimizer's, costs few reads.
constexpr uint32_t kProbeInterval = 16;

// Computes what is not known yet: digests, and statistics if a `statistics` is given. Each page is
// read once.
void ScanChunk(PlannedChunk& chunk, std::optional<ChunkStatisticsAccumulator> statistics,
               std::span<std::byte> scratch) {
  const HostPayload payload = chunk.host_payload();
  const uint64_t pages = kv::PageCount(chunk.length_bytes);
  const bool is_digested = chunk.is_digested();
  if (!is_digested) chunk.page_digests.reserve(pages);
  for (uint64_t page = 0; page < pages; ++page) {
    const std::span<const std::byte> bytes = payload.Page(page, scratch);
    if (!is_digested) chunk.page_digests.push_back(kv::PageDigest(bytes));
    if (statistics) statistics->Add(bytes, bytes.data() + bytes.size());
  }
  if (!is_digested) chunk.digest = kv::RootDigest(chunk.page_digests, chunk.length_bytes);
  if (statistics) chunk.statistics = statistics->Finish();
}

/// Adds the record of each tensor before its chunks, so that the footer of their segment contains
/// both. Threads: one.
class ChunkWriter {
 public:
  explicit ChunkWriter(const ChunkWriterContext& context)
      : context_(context),
        scratch_(context.pool.thread_count(), std::vector<std::byte>(kv::kPageBytes)),
        compressors_(context.compress ? context.pool.thread_count() : 0) {
    if (context.options.share_equal) equal_.emplace(context.writer, context.base);
    if (context.base == nullptr) return;
    deltas_.emplace(context.plan, *context.base, context.pool, context.options.max_deltas);
  }

  /// Waits for the digests that are being computed, if the save has failed.
  ~ChunkWriter() {
    kv::CleanUp([&] { context_.pool.Finish(); });
  }
  ChunkWriter(const ChunkWriter&) = delete;
  ChunkWriter& operator=(const ChunkWriter&) = delete;

  /// Adds a chunk. Requires that chunks are added in key order. kConflict: the bytes of a chunk
  /// were not staged because the base had them, and the base has been deleted or replaced since.
  /// Other errors: see kv::StepWriter, and kCancelled.
  Result<void> Add(PlannedChunk chunk) {
    filling_.bytes += chunk.length_bytes;
    filling_.chunks.push_back(std::move(chunk));
    if (filling_.bytes < kWindowBytes && filling_.chunks.size() < kWindowChunks) return {};
    return FlushWindow();
  }
  /// Writes the remaining windows, and the records of tensors without chunks. Call once.
  Result<void> Finish() {
    CAIRN_TRY(FlushWindow());
    CAIRN_TRY(FlushWindow());
    return AddTensorRecords(context_.plan.tensors().size());
  }

  const WrittenChunks& written() const { return written_; }

 private:
  struct Window {
    std::vector<PlannedChunk> chunks;
    uint64_t bytes = 0;
  };
  /// A chunk that one of the threads compresses.
  struct Compression {
    explicit Compression(PlannedChunk* planned) : chunk(planned) {}
    PlannedChunk* chunk;
    std::atomic<bool> is_begun = false;
    std::atomic<bool> is_done = false;
  };
  /// Where the bytes of a chunk are now.
  struct Stored {
    kv::ChunkExtents extents;
    kv::Digest digest;
  };

  /// Begins to digest the candidates of the window that is being filled, and writes the window that
  /// was digested before, while its next chunks are compressed.
  Result<void> FlushWindow() {
    context_.pool.Finish();
    std::swap(ready_, digested_);
    std::swap(digested_, filling_);
    scanned_.clear();
    for (PlannedChunk& chunk : digested_.chunks) {
      const bool needs_digest = chunk.is_candidate() || IsWorthCompressing(chunk) ||
                                (equal_ && EqualChunks::IsCandidate(chunk));
      if ((needs_digest && !chunk.is_digested()) || NeedsStatistics(chunk)) {
        scanned_.push_back(&chunk);
      }
    }
    PlanChanges(ready_);
    FindCompressions();
    scan_groups_ = GroupByBytes(std::span(scanned_),
                                [](const PlannedChunk* chunk) { return chunk->length_bytes; });
    const size_t compressions = compressions_.size();
    context_.pool.Start(compressions + scan_groups_.size(), [=, this](size_t i, size_t worker) {
      if (i < compressions) return Run(compressions_[i], worker);
      for (PlannedChunk* const chunk : scan_groups_[i - compressions]) {
        std::optional<ChunkStatisticsAccumulator> statistics;
        if (NeedsStatistics(*chunk))
          statistics.emplace(context_.plan.tensors()[chunk->tensor].dtype);
        ScanChunk(*chunk, std::move(statistics), scratch_[worker]);
      }
    });
    auto compression = compressions_.begin();
    for (PlannedChunk& chunk : ready_.chunks) {
      if (compression != compressions_.end() && compression->chunk == &chunk) {
        Await(*compression++);
      }
      CAIRN_TRY(AddTensorRecords(chunk.tensor + 1));
      CAIRN_TRY(Write(chunk));
      if (chunk.is_compressed) GiveBuffer(std::move(chunk.delta));
    }
    ready_.chunks.clear();
    ready_.bytes = 0;
    return {};
  }

  /// Decides which pages of the changed chunks are written, or encodes deltas. Cost: one batch of
  /// reads of the base's page digests, and reads of the base's pages for deltas.
  void PlanChanges(Window& window) {
    std::vector<PlannedChunk*> probed;
    std::vector<const ChunkInfo*> bases;
    for (PlannedChunk& chunk : window.chunks) {
      if (!chunk.delta.empty() && deltas_) deltas_->CheckStaged(chunk);
      if (!deltas_) chunk.delta.clear();  // without a base
      if (!chunk.is_candidate() || chunk.is_unchanged() || !chunk.delta.empty()) continue;
      if (chunk.changed_pages != nullptr && chunk.base->deltas.empty()) {
        chunk.ranges = PlanPageRanges(*chunk.changed_pages, chunk.base->extents);
        continue;
      }
      if (!deltas_->IsWorthEncoding(chunk) && !IsWorthProbing(chunk)) continue;
      probed.push_back(&chunk);
      bases.push_back(&*chunk.base);
    }
    if (probed.empty()) return;
    auto stored = ReadStoredPageDigests(*context_.base->snapshot, bases);
    for (size_t i = 0; i < probed.size(); ++i) {
      PlannedChunk& chunk = *probed[i];
      if (!stored[i].empty() && chunk.base->deltas.empty()) {
        chunk.ranges =
            PlanPageRanges(ChangedPages(chunk.page_digests, stored[i]), chunk.base->extents);
      }
      tensor_changed_fully_ = chunk.ranges ? std::nullopt : std::optional(chunk.tensor);
      chunk.base_page_digests = std::move(stored[i]);
    }
    deltas_->Encode(window.chunks);
  }

  bool NeedsStatistics(const PlannedChunk& chunk) const {
    if (!context_.options.statistics || !chunk.has_bytes || chunk.is_on_device()) return false;
    if (context_.plan.tensors()[chunk.tensor].hidden)
      return false;  // its bytes are not its elements
    return !chunk.is_digested() || !chunk.is_unchanged() || !chunk.base->statistics;
  }
  bool IsWorthCompressing(const PlannedChunk& chunk) const {
    return context_.compress && chunk.has_bytes && !chunk.is_on_device() &&
           chunk.length_bytes >= kMinCompressibleBytes &&
           chunk.length_bytes <= kMaxCompressibleBytes;
  }
  /// Lists the chunks of `ready_` of which no other form was planned.
  void FindCompressions() {
    compressions_.clear();
    if (!context_.compress) return;
    for (PlannedChunk& chunk : ready_.chunks) {
      const bool is_planned = chunk.is_unchanged() || chunk.ranges || !chunk.delta.empty();
      if (!is_planned && IsWorthCompressing(chunk)) compressions_.emplace_back(&chunk);
    }
  }
  /// Compresses the chunk, unless a thread has begun to. Threads: any.
  void Run(Compression& compression, size_t worker) {
    if (compression.is_begun.exchange(true)) return;
    // However this ends, also by an exception, the thread that writes must stop waiting.
    const std::unique_ptr<Compression, void (*)(Compression*)> end(&compression, [](auto* ended) {
      ended->is_done = true;
      ended->is_done.notify_one();
    });
    CompressChunk(*compression.chunk, worker);
  }
  /// Returns once the chunk is compressed. Until then, compresses chunks that no thread has begun.
  void Await(const Compression& needed) {
    constexpr size_t kOwnWorker = 0;  // of the thread that calls WorkerPool::Finish
    size_t next = 0;
    while (!needed.is_done) {
      while (next < compressions_.size() && compressions_[next].is_begun) ++next;
      if (next < compressions_.size()) {
        Run(compressions_[next], kOwnWorker);
      } else {
        needed.is_done.wait(false);
      }
    }
  }
  void CompressChunk(PlannedChunk& chunk, size_t worker) {
    const HostPayload payload = chunk.host_payload();
    bool has_changed = false;
    const auto page_at = [&](uint64_t page) {
      const auto bytes = payload.StablePage(page, scratch_[worker]);
      has_changed |= chunk.may_change && kv::PageDigest(bytes) != chunk.page_digests[page];
      return bytes;
    };
    std::vector<std::byte> compressed = TakeBuffer();
    if (Compress(compressors_[worker],
                 schema::ElementBytes(context_.plan.tensors()[chunk.tensor].dtype),
                 chunk.length_bytes, page_at, chunk.page_digests, compressed) &&
        !has_changed) {  // otherwise, Append notices the change
      chunk.delta = std::move(compressed);
      chunk.is_compressed = true;
    } else {
      GiveBuffer(std::move(compressed));
    }
  }
  /// Memory that compressed chunks use one after another, because new memory costs more time than
  /// to copy the bytes.
  std::vector<std::byte> TakeBuffer() {
    const MutexLock lock(mutex_);
    if (buffers_.empty()) return {};
    std::vector<std::byte> buffer = std::move(buffers_.back());
    buffers_.pop_back();
    return buffer;
  }
  void GiveBuffer(std::vector<std::byte> buffer) {
    const MutexLock lock(mutex_);
    buffers_.push_back(std::move(buffer));
  }

  /// True if the page digests of the chunk's base should be read.
  bool IsWorthProbing(const PlannedChunk& chunk) {
    // One page, which has changed; or no pages of the base that could be referenced.
    if (chunk.page_digests.size() < 2 || !chunk.base->deltas.empty()) return false;
    if (tensor_changed_fully_ != chunk.tensor) {
      unprobed_ = 0;
      return true;
    }
    unprobed_ = (unprobed_ + 1) % kProbeInterval;
    return unprobed_ == 0;
  }

  /// Adds the records of the tensors before `end` that are not added yet.
  Result<void> AddTensorRecords(size_t end) {
    CAIRN_CHECK(end <= context_.plan.tensors().size());
    for (; next_tensor_ < end; ++next_tensor_) {
      const TensorEntry& tensor = context_.plan.tensors()[next_tensor_];
      CAIRN_TRY(
          context_.writer.AddRecord(kv::Column::kTensors, tensor.key(), encoder_.Encode(tensor)));
    }
    return {};
  }

  Result<void> Write(const PlannedChunk& chunk) {
    const std::string_view fqn = context_.plan.tensors()[chunk.tensor].fqn;
    ++written_.chunks;
    if (chunk.is_unchanged()) {
      ++written_.reused;
      entry_ = chunk.base->entry();
      return AddRecord(chunk, /*in_base=*/true);
    }
    if (!chunk.has_bytes) return Fail(kv::BaseReplacedError(context_.step).WithKey(fqn));
    if (chunk.is_stated_unchanged && chunk.base) return Fail(NotUnchangedError(fqn));
    entry_.sizes.assign(chunk.box.sizes().begin(), chunk.box.sizes().end());
    entry_.statistics.reset();
    if (auto shared = equal_ ? equal_->Find(chunk) : std::nullopt) {
      ++written_.reused;
      entry_.extents = std::move(shared->extents);
      entry_.digest = chunk.digest;
      entry_.since_step = shared->since_step;
      return AddRecord(chunk, shared->in_base);
    }
    written_.bytes += chunk.length_bytes;
    auto stored = Append(chunk);
    if (!stored && stored.error().code == ErrorCode::kInvalidArgument) {  // the tensor has changed
      return Fail(std::move(stored).error().WithKey(fqn));
    }
    CAIRN_TRY(stored);
    if (equal_) equal_->Add(chunk, stored->extents, context_.step);
    entry_.extents = std::move(stored->extents);
    entry_.digest = stored->digest;
    entry_.since_step = context_.step;
    return AddRecord(chunk, /*in_base=*/false);
  }

  /// Adds the record of a chunk, which is entry_, and reports its bytes as progress. `in_base`: the
  /// base has the extents.
  Result<void> AddRecord(const PlannedChunk& chunk, bool in_base) {
    if (!entry_.statistics) entry_.statistics = chunk.statistics;
    if (context_.saved != nullptr) {
      context_.saved->chunks[chunk.index] = {
          .digest = entry_.digest,
          .reused = chunk.is_unchanged(),
          .deltas = static_cast<uint8_t>(entry_.extents.deltas.size())};
    }
    SetChunkKey(context_.plan.tensors()[chunk.tensor], chunk.box, key_);
    CAIRN_TRY(context_.writer.AddChunk(key_, entry_, in_base));
    return context_.progress.Add(chunk.length_bytes);
  }

  Result<Stored> Append(const PlannedChunk& chunk) {
    if (!chunk.delta.empty()) return AppendDelta(chunk);
    // After a delta, which has any length, a chunk is aligned as if it were the first of its
    // tensor.
    const PlanLayout& layout = *context_.plan.layout;
    const kv::SegmentAlignment alignment = std::exchange(follows_delta_, false)
                                               ? FirstAlignment(layout, layout.shards[chunk.shard])
                                               : chunk.alignment;
    const auto append = [&](const kv::Payload& payload) -> Result<Stored> {
      if (chunk.ranges) {
        CAIRN_TRY_ASSIGN(
            const std::vector<kv::Extent> appended,
            context_.writer.AppendPages(payload, chunk.ranges->written, chunk.page_digests));
        return Stored{.extents = {chunk.ranges->Join(appended)}, .digest = chunk.digest};
      }
      CAIRN_TRY_ASSIGN(const auto appended,
                       context_.writer.Append(payload, alignment, chunk.page_digests));
      return Stored{.extents = {appended.extent}, .digest = appended.digest};
    };
    if (chunk.is_on_device()) {
      return append(DevicePayload(*context_.device, chunk.source.view(), chunk.begin_bytes,
                                  chunk.length_bytes));
    }
    return append(chunk.host_payload());
  }

  Result<Stored> AppendDelta(const PlannedChunk& chunk) {
    CAIRN_CHECK(chunk.is_compressed || (chunk.base && chunk.base->digest == chunk.delta_base));
    follows_delta_ = true;
    CAIRN_TRY_ASSIGN(const auto appended, context_.writer.Append(kv::CopiedBytes(chunk.delta),
                                                                 kv::SegmentAlignment::k64));
    Stored stored{.extents = chunk.is_compressed
                                 ? kv::ChunkExtents(kv::Extent::Zeros(chunk.length_bytes))
                                 : chunk.base->stored(),
                  .digest = chunk.digest};
    stored.extents.deltas.push_back(appended.extent);
    return stored;
  }

  const ChunkWriterContext context_;
  size_t next_tensor_ = 0;  // the first whose record is not added yet
  TensorEncoder encoder_;
  std::string key_;                              // key of the chunk that was added last
  kv::ChunkEntry entry_;                         // and its record
  std::vector<std::vector<std::byte>> scratch_;  // one page per worker
  // Windows take turns, so that their memory is used again.
  Window filling_;
  Window digested_;                                    // or is being digested
  Window ready_;                                       // is being written
  std::vector<PlannedChunk*> scanned_;                 // in digested_; their bytes are being read
  std::vector<std::span<PlannedChunk*>> scan_groups_;  // parts of scanned_, one per thread
  // The tensor of the last chunk that was probed, if its pages changed too much to keep any.
  std::optional<size_t> tensor_changed_fully_;
  uint32_t unprobed_ = 0;                  // chunks of that tensor since the last probe
  std::optional<ChunkDeltas> deltas_;      // empty: no base
  std::optional<EqualChunks> equal_;       // empty: nothing is shared
  std::vector<DeltaEncoder> compressors_;  // one per worker
  std::deque<Compression> compressions_;   // chunks of ready_, in its order
  Mutex mutex_;
  std::vector<std::vector<std::byte>> buffers_ CAIRN_GUARDED_BY(mutex_);
  bool follows_delta_ = false;  // the last payload that was appended is a delta
  WrittenChunks written_;
};

// Passes all chunks to the writer, each with the base's chunk of the same key, if there is one. A
// record of the base that cannot be decoded does not fail the save, as the bytes to be stored are
// available: the chunk is written instead of reused, and so is one with pages of another size,
// which another program has written.
Result<void> MergeWithBase(const ChunkWriterContext& context, ChunkSource& chunks,
                           ChunkWriter& writer) {
  const kv::Snapshot& base = *context.base->snapshot;
  const kv::StepInfo& step = context.base->step;
  std::optional<size_t> known_tensor;
  bool has_known_dtype = false;  // the base has known_tensor with the same dtype
  const auto has_same_dtype = [&](size_t tensor) {
    if (known_tensor == tensor) return has_known_dtype;
    known_tensor = tensor;
    const TensorEntry& planned = context.plan.tensors()[tensor];
    const auto record = base.Get(kv::Column::kTensors, step, planned.key());
    const bool is_found = record && record->has_value();
    const auto info = is_found ? DecodeTensor(planned.fqn, **record) : Result<TensorInfo>();
    has_known_dtype = is_found && info && info->dtype == planned.dtype;
    return has_known_dtype;
  };
  const auto set_base = [&](std::string_view key, std::span<const std::byte> record,
                            PlannedChunk& chunk) {
    auto decoded = DecodeChunk(key, record);
    if (!decoded || !std::ranges::equal(decoded->info.box.sizes, chunk.box.sizes()) ||
        decoded->info.length_bytes() != chunk.length_bytes ||
        decoded->info.extents.page_bytes() != kv::kPageBytes) {
      return;
    }
    chunk.base = std::move(decoded->info);
    // Bytes may be reused even if the tensor has another dtype in the base; but its values, and
    // their statistics, are others.
    if (chunk.base->statistics && !has_same_dtype(chunk.tensor)) chunk.base->statistics.reset();
    if (!chunk.is_taken_from_base) return;
    chunk.digest = chunk.base->digest;
    chunk.has_bytes = false;
  };
  // A lookup costs as much as about this many records of a scan.
  constexpr uint64_t kLookupCost = 16;
  if (step.chunk_count > context.plan.layout->chunks.size() * kLookupCost) {
    while (!chunks.done()) {
      const std::string key = chunks.PeekKey();
      PlannedChunk chunk = chunks.Take();
      CAIRN_TRY_ASSIGN(const auto record, base.Get(kv::Column::kChunks, step, key));
      if (record) set_base(key, *record, chunk);
      CAIRN_TRY(writer.Add(std::move(chunk)));
    }
    return {};
  }
  const auto on_record = [&](std::string_view key,
                             std::span<const std::byte> record) -> Result<bool> {
    while (!chunks.done() && chunks.PeekKey() < key) CAIRN_TRY(writer.Add(chunks.Take()));
    if (chunks.done()) return false;
    if (chunks.PeekKey() != key) return true;
    PlannedChunk chunk = chunks.Take();
    set_base(key, record, chunk);
    CAIRN_TRY(writer.Add(std::move(chunk)));
    return true;
  };
  return base.Scan(kv::Column::kChunks, step, "", on_record);
}

}  // namespace

Result<WrittenChunks> WriteChunks(const ChunkWriterContext& context) {
  if (context.saved != nullptr) {
    context.saved->layout = context.plan.layout;
    context.saved->chunks.resize(context.plan.layout->chunks.size());
    if (context.device != nullptr) context.saved->sources = context.plan.sources;
  }
  ChunkSource chunks(context.plan);
  ChunkWriter writer(context);
  if (context.base != nullptr) CAIRN_TRY(MergeWithBase(context, chunks, writer));
  while (!chunks.done()) CAIRN_TRY(writer.Add(chunks.Take()));
  CAIRN_TRY(writer.Finish());
  return writer.written();
}

}  // namespace cairn::core::internal
