#include "core/load/internal/chunk_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <future>

#include "core/step/internal/stored_page_digests.h"
#include "kv/base/key.h"
#include "kv/base/read_range.h"
#include "kv/io/worker_pool.h"

namespace cairn::core::internal {

static_assert(kv::ReadRange::kMaxLentBytes % kv::kMaxPageBytes == 0);

namespace {

// The first chunks wait for the deltas of the first group, so it is small.
constexpr uint64_t kFirstGroupBytes = 2 << 20;

}  // namespace

ChunkReader::ChunkReader(const StepView& view, ProgressMeter& progress, Limit limit)
    : view_(view), progress_(progress), limit_(limit), group_bytes_(kFirstGroupBytes) {}

Result<void> ChunkReader::AddWhole(const std::string& fqn, const ChunkInfo& chunk,
                                   std::byte* target) {
  if (chunk.extents.size() == 1 && chunk.deltas.empty()) {
    return AddPart(
        {.fqn = &fqn, .extent = chunk.extents.front(), .target = target, .digest = chunk.digest});
  }
  const uint64_t length = chunk.length_bytes();
  const auto job = std::make_shared<Job>(fqn, chunk);
  job->is_complete = true;
  job->missing_bytes = length;
  return AddParts(job, 0, length, target);
}

Result<void> ChunkReader::Add(const std::string& fqn, ChunkInfo chunk, StridedRegion region) {
  const uint64_t length = chunk.length_bytes();
  if (std::byte* const target = region.ContiguousTarget(length)) {
    return AddWhole(fqn, chunk, target);
  }
  const uint64_t page_bytes = chunk.extents.page_bytes();
  std::vector<bool> touched(kv::PageCount(length, page_bytes));
  region.ForEachTouched(length, page_bytes, [&](uint64_t begin, uint64_t end) {
    for (uint64_t page = begin / page_bytes; page < kv::PageCount(end, page_bytes); ++page) {
      touched[page] = true;
    }
  });
  const auto job = std::make_shared<Job>(fqn, std::move(chunk));
  job->region = std::move(region);
  if (std::ranges::find(touched, false) == touched.end()) {
    job->is_complete = true;
    job->missing_bytes = length;
    return AddParts(job, 0, length);
  }
  return AddWanted(job, touched);
}

Result<void> ChunkReader::AddPages(const std::string& fqn, ChunkInfo chunk,
                                   std::vector<uint64_t> stored, const std::vector<bool>& wanted,
                                   std::byte* target) {
  const auto job = std::make_shared<Job>(fqn, std::move(chunk));
  job->stored = std::move(stored);
  return AddWanted(job, wanted, target);
}

Result<void> ChunkReader::AddWanted(const std::shared_ptr<Job>& job,
                                    const std::vector<bool>& wanted, std::byte* target) {
  const uint64_t length = job->chunk.length_bytes();
  const uint64_t page_bytes = job->chunk.extents.page_bytes();
  for (auto begin = std::ranges::find(wanted, true); begin != wanted.end();) {
    const auto end = std::find(begin, wanted.end(), false);
    const auto begin_page = static_cast<uint64_t>(begin - wanted.begin());
    const auto end_page = static_cast<uint64_t>(end - wanted.begin());
    CAIRN_TRY(
        AddParts(job, begin_page * page_bytes, std::min(end_page * page_bytes, length), target));
    begin = std::find(end, wanted.end(), true);
  }
  return {};
}

Result<void> ChunkReader::AddParts(const std::shared_ptr<Job>& job, uint64_t begin_bytes,
                                   uint64_t end_bytes, std::byte* target) {
  const uint64_t max_bytes = target == nullptr ? kv::ReadRange::kMaxLentBytes : end_bytes;
  uint64_t extent_begin = 0;
  for (const kv::Extent& extent : job->chunk.extents) {
    const uint64_t end = std::min(end_bytes, extent_begin + extent.length_bytes);
    for (uint64_t begin = std::max(begin_bytes, extent_begin); begin < end;) {
      const uint64_t count = std::min(max_bytes, end - begin);
      CAIRN_TRY(AddPart({.job = job,
                         .fqn = &job->fqn,
                         .extent = extent.From(begin - extent_begin).First(count),
                         .begin_bytes = begin,
                         .target = target == nullptr ? nullptr : target + begin}));
      begin += count;
    }
    extent_begin += extent.length_bytes;
  }
  return {};
}

Result<void> ChunkReader::AddPart(ReadPart part) {
  if (Job* const job = part.job.get(); job != nullptr && job->is_complete &&
                                       job->computed.empty() &&
                                       part.extent.length_bytes < job->chunk.length_bytes()) {
    job->computed.resize(job->chunk.extents.page_count());
  }
  if (added_.empty()) added_.reserve(batch_parts_);
  added_.push_back(std::move(part));
  const bool is_full = limit_ == Limit::kBatches && added_.size() >= batch_parts_;
  return is_full ? SubmitBatch() : Result<void>();
}

Result<void> ChunkReader::SubmitBatch() {
  const MutexLock lock(mutex_);
  while (!submitted_.empty() && !is_done_) changed_.Wait(mutex_);
  if (is_done_) return Fail(ErrorCode::kCancelled, "the reading has ended");
  submitted_ = std::exchange(added_, {});
  batch_parts_ = std::min(2 * batch_parts_, kMaxParts);
  changed_.NotifyAll();
  return {};
}

void ChunkReader::Close(Result<void> added) {
  if (added && !added_.empty()) added = SubmitBatch();
  const MutexLock lock(mutex_);
  CAIRN_CHECK(!closed_.has_value());
  closed_ = std::move(added);
  changed_.NotifyAll();
}

Result<void> ChunkReader::TakeBatch() {
  constexpr auto kProgressInterval = std::chrono::milliseconds(50);
  MutexLock lock(mutex_);
  auto next_progress = std::chrono::steady_clock::now() + kProgressInterval;
  while (submitted_.empty() && !closed_) {
    if (changed_.WaitUntil(mutex_, next_progress)) continue;
    lock.Unlock();
    CAIRN_TRY(progress_.Add(0));  // lets the caller cancel
    lock.Lock();
    next_progress = std::chrono::steady_clock::now() + kProgressInterval;
  }
  // An error of the adding fails the load, even if other parts could still be read.
  if (closed_ && !*closed_) return *closed_;
  batch_ = std::exchange(submitted_, {});
  changed_.NotifyAll();
  return {};
}

Result<void> ChunkReader::ReadAll() {
  // However this ends, also by an exception, the thread that adds must stop waiting.
  const std::unique_ptr<ChunkReader, void (*)(ChunkReader*)> end(this, [](ChunkReader* reader) {
    const MutexLock lock(reader->mutex_);
    reader->is_done_ = true;
    reader->changed_.NotifyAll();
  });
  while (true) {
    CAIRN_TRY(TakeBatch());
    if (batch_.empty()) return {};
    CAIRN_TRY(ReadBatch());
  }
}

Result<void> ChunkReader::ReadBatch() {
  std::vector<std::shared_ptr<Job>> partial;
  for (const ReadPart& part : batch_) {
    if (part.job != nullptr && !part.job->is_complete && part.job->stored.empty() &&
        (partial.empty() || partial.back() != part.job)) {
      partial.push_back(part.job);
    }
  }
  CAIRN_TRY(ReadPageDigests(partial));
  const auto begin_deltas = [this](std::span<const ReadPart> parts) {
    // The chains of the group before the last one, which had this memory, are gone.
    DeltaMemory& memory = delta_memory_[delta_groups_++ % delta_memory_.size()];
    return std::async([this, parts, &memory] { return ReadDeltasOf(parts, memory); });
  };
  std::span<ReadPart> rest(batch_);
  std::span<ReadPart> group = TakeGroup(rest);
  auto deltas = begin_deltas(group);
  while (!group.empty()) {
    CAIRN_TRY_ASSIGN(const uint64_t delta_bytes, deltas.get());
    bytes_read_ += delta_bytes;
    const std::span<ReadPart> next = TakeGroup(rest);
    deltas = begin_deltas(next);
    CAIRN_TRY(ReadParts(group));
    for (ReadPart& part : group) part.job.reset();  // with its deltas
    group = next;
  }
  batch_.clear();
  return {};
}

std::span<ChunkReader::ReadPart> ChunkReader::TakeGroup(std::span<ReadPart>& rest) {
  uint64_t delta_bytes = 0;
  size_t end = 0;
  while (end < rest.size() && delta_bytes <= group_bytes_) {
    const std::shared_ptr<Job>& job = rest[end].job;
    if (job != nullptr) delta_bytes += DeltaCost(job->chunk);
    while (end < rest.size() && rest[end].job == job) ++end;
  }
  if (delta_bytes > 0) group_bytes_ = std::min(2 * group_bytes_, kMaxDeltaBytes);
  const std::span<ReadPart> group = rest.first(end);
  rest = rest.subspan(end);
  return group;
}

Result<uint64_t> ChunkReader::ReadDeltasOf(std::span<const ReadPart> parts,
                                           DeltaMemory& memory) const {
  std::vector<DeltaRead> reads;
  for (const ReadPart& part : parts) {
    if (part.job == nullptr) continue;
    Job& job = *part.job;
    if (job.chunk.deltas.empty() || !job.deltas.empty()) continue;  // or read before
    if (!reads.empty() && reads.back().chunk == &job.chunk) continue;
    reads.push_back({.fqn = &job.fqn, .chunk = &job.chunk, .chain = &job.deltas});
  }
  return reads.empty() ? Result<uint64_t>(0) : ReadDeltas(view_, reads, &memory);
}

Result<void> ChunkReader::ReadPageDigests(std::span<const std::shared_ptr<Job>> jobs) {
  if (jobs.empty()) return {};
  std::vector<kv::ReadRange> ranges;
  for (const auto& job : jobs) AddPageDigestRanges(job->chunk, job->stored, ranges);
  CAIRN_TRY_ASSIGN(const uint64_t bytes,
                   view_.snapshot->Read(ranges, 1, [](size_t, auto) { return Result<void>(); }));
  bytes_read_ += bytes;
  for (const auto& job : jobs) {
    if (kv::RootDigest(job->stored, job->chunk.length_bytes()) != job->chunk.digest) {
      return Fail(WrongPageDigests(*job));
    }
  }
  return {};
}

Error ChunkReader::WrongPageDigests(const Job& job) const {
  const std::string message = fmt::format("the page digests of chunk {} do not match its record",
                                          FormatNumbers(job.chunk.box.offsets));
  if (!job.chunk.deltas.empty()) return FindDamage(view_, job.fqn, job.chunk, message);
  const kv::Extent wrong =
      FirstDamaged(*view_.snapshot, job.chunk.stored()).value_or(job.chunk.extents.front());
  return DamagedBytes(view_, job.fqn, wrong.segment_id, message, wrong.page_digests_offset_bytes);
}

Result<void> ChunkReader::ReadParts(std::span<const ReadPart> parts) {
  std::vector<kv::ReadRange> ranges;
  ranges.reserve(parts.size());
  for (const ReadPart& part : parts) {
    kv::ReadRange range{.segment_id = part.extent.segment_id,
                        .offset_bytes = part.extent.offset_bytes};
    if (part.target == nullptr) {
      range.lent_bytes = part.extent.length_bytes;
    } else {
      range.target = {part.target, part.extent.length_bytes};
    }
    ranges.push_back(range);
  }
  // A thread decodes what it has read. To apply deltas takes as long as reading, so more threads
  // than cores share the parts more evenly: each takes several at once.
  const bool has_deltas = std::ranges::any_of(parts, [](const ReadPart& part) {
    return part.job != nullptr && !part.job->chunk.deltas.empty();
  });
  const uint32_t threads = kv::WorkerThreads(has_deltas ? 8 : 1);
  const auto on_read = [&](size_t i, std::span<const std::byte> part_bytes) {
    return OnRead(parts[i], part_bytes);
  };
  auto bytes = view_.snapshot->Read(ranges, threads, on_read);
  std::optional<Mismatch> mismatch;
  {
    const MutexLock lock(mutex_);
    mismatch = std::exchange(mismatch_, std::nullopt);
  }
  // Finding the page takes another read, which must not begin inside this one.
  if (mismatch) return Fail(Diagnose(*std::move(mismatch)));
  if (!bytes) return Fail(std::move(bytes).error());
  bytes_read_ += *bytes;
  return progress_.Add(0);  // reports what other threads have read
}

Result<std::span<const std::byte>> ChunkReader::Decode(const ReadPart& part,
                                                       std::span<const std::byte> stored) {
  if (part.job == nullptr || part.job->chunk.deltas.empty()) return stored;
  const Job& job = *part.job;
  std::span<std::byte> target(part.target, stored.size());
  if (part.target == nullptr) {  // lent memory must not be changed
    thread_local std::vector<std::byte> copy;
    copy.assign(stored.begin(), stored.end());
    target = copy;
  }
  const uint64_t first_page = part.begin_bytes / kv::kPageBytes;
  const Result<void> applied = job.deltas.ApplyAll(first_page, target);
  if (!applied) CAIRN_TRY(RecordMismatch({.part = part, .page = first_page}));
  return target;
}

Result<void> ChunkReader::OnRead(const ReadPart& part, std::span<const std::byte> stored) {
  CAIRN_TRY_ASSIGN(const std::span<const std::byte> bytes, Decode(part, stored));
  CAIRN_TRY(Verify(part, bytes));
  if (part.target == nullptr) part.job->region->CopyFrom(bytes, part.begin_bytes);
  return progress_.Add(bytes.size());
}

Result<void> ChunkReader::Verify(const ReadPart& part, std::span<const std::byte> bytes) {
  if (part.job == nullptr) {
    if (kv::PayloadDigest(bytes, part.extent.page_bytes()) == part.digest) return {};
    return RecordMismatch({.part = part});
  }
  Job& job = *part.job;
  const uint64_t length = job.chunk.length_bytes();
  const uint64_t page_bytes = job.chunk.extents.page_bytes();
  if (job.is_complete && bytes.size() == length &&
      kv::PayloadDigest(bytes, page_bytes) == job.chunk.digest) {
    return {};
  }
  std::vector<uint64_t> page_digests;
  kv::AppendPageDigests(bytes, page_digests, page_bytes);
  const uint64_t first_page = part.begin_bytes / page_bytes;
  if (!job.is_complete) {
    const auto wrong =
        std::ranges::mismatch(page_digests, std::span(job.stored).subspan(first_page));
    if (wrong.in1 == page_digests.end()) return {};
    const auto page = static_cast<uint64_t>(wrong.in1 - page_digests.begin());
    return RecordMismatch({.part = part, .page = first_page + page});
  }
  if (job.computed.empty()) job.computed.resize(page_digests.size());  // the only part
  std::ranges::copy(page_digests, job.computed.begin() + static_cast<ptrdiff_t>(first_page));
  // The thread that reads the last bytes sees the digests of all other threads.
  if (job.missing_bytes.fetch_sub(bytes.size()) != bytes.size()) return {};
  if (kv::RootDigest(job.computed, length) == job.chunk.digest) return {};
  return RecordMismatch({.part = part});
}

Result<void> ChunkReader::RecordMismatch(Mismatch mismatch) {
  const MutexLock lock(mutex_);
  if (!mismatch_) mismatch_ = std::move(mismatch);
  return Fail(ErrorCode::kDataLoss, "bytes do not match their digest");
}

std::shared_ptr<ChunkReader::Job> ChunkReader::JobOf(const ReadPart& part) const {
  ChunkInfo chunk{.extents = part.extent, .digest = part.digest};
  // Only the record has the offsets, for the message.
  const auto find = [&](std::string_view key, std::span<const std::byte> record) -> Result<bool> {
    CAIRN_TRY_ASSIGN(DecodedChunk found, DecodeChunk(key, record));
    if (found.info.extents == chunk.extents) chunk = std::move(found.info);
    return true;
  };
  const std::string prefix = kv::FqnKey(*part.fqn);
  if (!view_.snapshot->Scan(kv::Column::kChunks, view_.step, prefix, find)) chunk.box = {};
  auto job = std::make_shared<Job>(*part.fqn, std::move(chunk));
  kv::AppendPageDigests({part.target, part.extent.length_bytes}, job->computed,
                        part.extent.page_bytes());
  return job;
}

Error ChunkReader::Diagnose(Mismatch mismatch) {
  const std::shared_ptr<Job> shared_job =
      mismatch.part.job != nullptr ? mismatch.part.job : JobOf(mismatch.part);
  Job& job = *shared_job;
  if (!mismatch.page) {
    const auto read = ReadPageDigests({&shared_job, 1});
    if (!read) return read.error();
    // The stored digests match the chunk's digest and the computed ones do not, so they differ.
    mismatch.page = static_cast<uint64_t>(std::ranges::mismatch(job.computed, job.stored).in1 -
                                          job.computed.begin());
  }
  const std::string message =
      fmt::format("page {} of chunk {} does not match its digest; the bytes on disk have changed",
                  *mismatch.page, FormatNumbers(job.chunk.box.offsets));
  if (!job.chunk.deltas.empty()) return FindDamage(view_, job.fqn, job.chunk, message);
  const kv::Extent at = job.chunk.extents.At(*mismatch.page * job.chunk.extents.page_bytes());
  return DamagedBytes(view_, job.fqn, at.segment_id, message, at.offset_bytes);
}

}  // namespace cairn::core::internal
