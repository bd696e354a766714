// First the directory, then the local header of each member.

#include "core/interop/archive/internal/zip_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/interop/archive/internal/zip_records.h"

namespace cairn::core::internal {
namespace {

std::unexpected<Error> Damaged(std::string_view why) {
  return Fail(ErrorCode::kDataLoss, fmt::format("the zip archive is damaged: {}", why));
}

// Finds the data after the local header. All of it must be before the directory.
Result<std::span<const std::byte>> FindData(std::span<const std::byte> before_directory,
                                            const ZipRecord& record) {
  const uint64_t at = record.header_offset_bytes;
  if (at > before_directory.size() || !StartsWithZipHeader(before_directory.subspan(at))) {
    return Damaged(fmt::format("member '{}' has no header at byte {}", record.name, at));
  }
  const auto bytes = before_directory.subspan(at);
  const auto header = DecodeZipHeader(bytes);
  if (!header || record.length_bytes > bytes.size() - header->header_bytes) {
    return Damaged(fmt::format("member '{}' extends beyond it", record.name));
  }
  if (header->name != record.name || !header->is_stored) {
    return Damaged(fmt::format("header and directory disagree on member '{}'", record.name));
  }
  return bytes.subspan(header->header_bytes, record.length_bytes);
}

// Members with their headers, in the order of their bytes, must not overlap.
Result<void> CheckDisjoint(std::span<const std::byte> archive, std::span<const ZipRecord> records,
                           std::span<const ZipMember> members) {
  std::vector<size_t> order(records.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::ranges::sort(order, {}, [&](size_t i) { return records[i].header_offset_bytes; });
  for (size_t i = 1; i < order.size(); ++i) {
    const ZipMember& before = members[order[i - 1]];
    const auto end =
        static_cast<uint64_t>(before.bytes.data() + before.bytes.size() - archive.data());
    if (records[order[i]].header_offset_bytes < end) {
      return Damaged(
          fmt::format("members '{}' and '{}' share bytes", before.name, members[order[i]].name));
    }
  }
  return {};
}

}  // namespace

Result<ZipReader> ZipReader::Open(std::span<const std::byte> archive) {
  CAIRN_TRY_ASSIGN(ZipDirectory directory, DecodeZipDirectory(archive, 0));
  const auto before_directory = archive.first(directory.offset_bytes);
  ZipReader reader;
  reader.members_.reserve(directory.records.size());
  for (const ZipRecord& record : directory.records) {
    CAIRN_TRY_ASSIGN(const auto data, FindData(before_directory, record));
    reader.has_checksums_ = reader.has_checksums_ || record.crc32 != 0;
    reader.members_.push_back({.name = record.name, .crc32 = record.crc32, .bytes = data});
  }
  CAIRN_TRY(CheckDisjoint(archive, directory.records, reader.members_));
  for (size_t i = 0; i < reader.members_.size(); ++i) {
    if (!reader.by_name_.emplace(reader.members_[i].name, i).second) {
      return Damaged(fmt::format("two members are named '{}'", reader.members_[i].name));
    }
  }
  return reader;
}

const ZipMember* ZipReader::Find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &members_[found->second];
}

}  // namespace cairn::core::internal
