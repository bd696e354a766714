// Arithmetic of extents.

#include "kv/base/extents.h"

#include <cairn_schema/chunk_generated.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include "kv/base/record_check.h"

namespace cairn::kv {
namespace {

Error DamagedRecord(const char* why) {
  return Error{.code = ErrorCode::kDataLoss,
               .message = std::string("a chunk record is damaged: ") + why};
}

constexpr uint8_t kDeltaCodec = 1;

// An empty vector counts as an absent one.
bool IsAbsent(const auto* vector) { return vector == nullptr || vector->size() == 0; }

// Adds the length of a stored extent. kDataLoss: it is empty, a sum overflows, or no segment has
// it.
Result<void> Check(const Extent& extent, uint64_t& length_bytes) {
  uint64_t end = 0;
  if (extent.is_zeros()) return Fail(DamagedRecord("an extent names no segment"));
  if (extent.length_bytes == 0 ||
      __builtin_add_overflow(length_bytes, extent.length_bytes, &length_bytes) ||
      __builtin_add_overflow(extent.offset_bytes, extent.length_bytes, &end) ||
      __builtin_add_overflow(extent.page_digests_offset_bytes, 8 * extent.page_count(), &end)) {
    return Fail(DamagedRecord("impossible sizes"));
  }
  return {};
}

// FlatBuffers' verifier does not check that the 8-byte fields after the length of a vector are
// aligned, so they are copied and never read in place.
Extent CopyExtent(const uint8_t* from, uint8_t page_bits) {
  static_assert(sizeof(schema::Extent) == 4 * sizeof(uint64_t));
  std::array<uint64_t, 4> fields;
  std::memcpy(fields.data(), from, sizeof(fields));
  return {.segment_id = fields[0],
          .offset_bytes = fields[1],
          .length_bytes = fields[2],
          .page_digests_offset_bytes = fields[3],
          .page_bits = page_bits};
}

Result<void> AddAll(const flatbuffers::Vector<const schema::Extent*>* stored, uint8_t page_bits,
                    std::vector<Extent>& extents, uint64_t& length_bytes) {
  for (uint32_t i = 0; stored != nullptr && i < stored->size(); ++i) {
    extents.push_back(CopyExtent(stored->Data() + i * sizeof(schema::Extent), page_bits));
    CAIRN_TRY(Check(extents.back(), length_bytes));
  }
  return {};
}

Result<Extents> ReadPayload(const schema::ChunkRecord& chunk) {
  if (chunk.extent() == nullptr) {
    if (!IsAbsent(chunk.further_extents()) || IsAbsent(chunk.steps())) {
      return Fail(DamagedRecord("it does not state where its bytes are stored"));
    }
    if (chunk.length_bytes() == 0) return Fail(DamagedRecord("it has no bytes"));
    return Extents(Extent::Zeros(chunk.length_bytes()));
  }
  if (chunk.length_bytes() != 0) return Fail(DamagedRecord("it states its length twice"));
  const Extent first =
      CopyExtent(reinterpret_cast<const uint8_t*>(chunk.extent()), chunk.page_bits());
  uint64_t length = 0;
  CAIRN_TRY(Check(first, length));
  if (IsAbsent(chunk.further_extents())) return Extents(first);
  std::vector<Extent> extents{first};
  CAIRN_TRY(AddAll(chunk.further_extents(), chunk.page_bits(), extents, length));
  for (const Extent& extent : extents) {
    const bool is_last = &extent == &extents.back();
    if (!is_last && extent.length_bytes % extent.page_bytes() != 0) {
      return Fail(DamagedRecord("impossible sizes of one of its extents"));
    }
  }
  return Extents(extents);
}

Result<std::vector<Extent>> ReadDeltas(const schema::ChunkRecord& chunk) {
  const size_t count = chunk.steps()->size();
  if (!IsAbsent(chunk.codecs())) {
    if (chunk.codecs()->size() != count) return Fail(DamagedRecord("its steps lack codecs"));
    for (const uint8_t codec : *chunk.codecs()) {
      if (codec == kDeltaCodec) continue;
      return Fail(ErrorCode::kUnimplemented,
                  fmt::format("a chunk record has a step of codec {}, which this build does not "
                              "know; use a newer Cairn",
                              codec));
    }
  }
  if (!IsAbsent(chunk.parameters())) return Fail(DamagedRecord("deltas have no parameters"));
  if (count > kMaxDeltas) return Fail(DamagedRecord("too many steps"));
  if (chunk.page_bits() != kPageBits) return Fail(DamagedRecord("deltas have pages of 64 KiB"));
  std::vector<Extent> deltas;
  uint64_t length = 0;
  CAIRN_TRY(AddAll(chunk.steps(), kPageBits, deltas, length));
  return deltas;
}

}  // namespace

Extent Extent::From(uint64_t skipped_bytes) const {
  CAIRN_CHECK(skipped_bytes % page_bytes() == 0 && skipped_bytes < length_bytes);
  Extent part = *this;
  part.offset_bytes += skipped_bytes;
  part.length_bytes -= skipped_bytes;
  part.page_digests_offset_bytes += 8 * (skipped_bytes / page_bytes());
  return part;
}

Extent Extent::First(uint64_t bytes) const {
  CAIRN_CHECK(bytes <= length_bytes);
  Extent part = *this;
  part.length_bytes = bytes;
  return part;
}

bool Extent::IsFollowedBy(const Extent& next) const {
  return next.segment_id == segment_id && next.offset_bytes == offset_bytes + length_bytes &&
         next.page_bits == page_bits && length_bytes % page_bytes() == 0 &&
         next.page_digests_offset_bytes == page_digests_offset_bytes + 8 * page_count();
}

Extents::Extents(std::span<const Extent> extents) {
  CAIRN_CHECK(!extents.empty());
  first_ = extents.front();
  for (const Extent& extent : extents.subspan(1)) {
    CAIRN_CHECK(extent.page_bits == first_.page_bits);
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
  CAIRN_TRY(CheckDigestKind(chunk.digest_kind(), "a chunk record"));
  if (chunk.page_bits() < kMinPageBits || chunk.page_bits() > kMaxPageBits) {
    return Fail(DamagedRecord("impossible size of its pages"));
  }
  CAIRN_TRY_ASSIGN(ChunkExtents extents, ReadPayload(chunk));
  if (IsAbsent(chunk.steps())) {
    if (IsAbsent(chunk.codecs()) && IsAbsent(chunk.parameters())) return extents;
    return Fail(DamagedRecord("codecs without steps"));
  }
  CAIRN_TRY_ASSIGN(extents.deltas, ReadDeltas(chunk));
  if (extents.payload.length_bytes() > kMaxBytesWithDeltas) {
    return Fail(DamagedRecord("it is too long to have deltas"));
  }
  return extents;
}

bool operator==(const Extents& a, const Extents& b) { return std::ranges::equal(a.all(), b.all()); }

}  // namespace cairn::kv
