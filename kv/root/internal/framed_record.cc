// Compresses and frames records, and checks frames.

#include "kv/root/internal/framed_record.h"

#include <fmt/format.h>
#include <zstd.h>

#include <algorithm>
#include <cstring>

#include "kv/base/digest.h"
#include "kv/base/record_check.h"
#include "schema/little_endian.h"

namespace cairn::kv::internal {
namespace {

using schema::GetLittleEndian;
using schema::PutLittleEndian;

constexpr size_t kHeaderBytes = 16;
constexpr size_t kChecksumBytes = 8;
// Entries of steps are similar, and so are the records of a rank. This level compresses them at
// some hundred MB/s.
constexpr int kZstdLevel = 1;

static_assert(kMaxFramedBytes >=
              kHeaderBytes + kChecksumBytes + ZSTD_COMPRESSBOUND(kMaxRecordBytes));

/// A decompression context. Its creation costs as much as the decompression of a short record.
struct Decompressor {
  ZSTD_DCtx* context = ZSTD_createDCtx();
  Decompressor() = default;
  Decompressor(const Decompressor&) = delete;
  Decompressor& operator=(const Decompressor&) = delete;
  ~Decompressor() { ZSTD_freeDCtx(context); }
};

std::unexpected<Error> Damaged(const FrameKind& kind, const char* what) {
  return Fail(ErrorCode::kDataLoss, fmt::format("the {} is damaged: {}", kind.name, what));
}

}  // namespace

Result<std::vector<std::byte>> FrameRecord(const FrameKind& kind,
                                           std::span<const std::byte> record) {
  if (record.size() > kind.max_record_bytes) {
    return Fail(ErrorCode::kResourceExhausted,
                fmt::format("a {} of {} bytes is longer than the limit of {} bytes", kind.name,
                            record.size(), kind.max_record_bytes));
  }
  std::vector<std::byte> object(kHeaderBytes + ZSTD_compressBound(record.size()));
  const size_t stored_bytes =
      ZSTD_compress(object.data() + kHeaderBytes, object.size() - kHeaderBytes, record.data(),
                    record.size(), kZstdLevel);
  if (ZSTD_isError(stored_bytes)) {
    return Fail(ErrorCode::kInternal, fmt::format("cannot compress a {}: {}", kind.name,
                                                  ZSTD_getErrorName(stored_bytes)));
  }
  object.resize(kHeaderBytes + stored_bytes + kChecksumBytes);
  CAIRN_CHECK(kind.magic.size() == 4);
  std::memcpy(object.data(), kind.magic.data(), 4);
  PutLittleEndian(object, 4, kind.version | uint32_t{kXxh3} << 8);
  PutLittleEndian(object, 8, static_cast<uint32_t>(record.size()));
  PutLittleEndian(object, 12, static_cast<uint32_t>(stored_bytes));
  const size_t covered = object.size() - kChecksumBytes;
  PutLittleEndian(object, covered, Checksum64(std::span(object).first(covered)));
  return object;
}

std::optional<uint64_t> FrameChecksum(std::span<const std::byte> object) {
  if (object.size() < kHeaderBytes + kChecksumBytes) return std::nullopt;
  const size_t covered = object.size() - kChecksumBytes;
  const auto checksum = GetLittleEndian<uint64_t>(object, covered);
  if (Checksum64(object.first(covered)) != checksum) return std::nullopt;
  return checksum;
}

FrameLengths LengthsOfFrame(std::span<const std::byte> bytes) {
  if (bytes.size() < kHeaderBytes) return {.frame_bytes = bytes.size()};
  const size_t frame_bytes = kHeaderBytes + GetLittleEndian<uint32_t>(bytes, 12) + kChecksumBytes;
  return {.record_bytes = GetLittleEndian<uint32_t>(bytes, 8),
          .frame_bytes = std::min(frame_bytes, bytes.size())};
}

Result<std::vector<std::byte>> UnframeRecord(const FrameKind& kind,
                                             std::span<const std::byte> object,
                                             bool any_digest_kind) {
  std::vector<std::byte> record;
  CAIRN_TRY(UnframeRecord(kind, object, any_digest_kind, record));
  return record;
}

Result<void> UnframeRecord(const FrameKind& kind, std::span<const std::byte> object,
                           bool any_digest_kind, std::vector<std::byte>& record) {
  if (object.size() < kHeaderBytes + kChecksumBytes) return Damaged(kind, "it is too short");
  if (std::memcmp(object.data(), kind.magic.data(), 4) != 0)
    return Damaged(kind, "it has no magic");
  // Check the checksum first: a flipped bit in the version must not appear to be a newer one.
  if (!FrameChecksum(object)) return Damaged(kind, "it does not match its checksum");
  // With the zeros, so that a version that uses them is a newer one.
  const uint32_t version = GetLittleEndian<uint32_t>(object, 4) & ~0xff00u;
  if (version > kind.version) {
    return Fail(ErrorCode::kUnimplemented,
                fmt::format("the {} has format version {}, this build reads {}; use a newer Cairn",
                            kind.name, version, kind.version));
  }
  const auto digest = CheckDigestKind(static_cast<uint8_t>(object[5]), kind.name);
  if (!digest && !any_digest_kind) return std::unexpected(digest.error());
  const auto record_bytes = GetLittleEndian<uint32_t>(object, 8);
  const auto stored_bytes = GetLittleEndian<uint32_t>(object, 12);
  const size_t most_bytes = object.size() - kHeaderBytes - kChecksumBytes;
  // One of another kind follows the record.
  if (version == 0 || record_bytes > kind.max_record_bytes || stored_bytes > most_bytes ||
      (digest && stored_bytes != most_bytes)) {
    return Damaged(kind, "its header is wrong");
  }
  const auto stored = object.subspan(kHeaderBytes, stored_bytes);
  // A wrong length must not allocate the limit for a few bytes.
  if (record_bytes > MaxZstdContentBytes(stored_bytes) ||
      ZSTD_getFrameContentSize(stored.data(), stored.size()) != record_bytes) {
    return Damaged(kind, "its record has another length");
  }
  thread_local const Decompressor decompressor;
  record.resize(record_bytes);
  const size_t read = ZSTD_decompressDCtx(decompressor.context, record.data(), record.size(),
                                          stored.data(), stored.size());
  if (ZSTD_isError(read) || read != record_bytes) {
    return Damaged(kind, "its record cannot be decompressed");
  }
  return {};
}

}  // namespace cairn::kv::internal
