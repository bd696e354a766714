#include "kv/table/internal/table_block.h"

#include <zstd.h>

#include <cstring>
#include <new>

#include "kv/base/digest.h"
#include "schema/little_endian.h"

namespace cairn::kv::internal {
namespace {

constexpr uint8_t kZstd = 7;
// zstd compresses blocks of at most 128 KiB, of which each takes four bytes or more.
constexpr uint64_t kMaxZstdBlockBytes = 128 << 10;
// RocksDB's sequence number 0 and the type of a value, after the key of a record.
constexpr uint64_t kRecordKeyTail = 1;

/// Removes a LEB128 number from the front. False: there is none.
inline bool TakeVarint(std::span<const std::byte>& bytes, uint64_t& value) {
  if (!bytes.empty() && bytes.front() < std::byte{0x80}) {  // nearly always
    value = std::to_integer<uint64_t>(bytes.front());
    bytes = bytes.subspan(1);
    return true;
  }
  value = 0;
  for (unsigned shift = 0; shift < 64 && !bytes.empty(); shift += 7) {
    const auto byte = std::to_integer<uint64_t>(bytes.front());
    bytes = bytes.subspan(1);
    value |= (byte & 0x7f) << shift;
    if (byte < 0x80) return true;
  }
  return false;
}

}  // namespace

std::optional<BlockHandle> TakeHandle(std::span<const std::byte>& bytes) {
  BlockHandle handle;
  if (!TakeVarint(bytes, handle.offset_bytes)) return std::nullopt;
  if (!TakeVarint(bytes, handle.length_bytes)) return std::nullopt;
  return handle;
}

std::span<std::byte> BlockMemory::Resize(uint64_t length_bytes) {
  if (length_bytes > capacity_bytes_) {
    bytes_.reset();
    capacity_bytes_ = 0;
    bytes_ = std::make_unique_for_overwrite<std::byte[]>(length_bytes);
    capacity_bytes_ = length_bytes;
  }
  return {bytes_.get(), length_bytes};
}

std::expected<std::span<const std::byte>, const char*> DecodeBlock(
    std::span<const std::byte> stored, BlockMemory& decompressed) {
  if (stored.size() < kBlockTrailerBytes) return std::unexpected("a block has no trailer");
  const auto trailer = stored.last(kBlockTrailerBytes);
  std::span<const std::byte> block = stored.first(stored.size() - kBlockTrailerBytes);
  const auto compression = std::to_integer<uint8_t>(trailer[0]);
  const auto checksum = static_cast<uint32_t>(Checksum64(block)) ^ (compression * 0x6b9083d9u);
  if (checksum != schema::GetLittleEndian<uint32_t>(trailer, 1)) {
    return std::unexpected("the checksum of a block is wrong");
  }
  if (compression == 0) return block;
  uint64_t length_bytes = 0;
  if (compression != kZstd || !TakeVarint(block, length_bytes) ||
      length_bytes > kMaxZstdBlockBytes * (block.size() / 4 + 1) ||
      ZSTD_getFrameContentSize(block.data(), block.size()) != length_bytes) {
    return std::unexpected("a block has another compression");
  }
  // Kept, because its 160 KiB of memory take longer to get than a block to decompress.
  static thread_local const std::unique_ptr<ZSTD_DCtx, decltype(&ZSTD_freeDCtx)> context(
      ZSTD_createDCtx(), &ZSTD_freeDCtx);
  if (!context) throw std::bad_alloc();
  const std::span<std::byte> contents = decompressed.Resize(length_bytes);
  if (ZSTD_decompressDCtx(context.get(), contents.data(), contents.size(), block.data(),
                          block.size()) != contents.size()) {
    return std::unexpected("a block cannot be decompressed");
  }
  return contents;
}

void BlockCursor::Open(std::span<const std::byte> block) {
  Close();
  key_bytes_ = 0;
  const uint64_t restart_count =
      block.size() < sizeof(uint32_t)
          ? 0
          : schema::GetLittleEndian<uint32_t>(block, block.size() - sizeof(uint32_t));
  const uint64_t restart_bytes = (restart_count + 1) * sizeof(uint32_t);
  is_damaged_ = restart_count == 0 || restart_bytes >= block.size();
  if (is_damaged_) return;
  entries_ = block.first(block.size() - restart_bytes);
  restarts_ = block.subspan(entries_.size(), restart_count * sizeof(uint32_t));
  MoveToRestart(0);
  if (left_.size() != entries_.size()) Damage();
}

bool BlockCursor::Damage() {
  is_damaged_ = true;
  left_ = {};
  return false;
}

bool BlockCursor::Next() {
  if (left_.empty()) return false;
  uint64_t shared_bytes = 0;
  uint64_t further_bytes = 0;
  uint64_t value_bytes = 0;
  if (!TakeVarint(left_, shared_bytes) || !TakeVarint(left_, further_bytes) ||
      (kind_ != Kind::kIndex && !TakeVarint(left_, value_bytes)) || shared_bytes > key_bytes_ ||
      further_bytes > left_.size() || value_bytes > left_.size() - further_bytes) {
    return Damage();
  }
  key_bytes_ = shared_bytes + further_bytes;
  if (key_bytes_ > key_.size()) key_.resize(key_bytes_);
  if (further_bytes > 0) std::memcpy(key_.data() + shared_bytes, left_.data(), further_bytes);
  left_ = left_.subspan(further_bytes);
  if (kind_ == Kind::kIndex) {
    const auto handle = TakeHandle(left_);
    if (!handle) return Damage();
    handle_ = *handle;
    return true;
  }
  value_ = left_.first(value_bytes);
  left_ = left_.subspan(value_bytes);
  if (kind_ == Kind::kOther) return true;
  key_tail_bytes_ = sizeof(kRecordKeyTail);
  const auto key = std::as_bytes(std::span(key_)).first(key_bytes_);
  return (key.size() >= key_tail_bytes_ &&
          schema::GetLittleEndian<uint64_t>(key.last(key_tail_bytes_)) == kRecordKeyTail) ||
         Damage();
}

bool BlockCursor::MoveToRestart(uint32_t restart) {
  const auto at = schema::GetLittleEndian<uint32_t>(restarts_, restart * sizeof(uint32_t));
  if (at >= entries_.size()) return Damage();
  left_ = entries_.subspan(at);
  key_bytes_ = 0;
  return true;
}

bool BlockCursor::Seek(std::string_view key) {
  if (is_damaged_) return false;
  // The key of restart point `first` is less than `key`, or it is the first one.
  uint32_t first = 0;
  for (auto end = static_cast<uint32_t>(restarts_.size() / sizeof(uint32_t)); end - first > 1;) {
    const uint32_t middle = first + (end - first) / 2;
    if (!MoveToRestart(middle) || !Next()) return Damage();
    (this->key() < key ? first : end) = middle;
  }
  MoveToRestart(first);
  while (Next()) {
    if (this->key() >= key) return true;
  }
  return false;
}

}  // namespace cairn::kv::internal
