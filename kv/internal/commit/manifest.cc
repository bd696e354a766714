// Writes and reads manifest files as streams.

#include "kv/internal/commit/manifest.h"

#include <fmt/format.h>
#define XXH_STATIC_LINKING_ONLY  // for state on the stack
#include <xxhash.h>
#include <zstd.h>

#include <algorithm>
#include <cstring>

#include "kv/internal/index/index.h"
#include "kv/internal/io/fault_point.h"
#include "schema/little_endian.h"

namespace cairn::kv::internal {
namespace {

using schema::GetLittleEndian;
using schema::PutLittleEndian;

constexpr char kMagic[] = "CAIRNMAN";
constexpr size_t kBlockHeaderBytes = 24;
constexpr size_t kEntryHeaderBytes = 12;
constexpr size_t kBlockTargetBytes = 1 << 20;
constexpr size_t kWriteBytes = 256 << 10;
constexpr uint32_t kMaxBlockBytes = 1u << 30;
constexpr uint32_t kEndMark = 0xffffffff;
constexpr size_t kAttemptAt = 56;
static_assert(kAttemptAt + kMaxAttemptBytes + 16 == kManifestHeaderBytes);

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

Error Damaged(const std::string& path, uint64_t offset_bytes, std::string what) {
  return Error{.code = ErrorCode::kDataLoss,
               .message = fmt::format("the manifest is damaged: {}", what),
               .file = path,
               .offset_bytes = offset_bytes};
}

std::array<std::byte, kManifestHeaderBytes> EncodeHeader(const ManifestHeader& header) {
  std::array<std::byte, kManifestHeaderBytes> out{};
  std::memcpy(out.data(), kMagic, 8);
  PutLittleEndian<uint32_t>(out, 8, kManifestVersion);
  PutLittleEndian(out, 12, header.rank);
  PutLittleEndian(out, 16, header.world_size);
  PutLittleEndian(out, 24, header.step);
  PutLittleEndian(out, 32, header.created_unix_ns);
  std::ranges::copy(header.store_uuid, out.begin() + 40);
  CAIRN_CHECK(header.attempt.size() < kMaxAttemptBytes);
  std::memcpy(out.data() + kAttemptAt, header.attempt.data(), header.attempt.size());
  PutLittleEndian(out, kManifestHeaderBytes - 8,
                  Checksum64(std::span(out).first(kManifestHeaderBytes - 8)));
  return out;
}

Result<ManifestHeader> DecodeHeader(std::span<const std::byte> bytes, const std::string& path) {
  if (std::memcmp(bytes.data(), kMagic, 8) != 0) return Fail(Damaged(path, 0, "it has no magic"));
  if (GetLittleEndian<uint64_t>(bytes, kManifestHeaderBytes - 8) !=
      Checksum64(bytes.first(kManifestHeaderBytes - 8))) {
    return Fail(Damaged(path, 0, "the header does not match its checksum"));
  }
  const auto version = GetLittleEndian<uint32_t>(bytes, 8);
  if (version != kManifestVersion) {
    return Fail(
        Error{.code = ErrorCode::kUnimplemented,
              .message = fmt::format("the manifest has format version {}, this build reads {}",
                                     version, kManifestVersion),
              .file = path});
  }
  ManifestHeader header;
  header.rank = GetLittleEndian<uint32_t>(bytes, 12);
  header.world_size = GetLittleEndian<uint32_t>(bytes, 16);
  header.step = GetLittleEndian<uint64_t>(bytes, 24);
  header.created_unix_ns = GetLittleEndian<int64_t>(bytes, 32);
  std::ranges::copy(bytes.subspan(40, 16), header.store_uuid.begin());
  const auto* attempt = reinterpret_cast<const char*>(bytes.data() + kAttemptAt);
  header.attempt.assign(attempt, strnlen(attempt, kMaxAttemptBytes));
  return header;
}

bool IsFor(const ManifestHeader& header, const ManifestHeader& expected) {
  return header.store_uuid == expected.store_uuid && header.step == expected.step &&
         header.rank == expected.rank && header.world_size == expected.world_size &&
         header.attempt == expected.attempt;
}

/// Calls back with the entries of one block whose checksum is right. Returns their number.
Result<uint64_t> ReadEntries(std::span<const std::byte> payload, uint32_t entry_count,
                             const ManifestCallback& callback) {
  AlignedBytes aligned;
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
    CAIRN_TRY(callback(static_cast<Column>(column), std::string_view(text, key_bytes),
                       aligned.Assign(std::string_view(text + key_bytes, value_bytes))));
    at += size_t{key_bytes} + value_bytes;
  }
  if (at != payload.size()) return Fail(ErrorCode::kDataLoss, "bytes after the last entry");
  return entry_count;
}

}  // namespace

struct ManifestWriter::Hash {
  XXH3_state_t state;
};

namespace {

/// A decompression context. Its creation costs as much as the decompression of a small block.
struct Decompressor {
  ZSTD_DCtx* context = ZSTD_createDCtx();
  Decompressor() = default;
  Decompressor(const Decompressor&) = delete;
  Decompressor& operator=(const Decompressor&) = delete;
  ~Decompressor() { ZSTD_freeDCtx(context); }
};

/// Reads a file sequentially, a small one with a single call.
class FileReader {
 public:
  static constexpr uint64_t kAheadBytes = 64 << 10;

  FileReader(const File& file, uint64_t file_bytes) : file_(file), file_bytes_(file_bytes) {}

  Result<void> ReadAt(uint64_t offset_bytes, std::span<std::byte> target) {
    const uint64_t end = offset_bytes + target.size();
    if (offset_bytes < ahead_begin_ || end > ahead_begin_ + ahead_.size()) {
      if (target.size() >= kAheadBytes || end > file_bytes_) {
        return file_.ReadAt(offset_bytes, target);
      }
      ahead_.resize(std::min(kAheadBytes, file_bytes_ - offset_bytes));
      ahead_begin_ = offset_bytes;
      CAIRN_TRY(file_.ReadAt(offset_bytes, ahead_));
    }
    std::memcpy(target.data(), ahead_.data() + (offset_bytes - ahead_begin_), target.size());
    return {};
  }

 private:
  const File& file_;
  const uint64_t file_bytes_;
  std::vector<std::byte> ahead_;
  uint64_t ahead_begin_ = 0;
};

}  // namespace

ManifestWriter::ManifestWriter(File file, const ManifestHeader& header)
    : file_(std::move(file)), rank_(header.rank), hash_(std::make_unique<Hash>()) {
  XXH3_128bits_reset(&hash_->state);
}
ManifestWriter::~ManifestWriter() = default;

Result<std::unique_ptr<ManifestWriter>> ManifestWriter::Create(const std::string& path,
                                                               const ManifestHeader& header) {
  if (const int fault = FaultPoint("manifest.create")) {
    return Fail(SystemError(fault, "cannot create the manifest", path));
  }
  CAIRN_TRY_ASSIGN(File file, File::Create(path, /*direct=*/false));
  auto writer = std::unique_ptr<ManifestWriter>(new ManifestWriter(std::move(file), header));
  const auto bytes = EncodeHeader(header);
  CAIRN_CHECK(DecodeHeader(bytes, path).has_value());
  CAIRN_TRY(writer->Write(bytes));
  return writer;
}

Result<void> ManifestWriter::Write(std::span<const std::byte> bytes) {
  XXH3_128bits_update(&hash_->state, bytes.data(), bytes.size());
  file_bytes_ += bytes.size();
  unwritten_.insert(unwritten_.end(), bytes.begin(), bytes.end());
  return unwritten_.size() < kWriteBytes ? Result<void>() : FlushFile();
}

Result<void> ManifestWriter::FlushFile() {
  CAIRN_TRY(file_.Append(unwritten_, "manifest.write"));
  unwritten_.clear();
  return {};
}

Result<void> ManifestWriter::FlushBlock(uint32_t entry_count) {
  compressed_.resize(ZSTD_compressBound(block_.size()));
  const size_t compressed_bytes = ZSTD_compress(compressed_.data(), compressed_.size(),
                                                block_.data(), block_.size(), kZstdLevel);
  if (ZSTD_isError(compressed_bytes)) {
    return Fail(ErrorCode::kInternal, fmt::format("cannot compress a manifest block: {}",
                                                  ZSTD_getErrorName(compressed_bytes)));
  }
  const auto stored = std::span(compressed_).first(compressed_bytes);
  BlockHeader header{.payload_bytes = static_cast<uint32_t>(block_.size()),
                     .entry_count = entry_count,
                     .stored_bytes = static_cast<uint32_t>(compressed_bytes)};
  header.checksum = BlockChecksum(header, stored);
  std::array<std::byte, kBlockHeaderBytes> header_bytes;
  EncodeBlockHeader(header, header_bytes);
  CAIRN_TRY(Write(header_bytes));
  CAIRN_TRY(Write(stored));
  block_.clear();
  block_entries_ = 0;
  return {};
}

Result<void> ManifestWriter::Add(Column column, std::string_view key,
                                 std::span<const std::byte> value) {
  const uint64_t need = kEntryHeaderBytes + key.size() + value.size();
  if (need > kMaxBlockBytes) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("a record of {} bytes is too large", need));
  }
  if (!block_.empty() && block_.size() + need > kBlockTargetBytes) {
    CAIRN_TRY(FlushBlock(block_entries_));
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

Result<void> ManifestWriter::AddBlock(std::span<const std::byte> header,
                                      std::span<const std::byte> stored, uint64_t entry_count) {
  if (!block_.empty()) CAIRN_TRY(FlushBlock(block_entries_));
  CAIRN_TRY(Write(header));
  CAIRN_TRY(Write(stored));
  entry_count_ += entry_count;
  return {};
}

Result<ManifestRef> ManifestWriter::Finish(bool sync) {
  if (block_entries_ > 0) CAIRN_TRY(FlushBlock(block_entries_));
  block_.resize(8);
  PutLittleEndian(block_, 0, entry_count_);
  CAIRN_TRY(FlushBlock(kEndMark));
  CAIRN_TRY(FlushFile());
  if (sync) CAIRN_TRY(file_.Sync("manifest.sync"));
  const XXH128_hash_t hash = XXH3_128bits_digest(&hash_->state);
  return ManifestRef{.rank = rank_,
                     .file_bytes = file_bytes_,
                     .digest = Digest{.lo = hash.low64, .hi = hash.high64}};
}

Result<ManifestHeader> ReadManifestHeader(const std::string& path) {
  CAIRN_TRY_ASSIGN(const File file, File::OpenRead(path, /*direct=*/false, "manifest.open"));
  std::array<std::byte, kManifestHeaderBytes> bytes;
  CAIRN_TRY(file.ReadAt(0, bytes));
  return DecodeHeader(bytes, path);
}

Result<ManifestRef> ReadManifest(const std::string& path, const ManifestCallback& callback,
                                 const ManifestHeader* expected, ManifestWriter* copy) {
  CAIRN_TRY_ASSIGN(const File file, File::OpenRead(path, /*direct=*/false, "manifest.open"));
  CAIRN_TRY_ASSIGN(const uint64_t file_bytes, file.SizeBytes());
  FileReader reader(file, file_bytes);
  std::array<std::byte, kManifestHeaderBytes> header_bytes;
  CAIRN_TRY(reader.ReadAt(0, header_bytes));
  CAIRN_TRY_ASSIGN(const ManifestHeader header, DecodeHeader(header_bytes, path));
  if (expected != nullptr && !IsFor(header, *expected)) {
    return Fail(Damaged(path, 0, "it belongs to another rank, attempt or store"));
  }
  XXH3_state_t hash;
  XXH3_128bits_reset(&hash);
  XXH3_128bits_update(&hash, header_bytes.data(), header_bytes.size());

  thread_local const Decompressor decompressor;
  uint64_t at = kManifestHeaderBytes;
  uint64_t seen_entries = 0;
  std::vector<std::byte> stored;
  std::vector<std::byte> payload;
  while (true) {
    std::array<std::byte, kBlockHeaderBytes> header_of_block;
    CAIRN_TRY(reader.ReadAt(at, header_of_block));
    const BlockHeader block = DecodeBlockHeader(header_of_block);
    if (GetLittleEndian<uint32_t>(header_of_block, 12) != 0) {
      return Fail(Damaged(path, at, "a block header has bytes that must be zero"));
    }
    if (block.payload_bytes > kMaxBlockBytes ||
        block.stored_bytes > file_bytes - at - kBlockHeaderBytes) {
      return Fail(Damaged(path, at, "a block is longer than the file"));
    }
    stored.resize(block.stored_bytes);
    CAIRN_TRY(reader.ReadAt(at + kBlockHeaderBytes, stored));
    if (block.checksum != BlockChecksum(block, stored)) {
      return Fail(Damaged(path, at, "a block does not match its checksum"));
    }
    payload.resize(block.payload_bytes);
    if (ZSTD_decompressDCtx(decompressor.context, payload.data(), payload.size(), stored.data(),
                            stored.size()) != payload.size()) {
      return Fail(Damaged(path, at, "a block cannot be decompressed"));
    }
    XXH3_128bits_update(&hash, header_of_block.data(), header_of_block.size());
    XXH3_128bits_update(&hash, stored.data(), stored.size());
    const uint64_t block_at = at;
    at += kBlockHeaderBytes + block.stored_bytes;
    if (block.entry_count == kEndMark) {
      if (payload.size() != 8 || GetLittleEndian<uint64_t>(payload, 0) != seen_entries ||
          at != file_bytes) {
        return Fail(Damaged(path, block_at, "its end does not match the blocks before it"));
      }
      break;
    }
    Result<uint64_t> read = ReadEntries(payload, block.entry_count, callback);
    if (!read) return Fail(std::move(read).error().WithFile(path).WithOffset(block_at));
    seen_entries += *read;
    if (copy != nullptr) CAIRN_TRY(copy->AddBlock(header_of_block, stored, *read));
  }
  const XXH128_hash_t digest = XXH3_128bits_digest(&hash);
  return ManifestRef{.rank = header.rank,
                     .file_bytes = file_bytes,
                     .digest = Digest{.lo = digest.low64, .hi = digest.high64}};
}

}  // namespace cairn::kv::internal
