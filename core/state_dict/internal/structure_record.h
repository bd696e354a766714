#pragma once
/// Checks StructureRecords before they are used.

#include <cstddef>
#include <span>

#include "kv/base/error.h"

namespace cairn::schema {
struct StructureRecord;
}  // namespace cairn::schema

namespace cairn::core::internal {

/// Verifies a StructureRecord and returns it; it borrows `bytes`. Its vectors are present and
/// have the same length, all kinds are known, and all keys together are not longer than `bytes`;
/// child counts are not checked. kDataLoss: `bytes` are not such a record. kUnimplemented: a newer
/// version wrote it. Cost: two walks over the record.
Result<const schema::StructureRecord*> CheckedStructure(std::span<const std::byte> bytes);

}  // namespace cairn::core::internal
