// Encodes and decodes parts, block by block.

#include "kv/commit/internal/part_file.h"

#include <fmt/format.h>
#define XXH_STATIC_LINKING_ONLY  // for XXH3_64bits_withSeed
#include <xxhash.h>
#include <zstd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "kv/base/digest.h"
#include "kv/base/div.h"
#include "kv/io/internal/file.h"
#include "kv/root/internal/framed_record.h"
#include "kv/storage/internal/object_names.h"
#include "schema/little_endian.h"

namespace cairn::kv::internal {
namespace {

using schema::GetLittleEndian;
using schema::PutLittleEndian;

constexpr char kMagic[] = "CAIRNPRT";
constexpr size_t kBlockHeaderBytes = 24;
constexpr size_t kEntryHeaderBytes = 12;
constexpr size_t kBlockTargetBytes = 1 << 20;
constexpr uint32_t kMaxBlockBytes = 1u << 30;
constexpr uint64_t kMaxObjectBytes = 2ull << 30;  // one block that does not compress, and 64 MiB
constexpr uint32_t kMaxDataObjects = 1 << 16;
constexpr uint32_t kEndMark = 0xffffffff;
constexpr size_t kDataObjectsAt = 20;
constexpr size_t kAttemptAt = 56;
static_assert(kAttemptAt + kMaxAttemptBytes + 16 == kPartHeaderBytes);

// Neighbouring records are similar; this level compresses them to a quarter at some hundred MB/s.
constexpr int kZstdLevel = 1;

struct BlockHeader {
  uint32_t payload_bytes = 0;
  uint32_t entry_count = 0;
  uint32_t stored_bytes = 0;
  uint64_t checksum = 0;
};

uint64_t BlockChecksum(const BlockHeader& header, std::span<const std::byte> stored) {
  const uint64_t seed = (uint64_t{header.payload_bytes} << 32) | header.entry_count;
  return XXH3_64bits_withSeed(stored.data(), stored.size(), seed);
}

void EncodeBlockHeader(const BlockHeader& header, std::span<std::byte, kBlockHeaderBytes> out) {
  PutLittleEndian(out, 0, header.payload_bytes);
  PutLittleEndian(out, 4, header.entry_count);
  PutLittleEndian(out, 8, header.stored_bytes);
  PutLittleEndian<uint32_t>(out, 12, 0);
  PutLittleEndian(out, 16, header.checksum);
}

BlockHeader DecodeBlockHeader(std::span<const std::byte, kBlockHeaderBytes> bytes) {
  return {.payload_bytes = GetLittleEndian<uint32_t>(bytes, 0),
          .entry_count = GetLittleEndian<uint32_t>(bytes, 4),
          .stored_bytes = GetLittleEndian<uint32_t>(bytes, 8),
          .checksum = GetLittleEndian<uint64_t>(bytes, 16)};
}

Error Damaged(const std::string& name, uint64_t offset_bytes, std::string what) {
  return Error{.code = ErrorCode::kDataLoss,
               .message = fmt::format("the part is damaged: {}", what),
               .file = name,
               .offset_bytes = offset_bytes};
}

std::array<std::byte, kPartHeaderBytes> EncodeHeader(const PartHeader& header) {
  std::array<std::byte, kPartHeaderBytes> out{};
  std::memcpy(out.data(), kMagic, 8);
  PutLittleEndian<uint32_t>(out, 8, kPartVersion);
  PutLittleEndian(out, 12, header.rank);
  PutLittleEndian(out, 16, header.world_size);
  PutLittleEndian(out, kDataObjectsAt, header.data_objects);
  PutLittleEndian(out, 24, header.step);
  PutLittleEndian(out, 32, header.created_unix_ns);
  std::ranges::copy(header.store_uuid, out.begin() + 40);
  CAIRN_CHECK(header.attempt.size() < kMaxAttemptBytes);
  std::memcpy(out.data() + kAttemptAt, header.attempt.data(), header.attempt.size());
  PutLittleEndian(out, kPartHeaderBytes - 8,
                  Checksum64(std::span(out).first(kPartHeaderBytes - 8)));
  return out;
}

Result<PartHeader> DecodeHeader(std::span<const std::byte> bytes, const std::string& name) {
  if (std::memcmp(bytes.data(), kMagic, 8) != 0) return Fail(Damaged(name, 0, "it has no magic"));
  if (GetLittleEndian<uint64_t>(bytes, kPartHeaderBytes - 8) !=
      Checksum64(bytes.first(kPartHeaderBytes - 8))) {
    return Fail(Damaged(name, 0, "the header does not match its checksum"));
  }
  const auto version = GetLittleEndian<uint32_t>(bytes, 8);
  if (version != kPartVersion) {
    return Fail(Error{.code = ErrorCode::kUnimplemented,
                      .message = fmt::format("the part has format version {}, this build reads {}",
                                             version, kPartVersion),
                      .file = name});
  }
  PartHeader header;
  header.rank = GetLittleEndian<uint32_t>(bytes, 12);
  header.world_size = GetLittleEndian<uint32_t>(bytes, 16);
  header.data_objects = GetLittleEndian<uint32_t>(bytes, kDataObjectsAt);
  header.step = GetLittleEndian<uint64_t>(bytes, 24);
  header.created_unix_ns = GetLittleEndian<int64_t>(bytes, 32);
  std::ranges::copy(bytes.subspan(40, 16), header.store_uuid.begin());
  const auto* attempt = reinterpret_cast<const char*>(bytes.data() + kAttemptAt);
  header.attempt.assign(attempt, strnlen(attempt, kMaxAttemptBytes));
  return header;
}

bool IsFor(const PartHeader& header, const PartHeader& expected) {
  return header.step == expected.step && header.rank == expected.rank &&
         header.world_size == expected.world_size && header.attempt == expected.attempt;
}

/// Calls back with the entries of one block whose checksum is right. Returns their number.
Result<uint64_t> ReadEntries(std::span<const std::byte> payload, uint32_t entry_count,
                             const PartCallback& callback) {
  RecordView entry;
  size_t at = 0;
  for (uint32_t i = 0; i < entry_count; ++i) {
    if (payload.size() - at < kEntryHeaderBytes)
      return Fail(ErrorCode::kDataLoss, "a truncated entry");
    const auto column = std::to_integer<uint8_t>(payload[at]);
    const auto key_bytes = GetLittleEndian<uint32_t>(payload, at + 4);
    const auto value_bytes = GetLittleEndian<uint32_t>(payload, at + 8);
    at += kEntryHeaderBytes;
    if (column >= kColumnCount || key_bytes > payload.size() - at ||
        value_bytes > payload.size() - at - key_bytes) {
      return Fail(ErrorCode::kDataLoss, "an entry of impossible size");
    }
    const auto* text = reinterpret_cast<const char*>(payload.data() + at);
    entry.column = static_cast<Column>(column);
    entry.key = std::string_view(text, key_bytes);
    entry.value = payload.subspan(at + key_bytes, value_bytes);
    CAIRN_TRY(callback(entry));
    at += size_t{key_bytes} + value_bytes;
  }
  if (at != payload.size()) return Fail(ErrorCode::kDataLoss, "bytes after the last entry");
  return entry_count;
}

/// A decompression context. Its creation costs as much as the decompression of a small block.
struct Decompressor {
  ZSTD_DCtx* context = ZSTD_createDCtx();
  Decompressor() = default;
  Decompressor(const Decompressor&) = delete;
  Decompressor& operator=(const Decompressor&) = delete;
  ~Decompressor() { ZSTD_freeDCtx(context); }
};

/// Reads the blocks of a part, object by object.
class PartReader {
 public:
  explicit PartReader(const PartCallback& callback) : callback_(callback) {}

  /// Reads the blocks from `begin` of an object on.
  Result<void> ReadBlocks(const std::string& name, std::span<const std::byte> object,
                          size_t begin) {
    size_t at = begin;
    while (at < object.size()) {
      CAIRN_TRY_ASSIGN(const size_t length_bytes, ReadBlock(name, object, at));
      at += length_bytes;
    }
    return {};
  }

  bool at_end() const { return at_end_; }
  uint64_t seen_entries() const { return seen_entries_; }

 private:
  /// Returns the length of the block.
  Result<size_t> ReadBlock(const std::string& name, std::span<const std::byte> object, size_t at) {
    const auto rest = object.subspan(at);
    if (at_end_) return Fail(Damaged(name, at, "there are bytes after its end"));
    if (rest.size() < kBlockHeaderBytes) return Fail(Damaged(name, at, "a block is truncated"));
    const BlockHeader block = DecodeBlockHeader(rest.first<kBlockHeaderBytes>());
    if (GetLittleEndian<uint32_t>(rest, 12) != 0) {
      return Fail(Damaged(name, at, "a block header has bytes that must be zero"));
    }
    if (block.payload_bytes > kMaxBlockBytes ||
        block.stored_bytes > rest.size() - kBlockHeaderBytes) {
      return Fail(Damaged(name, at, "a block is longer than the object"));
    }
    const auto stored = rest.subspan(kBlockHeaderBytes, block.stored_bytes);
    if (block.checksum != BlockChecksum(block, stored)) {
      return Fail(Damaged(name, at, "a block does not match its checksum"));
    }
    // A wrong length must not allocate 1 GiB for a few bytes.
    if (block.payload_bytes > MaxZstdContentBytes(block.stored_bytes)) {
      return Fail(Damaged(name, at, "a block is too short for its contents"));
    }
    thread_local const Decompressor decompressor;
    payload_.resize(block.payload_bytes);
    if (ZSTD_decompressDCtx(decompressor.context, payload_.data(), payload_.size(), stored.data(),
                            stored.size()) != payload_.size()) {
      return Fail(Damaged(name, at, "a block cannot be decompressed"));
    }
    Result<void> read = ReadPayload(block);
    if (!read) return Fail(std::move(read).error().WithFile(name).WithOffset(at));
    return kBlockHeaderBytes + block.stored_bytes;
  }

  Result<void> ReadPayload(const BlockHeader& block) {
    if (block.entry_count == kEndMark) {
      if (payload_.size() != 8 || GetLittleEndian<uint64_t>(payload_, 0) != seen_entries_) {
        return Fail(ErrorCode::kDataLoss,
                    "the end of the part does not match the blocks before it");
      }
      at_end_ = true;
      return {};
    }
    CAIRN_TRY_ASSIGN(const uint64_t read, ReadEntries(payload_, block.entry_count, callback_));
    seen_entries_ += read;
    return {};
  }

  const PartCallback& callback_;
  std::vector<std::byte> payload_;
  uint64_t seen_entries_ = 0;
  bool at_end_ = false;
};

}  // namespace

std::string PartDataName(const std::string& name, uint32_t index) {
  return fmt::format("{}.{}.data", name.substr(0, name.rfind('.')), index);
}

PartWriter::PartWriter(std::shared_ptr<Storage> storage, std::string name, PartHeader header)
    : storage_(std::move(storage)), name_(std::move(name)), header_(std::move(header)) {}

Result<void> PartWriter::Add(Column column, std::string_view key,
                             std::span<const std::byte> value) {
  const uint64_t need = kEntryHeaderBytes + key.size() + value.size();
  if (need > kMaxBlockBytes) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("a record of {} bytes is too large", need));
  }
  if (!block_.empty() && block_.size() + need > kBlockTargetBytes) {
    CAIRN_TRY(EndBlock(block_entries_));
    if (blocks_.size() > kMaxPartBytes) CAIRN_TRY(PutData());
  }
  const size_t at = block_.size();
  block_.resize(at + kEntryHeaderBytes);
  block_[at] = std::byte{static_cast<uint8_t>(column)};
  PutLittleEndian(block_, at + 4, static_cast<uint32_t>(key.size()));
  PutLittleEndian(block_, at + 8, static_cast<uint32_t>(value.size()));
  block_.insert(block_.end(), AsBytes(key).begin(), AsBytes(key).end());
  block_.insert(block_.end(), value.begin(), value.end());
  ++block_entries_;
  ++entry_count_;
  return {};
}

Result<void> PartWriter::EndBlock(uint32_t entry_count) {
  compressed_.resize(ZSTD_compressBound(block_.size()));
  const size_t compressed_bytes = ZSTD_compress(compressed_.data(), compressed_.size(),
                                                block_.data(), block_.size(), kZstdLevel);
  if (ZSTD_isError(compressed_bytes)) {
    return Fail(ErrorCode::kInternal,
                fmt::format("cannot compress a block: {}", ZSTD_getErrorName(compressed_bytes)));
  }
  const auto stored = std::span(compressed_).first(compressed_bytes);
  BlockHeader header{.payload_bytes = static_cast<uint32_t>(block_.size()),
                     .entry_count = entry_count,
                     .stored_bytes = static_cast<uint32_t>(compressed_bytes)};
  header.checksum = BlockChecksum(header, stored);
  std::array<std::byte, kBlockHeaderBytes> header_bytes;
  EncodeBlockHeader(header, header_bytes);
  blocks_.insert(blocks_.end(), header_bytes.begin(), header_bytes.end());
  blocks_.insert(blocks_.end(), stored.begin(), stored.end());
  block_.clear();
  block_entries_ = 0;
  return {};
}

Result<void> PartWriter::PutData() {
  if (header_.data_objects >= kMaxDataObjects) {
    return Fail(ErrorCode::kInvalidArgument, "a rank has too many records for one step");
  }
  CAIRN_TRY(storage_->PutIfAbsentVolatile(PartDataName(name_, header_.data_objects), blocks_));
  ++header_.data_objects;
  blocks_.clear();
  return {};
}

Result<void> PartWriter::Finish() {
  if (block_entries_ > 0) CAIRN_TRY(EndBlock(block_entries_));
  block_.resize(8);
  PutLittleEndian(block_, 0, entry_count_);
  CAIRN_TRY(EndBlock(kEndMark));
  const auto header = EncodeHeader(header_);
  CAIRN_CHECK(DecodeHeader(header, name_).has_value());
  blocks_.insert(blocks_.begin(), header.begin(), header.end());
  Result<void> put = storage_->PutIfAbsentVolatile(name_, blocks_);
  if (put) return {};
  // If the storage has these bytes, the put was performed, and its response was lost.
  const Result<std::vector<std::byte>> stored = storage_->Read(name_, blocks_.size());
  if (stored && *stored == blocks_) return {};
  return put;
}

Result<void> ReadPart(Storage& storage, const std::string& name, const PartHeader& expected,
                      const PartCallback& callback) {
  CAIRN_TRY_ASSIGN(const std::vector<std::byte> part, FetchPart(storage, name));
  return ReadFetchedPart(storage, name, part, expected, callback);
}

Result<std::vector<std::byte>> FetchPart(Storage& storage, const std::string& name) {
  return storage.Read(name, kMaxObjectBytes);
}

uint64_t ClaimedBytes(std::span<const std::byte> part) {
  uint64_t claimed_bytes = 0;
  size_t at = kPartHeaderBytes;
  while (at < part.size() && part.size() - at >= kBlockHeaderBytes) {
    const BlockHeader block = DecodeBlockHeader(part.subspan(at).first<kBlockHeaderBytes>());
    claimed_bytes += block.payload_bytes;
    at += kBlockHeaderBytes + block.stored_bytes;
  }
  return claimed_bytes;
}

bool HasDataObjects(std::span<const std::byte> part) {
  return part.size() >= kPartHeaderBytes && GetLittleEndian<uint32_t>(part, kDataObjectsAt) > 0;
}

Result<void> ReadFetchedPart(Storage& storage, const std::string& name,
                             std::span<const std::byte> part, const PartHeader& expected,
                             const PartCallback& callback) {
  const std::string path = ObjectPath(storage.address(), name);
  if (part.size() < kPartHeaderBytes) return Fail(Damaged(path, 0, "it is too short"));
  CAIRN_TRY_ASSIGN(const PartHeader header, DecodeHeader(part.first(kPartHeaderBytes), path));
  if (header.store_uuid != expected.store_uuid) {
    return Fail(Error{.code = ErrorCode::kConflict,
                      .message = "the part was written for another store: the store was replaced "
                                 "by another one while a rank had it open; open it again",
                      .file = path});
  }
  if (!IsFor(header, expected)) {
    return Fail(Damaged(path, 0, "it belongs to another rank or attempt"));
  }
  if (header.data_objects > kMaxDataObjects)
    return Fail(Damaged(path, 0, "it has too many objects"));
  PartReader reader(callback);
  for (uint32_t i = 0; i < header.data_objects; ++i) {
    const std::string data_name = PartDataName(name, i);
    CAIRN_TRY_ASSIGN(const std::vector<std::byte> data, storage.Read(data_name, kMaxObjectBytes));
    CAIRN_TRY(reader.ReadBlocks(ObjectPath(storage.address(), data_name), data, 0));
  }
  CAIRN_TRY(reader.ReadBlocks(path, part, kPartHeaderBytes));
  if (!reader.at_end()) return Fail(Damaged(path, part.size(), "its end is missing"));
  return {};
}

}  // namespace cairn::kv::internal
