#pragma once
// SPDX-License-Identifier: Apache-2.0
/// From bytes to a verified FlatBuffers record: schema::CheckRecord with a `Result`; and the
/// refusal of digests of a newer kind.

#include <cstddef>
#include <span>
#include <string>

#include "kv/base/digest.h"
#include "kv/base/error.h"
#include "schema/record.h"

namespace cairn::kv {

/// Verifies a record and returns it. The result borrows `bytes`. `kind` names the kind of record in
/// errors ("chunk record"). kDataLoss: `bytes` are not such a record. kUnimplemented: its format
/// version is newer than this build reads. Cost: one walk over the record.
template <typename Record>
Result<const Record*> CheckedRecord(std::span<const std::byte> bytes, const char* identifier,
                                    const char* kind) {
  const Record* record = nullptr;
  switch (schema::CheckRecord<Record>(bytes, identifier, &record)) {
    case schema::RecordCheck::kOk:
      return record;
    case schema::RecordCheck::kNewer:
      return Fail(ErrorCode::kUnimplemented,
                  std::string(kind) +
                      " has a newer format version than this build reads; use a newer Cairn");
    case schema::RecordCheck::kDamaged:
      break;
  }
  return Fail(ErrorCode::kDataLoss, std::string(kind) + " is damaged: verification of its " +
                                        std::to_string(bytes.size()) + " bytes failed");
}

/// kUnimplemented: `object` ("a chunk record") has a digest of another kind than kXxh3. Call it
/// before anything of the object is used: another kind may give its other fields another meaning.
inline Result<void> CheckDigestKind(uint32_t kind, const char* object) {
  if (kind == kXxh3) return {};
  return Fail(ErrorCode::kUnimplemented, std::string(object) + " has a digest of kind " +
                                             std::to_string(kind) +
                                             ", which this build does not know; use a newer Cairn");
}

}  // namespace cairn::kv
