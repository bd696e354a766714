// Checks the files of the index, manifests against the index, segments and usage.

#include "kv/internal/verify_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>

#include "kv/internal/commit/manifest.h"
#include "kv/internal/commit/store_identity.h"
#include "kv/internal/io/file.h"
#include "kv/step_info.h"

namespace cairn::kv::internal {
namespace {

using Report = std::function<void(Damage)>;

/// Reports the error of a check as damage of `file`.
void ReportError(const Report& report, const Result<void>& result, const std::string& file) {
  if (!result) report(Damage{Error(result.error()).WithFile(file)});
}

// --- manifests

/// Checks that the index has every record of a manifest, byte for byte.
class ManifestCheck {
 public:
  ManifestCheck(const Index& index, const StepEntry& step) : index_(index), step_(step) {}

  Result<void> Run(const std::string& path, const ManifestRef& expected) {
    CAIRN_TRY_ASSIGN(const ManifestRef found,
                     ReadManifest(path, [this](Column column, std::string_view key,
                                               std::span<const std::byte> value) {
                       return CheckEntry(column, key, value);
                     }));
    if (found.digest != expected.digest || found.file_bytes != expected.file_bytes) {
      return Fail(ErrorCode::kDataLoss,
                  "the manifest is not the one to which the step record refers");
    }
    return {};
  }

  uint64_t chunk_count() const { return chunk_count_; }

 private:
  Result<void> CheckEntry(Column column, std::string_view key, std::span<const std::byte> value) {
    if (column == Column::kChunks) ++chunk_count_;
    if (column != Column::kChunks && column != Column::kTensors && column != Column::kValues)
      return {};
    std::string full = NumberKey(step_.info.generation);
    full.append(key);
    CAIRN_TRY_ASSIGN(const auto record, index_.Get(column, full));
    if (!record || !std::ranges::equal(*record, value)) {
      const auto parsed = ParseKey(key);
      return Fail(
          Error{.code = ErrorCode::kDataLoss,
                .message = fmt::format("the index {} a {} record of the manifest",
                                       record ? "differs from" : "lacks", ColumnName(column)),
                .key = parsed ? std::string(parsed->fqn) : std::string(),
                .step = step_.info.step});
    }
    return {};
  }

  const Index& index_;
  const StepEntry& step_;
  uint64_t chunk_count_ = 0;
};

Result<void> CheckManifests(const StorePaths& paths, const Index& index, const StepEntry& step,
                            const Report& report) {
  uint64_t chunk_count = 0;
  bool complete = true;
  for (const ManifestRef& manifest : step.manifests) {
    const uint64_t generation = step.info.generation;
    // During a commit or a delete the manifest temporarily has another name.
    const std::string candidates[] = {paths.pending_manifest(step.info.attempt, manifest.rank),
                                      paths.manifest(generation, manifest.rank),
                                      DeletingPath(paths, generation, manifest.rank)};
    const auto found = std::ranges::find_if(candidates, Exists);
    if (found == std::end(candidates)) {
      complete = false;
      report(
          Damage{Error{.code = ErrorCode::kDataLoss,
                       .message = "the step's manifest is missing; the step is still readable from "
                                  "the index, but could not be restored if the index is damaged",
                       .file = candidates[1],
                       .step = step.info.step}});
      continue;
    }
    ManifestCheck check(index, step);
    if (Result<void> checked = check.Run(*found, manifest); !checked) {
      complete = false;
      report(Damage{std::move(checked).error().WithFile(*found).WithStep(step.info.step)});
    }
    chunk_count += check.chunk_count();
  }
  if (complete && chunk_count != step.info.chunk_count) {
    report(Damage{Error{.code = ErrorCode::kDataLoss,
                        .message = fmt::format("the step record counts {} chunks, its manifests {}",
                                               step.info.chunk_count, chunk_count),
                        .step = step.info.step}});
  }
  return {};
}

// --- segments

/// Checks that bytes [begin, end) of a segment are zero: no digest covers them, but they were
/// written as zeros.
Result<void> CheckZeros(const File& file, uint64_t begin, uint64_t end) {
  std::vector<std::byte> buffer(std::min<uint64_t>(end - begin, 1 << 16));
  while (begin < end) {
    const auto part = std::span(buffer).first(std::min<uint64_t>(buffer.size(), end - begin));
    CAIRN_TRY(file.ReadAt(begin, part));
    const auto bad =
        std::ranges::find_if(part, [](std::byte byte) { return byte != std::byte{0}; });
    if (bad != part.end()) {
      return Fail(Error{.code = ErrorCode::kDataLoss,
                        .message = "a gap of the segment is not zero",
                        .file = file.path(),
                        .offset_bytes = begin + static_cast<uint64_t>(bad - part.begin())});
    }
    begin += part.size();
  }
  return {};
}

Result<void> CheckRegion(const File& file, uint64_t offset, uint64_t length, uint64_t digest,
                         const char* what, std::vector<std::byte>& bytes) {
  bytes.resize(length);
  CAIRN_TRY(file.ReadAt(offset, bytes));
  if (Checksum64(bytes) != digest) {
    return Fail(Error{.code = ErrorCode::kDataLoss,
                      .message = fmt::format("the segment's {} do not match their checksum", what),
                      .file = file.path(),
                      .offset_bytes = offset});
  }
  return {};
}

/// Checks the gaps between the chunks that the footer lists. Extents of these chunks in other
/// segments are checked with those segments.
Result<void> CheckGaps(const File& file, const SegmentTrailer& trailer,
                       const std::vector<FooterEntry>& entries) {
  std::vector<Extent> extents;
  for (const FooterEntry& entry : entries) {
    if (entry.column != Column::kChunks) continue;
    CAIRN_TRY_ASSIGN(const Extents of_chunk, DecodeChunkExtents(entry.value));
    std::ranges::copy_if(of_chunk, std::back_inserter(extents), [&](const Extent& extent) {
      return extent.segment_id == trailer.segment_id;
    });
  }
  std::ranges::sort(extents, {}, &Extent::offset_bytes);
  uint64_t at = kSegmentHeaderBytes;
  for (const Extent& extent : extents) {
    if (extent.offset_bytes < at || extent.length_bytes > trailer.payload_end_bytes ||
        extent.offset_bytes > trailer.payload_end_bytes - extent.length_bytes) {
      return Fail(
          Error{.code = ErrorCode::kDataLoss,
                .message = "the footer lists chunks that overlap or are not inside the payload",
                .file = file.path(),
                .offset_bytes = extent.offset_bytes});
    }
    CAIRN_TRY(CheckZeros(file, at, extent.offset_bytes));
    at = extent.offset_bytes + extent.length_bytes;
  }
  return CheckZeros(file, at, trailer.page_digests_offset_bytes);
}

Result<void> CheckSegment(const StorePaths& paths, const Uuid& uuid, const SegmentInfo& info) {
  CAIRN_TRY_ASSIGN(const File file, File::OpenRead(paths.segments() + "/" + info.name,
                                                   /*direct=*/false, "segment.open"));
  CAIRN_TRY_ASSIGN(const uint64_t file_bytes, file.SizeBytes());
  if (file_bytes != info.file_bytes || file_bytes < kSegmentHeaderBytes + kSegmentTrailerBytes) {
    return Fail(ErrorCode::kDataLoss,
                fmt::format("the segment has {} bytes, but was sealed with {}", file_bytes,
                            info.file_bytes));
  }
  std::array<std::byte, kSegmentHeaderBytes> header_bytes;
  CAIRN_TRY(file.ReadAt(0, header_bytes));
  CAIRN_TRY_ASSIGN(const SegmentHeader header, DecodeSegmentHeader(header_bytes));
  const uint64_t trailer_at = file_bytes - kSegmentTrailerBytes;
  std::array<std::byte, kSegmentTrailerBytes> trailer_bytes;
  CAIRN_TRY(file.ReadAt(trailer_at, trailer_bytes));
  auto trailer = DecodeSegmentTrailer(trailer_bytes, file_bytes);
  if (!trailer) return Fail(std::move(trailer).error().WithOffset(trailer_at));
  if (header.segment_id != info.segment_id || trailer->segment_id != info.segment_id ||
      header.store_uuid != uuid || trailer->footer_digest != info.footer_digest ||
      trailer->page_digests_checksum != info.page_digests_checksum) {
    return Fail(ErrorCode::kDataLoss, "the segment is not the one to which the index refers");
  }
  std::vector<std::byte> bytes;
  CAIRN_TRY(CheckRegion(file, trailer->page_digests_offset_bytes, 8 * trailer->page_digest_count,
                        trailer->page_digests_checksum, "page digests", bytes));
  const uint64_t footer_at = trailer->footer_offset_bytes();
  CAIRN_TRY(CheckRegion(file, footer_at, trailer->footer_bytes, trailer->footer_digest,
                        "footer records", bytes));
  CAIRN_TRY_ASSIGN(const std::vector<FooterEntry> entries,
                   DecodeSegmentFooter(bytes, info.segment_id));
  CAIRN_TRY(CheckZeros(file, footer_at + trailer->footer_bytes, trailer_at));
  return CheckGaps(file, *trailer, entries);
}

// --- the kv columns

/// Compares the usage that the chunk records of all steps imply with the usage column.
Result<void> CheckUsage(const std::vector<StepInfo>& steps, const IndexedSegments& indexed,
                        const Report& report) {
  std::map<std::pair<uint64_t, uint64_t>, uint64_t> implied;
  for (const StepInfo& step : steps) {
    CAIRN_TRY(indexed.scan_chunks(
        step.generation, [&](std::string_view, std::span<const std::byte> record) -> Result<bool> {
          const auto extents = DecodeChunkExtents(record);
          if (!extents) return true;  // core reports damaged chunks, with their key
          for (const Extent& extent : *extents) {
            implied[{extent.segment_id, step.generation}] += extent.length_bytes;
          }
          return true;
        }));
  }
  if (!indexed.usage) return Fail(Error(indexed.usage.error()));
  for (const Usage& one : *indexed.usage) {
    const auto found = implied.find({one.segment_id, one.generation});
    if (found == implied.end() || found->second != one.live_bytes) {
      report(Damage{
          Error{.code = ErrorCode::kDataLoss,
                .message = fmt::format("the index counts {} live bytes in segment {:016x} for "
                                       "generation {}, the chunks {}",
                                       one.live_bytes, one.segment_id, one.generation,
                                       found == implied.end() ? 0 : found->second)}});
    }
    if (found != implied.end()) implied.erase(found);
  }
  for (const auto& [key, live_bytes] : implied) {
    report(Damage{
        Error{.code = ErrorCode::kDataLoss,
              .message = fmt::format("the index does not count the {} live bytes of generation "
                                     "{} in segment {:016x}",
                                     live_bytes, key.second, key.first)}});
  }
  return {};
}

}  // namespace

Result<void> VerifyFiles(const SnapshotState& snapshot, const IndexedSegments& indexed,
                         const std::function<void(Damage)>& damage) {
  if (const auto identity = ReadIdentity(snapshot.paths); !identity)
    damage(Damage{identity.error()});
  CAIRN_TRY(snapshot.index->VerifyTables([&](Error error) { damage(Damage{std::move(error)}); }));
  for (const StepEntry& entry : snapshot.entries) {
    CAIRN_TRY(CheckManifests(snapshot.paths, *snapshot.index, entry, damage));
  }
  const auto& segments = indexed.segments;
  if (!segments) {
    damage(Damage{segments.error()});
  } else {
    for (const SegmentInfo& segment : *segments) {
      Result<void> checked = CheckSegment(snapshot.paths, snapshot.uuid, segment);
      // A delete may have removed it since the snapshot was taken.
      if (!checked && checked.error().code == ErrorCode::kNotFound) {
        checked = Fail(snapshot.MissingSegment(segment.segment_id, checked.error()));
        if (checked.error().code == ErrorCode::kNotFound) continue;
      }
      ReportError(damage, checked, snapshot.paths.segments() + "/" + segment.name);
    }
  }
  ReportError(damage, CheckUsage(snapshot.steps, indexed, damage), snapshot.paths.index());
  return {};
}

}  // namespace cairn::kv::internal
