#pragma once
/// One way from bytes to a verified record: schema::CheckRecord with errors as values.

#include <span>
#include <string>

#include "kv/error.h"
#include "schema/record.h"

namespace cairn::core::internal {

/// kDataLoss: `bytes` are no `what` ("TensorRecord"). kUnimplemented: of a newer format version.
template <typename Record>
Result<const Record*> Checked(std::span<const std::byte> bytes, const char* identifier,
                              const char* what) {
  const Record* record = nullptr;
  switch (schema::CheckRecord<Record>(bytes, identifier, &record)) {
    case schema::RecordCheck::kOk:
      return record;
    case schema::RecordCheck::kNewer:
      return Fail(ErrorCode::kUnimplemented,
                  std::string(what) + " was written by a newer version; upgrade to read it");
    case schema::RecordCheck::kDamaged:
      break;
  }
  return Fail(ErrorCode::kDataLoss, std::string(what) + " is damaged: it fails verification");
}

}  // namespace cairn::core::internal
