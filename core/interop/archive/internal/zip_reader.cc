// From the end: end record, zip64 end record, directory, local headers.

#include "core/interop/archive/internal/zip_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "core/interop/archive/internal/little_endian.h"

namespace cairn::core::internal {
namespace {

constexpr uint32_t kLocalSignature = 0x04034b50;
constexpr uint32_t kDirectorySignature = 0x02014b50;
constexpr uint32_t kEndSignature = 0x06054b50;
constexpr uint32_t kEnd64Signature = 0x06064b50;
constexpr uint32_t kLocator64Signature = 0x07064b50;
constexpr uint64_t kLocalBytes = 30;
constexpr uint64_t kDirectoryBytes = 46;
constexpr uint64_t kEndBytes = 22;
constexpr uint64_t kEnd64Bytes = 56;
constexpr uint64_t kLocator64Bytes = 20;
constexpr uint64_t kMostCommentBytes = 0xffff;
constexpr uint16_t kZip64Extra = 1;
// Flags that change what the bytes of a member are: encryption (0, 6, 13) and patches (5).
constexpr uint16_t kRefusedFlags = 1u << 0 | 1u << 5 | 1u << 6 | 1u << 13;

std::unexpected<Error> Damaged(std::string_view why) {
  return Fail(ErrorCode::kDataLoss, fmt::format("the zip archive is damaged: {}", why));
}

struct Directory {
  uint64_t count = 0;
  uint64_t begin_bytes = 0;
  uint64_t length_bytes = 0;
};

// A member with the place of its header.
struct Placed {
  ZipMember member;
  uint64_t header_bytes = 0;  // where the local header begins
  uint64_t length_bytes = 0;
  uint64_t end_bytes = 0;  // of the data
};

class Parser {
 public:
  explicit Parser(std::span<const std::byte> archive) : archive_(archive) {}

  Result<std::vector<Placed>> Parse() {
    CAIRN_TRY_ASSIGN(const Directory directory, FindDirectory());
    // Every record takes kDirectoryBytes, so that a count cannot ask for more memory than that.
    if (directory.count > directory.length_bytes / kDirectoryBytes) {
      return Damaged("its directory is too short for its members");
    }
    auto records = archive_.subspan(directory.begin_bytes, directory.length_bytes);
    std::vector<Placed> placed;
    placed.reserve(directory.count);
    for (uint64_t i = 0; i < directory.count; ++i) {
      CAIRN_TRY_ASSIGN(Placed member, TakeRecord(records));
      CAIRN_TRY(Place(directory.begin_bytes, member));
      placed.push_back(std::move(member));
    }
    if (!records.empty()) return Damaged("its directory holds more than its members");
    return placed;
  }

 private:
  template <typename Integer>
  Integer Get(std::span<const std::byte> bytes, uint64_t at) const {
    return ReadLittle<Integer>(bytes.subspan(at));
  }

  Result<Directory> FindDirectory() const {
    if (archive_.size() < kEndBytes) return Damaged("it is too short");
    const uint64_t last = archive_.size() - kEndBytes;
    const uint64_t first = last - std::min(last, kMostCommentBytes);
    for (uint64_t at = last + 1; at-- > first;) {
      if (Get<uint32_t>(archive_, at) != kEndSignature) continue;
      if (Get<uint16_t>(archive_, at + 20) != last - at) continue;
      return ReadEnd(at);
    }
    return Damaged("it has no end record; was it cut off?");
  }

  Result<Directory> ReadEnd(uint64_t at) const {
    const auto end = archive_.subspan(at, kEndBytes);
    Directory directory{.count = Get<uint16_t>(end, 10),
                        .begin_bytes = Get<uint32_t>(end, 16),
                        .length_bytes = Get<uint32_t>(end, 12)};
    uint64_t limit = at;
    if (at >= kLocator64Bytes &&
        Get<uint32_t>(archive_, at - kLocator64Bytes) == kLocator64Signature) {
      const uint64_t end64 = Get<uint64_t>(archive_, at - kLocator64Bytes + 8);
      if (at - kLocator64Bytes < kEnd64Bytes || end64 > at - kLocator64Bytes - kEnd64Bytes ||
          Get<uint32_t>(archive_, end64) != kEnd64Signature) {
        return Damaged("its zip64 end record is not where it should be");
      }
      directory = {.count = Get<uint64_t>(archive_, end64 + 32),
                   .begin_bytes = Get<uint64_t>(archive_, end64 + 48),
                   .length_bytes = Get<uint64_t>(archive_, end64 + 40)};
      limit = end64;
    }
    if (Get<uint16_t>(end, 4) != 0 || Get<uint16_t>(end, 6) != 0) {
      return Fail(ErrorCode::kUnimplemented, "a zip archive on several disks cannot be read");
    }
    if (directory.begin_bytes > limit || directory.length_bytes != limit - directory.begin_bytes) {
      return Damaged("its directory leads out of it");
    }
    return directory;
  }

  // The record at the front of `records`, which it is taken off.
  Result<Placed> TakeRecord(std::span<const std::byte>& records) const {
    if (records.size() < kDirectoryBytes || Get<uint32_t>(records, 0) != kDirectorySignature) {
      return Damaged("a record of its directory is none");
    }
    const uint64_t name_bytes = Get<uint16_t>(records, 28);
    const uint64_t extra_bytes = Get<uint16_t>(records, 30);
    const uint64_t comment_bytes = Get<uint16_t>(records, 32);
    if (name_bytes + extra_bytes + comment_bytes > records.size() - kDirectoryBytes) {
      return Damaged("a record of its directory leads out of it");
    }
    const auto name = records.subspan(kDirectoryBytes, name_bytes);
    Placed placed;
    placed.member.name.assign(reinterpret_cast<const char*>(name.data()), name.size());
    placed.member.crc32 = Get<uint32_t>(records, 16);
    const uint16_t flags = Get<uint16_t>(records, 8);
    if (Get<uint16_t>(records, 10) != 0 || (flags & kRefusedFlags) != 0) {
      return Fail(ErrorCode::kUnimplemented,
                  fmt::format("member '{}' of the zip archive is compressed or encrypted; torch "
                              "writes neither",
                              placed.member.name));
    }
    CAIRN_TRY(
        ReadSizes(records, records.subspan(kDirectoryBytes + name_bytes, extra_bytes), placed));
    records = records.subspan(kDirectoryBytes + name_bytes + extra_bytes + comment_bytes);
    return placed;
  }

  // Sizes and offset, from the zip64 field where the 32 bits say so.
  Result<void> ReadSizes(std::span<const std::byte> record, std::span<const std::byte> extra,
                         Placed& placed) const {
    uint64_t stored_bytes = Get<uint32_t>(record, 20);
    placed.length_bytes = Get<uint32_t>(record, 24);
    placed.header_bytes = Get<uint32_t>(record, 42);
    std::span<const std::byte> wide = FindExtra(extra, kZip64Extra);
    for (uint64_t* const field : {&placed.length_bytes, &stored_bytes, &placed.header_bytes}) {
      if (*field != 0xffffffff) continue;
      if (wide.size() < 8) return Damaged("a record of its directory lacks its zip64 sizes");
      *field = Get<uint64_t>(wide, 0);
      wide = wide.subspan(8);
    }
    if (stored_bytes != placed.length_bytes) {
      return Damaged(fmt::format("member '{}' is stored in {} bytes and has {}", placed.member.name,
                                 stored_bytes, placed.length_bytes));
    }
    return {};
  }

  std::span<const std::byte> FindExtra(std::span<const std::byte> extra, uint16_t wanted) const {
    while (extra.size() >= 4) {
      const uint16_t id = Get<uint16_t>(extra, 0);
      const uint64_t length = Get<uint16_t>(extra, 2);
      if (length > extra.size() - 4) return {};
      if (id == wanted) return extra.subspan(4, length);
      extra = extra.subspan(4 + length);
    }
    return {};
  }

  // Finds the data behind the local header, all of it before `limit`.
  Result<void> Place(uint64_t limit, Placed& placed) const {
    const uint64_t at = placed.header_bytes;
    const std::string& name = placed.member.name;
    if (limit < kLocalBytes || at > limit - kLocalBytes ||
        Get<uint32_t>(archive_, at) != kLocalSignature) {
      return Damaged(fmt::format("member '{}' has no header where the directory says", name));
    }
    const uint64_t name_bytes = Get<uint16_t>(archive_, at + 26);
    const uint64_t begin = at + kLocalBytes + name_bytes + Get<uint16_t>(archive_, at + 28);
    if (begin > limit || placed.length_bytes > limit - begin) {
      return Damaged(fmt::format("member '{}' leads out of it", name));
    }
    const auto local = archive_.subspan(at + kLocalBytes, name_bytes);
    if (name != std::string_view(reinterpret_cast<const char*>(local.data()), local.size()) ||
        Get<uint16_t>(archive_, at + 8) != 0) {
      return Damaged(fmt::format("header and directory disagree on member '{}'", name));
    }
    placed.member.bytes = archive_.subspan(begin, placed.length_bytes);
    placed.end_bytes = begin + placed.length_bytes;
    return {};
  }

  std::span<const std::byte> archive_;
};

Result<void> CheckDisjoint(const std::vector<Placed>& placed) {
  std::vector<const Placed*> order;
  for (const Placed& member : placed) order.push_back(&member);
  std::ranges::sort(order, {}, [](const Placed* member) { return member->header_bytes; });
  for (size_t i = 1; i < order.size(); ++i) {
    if (order[i]->header_bytes < order[i - 1]->end_bytes) {
      return Damaged(fmt::format("members '{}' and '{}' share bytes", order[i - 1]->member.name,
                                 order[i]->member.name));
    }
  }
  return {};
}

}  // namespace

bool LooksLikeZip(std::span<const std::byte> bytes) {
  return bytes.size() >= 4 && ReadLittle<uint32_t>(bytes) == kLocalSignature;
}

Result<ZipReader> ZipReader::Open(std::span<const std::byte> archive) {
  CAIRN_TRY_ASSIGN(std::vector<Placed> placed, Parser(archive).Parse());
  CAIRN_TRY(CheckDisjoint(placed));
  ZipReader reader;
  reader.members_.reserve(placed.size());
  for (Placed& member : placed) {
    reader.has_checksums_ = reader.has_checksums_ || member.member.crc32 != 0;
    reader.members_.push_back(std::move(member.member));
  }
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
