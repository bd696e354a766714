#include "core/interop/archive/internal/zip_records.h"

#include <fmt/format.h>

#include <algorithm>

#include "schema/little_endian.h"

namespace cairn::core::internal {
namespace {

using schema::AppendLittleEndian;

constexpr uint32_t kHeaderSignature = 0x04034b50;
constexpr uint32_t kDescriptorSignature = 0x08074b50;
constexpr uint32_t kRecordSignature = 0x02014b50;
constexpr uint32_t kEndSignature = 0x06054b50;
constexpr uint32_t kEnd64Signature = 0x06064b50;
constexpr uint32_t kLocator64Signature = 0x07064b50;
constexpr uint64_t kHeaderBytes = 30;
constexpr uint64_t kRecordBytes = 46;
constexpr uint64_t kEndBytes = 22;
constexpr uint64_t kEnd64Bytes = 56;
constexpr uint64_t kLocator64Bytes = 20;
constexpr uint64_t kMaxCommentBytes = 0xffff;

constexpr uint32_t kMax32 = 0xffffffff;  // in a field of 32 bits: the value is in the zip64 field
constexpr uint16_t kMax16 = 0xffff;
constexpr uint16_t kZip64Extra = 1;
constexpr uint16_t kPaddingExtra = 0x4246;  // "FB", the field that torch pads with
constexpr uint16_t kVersion = 20;
constexpr uint16_t kZip64Version = 45;
constexpr uint16_t kFlags = 1u << 3 | 1u << 11;  // a descriptor follows the data; names are UTF-8
constexpr uint16_t kDate = 1 << 5 | 1;  // 1980-01-01, so that the same state gives the same file
// Flags that change the meaning of the data: encryption (0, 6, 13) and patches (5).
constexpr uint16_t kRefusedFlags = 1u << 0 | 1u << 5 | 1u << 6 | 1u << 13;

std::unexpected<Error> Damaged(std::string_view why) {
  return Fail(ErrorCode::kDataLoss, fmt::format("the zip archive is damaged: {}", why));
}

std::string_view AsText(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

template <typename Integer>
Integer Get(std::span<const std::byte> bytes, uint64_t at) {
  return schema::GetLittleEndian<Integer>(bytes, at);
}

std::string EncodeRecord(const ZipRecord& record) {
  const bool is_wide = record.length_bytes >= kMax32 || record.header_offset_bytes >= kMax32;
  const uint16_t version = is_wide ? kZip64Version : kVersion;
  const auto length = is_wide ? kMax32 : static_cast<uint32_t>(record.length_bytes);
  std::string out;
  AppendLittleEndian(out, kRecordSignature);
  AppendLittleEndian(out, version);  // of the writer
  AppendLittleEndian(out, version);  // that a reader needs
  AppendLittleEndian(out, kFlags);
  AppendLittleEndian(out, uint16_t{0});  // stored
  AppendLittleEndian(out, uint16_t{0});  // time
  AppendLittleEndian(out, kDate);
  AppendLittleEndian(out, record.crc32);
  AppendLittleEndian(out, length);
  AppendLittleEndian(out, length);
  AppendLittleEndian(out, static_cast<uint16_t>(record.name.size()));
  AppendLittleEndian(out, is_wide ? uint16_t{28} : uint16_t{0});  // length of the extra fields
  AppendLittleEndian(out, uint16_t{0});                           // length of the comment
  AppendLittleEndian(out, uint16_t{0});                           // disk
  AppendLittleEndian(out, uint16_t{0});                           // internal attributes
  AppendLittleEndian(out, uint32_t{0});                           // external attributes
  AppendLittleEndian(out, is_wide ? kMax32 : static_cast<uint32_t>(record.header_offset_bytes));
  out += record.name;
  if (!is_wide) return out;
  AppendLittleEndian(out, kZip64Extra);
  AppendLittleEndian(out, uint16_t{24});
  AppendLittleEndian(out, record.length_bytes);
  AppendLittleEndian(out, record.length_bytes);
  AppendLittleEndian(out, record.header_offset_bytes);
  return out;
}

// Always with the zip64 records: readers accept them, and there is only one form to test.
std::string EncodeEnd(uint64_t count, uint64_t begin, uint64_t end) {
  std::string out;
  AppendLittleEndian(out, kEnd64Signature);
  AppendLittleEndian(out, uint64_t{kEnd64Bytes - 12});  // the length of what follows
  AppendLittleEndian(out, kZip64Version);
  AppendLittleEndian(out, kZip64Version);
  AppendLittleEndian(out, uint32_t{0});  // disk
  AppendLittleEndian(out, uint32_t{0});  // disk of the directory
  AppendLittleEndian(out, count);
  AppendLittleEndian(out, count);
  AppendLittleEndian(out, end - begin);
  AppendLittleEndian(out, begin);
  AppendLittleEndian(out, kLocator64Signature);
  AppendLittleEndian(out, uint32_t{0});
  AppendLittleEndian(out, end);
  AppendLittleEndian(out, uint32_t{1});  // number of disks
  AppendLittleEndian(out, kEndSignature);
  AppendLittleEndian(out, uint16_t{0});
  AppendLittleEndian(out, uint16_t{0});
  const auto short_count = static_cast<uint16_t>(std::min<uint64_t>(count, kMax16));
  AppendLittleEndian(out, short_count);
  AppendLittleEndian(out, short_count);
  AppendLittleEndian(out, static_cast<uint32_t>(std::min<uint64_t>(end - begin, kMax32)));
  AppendLittleEndian(out, static_cast<uint32_t>(std::min<uint64_t>(begin, kMax32)));
  AppendLittleEndian(out, uint16_t{0});  // length of the comment
  return out;
}

// Reads from the end: end record, zip64 end record, directory.
class DirectoryDecoder {
 public:
  DirectoryDecoder(std::span<const std::byte> tail, uint64_t tail_offset_bytes)
      : tail_(tail), tail_begin_(tail_offset_bytes) {}

  Result<ZipDirectory> Decode() const {
    CAIRN_TRY_ASSIGN(const Extent extent, FindExtent());
    // Every record has kRecordBytes or more, which bounds the memory that a count can allocate.
    if (extent.count > extent.length_bytes / kRecordBytes) {
      return Damaged("its directory is too short for its members");
    }
    auto bytes = tail_.subspan(extent.begin_bytes - tail_begin_, extent.length_bytes);
    ZipDirectory directory{.records = {}, .offset_bytes = extent.begin_bytes};
    directory.records.reserve(extent.count);
    for (uint64_t i = 0; i < extent.count; ++i) {
      CAIRN_TRY_ASSIGN(ZipRecord record, TakeRecord(bytes));
      directory.records.push_back(std::move(record));
    }
    if (!bytes.empty()) return Damaged("its directory is longer than the records of its members");
    return directory;
  }

 private:
  // The directory as the end records describe it. Positions are in the archive.
  struct Extent {
    uint64_t count = 0;
    uint64_t begin_bytes = 0;
    uint64_t length_bytes = 0;
  };

  template <typename Integer>
  Integer GetAt(uint64_t position) const {
    return Get<Integer>(tail_, position - tail_begin_);
  }

  Result<Extent> FindExtent() const {
    if (tail_.size() < kEndBytes) return Damaged("it is too short");
    const uint64_t last = tail_begin_ + tail_.size() - kEndBytes;
    const uint64_t first = last - std::min(last - tail_begin_, kMaxCommentBytes);
    for (uint64_t at = last + 1; at-- > first;) {
      if (GetAt<uint32_t>(at) != kEndSignature) continue;
      if (GetAt<uint16_t>(at + 20) != last - at) continue;  // the comment ends the archive
      return DecodeEnd(at);
    }
    return Damaged("it has no end record; was it cut off?");
  }

  Result<Extent> DecodeEnd(uint64_t at) const {
    Extent extent{.count = GetAt<uint16_t>(at + 10),
                  .begin_bytes = GetAt<uint32_t>(at + 16),
                  .length_bytes = GetAt<uint32_t>(at + 12)};
    uint64_t limit = at;
    if (at - tail_begin_ >= kLocator64Bytes &&
        GetAt<uint32_t>(at - kLocator64Bytes) == kLocator64Signature) {
      const uint64_t locator = at - kLocator64Bytes;
      limit = GetAt<uint64_t>(locator + 8);
      if (locator - tail_begin_ < kEnd64Bytes || limit < tail_begin_ ||
          limit > locator - kEnd64Bytes || GetAt<uint32_t>(limit) != kEnd64Signature) {
        return Damaged("its zip64 end record is not where it should be");
      }
      extent = {.count = GetAt<uint64_t>(limit + 32),
                .begin_bytes = GetAt<uint64_t>(limit + 48),
                .length_bytes = GetAt<uint64_t>(limit + 40)};
    }
    if (GetAt<uint16_t>(at + 4) != 0 || GetAt<uint16_t>(at + 6) != 0) {
      return Fail(ErrorCode::kUnimplemented, "a zip archive on several disks cannot be read");
    }
    if (extent.begin_bytes < tail_begin_ || extent.begin_bytes > limit ||
        extent.length_bytes != limit - extent.begin_bytes) {
      return Damaged("its directory extends beyond it");
    }
    return extent;
  }

  // Decodes the record at the front of `bytes`, and removes it from them.
  static Result<ZipRecord> TakeRecord(std::span<const std::byte>& bytes) {
    if (bytes.size() < kRecordBytes || Get<uint32_t>(bytes, 0) != kRecordSignature) {
      return Damaged("its directory contains something other than a record");
    }
    const uint64_t name_bytes = Get<uint16_t>(bytes, 28);
    const uint64_t extra_bytes = Get<uint16_t>(bytes, 30);
    const uint64_t comment_bytes = Get<uint16_t>(bytes, 32);
    if (name_bytes + extra_bytes + comment_bytes > bytes.size() - kRecordBytes) {
      return Damaged("a record extends beyond its directory");
    }
    ZipRecord record{.name = std::string(AsText(bytes.subspan(kRecordBytes, name_bytes))),
                     .crc32 = Get<uint32_t>(bytes, 16)};
    const bool is_stored = Get<uint16_t>(bytes, 10) == 0;
    if (!is_stored || (Get<uint16_t>(bytes, 8) & kRefusedFlags) != 0) {
      return Fail(ErrorCode::kUnimplemented,
                  fmt::format("member '{}' of the zip archive is compressed or encrypted, which "
                              "torch never writes",
                              record.name));
    }
    CAIRN_TRY(DecodeSizes(bytes, bytes.subspan(kRecordBytes + name_bytes, extra_bytes), record));
    bytes = bytes.subspan(kRecordBytes + name_bytes + extra_bytes + comment_bytes);
    return record;
  }

  // Lengths and offset; the zip64 field contains those that do not fit into 32 bits.
  static Result<void> DecodeSizes(std::span<const std::byte> bytes,
                                  std::span<const std::byte> extra, ZipRecord& record) {
    uint64_t stored_bytes = Get<uint32_t>(bytes, 20);
    record.length_bytes = Get<uint32_t>(bytes, 24);
    record.header_offset_bytes = Get<uint32_t>(bytes, 42);
    std::span<const std::byte> wide = FindExtra(extra, kZip64Extra);
    for (uint64_t* const field :
         {&record.length_bytes, &stored_bytes, &record.header_offset_bytes}) {
      if (*field != kMax32) continue;
      if (wide.size() < 8) return Damaged("a record of its directory lacks its zip64 sizes");
      *field = Get<uint64_t>(wide, 0);
      wide = wide.subspan(8);
    }
    if (stored_bytes == record.length_bytes) return {};
    return Damaged(fmt::format("member '{}' has {} bytes but is stored in {}", record.name,
                               record.length_bytes, stored_bytes));
  }

  static std::span<const std::byte> FindExtra(std::span<const std::byte> extra, uint16_t wanted) {
    while (extra.size() >= 4) {
      const uint16_t id = Get<uint16_t>(extra, 0);
      const uint64_t length = Get<uint16_t>(extra, 2);
      if (length > extra.size() - 4) return {};
      if (id == wanted) return extra.subspan(4, length);
      extra = extra.subspan(4 + length);
    }
    return {};
  }

  std::span<const std::byte> tail_;
  uint64_t tail_begin_ = 0;  // position of `tail_` in the archive
};

}  // namespace

bool StartsWithZipHeader(std::span<const std::byte> bytes) {
  return bytes.size() >= 4 && Get<uint32_t>(bytes, 0) == kHeaderSignature;
}

std::string EncodeZipHeader(const ZipRecord& record) {
  CAIRN_CHECK(record.name.size() <= kMax16);
  const bool is_wide = record.length_bytes >= kMax32;
  std::string header;
  AppendLittleEndian(header, kHeaderSignature);
  AppendLittleEndian(header, is_wide ? kZip64Version : kVersion);
  AppendLittleEndian(header, kFlags);
  AppendLittleEndian(header, uint16_t{0});  // stored
  AppendLittleEndian(header, uint16_t{0});  // time
  AppendLittleEndian(header, kDate);
  AppendLittleEndian(header, uint32_t{0});  // checksum
  AppendLittleEndian(header, is_wide ? kMax32 : uint32_t{0});
  AppendLittleEndian(header, is_wide ? kMax32 : uint32_t{0});
  AppendLittleEndian(header, static_cast<uint16_t>(record.name.size()));
  std::string extra;
  if (is_wide) {
    AppendLittleEndian(extra, kZip64Extra);
    AppendLittleEndian(extra, uint16_t{16});
    AppendLittleEndian(extra, uint64_t{0});
    AppendLittleEndian(extra, uint64_t{0});
  }
  constexpr uint64_t kFieldBytes = 4;  // id and length of the padding field
  const uint64_t unpadded_end =
      record.header_offset_bytes + kHeaderBytes + record.name.size() + extra.size() + kFieldBytes;
  const uint64_t padding =
      (kZipAlignmentBytes - unpadded_end % kZipAlignmentBytes) % kZipAlignmentBytes;
  AppendLittleEndian(extra, kPaddingExtra);
  AppendLittleEndian(extra, static_cast<uint16_t>(padding));
  extra.append(padding, 'Z');
  AppendLittleEndian(header, static_cast<uint16_t>(extra.size()));
  header += record.name;
  header += extra;
  const auto decoded = DecodeZipHeader(std::as_bytes(std::span(header)));
  CAIRN_CHECK(decoded && decoded->name == record.name && decoded->is_stored &&
              decoded->header_bytes == header.size());
  return header;
}

std::optional<ZipHeader> DecodeZipHeader(std::span<const std::byte> bytes) {
  if (bytes.size() < kHeaderBytes || !StartsWithZipHeader(bytes)) return std::nullopt;
  const uint64_t name_bytes = Get<uint16_t>(bytes, 26);
  const uint64_t header_bytes = kHeaderBytes + name_bytes + Get<uint16_t>(bytes, 28);
  if (header_bytes > bytes.size()) return std::nullopt;
  return ZipHeader{.name = AsText(bytes.subspan(kHeaderBytes, name_bytes)),
                   .header_bytes = header_bytes,
                   .is_stored = Get<uint16_t>(bytes, 8) == 0};
}

std::string EncodeZipDescriptor(const ZipRecord& record) {
  std::string descriptor;
  AppendLittleEndian(descriptor, kDescriptorSignature);
  AppendLittleEndian(descriptor, record.crc32);
  for (int i = 0; i < 2; ++i) {  // the length as stored, and as it was before compression
    if (record.length_bytes >= kMax32) {
      AppendLittleEndian(descriptor, record.length_bytes);
    } else {
      AppendLittleEndian(descriptor, static_cast<uint32_t>(record.length_bytes));
    }
  }
  return descriptor;
}

std::string EncodeZipDirectory(std::span<const ZipRecord> records, uint64_t offset_bytes) {
  std::string directory;
  for (const ZipRecord& record : records) directory += EncodeRecord(record);
  directory += EncodeEnd(records.size(), offset_bytes, offset_bytes + directory.size());
  const auto decoded = DecodeZipDirectory(std::as_bytes(std::span(directory)), offset_bytes);
  CAIRN_CHECK(decoded && decoded->offset_bytes == offset_bytes &&
              std::ranges::equal(decoded->records, records));
  return directory;
}

Result<ZipDirectory> DecodeZipDirectory(std::span<const std::byte> tail,
                                        uint64_t tail_offset_bytes) {
  return DirectoryDecoder(tail, tail_offset_bytes).Decode();
}

}  // namespace cairn::core::internal
