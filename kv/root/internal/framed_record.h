#pragma once
/// The frame of roots, pages and parts: a compressed record with a checksum over all bytes. A root
/// or a page is one frame, a part is a sequence of them.
///
///   [0, 4)    magic
///   4         version
///   5         kind of digest (kv/base/digest.h)
///   [6, 8)    zeros
///   [8, 12)   u32 length of the record in bytes, limited by its kind
///   [12, 16)  u32 length of the compressed record in bytes
///   [16, ..)  the record, compressed as one zstd frame
///   last 8    u64 XXH3-64 of everything before, whatever the kind is
///
/// Threads: all functions here are pure.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "kv/base/error.h"

namespace cairn::kv::internal {

inline constexpr uint64_t kMaxRecordBytes = 64ull << 20;
/// The largest length of a root or a page, for Storage::Read.
inline constexpr uint64_t kMaxFramedBytes = kMaxRecordBytes + (1ull << 20);

/// A kind of framed record.
struct FrameKind {
  std::string_view magic;  // 4 bytes
  uint8_t version = 1;
  const char* name = "";  // in errors: "root"
  uint64_t max_record_bytes = kMaxRecordBytes;
};

/// kResourceExhausted: the record is longer than the limit of its kind.
Result<std::vector<std::byte>> FrameRecord(const FrameKind& kind,
                                           std::span<const std::byte> record);
/// Returns the checksum of an object that matches it, otherwise nothing.
std::optional<uint64_t> FrameChecksum(std::span<const std::byte> object);
/// Returns the record, aligned as flatbuffers require. kDataLoss: the object is damaged.
/// kUnimplemented: its version is newer than `kind.version`, or the kind of its digest is unknown,
/// unless the caller reads only what no kind changes.
Result<std::vector<std::byte>> UnframeRecord(const FrameKind& kind,
                                             std::span<const std::byte> object,
                                             bool any_digest_kind = false);
/// As UnframeRecord, into memory that is used again.
Result<void> UnframeRecord(const FrameKind& kind, std::span<const std::byte> object,
                           bool any_digest_kind, std::vector<std::byte>& record);

/// The lengths that the header of a frame states.
struct FrameLengths {
  uint64_t record_bytes = 0;
  size_t frame_bytes = 0;
};
/// Returns the lengths of the frame at the beginning of `bytes`, which may be damaged. The frame is
/// at most as long as `bytes`.
FrameLengths LengthsOfFrame(std::span<const std::byte> bytes);

/// Returns a limit of the length of what a zstd frame of `stored_bytes` contains. A block has a
/// header of 3 bytes, at least one more byte unless it is empty, and at most 128 KiB of contents
/// (RFC 8878, section 3.1.1.2).
constexpr uint64_t MaxZstdContentBytes(uint64_t stored_bytes) {
  constexpr uint64_t kMinBlockBytes = 4;
  constexpr uint64_t kMaxBlockContentBytes = 128 << 10;
  return stored_bytes / kMinBlockBytes * kMaxBlockContentBytes;
}

}  // namespace cairn::kv::internal
