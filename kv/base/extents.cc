// Arithmetic of extents.

#include "kv/base/extents.h"

#include <cairn_schema/chunk_generated.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <string>

#include "kv/base/digest.h"
#include "schema/record.h"

namespace cairn::kv {
namespace {

Error DamagedRecord(const char* why) {
  return Error{.code = ErrorCode::kDataLoss,
               .message = std::string("a chunk record is damaged: ") + why};
}

// Returns whether no sum overflows. Adds to the length of the chunk.
bool IsPossible(const Extent& extent, uint64_t* length_bytes) {
  uint64_t end = 0;
  return !__builtin_add_overflow(*length_bytes, extent.length_bytes, length_bytes) &&
         !__builtin_add_overflow(extent.offset_bytes, extent.length_bytes, &end) &&
         !__builtin_add_overflow(extent.page_digests_offset_bytes,
                                 8 * PageCount(extent.length_bytes), &end);
}

// FlatBuffers' verifier does not check that the 8-byte fields after the length of a vector are
// aligned, so they are copied and never read in place.
Extent CopyExtent(const uint8_t* from) {
  static_assert(sizeof(schema::Extent) == 4 * sizeof(uint64_t));
  std::array<uint64_t, 4> fields;
  std::memcpy(fields.data(), from, sizeof(fields));
  return {.segment_id = fields[0],
          .offset_bytes = fields[1],
          .length_bytes = fields[2],
          .page_digests_offset_bytes = fields[3]};
}

using StoredExtents = flatbuffers::Vector<const schema::Extent*>;

Result<Extents> ReadSeveral(const StoredExtents& stored) {
  std::vector<Extent> extents(stored.size());
  uint64_t length = 0;
  for (uint32_t i = 0; i < stored.size(); ++i) {
    extents[i] = CopyExtent(stored.Data() + i * sizeof(schema::Extent));
    const bool is_last = i + 1 == stored.size();
    if (!IsPossible(extents[i], &length) || extents[i].length_bytes == 0 ||
        (!is_last && extents[i].length_bytes % kPageBytes != 0)) {
      return Fail(DamagedRecord("impossible sizes of one of its extents"));
    }
  }
  return Extents(extents);
}

Result<std::vector<Extent>> ReadDeltas(const StoredExtents& stored) {
  std::vector<Extent> deltas(stored.size());
  for (uint32_t i = 0; i < stored.size(); ++i) {
    deltas[i] = CopyExtent(stored.Data() + i * sizeof(schema::Extent));
    uint64_t length = 0;
    if (!IsPossible(deltas[i], &length) || length == 0) {
      return Fail(DamagedRecord("impossible sizes of one of its deltas"));
    }
  }
  return deltas;
}

Result<void> CheckStored(std::span<const Extent> extents) {
  if (std::ranges::none_of(extents, &Extent::is_zeros)) return {};
  return Fail(DamagedRecord("an extent names no segment"));
}

bool IsZeros(const Extents& extents) {
  return extents.size() == 1 && extents.front() == Extent::Zeros(extents.front().length_bytes);
}

Result<ChunkExtents> ReadWithDeltas(const schema::ChunkRecord& chunk) {
  const StoredExtents* const deltas = chunk.deltas();
  if (chunk.extent() != nullptr || chunk.extents() == nullptr || chunk.extents()->size() == 0 ||
      deltas == nullptr || deltas->size() == 0 || deltas->size() > kMaxDeltas) {
    return Fail(DamagedRecord("its version requires extents and deltas"));
  }
  ChunkExtents extents;
  CAIRN_TRY_ASSIGN(extents.payload, ReadSeveral(*chunk.extents()));
  if (chunk.version() >= schema::kCompressedVersion) {
    if (!IsZeros(extents.payload)) {
      return Fail(DamagedRecord("its version requires an extent of zeros"));
    }
  } else {
    CAIRN_TRY(CheckStored(extents.payload.all()));
  }
  if (extents.payload.length_bytes() > kMaxBytesWithDeltas) {
    return Fail(DamagedRecord("it is too long to have deltas"));
  }
  CAIRN_TRY_ASSIGN(extents.deltas, ReadDeltas(*deltas));
  CAIRN_TRY(CheckStored(extents.deltas));
  return extents;
}

}  // namespace

Extent Extent::From(uint64_t skipped_bytes) const {
  CAIRN_CHECK(skipped_bytes % kPageBytes == 0 && skipped_bytes < length_bytes);
  return {
      .segment_id = segment_id,
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
         next.page_digests_offset_bytes ==
             page_digests_offset_bytes + 8 * (length_bytes / kPageBytes);
}

Extents::Extents(std::span<const Extent> extents) {
  CAIRN_CHECK(!extents.empty());
  first_ = extents.front();
  for (const Extent& extent : extents.subspan(1)) {
    Extent& last = several_.empty() ? first_ : several_.back();
    if (last.IsFollowedBy(extent)) {
      last.length_bytes += extent.length_bytes;
      continue;
    }
    if (several_.empty()) several_.push_back(first_);
    several_.push_back(extent);
  }
}

uint64_t Extents::length_bytes() const {
  uint64_t length = 0;
  for (const Extent& extent : all()) length += extent.length_bytes;
  return length;
}

Extent Extents::At(uint64_t begin_bytes) const {
  for (const Extent& extent : all()) {
    if (begin_bytes < extent.length_bytes) return extent.From(begin_bytes);
    begin_bytes -= extent.length_bytes;
  }
  CAIRN_CHECK(false);
  return {};
}

Result<ChunkExtents> ReadExtents(const schema::ChunkRecord& chunk) {
  if (chunk.version() >= schema::kDeltasVersion) return ReadWithDeltas(chunk);
  if (chunk.version() >= schema::kSeveralExtentsVersion) {
    if (chunk.extent() != nullptr || chunk.extents() == nullptr || chunk.extents()->size() < 2) {
      return Fail(DamagedRecord("its version requires several extents"));
    }
    CAIRN_TRY_ASSIGN(Extents extents, ReadSeveral(*chunk.extents()));
    CAIRN_TRY(CheckStored(extents.all()));
    return extents;
  }
  if (chunk.extent() == nullptr)
    return Fail(DamagedRecord("it does not state where its bytes are stored"));
  const Extent only{.segment_id = chunk.extent()->segment_id(),
                    .offset_bytes = chunk.extent()->offset_bytes(),
                    .length_bytes = chunk.extent()->length_bytes(),
                    .page_digests_offset_bytes = chunk.extent()->page_digests_offset_bytes()};
  uint64_t length = 0;
  if (!IsPossible(only, &length)) return Fail(DamagedRecord("impossible sizes"));
  CAIRN_TRY(CheckStored({&only, 1}));
  return ChunkExtents(only);
}

bool operator==(const Extents& a, const Extents& b) { return std::ranges::equal(a.all(), b.all()); }

}  // namespace cairn::kv
