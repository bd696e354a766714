#pragma once
// SPDX-License-Identifier: Apache-2.0
/// Verified access to FlatBuffers records: every record is checked here before it is read.

#include <flatbuffers/flatbuffers.h>

#include <cstdint>
#include <span>

namespace cairn::schema {

/// Version of the records that this build writes.
inline constexpr uint8_t kRecordVersion = 1;
/// Version of chunk records with several extents; records with one extent have kRecordVersion.
inline constexpr uint8_t kSeveralExtentsVersion = 2;
/// Version of chunk records with deltas.
inline constexpr uint8_t kDeltasVersion = 3;
/// Version of chunk records that are compressed.
inline constexpr uint8_t kCompressedVersion = 4;

/// ChunkRecord.encoding: the bytes as they are; an earlier version of them and deltas; or zeros and
/// deltas, of which the first contains all bytes.
inline constexpr uint8_t kRawEncoding = 0;
inline constexpr uint8_t kDeltaEncoding = 1;
inline constexpr uint8_t kCompressedEncoding = 2;

/// The newest version of a record type that this build reads. Higher versions are refused.
template <typename Record>
inline constexpr uint8_t kNewestVersion = kRecordVersion;
struct ChunkRecord;
template <>
inline constexpr uint8_t kNewestVersion<ChunkRecord> = kCompressedVersion;

enum class RecordCheck { kOk, kDamaged, kNewer };

/// Checks identifier, every offset and the version of `bytes`, which must stay alive while the
/// result is used. `*record` is set only on kOk. Cost: one walk over the record.
template <typename Record>
RecordCheck CheckRecord(std::span<const std::byte> bytes, const char* identifier,
                        const Record** record) {
  const auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
  // Large tables (structure, footer) have millions of entries; the depth of all records is small.
  flatbuffers::Verifier verifier(data, bytes.size(), /*max_depth=*/16,
                                 /*max_tables=*/1u << 30);
  if (bytes.size() < 8 || !verifier.VerifyBuffer<Record>(identifier)) return RecordCheck::kDamaged;
  const auto* root = flatbuffers::GetRoot<Record>(data);
  if (root->version() == 0) return RecordCheck::kDamaged;
  if (root->version() > kNewestVersion<Record>) return RecordCheck::kNewer;
  *record = root;
  return RecordCheck::kOk;
}

}  // namespace cairn::schema
