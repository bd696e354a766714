// Puts and reads shared records, whose name is their digest.

#include "kv/commit/internal/shared_records.h"

#include <fmt/format.h>

#include <string_view>

#include "kv/base/digest.h"
#include "kv/commit/internal/part_file.h"
#include "kv/state/internal/attempt_outcome.h"
#include "kv/storage/internal/object_names.h"

namespace cairn::kv::internal {
namespace {

std::string DigestKey(const Digest& digest) { return NumberKey(digest.hi) + NumberKey(digest.lo); }

std::string DigestName(std::string_view key) {
  return fmt::format("{:016x}{:016x}", ReadBigEndian(key.data()), ReadBigEndian(key.data() + 8));
}

// Returns the key of shared records: the digest of their lengths and contents, in order.
std::string DigestOf(std::span<const SharedRecord> records) {
  std::vector<std::byte> content;
  for (const SharedRecord& record : records) {
    const auto add = [&](std::span<const std::byte> bytes) {
      const std::string length = NumberKey(bytes.size());
      content.insert(content.end(), AsBytes(length).begin(), AsBytes(length).end());
      content.insert(content.end(), bytes.begin(), bytes.end());
    };
    content.push_back(static_cast<std::byte>(record.column));
    add(AsBytes(record.key));
    add(record.value);
  }
  return DigestKey(PayloadDigest(content));
}

// The header of shared records. It does not depend on the rank: their digest is their name.
PartHeader SharedHeader(const StepAttempt& attempt) { return attempt.HeaderOf(0); }

}  // namespace

Result<void> AddSharedRecords(StepAttempt& attempt, std::span<const SharedRecord> records) {
  CAIRN_CHECK(attempt.has_ranks() && !attempt.gathered);
  const std::string key = DigestOf(records);
  if (!attempt.known_shared_records.insert(key).second || attempt.part == nullptr) return {};
  CAIRN_TRY(attempt.part->Add(Column::kStructures, key, {}));

  const std::string name = SharedName(attempt.attempt, DigestName(key));
  if (ObjectExists(*attempt.store->storage, name).value_or(false)) return {};
  PartWriter writer(attempt.store->storage, name, SharedHeader(attempt));
  for (const SharedRecord& record : records) {
    CAIRN_TRY(writer.Add(record.column, record.key, record.value));
  }
  Result<void> put = writer.Finish();
  // Many ranks may do this concurrently. The first object remains.
  if (!put && put.error().code == ErrorCode::kConflict) return {};
  return put;
}

Result<std::vector<SharedRecord>> ReadSharedRecords(const StepAttempt& attempt,
                                                    const std::string& digest) {
  Storage& storage = *attempt.store->storage;
  const std::string name = SharedName(attempt.attempt, DigestName(digest));
  std::vector<SharedRecord> records;
  CAIRN_TRY(
      ReadPart(storage, name, SharedHeader(attempt), [&](const RecordView& record) -> Result<void> {
        records.push_back({.column = record.column,
                           .key = std::string(record.key),
                           .value = {record.value.begin(), record.value.end()}});
        return {};
      }));
  if (DigestOf(records) != digest) {
    return Fail(Error{.code = ErrorCode::kDataLoss,
                      .message = "the digest of the shared records differs from their name",
                      .file = ObjectPath(storage.address(), name)});
  }
  return records;
}

}  // namespace cairn::kv::internal
