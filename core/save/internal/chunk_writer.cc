#include "core/save/internal/chunk_writer.h"

#include <utility>

#include "core/base/internal/groups.h"
#include "core/save/internal/chunk_statistics.h"
#include "core/save/internal/save_planner.h"
#include "core/save/internal/tensor_payload.h"
#include "core/step/internal/compress.h"
#include "core/step/internal/stored_page_digests.h"
#include "core/step/internal/tensor_records.h"
#include "kv/base/catch_exhaustion.h"
#include "kv/base/key.h"
#include "kv/base/payload.h"
#include "kv/base/step_info.h"

namespace cairn::core::internal {
namespace {

constexpr uint64_t kWindowBytes = 64 << 20;  // length of chunks that are digested together
constexpr size_t kWindowChunks = 2048;
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
  // A base that another program has written may have pages of another size.
  if (chunk.is_candidate() && !chunk.is_unchanged() && !chunk.has_base_pages() &&
      payload.DigestWith(chunk.base->extents.page_bytes()) == chunk.base->digest) {
    chunk.digest = chunk.base->digest;
  }
  if (statistics) chunk.statistics = statistics->Finish();
}

}  // namespace

ChunkWriter::ChunkWriter(const ChunkWriterContext& context)
    : context_(context),
      scratch_(context.pool.thread_count(), std::vector<std::byte>(kv::kPageBytes)),
      compressors_(context.compress ? context.pool.thread_count() : 0) {
  if (context.options.share_equal) equal_.emplace(context.writer, context.base);
  if (context.base == nullptr) return;
  deltas_.emplace(context.plan, *context.base, context.pool, context.options.max_deltas);
}

ChunkWriter::~ChunkWriter() {
  kv::CleanUp([&] { context_.pool.Finish(); });
}

Result<void> ChunkWriter::Add(PlannedChunk chunk) {
  filling_.bytes += chunk.length_bytes;
  filling_.chunks.push_back(std::move(chunk));
  if (filling_.bytes < kWindowBytes && filling_.chunks.size() < kWindowChunks) return {};
  return FlushWindow();
}

Result<void> ChunkWriter::Finish() {
  CAIRN_TRY(FlushWindow());
  CAIRN_TRY(FlushWindow());
  return AddTensorRecords(context_.plan.tensors.size());
}

Result<void> ChunkWriter::FlushWindow() {
  context_.pool.Finish();
  Window ready = std::exchange(digested_, std::exchange(filling_, {}));
  scanned_.clear();
  for (PlannedChunk& chunk : digested_.chunks) {
    const bool needs_digest = chunk.is_candidate() || IsWorthCompressing(chunk) ||
                              (equal_ && EqualChunks::IsCandidate(chunk));
    if ((needs_digest && !chunk.is_digested()) || NeedsStatistics(chunk)) {
      scanned_.push_back(&chunk);
    }
  }
  PlanChanges(ready);
  if (context_.compress) CompressChunks(ready);
  scan_groups_ = GroupByBytes(std::span(scanned_),
                              [](const PlannedChunk* chunk) { return chunk->length_bytes; });
  context_.pool.Start(scan_groups_.size(), [this](size_t i, size_t worker) {
    for (PlannedChunk* const chunk : scan_groups_[i]) {
      std::optional<ChunkStatisticsAccumulator> statistics;
      if (NeedsStatistics(*chunk)) statistics.emplace(context_.plan.tensors[chunk->tensor].dtype);
      ScanChunk(*chunk, std::move(statistics), scratch_[worker]);
    }
  });
  for (const PlannedChunk& chunk : ready.chunks) {
    CAIRN_TRY(AddTensorRecords(chunk.tensor + 1));
    CAIRN_TRY(Write(chunk));
  }
  return {};
}

bool ChunkWriter::NeedsStatistics(const PlannedChunk& chunk) const {
  if (!context_.options.statistics || !chunk.has_bytes || chunk.is_on_device()) return false;
  if (context_.plan.tensors[chunk.tensor].hidden) return false;  // its bytes are not its elements
  return !chunk.is_digested() || !chunk.is_unchanged() || !chunk.base->statistics;
}

bool ChunkWriter::IsWorthCompressing(const PlannedChunk& chunk) const {
  return context_.compress && chunk.has_bytes && !chunk.is_on_device() &&
         chunk.length_bytes >= kMinCompressibleBytes && chunk.length_bytes <= kMaxCompressibleBytes;
}

void ChunkWriter::CompressChunks(Window& window) {
  std::vector<PlannedChunk*> chunks;
  for (PlannedChunk& chunk : window.chunks) {
    const bool is_planned = chunk.is_unchanged() || chunk.ranges || !chunk.delta.empty();
    if (!is_planned && IsWorthCompressing(chunk)) chunks.push_back(&chunk);
  }
  context_.pool.Run(chunks.size(), [&](size_t i, size_t worker) {
    PlannedChunk& chunk = *chunks[i];
    const HostPayload payload = chunk.host_payload();
    bool has_changed = false;
    const auto page_at = [&](uint64_t page) {
      const auto bytes = payload.StablePage(page, scratch_[worker]);
      has_changed |= chunk.may_change && kv::PageDigest(bytes) != chunk.page_digests[page];
      return bytes;
    };
    auto compressed = Compress(compressors_[worker],
                               schema::ElementBytes(context_.plan.tensors[chunk.tensor].dtype),
                               chunk.length_bytes, page_at, chunk.page_digests);
    if (!compressed || has_changed) return;  // Append notices the change
    chunk.delta = *std::move(compressed);
    chunk.is_compressed = true;
  });
}

void ChunkWriter::PlanChanges(Window& window) {
  std::vector<PlannedChunk*> probed;
  std::vector<const ChunkInfo*> bases;
  for (PlannedChunk& chunk : window.chunks) {
    if (!chunk.delta.empty() && deltas_) deltas_->CheckStaged(chunk);
    if (!deltas_) chunk.delta.clear();  // without a base
    if (!chunk.is_candidate() || !chunk.has_base_pages() || chunk.is_unchanged() ||
        !chunk.delta.empty()) {
      continue;
    }
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

bool ChunkWriter::IsWorthProbing(const PlannedChunk& chunk) {
  // One page, which has changed; or no pages of the base that could be referenced.
  if (chunk.page_digests.size() < 2 || !chunk.base->deltas.empty()) return false;
  if (tensor_changed_fully_ != chunk.tensor) {
    unprobed_ = 0;
    return true;
  }
  unprobed_ = (unprobed_ + 1) % kProbeInterval;
  return unprobed_ == 0;
}

Result<void> ChunkWriter::AddTensorRecords(size_t end) {
  CAIRN_CHECK(end <= context_.plan.tensors.size());
  for (; next_tensor_ < end; ++next_tensor_) {
    const TensorInfo& info = context_.plan.tensors[next_tensor_];
    CAIRN_TRY(
        context_.writer.AddRecord(kv::Column::kTensors, kv::FqnKey(info.fqn), EncodeTensor(info)));
  }
  return {};
}

Result<void> ChunkWriter::Write(const PlannedChunk& chunk) {
  const std::string& fqn = context_.plan.tensors[chunk.tensor].fqn;
  ++chunks_;
  if (chunk.is_unchanged()) {
    ++chunks_reused_;
    return AddRecord(chunk, chunk.base->entry(), /*in_base=*/true);
  }
  if (!chunk.has_bytes) return Fail(kv::BaseReplacedError(context_.step).WithKey(fqn));
  const bool is_compared = chunk.base && (chunk.has_base_pages() || !chunk.is_on_device());
  if (chunk.is_stated_unchanged && is_compared) return Fail(NotUnchangedError(fqn));
  if (auto shared = equal_ ? equal_->Find(chunk) : std::nullopt) {
    ++chunks_reused_;
    return AddRecord(chunk,
                     {.sizes = chunk.sizes,
                      .extents = std::move(shared->extents),
                      .digest = chunk.digest,
                      .since_step = shared->since_step,
                      .statistics = {}},
                     shared->in_base);
  }
  auto stored = Append(chunk);
  if (!stored && stored.error().code == ErrorCode::kInvalidArgument) {  // the tensor has changed
    return Fail(std::move(stored).error().WithKey(fqn));
  }
  CAIRN_TRY(stored);
  if (equal_) equal_->Add(chunk, stored->extents, context_.step);
  return AddRecord(chunk,
                   {.sizes = chunk.sizes,
                    .extents = std::move(stored->extents),
                    .digest = stored->digest,
                    .since_step = context_.step,
                    .statistics = {}},
                   /*in_base=*/false);
}

Result<void> ChunkWriter::AddRecord(const PlannedChunk& chunk, kv::ChunkEntry entry, bool in_base) {
  if (!entry.statistics) entry.statistics = chunk.statistics;
  if (context_.saved != nullptr) {
    context_.saved->shards[chunk.shard].chunks.push_back(
        {.digest = entry.digest,
         .page_bits = entry.extents.payload.front().page_bits,
         .reused = chunk.is_unchanged(),
         .deltas = static_cast<uint8_t>(entry.extents.deltas.size())});
  }
  CAIRN_TRY(context_.writer.AddChunk(chunk.key, std::move(entry), in_base));
  return context_.progress.Add(chunk.length_bytes);
}

Result<ChunkWriter::Stored> ChunkWriter::AppendDelta(const PlannedChunk& chunk) {
  CAIRN_CHECK(chunk.is_compressed || (chunk.base && chunk.base->digest == chunk.delta_base));
  follows_delta_ = true;
  CAIRN_TRY_ASSIGN(const auto appended,
                   context_.writer.Append(kv::CopiedBytes(chunk.delta), kv::SegmentAlignment::k64));
  Stored stored{.extents = chunk.is_compressed
                               ? kv::ChunkExtents(kv::Extent::Zeros(chunk.length_bytes))
                               : chunk.base->stored(),
                .digest = chunk.digest};
  stored.extents.deltas.push_back(appended.extent);
  return stored;
}

Result<ChunkWriter::Stored> ChunkWriter::Append(const PlannedChunk& chunk) {
  if (!chunk.delta.empty()) return AppendDelta(chunk);
  // After a delta, which has any length, a chunk is aligned as if it were the first of its tensor.
  const kv::SegmentAlignment alignment = std::exchange(follows_delta_, false)
                                             ? FirstAlignment(context_.plan.shards[chunk.shard])
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
    return append(
        DevicePayload(*context_.device, *chunk.source, chunk.begin_bytes, chunk.length_bytes));
  }
  return append(chunk.host_payload());
}

}  // namespace cairn::core::internal
