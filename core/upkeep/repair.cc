// 1. A verification finds the damaged segments.
// 2. The chunks in these segments are read; damaged ones are looked for by digest.
// 3. All chunks of which there is a good copy are written again (kv/rewrite_chunks.h).

#include "core/upkeep/repair.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "core/step/internal/delta_chain.h"
#include "core/step/internal/stored_page_digests.h"
#include "core/step/internal/tensor_records.h"
#include "kv/base/digest.h"
#include "kv/base/key.h"
#include "kv/read/snapshot.h"
#include "kv/rewrite_chunks.h"

namespace cairn::core {
namespace {

using DigestKey = std::pair<uint64_t, uint64_t>;
DigestKey KeyOf(const kv::Digest& digest) { return {digest.hi, digest.lo}; }

struct Candidate {
  kv::StoredChunk chunk;
  uint64_t step = 0;  // the first that has it
  bool is_good = false;
  /// Where its bytes can be read.
  std::shared_ptr<const kv::Snapshot> source;
  kv::StoredChunk copy;
};

/// Reads a chunk; nothing if its bytes do not match its digest.
std::optional<std::vector<std::byte>> ReadGood(const std::shared_ptr<const kv::Snapshot>& snapshot,
                                               const kv::StoredChunk& chunk) {
  if (!internal::HasBytes(*snapshot, chunk.entry.extents.payload)) return std::nullopt;
  std::vector<std::byte> bytes(chunk.entry.extents.payload.length_bytes());
  if (!internal::ReadStoredChunk(snapshot, chunk.key, chunk.entry.extents, bytes)) {
    return std::nullopt;
  }
  const uint64_t page_bytes = chunk.entry.extents.payload.page_bytes();
  if (kv::PayloadDigest(bytes, page_bytes) != chunk.entry.digest) return std::nullopt;
  return bytes;
}

/// Calls `visit` with the chunks of all steps whose records can be read, the newest step first.
/// Returns the errors of the others.
std::vector<Error> ForEachStoredChunk(
    const kv::Snapshot& snapshot,
    const std::function<void(uint64_t step, std::string_view key, kv::ChunkEntry)>& visit) {
  std::vector<Error> errors;
  const auto numbers = snapshot.step_numbers();
  for (auto step = numbers.rbegin(); step != numbers.rend(); ++step) {
    const auto info = snapshot.FindStep(*step);
    if (!info) {
      errors.push_back(info.error());
      continue;
    }
    const auto scanned =
        snapshot.Scan(kv::Column::kChunks, *info, "",
                      [&](std::string_view key, std::span<const std::byte> record) -> Result<bool> {
                        const auto decoded = internal::DecodeChunk(key, record);
                        if (decoded) visit(*step, key, decoded->info.entry());
                        return true;
                      });
    if (!scanned) errors.push_back(scanned.error());
  }
  return errors;
}

class RepairRun {
 public:
  RepairRun(CheckpointStore& store, const RepairOptions& options)
      : store_(store), options_(options) {}

  Result<RepairReport> Run(std::span<const std::unique_ptr<CheckpointStore>> sources) {
    CAIRN_TRY(FindDamage());
    if (damages_.empty()) return report_;
    CAIRN_TRY_ASSIGN(snapshot_, store_.kv().Latest());
    CAIRN_TRY(FindDamagedSegments());
    FindCandidates();
    CAIRN_TRY(FindCopies(snapshot_));
    for (const auto& source : sources) {
      CAIRN_TRY_ASSIGN(const auto snapshot, source->kv().Latest());
      CAIRN_TRY(FindCopies(snapshot));
    }
    CAIRN_TRY(WriteGood());
    ReportRemaining();
    return report_;
  }

 private:
  Result<void> FindDamage() {
    CAIRN_TRY(store_.Verify(
        {}, [&](const kv::Damage& damage) { damages_.push_back(damage.error); }, options_.progress,
        options_.record_progress));
    // What a newer Cairn has written is not damaged, and is unknown here.
    const auto newer = std::ranges::find(damages_, ErrorCode::kUnimplemented, &Error::code);
    if (newer != damages_.end()) return Fail(*newer);
    report_.found = damages_.size();
    return {};
  }

  bool IsIn(const Error& error, const kv::SegmentInfo& segment) const {
    return error.file.ends_with("/" + segment.name);
  }

  Result<void> FindDamagedSegments() {
    CAIRN_TRY_ASSIGN(const auto segments, snapshot_->Segments());
    for (const kv::SegmentInfo& segment : segments) {
      if (std::ranges::any_of(damages_, [&](const Error& e) { return IsIn(e, segment); })) {
        segments_[segment.segment_id] = segment;
      }
    }
    return {};
  }

  void FindCandidates() {
    std::map<std::vector<std::pair<uint64_t, uint64_t>>, size_t> known;  // by locations
    const auto errors = ForEachStoredChunk(
        *snapshot_, [&](uint64_t step, std::string_view key, kv::ChunkEntry entry) {
          bool is_in_damaged = false;
          std::vector<std::pair<uint64_t, uint64_t>> locations;
          entry.extents.ForEach([&](const kv::Extent& extent) {
            is_in_damaged |= segments_.contains(extent.segment_id);
            locations.emplace_back(extent.segment_id, extent.offset_bytes);
          });
          if (!is_in_damaged || !known.try_emplace(locations, 0).second) return;
          candidates_.push_back({.chunk = {std::string(key), std::move(entry)},
                                 .step = step,
                                 .source = nullptr,
                                 .copy = {}});
        });
    damages_.insert(damages_.end(), errors.begin(), errors.end());
    for (Candidate& candidate : candidates_) {
      candidate.is_good = ReadGood(snapshot_, candidate.chunk).has_value();
      if (candidate.is_good) {
        candidate.source = snapshot_;
        candidate.copy = candidate.chunk;
      } else {
        ++report_.damaged_chunks;
      }
    }
  }

  /// Looks for copies of the damaged chunks that have none yet.
  Result<void> FindCopies(const std::shared_ptr<const kv::Snapshot>& snapshot) {
    std::map<DigestKey, std::vector<Candidate*>> wanted;
    for (Candidate& candidate : candidates_) {
      if (candidate.source == nullptr) {
        wanted[KeyOf(candidate.chunk.entry.digest)].push_back(&candidate);
      }
    }
    if (wanted.empty()) return {};
    // A source may be damaged, too; what can be read of it is used.
    ForEachStoredChunk(*snapshot, [&](uint64_t, std::string_view key, kv::ChunkEntry entry) {
      const auto found = wanted.find(KeyOf(entry.digest));
      if (found == wanted.end()) return;
      const kv::StoredChunk copy{std::string(key), std::move(entry)};
      // A forged record may have the digest of another chunk.
      const auto is_alike = [&](const Candidate* candidate) {
        return candidate->chunk.entry.extents.payload.length_bytes() ==
               copy.entry.extents.payload.length_bytes();
      };
      std::vector<Candidate*>& candidates = found->second;
      if (std::ranges::none_of(candidates, is_alike) || !ReadGood(snapshot, copy)) return;
      for (Candidate* const candidate : candidates) {
        if (!is_alike(candidate)) continue;
        candidate->source = snapshot;
        candidate->copy = copy;
      }
      std::erase_if(candidates, is_alike);
      if (!candidates.empty()) return;
      wanted.erase(found);
    });
    return {};
  }

  Result<void> WriteGood() {
    std::vector<kv::StoredChunk> chunks;
    std::vector<const Candidate*> good;
    for (const Candidate& candidate : candidates_) {
      if (candidate.source == nullptr) continue;
      chunks.push_back(candidate.chunk);
      good.push_back(&candidate);
      ++(candidate.is_good ? report_.moved_chunks : report_.repaired_chunks);
    }
    if (options_.dry_run || chunks.empty()) return {};
    const auto bytes_of = [&](size_t i) -> Result<std::vector<std::byte>> {
      auto bytes = ReadGood(good[i]->source, good[i]->copy);
      if (bytes) return *std::move(bytes);
      return Fail(Error{.code = ErrorCode::kDataLoss,
                        .message = "a copy of the chunk was damaged or deleted during the repair",
                        .key = good[i]->chunk.key});
    };
    CAIRN_TRY_ASSIGN(const auto replaced, kv::ReplaceChunks(store_.kv(), chunks, bytes_of));
    report_.written_bytes = replaced.written_bytes;
    report_.rewritten_steps = replaced.rewritten_steps;
    return {};
  }

  void ReportRemaining() {
    for (const Candidate& candidate : candidates_) {
      if (candidate.source != nullptr) continue;
      Error error{.code = ErrorCode::kDataLoss,
                  .message = "a chunk is damaged, and no good copy of it was found",
                  .step = candidate.step};
      if (const auto parsed = kv::ParseKey(candidate.chunk.key)) error.key = parsed->fqn;
      report_.remaining.push_back(std::move(error));
    }
    for (const Error& damage : damages_) {
      const bool is_of_segment = std::ranges::any_of(
          segments_, [&](const auto& segment) { return IsIn(damage, segment.second); });
      if (!is_of_segment) report_.remaining.push_back(damage);
    }
  }

  CheckpointStore& store_;
  const RepairOptions& options_;
  std::shared_ptr<const kv::Snapshot> snapshot_;
  std::vector<Error> damages_;
  std::map<uint64_t, kv::SegmentInfo> segments_;  // damaged segments, by id
  std::vector<Candidate> candidates_;
  RepairReport report_;
};

}  // namespace

Result<RepairReport> Repair(CheckpointStore& store,
                            std::span<const std::unique_ptr<CheckpointStore>> sources,
                            const RepairOptions& options) {
  return RepairRun(store, options).Run(sources);
}

}  // namespace cairn::core
