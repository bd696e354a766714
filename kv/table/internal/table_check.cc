// The end of RocksDB's table files, format version 5.
//
//   ... properties block | meta index block | index block | footer (53 bytes)
//
//   footer  checksum type (1), handles of meta index and index (varints, 40 bytes in total),
//           version (4), magic (8)
//   block   contents, compression type (1), checksum (4)
//   entry   bytes shared with the previous key, further key bytes, value bytes (varints), key,
//           value
//
// https://github.com/facebook/rocksdb/wiki/Rocksdb-BlockBasedTable-Format

#include "kv/table/internal/table_check.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <vector>

#include "kv/base/digest.h"
#include "schema/little_endian.h"

namespace cairn::kv::internal {
namespace {

using schema::GetLittleEndian;

constexpr uint64_t kFooterBytes = 53;
constexpr uint64_t kBlockTailBytes = 5;
constexpr uint64_t kTailReadBytes = 4096;
constexpr uint64_t kMaxMetaBlockBytes = 1 << 20;
constexpr uint64_t kTableMagic = 0x88e241b785f4cff7;
constexpr uint32_t kFormatVersion = 5;
constexpr std::byte kXxh3{4};
constexpr std::string_view kPropertiesName = "rocksdb.properties";

struct Handle {
  uint64_t offset_bytes = 0;
  uint64_t size_bytes = 0;
};

/// Removes a LEB128 number from the front and returns it.
std::optional<uint64_t> TakeVarint(std::span<const std::byte>& bytes) {
  uint64_t value = 0;
  for (unsigned shift = 0; shift < 64 && !bytes.empty(); shift += 7) {
    const auto byte = std::to_integer<uint64_t>(bytes.front());
    bytes = bytes.subspan(1);
    value |= (byte & 0x7f) << shift;
    if (byte < 0x80) return value;
  }
  return std::nullopt;
}

std::optional<Handle> TakeHandle(std::span<const std::byte>& bytes) {
  const auto offset_bytes = TakeVarint(bytes);
  const auto size_bytes = TakeVarint(bytes);
  if (!offset_bytes || !size_bytes) return std::nullopt;
  return Handle{*offset_bytes, *size_bytes};
}

/// The end of the file in memory; other parts are read on demand.
class Tail {
 public:
  Tail(uint64_t file_bytes, const TableRead& read) : file_bytes_(file_bytes), read_(read) {}

  bool Load() {
    bytes_.resize(std::min(file_bytes_, kTailReadBytes));
    begin_ = file_bytes_ - bytes_.size();
    return read_(begin_, bytes_);
  }

  std::span<const std::byte> footer() const { return std::span(bytes_).last(kFooterBytes); }

  /// Returns the contents of a block, valid until the next call; nothing if its checksum is wrong.
  std::optional<std::span<const std::byte>> Block(const Handle& handle) {
    const uint64_t limit = file_bytes_ - kFooterBytes;
    if (handle.size_bytes > kMaxMetaBlockBytes || handle.size_bytes + kBlockTailBytes > limit ||
        handle.offset_bytes > limit - handle.size_bytes - kBlockTailBytes) {
      return std::nullopt;
    }
    std::span<const std::byte> bytes;
    if (handle.offset_bytes >= begin_) {
      bytes = std::span(bytes_).subspan(handle.offset_bytes - begin_,
                                        handle.size_bytes + kBlockTailBytes);
    } else {
      far_.resize(handle.size_bytes + kBlockTailBytes);
      if (!read_(handle.offset_bytes, far_)) return std::nullopt;
      bytes = far_;
    }
    // RocksDB mixes the compression type, the last byte that the checksum covers, into the hash of
    // the bytes before it.
    const auto type = std::to_integer<uint32_t>(bytes[handle.size_bytes]);
    const uint32_t checksum =
        static_cast<uint32_t>(Checksum64(bytes.first(handle.size_bytes))) ^ (type * 0x6b9083d9u);
    if (GetLittleEndian<uint32_t>(bytes, handle.size_bytes + 1) != checksum) return std::nullopt;
    return bytes.first(handle.size_bytes);
  }

 private:
  const uint64_t file_bytes_;
  const TableRead& read_;
  uint64_t begin_ = 0;  // where bytes_ begins in the file
  std::vector<std::byte> bytes_;
  std::vector<std::byte> far_;
};

/// Returns the handle of the properties block in the meta index.
std::optional<Handle> FindProperties(std::span<const std::byte> meta_index) {
  while (!meta_index.empty()) {
    const auto shared = TakeVarint(meta_index);
    const auto key_bytes = TakeVarint(meta_index);
    const auto value_bytes = TakeVarint(meta_index);
    // The entries of a meta index share no key prefixes.
    if (!shared || *shared != 0 || !key_bytes || !value_bytes || *key_bytes > meta_index.size() ||
        *value_bytes > meta_index.size() - *key_bytes) {
      return std::nullopt;
    }
    const std::string_view key(reinterpret_cast<const char*>(meta_index.data()), *key_bytes);
    auto value = meta_index.subspan(*key_bytes, *value_bytes);
    if (key == kPropertiesName) return TakeHandle(value);
    meta_index = meta_index.subspan(*key_bytes + *value_bytes);
  }
  return std::nullopt;
}

}  // namespace

bool HasSoundFooter(uint64_t file_bytes, const TableRead& read) {
  if (file_bytes < kFooterBytes + kBlockTailBytes) return false;
  Tail tail(file_bytes, read);
  if (!tail.Load()) return false;
  std::span<const std::byte> footer = tail.footer();
  if (GetLittleEndian<uint64_t>(footer, kFooterBytes - 8) != kTableMagic ||
      GetLittleEndian<uint32_t>(footer, kFooterBytes - 12) != kFormatVersion ||
      footer[0] != kXxh3) {
    return false;
  }
  footer = footer.subspan(1);
  const auto meta_index_handle = TakeHandle(footer);
  const auto index_handle = TakeHandle(footer);
  if (!meta_index_handle || !index_handle) return false;
  // The footer has no checksum, and RocksDB allocates the length of the index that it reads there.
  const uint64_t limit = file_bytes - kFooterBytes - kBlockTailBytes;
  if (index_handle->size_bytes > limit ||
      index_handle->offset_bytes > limit - index_handle->size_bytes) {
    return false;
  }
  const auto meta_index = tail.Block(*meta_index_handle);
  if (!meta_index) return false;
  const auto properties = FindProperties(*meta_index);
  return properties && tail.Block(*properties).has_value();
}

}  // namespace cairn::kv::internal
