// Writing one step by several ranks: parts, what rank 0 makes of them, and how all learn of it.
//
// 1. Each rank writes segments and a manifest of its own: to <rank>.manifest.part, synced, renamed.
// 2. Rank 0 waits for the manifests in the order of ranks and takes each over, block by block, into
//    its own. A rank that cannot go on leaves a note, which ends the waiting.
// 3. Rank 0 commits, and leaves the outcome for the others.
// 4. They find it; or, if it or its directory is not there in time, look into the index.
//
// A manifest is believed only under the name and with the header of this attempt, so that no other
// attempt's can take its place; a rank that comes late writes into a directory that nobody reads,
// and its segments have ids that no other attempt's have.

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "kv/internal/commit/attempt_files.h"
#include "kv/internal/commit/commit.h"
#include "kv/internal/io/fault_point.h"
#include "kv/internal/step_writer.h"
#include "kv/step_info.h"
#include "kv/step_writer.h"

namespace cairn::kv {
namespace {

using internal::Poll;

constexpr size_t kDigestKeyBytes = 16;
constexpr size_t kKeptOutcomes = 2;  // attempts whose outcome a slow rank may still want to read

std::string DigestKey(const Digest& digest) { return NumberKey(digest.hi) + NumberKey(digest.lo); }

std::string DigestName(std::string_view key) {
  return fmt::format("{:016x}{:016x}", ReadBigEndian(key.data()), ReadBigEndian(key.data() + 8));
}

/// The key of shared records: each length and content, in order.
std::string DigestOf(std::span<const StepWriter::SharedRecord> records) {
  std::vector<std::byte> content;
  for (const StepWriter::SharedRecord& record : records) {
    const auto add = [&](std::span<const std::byte> bytes) {
      const std::string length = NumberKey(bytes.size());
      content.insert(content.end(), internal::AsBytes(length).begin(),
                     internal::AsBytes(length).end());
      content.insert(content.end(), bytes.begin(), bytes.end());
    };
    content.push_back(static_cast<std::byte>(record.column));
    add(internal::AsBytes(record.key));
    add(record.value);
  }
  return DigestKey(PayloadDigest(content));
}

}  // namespace

Result<void> StepWriter::Impl::AddShared(std::span<const SharedRecord> records) {
  CAIRN_TRY(CheckUsable());
  CAIRN_CHECK(has_ranks() && !gathered_);
  const std::string key = DigestOf(records);
  if (!known_shared_.insert(key).second || options_.rank == 0) return {};
  CAIRN_TRY(manifest_->Add(Column::kStructures, key, {}));

  const std::string path = internal::SharedPath(state_->paths, attempt_, DigestName(key));
  if (internal::Exists(path)) return {};
  const std::string part = fmt::format("{}.{}", path, options_.rank);
  const internal::ManifestHeader header{.store_uuid = state_->uuid,
                                        .step = step_,
                                        .rank = 0,  // of any: the content is the name
                                        .world_size = options_.world_size,
                                        .created_unix_ns = created_unix_ns_,
                                        .attempt = attempt_};
  CAIRN_TRY_ASSIGN(const auto writer, internal::ManifestWriter::Create(part, header));
  for (const SharedRecord& record : records) {
    CAIRN_TRY(writer->Add(record.column, record.key, record.value));
  }
  // Not synced: what rank 0 takes of it goes into its own manifest.
  CAIRN_TRY(writer->Finish(/*sync=*/false));
  // Many ranks come at once. The first one's file stays, as rank 0 may be reading it.
  if (::link(part.c_str(), path.c_str()) != 0 && !internal::Exists(path)) {
    return internal::Rename(part, path, "shared.rename");  // a file system without links
  }
  return internal::RemoveFile(part);
}

// --- rank 0
// ---------------------------------------------------------------------------------------

Result<void> StepWriter::Impl::Gather(const RankRecordCallback& on_record) {
  CAIRN_TRY(CheckUsable());
  CAIRN_CHECK(has_ranks() && !state_->joined && !gathered_);
  failed_ = true;
  CAIRN_TRY(SealSegment());
  for (uint32_t rank = 1; rank < options_.world_size; ++rank) {
    CAIRN_TRY(AwaitManifest(rank));
    CAIRN_TRY(TakeManifest(rank, on_record));
  }
  gathered_ = true;
  failed_ = false;
  return {};
}

Result<void> StepWriter::Impl::AwaitManifest(uint32_t rank) const {
  const std::string path = state_->paths.pending_manifest(attempt_, rank);
  Poll poll(options_.deadline);
  while (!internal::Exists(path)) {
    if (auto failure = internal::FindFailure(state_->paths, attempt_)) {
      return Fail(*std::move(failure));
    }
    if (!poll.Again()) return Fail(MissingRanks(rank));
  }
  return {};
}

Error StepWriter::Impl::MissingRanks(uint32_t first) const {
  constexpr uint64_t kNamed = 8;
  std::string names;
  uint64_t count = 0;
  for (uint32_t rank = first; rank < options_.world_size; ++rank) {
    if (internal::Exists(state_->paths.pending_manifest(attempt_, rank))) continue;
    if (count++ < kNamed) names += fmt::format("{}{}", names.empty() ? "" : ", ", rank);
  }
  return Error{.code = ErrorCode::kUnavailable,
               .message = fmt::format(
                   "{} of {} ranks had not written their part at the deadline: {}{}; if they "
                   "died, restart the job, else allow more time",
                   count, options_.world_size, names, count > kNamed ? ", ..." : ""),
               .file = state_->paths.attempt(attempt_),
               .step = step_};
}

Result<void> StepWriter::Impl::TakeManifest(uint32_t rank, const RankRecordCallback& on_record) {
  const internal::ManifestHeader expected{.store_uuid = state_->uuid,
                                          .step = step_,
                                          .rank = rank,
                                          .world_size = options_.world_size,
                                          .attempt = attempt_};
  segments_of_rank_.clear();
  CAIRN_TRY(internal::ReadManifest(
      state_->paths.pending_manifest(attempt_, rank),
      [&](Column column, std::string_view key, std::span<const std::byte> value) {
        return TakeRecord(rank, column, key, value, on_record);
      },
      &expected, manifest_.get()));
  return {};
}

Result<void> StepWriter::Impl::TakeRecord(uint32_t rank, Column column, std::string_view key,
                                          std::span<const std::byte> value,
                                          const RankRecordCallback& on_record) {
  switch (column) {
    case Column::kChunks:
      collected_.Add(column, key, value);
      return on_record(rank, column, key, value);
    case Column::kStructures:
      return TakeShared(rank, key, on_record);
    case Column::kSteps: {
      CAIRN_TRY_ASSIGN(const internal::StepEntry part, internal::DecodeStep(value));
      chunk_count_ += part.info.chunk_count;
      reused_chunk_count_ += part.info.reused_chunk_count;
      written_bytes_ += part.info.written_bytes;
      return {};
    }
    case Column::kSegments: {
      CAIRN_TRY_ASSIGN(const SegmentInfo info, internal::DecodeSegment(value));
      // What it wrote itself bears its own number; all else must still be in the index.
      const uint64_t own = SegmentIdOf(rank, segments_of_rank_.size());
      collected_.Add(column, key, value);
      if (info.segment_id == own) {
        segments_of_rank_.insert(own);
      } else {
        referenced_.insert(info.segment_id);
      }
      return {};
    }
    default:
      return Fail(ErrorCode::kDataLoss,
                  fmt::format("rank {}'s manifest holds a {} record", rank, ColumnName(column)));
  }
}

Result<void> StepWriter::Impl::TakeShared(uint32_t rank, std::string_view digest,
                                          const RankRecordCallback& on_record) {
  if (digest.size() != kDigestKeyBytes) {
    return Fail(ErrorCode::kDataLoss, "a manifest names shared records by no digest");
  }
  if (!known_shared_.insert(std::string(digest)).second) return {};
  const std::string path = internal::SharedPath(state_->paths, attempt_, DigestName(digest));
  std::vector<SharedRecord> records;
  CAIRN_TRY(internal::ReadManifest(
      path,
      [&](Column column, std::string_view key, std::span<const std::byte> value) -> Result<void> {
        records.push_back({column, std::string(key), {value.begin(), value.end()}});
        return {};
      }));
  if (DigestOf(records) != digest) {
    return Fail(Error{.code = ErrorCode::kDataLoss,
                      .message = "shared records are not those that the file's name says",
                      .file = path});
  }
  for (const SharedRecord& record : records) {
    CAIRN_TRY(on_record(rank, record.column, record.key, record.value));
  }
  return {};
}

void StepWriter::Impl::RetireAttempts() {
  const std::lock_guard lock(state_->mutex);
  auto& attempts = state_->finished_attempts;
  internal::RecordAttempt(attempt_, attempts);
  while (attempts.size() > kKeptOutcomes) {
    internal::ForgetAttempt(state_->paths, attempts.front());
    attempts.pop_front();
  }
}

// --- the other ranks
// ------------------------------------------------------------------------------

Result<void> StepWriter::Impl::Prepare(const Summary& summary) {
  CAIRN_TRY(CheckUsable());
  CAIRN_CHECK(state_->joined);
  failed_ = true;
  CAIRN_TRY(FinishPart(summary));
  prepared_ = InfoOf(summary);
  // From here on rank 0 may commit it: it stays unless rank 0 says that it has discarded it. The
  // name need not be durable, as rank 0 makes a manifest of its own.
  finished_ = true;
  return internal::Rename(ManifestPath(), state_->paths.pending_manifest(attempt_, options_.rank),
                          "manifest.rename");
}

Result<StepInfo> StepWriter::Impl::AwaitDecision() {
  CAIRN_CHECK(state_->joined && finished_);
  CAIRN_TRY_ASSIGN(prepared_.generation, AwaitGeneration());
  return prepared_;
}

Result<void> StepWriter::Impl::FinishPart(const Summary& summary) {
  CAIRN_TRY(SealSegment());
  if (!sealed_.empty()) {
    CAIRN_TRY(internal::SyncDirectory(state_->paths.segments(), "segment.directory_sync"));
  }
  CAIRN_TRY(AddReferencedSegments());
  if (!internal::Exists(state_->paths.attempt(attempt_))) {
    return Fail(Error{.code = ErrorCode::kUnavailable,
                      .message =
                          "the attempt was given up: rank 0 has closed the store, or another "
                          "job has taken it over",
                      .file = state_->paths.root,
                      .step = step_});
  }
  CAIRN_TRY(WriteStepRecord(summary));
  CAIRN_TRY(manifest_->Finish());
  manifest_.reset();
  return {};
}

Result<uint64_t> StepWriter::Impl::AwaitGeneration() {
  Poll poll(options_.decision_deadline, options_.world_size);
  while (true) {
    if (auto outcome = internal::FindOutcome(state_->paths, attempt_)) {
      if (outcome->discarded) finished_ = false;
      return std::move(outcome->generation);
    }
    if (!internal::Exists(state_->paths.attempt(attempt_))) {
      return FindInIndex("rank 0 has closed the store, or another job has taken it over");
    }
    if (!poll.Again()) return FindInIndex("rank 0 gave no word before the deadline");
  }
}

Result<uint64_t> StepWriter::Impl::FindInIndex(std::string_view why) const {
  const auto fail = [&](std::string_view verdict) {
    return Fail(Error{.code = ErrorCode::kUnavailable,
                      .message = fmt::format("{}; {}", why, verdict),
                      .file = state_->paths.root,
                      .step = step_});
  };
  const auto index = internal::Index::Open(state_->paths.root, /*writable=*/false,
                                           /*create=*/false, state_->options.deadline);
  if (!index) return fail("the index does not open, so the step may or may not exist");
  const auto steps = internal::LoadSteps(**index);
  if (!steps) return fail("the index cannot be read, so the step may or may not exist");
  for (const internal::StepEntry& entry : *steps) {
    if (entry.info.attempt == attempt_) return entry.info.generation;
  }
  return fail("the step is not committed so far");
}

}  // namespace cairn::kv
