#include "core/step/application_records.h"

#include <fmt/format.h>

#include <functional>
#include <set>
#include <utility>

#include "cairn_schema/application_generated.h"
#include "core/base/utf8.h"
#include "kv/base/key.h"
#include "kv/base/record_check.h"

namespace cairn::core {
namespace {

bool IsName(std::string_view name) {
  if (name.empty() || name.size() > kMaxApplicationNameBytes) return false;
  while (!name.empty()) {
    const auto point = DecodeUtf8(name);
    if (!point || point->value == 0 || IsSurrogate(point->value)) return false;
    name.remove_prefix(point->length_bytes);
  }
  return true;
}

std::vector<std::byte> Encode(std::span<const std::byte> data) {
  flatbuffers::FlatBufferBuilder builder;
  const auto bytes =
      builder.CreateVector(reinterpret_cast<const uint8_t*>(data.data()), data.size());
  builder.Finish(schema::CreateApplicationRecord(builder, schema::kRecordVersion, bytes),
                 schema::ApplicationRecordIdentifier());
  const auto* const begin = reinterpret_cast<const std::byte*>(builder.GetBufferPointer());
  return {begin, begin + builder.GetSize()};
}

}  // namespace

Result<void> CheckApplicationRecord(std::string_view name, std::span<const std::byte> data) {
  if (!IsName(name)) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("the name of a record must have 1 to {} bytes of UTF-8 without NUL",
                            kMaxApplicationNameBytes));
  }
  if (data.size() > kMaxApplicationRecordBytes) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("the record '{}' has {} bytes, more than the limit of {}", name,
                            data.size(), kMaxApplicationRecordBytes));
  }
  return {};
}

namespace internal {

Result<std::vector<std::byte>> DecodeApplicationRecord(std::string_view name,
                                                       std::span<const std::byte> record) {
  auto found = kv::CheckedRecord<schema::ApplicationRecord>(
      record, schema::ApplicationRecordIdentifier(), "ApplicationRecord");
  if (!found) {
    Error error = std::move(found).error();
    error.message = fmt::format("the record '{}': {}", name, error.message);
    return Fail(std::move(error));
  }
  if ((*found)->data() == nullptr) return std::vector<std::byte>();
  const auto* const begin = reinterpret_cast<const std::byte*>((*found)->data()->data());
  return std::vector<std::byte>(begin, begin + (*found)->data()->size());
}

Result<void> AddApplicationRecord(const std::string& name, std::span<const std::byte> data,
                                  kv::StepWriter& writer) {
  CAIRN_TRY(CheckApplicationRecord(name, data));
  return writer.AddRecord(kv::Column::kApplication, name, Encode(data));
}

Result<void> MoveApplicationRecords(const kv::Snapshot& snapshot, const kv::StepInfo& step,
                                    const ApplicationRecordChanges& changes,
                                    kv::StepWriter& writer) {
  std::set<std::string, std::less<>> removed;
  CAIRN_TRY(
      snapshot.Scan(kv::Column::kApplication, step, "",
                    [&](std::string_view name, std::span<const std::byte> record) -> Result<bool> {
                      const auto change = changes.find(std::string(name));
                      if (change == changes.end()) {
                        CAIRN_TRY(writer.AddRecord(kv::Column::kApplication, name, record));
                      } else if (!change->second) {
                        removed.emplace(name);
                      }
                      return true;
                    }));
  for (const auto& [name, data] : changes) {
    if (data) {
      CAIRN_TRY(AddApplicationRecord(name, *data, writer));
    } else if (!removed.contains(name)) {
      return Fail(ErrorCode::kNotFound, fmt::format("the step has no record '{}'", name));
    }
  }
  return {};
}

}  // namespace internal
}  // namespace cairn::core
