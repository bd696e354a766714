// Local header, padding, data, descriptor; the directory at the end.

#include "core/interop/archive/internal/zip_writer.h"

#include "core/interop/archive/internal/crc32.h"
#include "core/interop/archive/internal/little_endian.h"

namespace cairn::core::internal {
namespace {

constexpr uint32_t kMost32 = 0xffffffff;
constexpr uint16_t kZip64Extra = 1;
constexpr uint16_t kPaddingExtra = 0x4246;       // "FB", torch's own
constexpr uint16_t kFlags = 1u << 3 | 1u << 11;  // a descriptor follows the data; names are UTF-8
constexpr uint16_t kDate = 1 << 5 | 1;           // 1980-01-01: the same state, the same file

// Sizes and checksums of a member that the local header leaves to the descriptor are 0.
std::string LocalHeader(const std::string& name, bool is_wide, uint64_t begin_bytes) {
  std::string header;
  AppendLittle(header, uint32_t{0x04034b50});
  AppendLittle(header, static_cast<uint16_t>(is_wide ? 45u : 20u));
  AppendLittle(header, kFlags);
  AppendLittle(header, uint16_t{0});  // stored
  AppendLittle(header, uint16_t{0});  // time
  AppendLittle(header, kDate);
  AppendLittle(header, uint32_t{0});
  AppendLittle(header, is_wide ? kMost32 : uint32_t{0});
  AppendLittle(header, is_wide ? kMost32 : uint32_t{0});
  AppendLittle(header, static_cast<uint16_t>(name.size()));
  std::string extra;
  if (is_wide) {
    AppendLittle(extra, kZip64Extra);
    AppendLittle(extra, uint16_t{16});
    AppendLittle(extra, uint64_t{0});
    AppendLittle(extra, uint64_t{0});
  }
  constexpr uint64_t kFieldBytes = 4;
  const uint64_t unpadded = begin_bytes + 30 + name.size() + extra.size() + kFieldBytes;
  const uint64_t padding = (ZipWriter::kAlignmentBytes - unpadded % ZipWriter::kAlignmentBytes) %
                           ZipWriter::kAlignmentBytes;
  AppendLittle(extra, kPaddingExtra);
  AppendLittle(extra, static_cast<uint16_t>(padding));
  extra.append(padding, 'Z');
  AppendLittle(header, static_cast<uint16_t>(extra.size()));
  return header + name + extra;
}

}  // namespace

Result<void> ZipWriter::Write(std::span<const std::byte> bytes) {
  at_ += bytes.size();
  return file_->Write(bytes);
}

Result<void> ZipWriter::Add(const std::string& name, std::span<const std::byte> bytes) {
  CAIRN_TRY(Begin(name, bytes.size()));
  CAIRN_TRY(Append(bytes));
  return End();
}

Result<void> ZipWriter::Begin(const std::string& name, uint64_t length_bytes) {
  CAIRN_CHECK(left_bytes_ == 0);
  members_.push_back({.name = name, .length_bytes = length_bytes, .header_bytes = at_});
  left_bytes_ = length_bytes;
  return Write(LocalHeader(name, length_bytes >= kMost32, at_));
}

Result<void> ZipWriter::Append(std::span<const std::byte> bytes) {
  CAIRN_CHECK(bytes.size() <= left_bytes_);
  left_bytes_ -= bytes.size();
  members_.back().crc32 = Crc32(members_.back().crc32, bytes);
  return Write(bytes);
}

Result<void> ZipWriter::End() {
  CAIRN_CHECK(left_bytes_ == 0);
  const Member& member = members_.back();
  std::string descriptor;
  AppendLittle(descriptor, uint32_t{0x08074b50});
  AppendLittle(descriptor, member.crc32);
  for (int i = 0; i < 2; ++i) {
    if (member.length_bytes >= kMost32) {
      AppendLittle(descriptor, member.length_bytes);
    } else {
      AppendLittle(descriptor, static_cast<uint32_t>(member.length_bytes));
    }
  }
  return Write(descriptor);
}

std::string ZipWriter::Record(const Member& member) {
  const bool is_wide = member.length_bytes >= kMost32 || member.header_bytes >= kMost32;
  std::string record;
  AppendLittle(record, uint32_t{0x02014b50});
  AppendLittle(record, static_cast<uint16_t>(is_wide ? 45u : 20u));
  AppendLittle(record, static_cast<uint16_t>(is_wide ? 45u : 20u));
  AppendLittle(record, kFlags);
  AppendLittle(record, uint16_t{0});
  AppendLittle(record, uint16_t{0});
  AppendLittle(record, kDate);
  AppendLittle(record, member.crc32);
  const auto length = is_wide ? kMost32 : static_cast<uint32_t>(member.length_bytes);
  AppendLittle(record, length);
  AppendLittle(record, length);
  AppendLittle(record, static_cast<uint16_t>(member.name.size()));
  AppendLittle(record, is_wide ? uint16_t{28} : uint16_t{0});
  AppendLittle(record, uint16_t{0});  // comment
  AppendLittle(record, uint16_t{0});  // disk
  AppendLittle(record, uint16_t{0});
  AppendLittle(record, uint32_t{0});
  AppendLittle(record, is_wide ? kMost32 : static_cast<uint32_t>(member.header_bytes));
  record += member.name;
  if (!is_wide) return record;
  AppendLittle(record, kZip64Extra);
  AppendLittle(record, uint16_t{24});
  AppendLittle(record, member.length_bytes);
  AppendLittle(record, member.length_bytes);
  AppendLittle(record, member.header_bytes);
  return record;
}

Result<uint64_t> ZipWriter::Finish() {
  const uint64_t begin = at_;
  for (const Member& member : members_) CAIRN_TRY(Write(Record(member)));
  const uint64_t end = at_;
  const uint64_t count = members_.size();
  std::string tail;
  // Always with the zip64 records: they hurt nobody, and leave one form to test.
  AppendLittle(tail, uint32_t{0x06064b50});
  AppendLittle(tail, uint64_t{44});
  AppendLittle(tail, uint16_t{45});
  AppendLittle(tail, uint16_t{45});
  AppendLittle(tail, uint32_t{0});
  AppendLittle(tail, uint32_t{0});
  AppendLittle(tail, count);
  AppendLittle(tail, count);
  AppendLittle(tail, end - begin);
  AppendLittle(tail, begin);
  AppendLittle(tail, uint32_t{0x07064b50});
  AppendLittle(tail, uint32_t{0});
  AppendLittle(tail, end);
  AppendLittle(tail, uint32_t{1});
  AppendLittle(tail, uint32_t{0x06054b50});
  AppendLittle(tail, uint16_t{0});
  AppendLittle(tail, uint16_t{0});
  const auto short_count = static_cast<uint16_t>(count < 0xffff ? count : 0xffff);
  AppendLittle(tail, short_count);
  AppendLittle(tail, short_count);
  AppendLittle(tail, end - begin < kMost32 ? static_cast<uint32_t>(end - begin) : kMost32);
  AppendLittle(tail, begin < kMost32 ? static_cast<uint32_t>(begin) : kMost32);
  AppendLittle(tail, uint16_t{0});
  CAIRN_TRY(Write(tail));
  return at_;
}

}  // namespace cairn::core::internal
