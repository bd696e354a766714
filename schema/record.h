#pragma once
// SPDX-License-Identifier: Apache-2.0
/// Verified access to FlatBuffers records: every record is checked here before it is read.

#include <flatbuffers/flatbuffers.h>

#include <cstdint>
#include <span>

namespace cairn::schema {

/// Version of the records that this build writes. It refuses higher ones.
inline constexpr uint8_t kRecordVersion = 1;

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
  if (root->version() > kRecordVersion) return RecordCheck::kNewer;
  *record = root;
  return RecordCheck::kOk;
}

}  // namespace cairn::schema
