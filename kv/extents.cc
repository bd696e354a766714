// Arithmetic of runs of pages.

#include "kv/extents.h"

#include <cairn_schema/chunk_generated.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include "kv/digest.h"
#include "schema/record.h"

namespace cairn::kv {
namespace {

Error DamagedRecord(const char* why) {
  return Error{.code = ErrorCode::kDataLoss,
               .message = std::string("a chunk record is damaged: ") + why};
}

// What every run must be; adds to the chunk's length.
bool IsPossible(const Extent& run, uint64_t* length_bytes) {
  uint64_t end = 0;
  return !__builtin_add_overflow(*length_bytes, run.length_bytes, length_bytes) &&
         !__builtin_add_overflow(run.offset_bytes, run.length_bytes, &end) &&
         !__builtin_add_overflow(run.page_digests_offset_bytes, 8 * PageCount(run.length_bytes), &end);
}

// The verifier does not check that the 8-byte fields behind a vector's length are aligned: they are
// copied out, never read in place.
Extent CopyRun(const uint8_t* from) {
  static_assert(sizeof(schema::Extent) == 4 * sizeof(uint64_t));
  std::array<uint64_t, 4> fields;
  std::memcpy(fields.data(), from, sizeof(fields));
  return {.segment_id = fields[0],
          .offset_bytes = fields[1],
          .length_bytes = fields[2],
          .page_digests_offset_bytes = fields[3]};
}

Result<Extents> ReadRuns(const flatbuffers::Vector<const schema::Extent*>& runs) {
  std::vector<Extent> extents(runs.size());
  uint64_t length = 0;
  for (uint32_t i = 0; i < runs.size(); ++i) {
    extents[i] = CopyRun(runs.Data() + i * sizeof(schema::Extent));
    const bool is_last = i + 1 == runs.size();
    if (!IsPossible(extents[i], &length) || extents[i].length_bytes == 0 ||
        (!is_last && extents[i].length_bytes % kPageBytes != 0)) {
      return Fail(DamagedRecord("impossible sizes of a run of its pages"));
    }
  }
  return Extents(extents);
}

}  // namespace

Extent Extent::From(uint64_t skipped_bytes) const {
  CAIRN_CHECK(skipped_bytes % kPageBytes == 0 && skipped_bytes < length_bytes);
  return {.segment_id = segment_id,
          .offset_bytes = offset_bytes + skipped_bytes,
          .length_bytes = length_bytes - skipped_bytes,
          .page_digests_offset_bytes = page_digests_offset_bytes + 8 * (skipped_bytes / kPageBytes)};
}

Extent Extent::First(uint64_t bytes) const {
  CAIRN_CHECK(bytes <= length_bytes);
  Extent part = *this;
  part.length_bytes = bytes;
  return part;
}

bool Extent::IsFollowedBy(const Extent& next) const {
  return next.segment_id == segment_id && next.offset_bytes == offset_bytes + length_bytes &&
         length_bytes % kPageBytes == 0 &&
         next.page_digests_offset_bytes == page_digests_offset_bytes + 8 * (length_bytes / kPageBytes);
}

Extents::Extents(std::span<const Extent> runs) {
  CAIRN_CHECK(!runs.empty());
  first_ = runs.front();
  for (const Extent& run : runs.subspan(1)) {
    Extent& last = several_.empty() ? first_ : several_.back();
    if (last.IsFollowedBy(run)) {
      last.length_bytes += run.length_bytes;
      continue;
    }
    if (several_.empty()) several_.push_back(first_);
    several_.push_back(run);
  }
}

uint64_t Extents::length_bytes() const {
  uint64_t length = 0;
  for (const Extent& run : all()) length += run.length_bytes;
  return length;
}

Extent Extents::At(uint64_t begin_bytes) const {
  for (const Extent& run : all()) {
    if (begin_bytes < run.length_bytes) return run.From(begin_bytes);
    begin_bytes -= run.length_bytes;
  }
  CAIRN_CHECK(false);
  return {};
}

Result<Extents> ReadExtents(const schema::ChunkRecord& chunk) {
  if (chunk.version() >= schema::kSeveralExtentsVersion) {
    if (chunk.extent() != nullptr || chunk.extents() == nullptr || chunk.extents()->size() < 2) {
      return Fail(DamagedRecord("it has not several runs of pages"));
    }
    return ReadRuns(*chunk.extents());
  }
  if (chunk.extent() == nullptr) return Fail(DamagedRecord("it does not say where its bytes lie"));
  const Extent only{.segment_id = chunk.extent()->segment_id(),
                    .offset_bytes = chunk.extent()->offset_bytes(),
                    .length_bytes = chunk.extent()->length_bytes(),
                    .page_digests_offset_bytes = chunk.extent()->page_digests_offset_bytes()};
  uint64_t length = 0;
  if (!IsPossible(only, &length)) return Fail(DamagedRecord("impossible sizes"));
  return Extents(only);
}

bool operator==(const Extents& a, const Extents& b) { return std::ranges::equal(a.all(), b.all()); }

}  // namespace cairn::kv
