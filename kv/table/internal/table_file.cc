// The check of the end of a table before RocksDB parses it. RocksDB (7.8) parses the properties
// block before it verifies the block's checksum, and one flipped bit there ends the process in an
// assertion. It also allocates the length of the index in the footer, which has no checksum.
// RocksDB itself checks everything else in a table before use. Format version 5:
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

#include "kv/table/internal/table_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>

#include "kv/base/digest.h"
#include "schema/little_endian.h"

namespace cairn::kv::internal {
namespace {

constexpr uint64_t kTailBytes = 64 << 10;
// In a storage without files: 1/64 of a table contains its index and the records of its segments,
// so that a lookup needs one more request.
constexpr uint64_t kRemoteTailFraction = 64;
constexpr uint64_t kMinRemoteTailBytes = 512 << 10;
constexpr uint64_t kMaxRemoteTailBytes = 1 << 20;
constexpr uint64_t kVerifyReadBytes = 1 << 20;

Error Damaged(const TableFile& file, std::string what) {
  return Error{.code = ErrorCode::kDataLoss,
               .hint = Hint::kRebuildTables,
               .message = std::move(what),
               .file = file.path()};
}

constexpr uint64_t kFooterBytes = 53;
constexpr uint64_t kBlockTailBytes = 5;
constexpr uint64_t kMaxMetaBlockBytes = 1 << 20;
constexpr uint64_t kTableMagic = 0x88e241b785f4cff7;
constexpr uint32_t kFormatVersion = 5;
constexpr std::byte kXxh3Blocks{4};
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

/// Reads the contents of a block. Nothing: it is not in the file, or its checksum is wrong.
std::optional<std::vector<std::byte>> ReadMetaBlock(const TableFile& file, const Handle& handle) {
  const uint64_t limit = file.size_bytes() - kFooterBytes;
  if (handle.size_bytes > kMaxMetaBlockBytes || handle.size_bytes + kBlockTailBytes > limit ||
      handle.offset_bytes > limit - handle.size_bytes - kBlockTailBytes) {
    return std::nullopt;
  }
  std::vector<std::byte> bytes(handle.size_bytes + kBlockTailBytes);
  if (!file.ReadAt(handle.offset_bytes, bytes)) return std::nullopt;
  // RocksDB mixes the compression type, the last byte that the checksum covers, into the hash of
  // the bytes before it.
  const auto type = std::to_integer<uint32_t>(bytes[handle.size_bytes]);
  const auto stored = schema::GetLittleEndian<uint32_t>(bytes, handle.size_bytes + 1);
  bytes.resize(handle.size_bytes);
  if ((static_cast<uint32_t>(Checksum64(bytes)) ^ (type * 0x6b9083d9u)) != stored) {
    return std::nullopt;
  }
  return bytes;
}

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

/// Returns whether the footer, the meta index block and the properties block are valid and as in
/// the tables of this project (format version 5, XXH3), and the index is inside the file.
bool HasSoundFooter(const TableFile& file) {
  using schema::GetLittleEndian;
  if (file.size_bytes() < kFooterBytes + kBlockTailBytes) return false;
  std::array<std::byte, kFooterBytes> bytes;
  if (!file.ReadAt(file.size_bytes() - kFooterBytes, bytes)) return false;
  if (GetLittleEndian<uint64_t>(bytes, kFooterBytes - 8) != kTableMagic ||
      GetLittleEndian<uint32_t>(bytes, kFooterBytes - 12) != kFormatVersion ||
      bytes[0] != kXxh3Blocks) {
    return false;
  }
  std::span<const std::byte> handles = std::span(bytes).subspan(1);
  const auto meta_index_handle = TakeHandle(handles);
  const auto index_handle = TakeHandle(handles);
  if (!meta_index_handle || !index_handle) return false;
  // The footer has no checksum, and RocksDB allocates the length of the index that it reads there.
  const uint64_t limit = file.size_bytes() - kFooterBytes - kBlockTailBytes;
  if (index_handle->size_bytes > limit ||
      index_handle->offset_bytes > limit - index_handle->size_bytes) {
    return false;
  }
  const auto meta_index = ReadMetaBlock(file, *meta_index_handle);
  if (!meta_index) return false;
  const auto properties = FindProperties(*meta_index);
  return properties && ReadMetaBlock(file, *properties).has_value();
}

}  // namespace

bool WindowReader::CopyFromWindows(uint64_t offset_bytes, std::span<std::byte> target) {
  const MutexLock lock(mutex_);
  while (!target.empty()) {
    const std::vector<std::byte>* const window = windows_.Find(offset_bytes / kWindowBytes);
    const uint64_t at = offset_bytes % kWindowBytes;
    if (window == nullptr || at >= window->size()) return false;
    const uint64_t length = std::min<uint64_t>(target.size(), window->size() - at);
    std::copy_n(window->begin() + static_cast<ptrdiff_t>(at), length, target.begin());
    offset_bytes += length;
    target = target.subspan(length);
  }
  return true;
}

uint64_t WindowReader::PlanRead(uint64_t first, uint64_t needed) {
  const MutexLock lock(mutex_);
  const bool forward = read_count_ > 0 && first == expected_;
  read_count_ = forward ? std::min(read_count_ * 2, kMaxWindowsPerRead) : 1;
  read_count_ = std::max(read_count_, needed);
  expected_ = first + read_count_;
  return read_count_;
}

void WindowReader::Keep(uint64_t first, std::span<const std::byte> bytes) {
  const MutexLock lock(mutex_);
  for (uint64_t index = first; !bytes.empty(); ++index) {
    const auto part = bytes.first(std::min<uint64_t>(bytes.size(), kWindowBytes));
    bytes = bytes.subspan(part.size());
    windows_.Put(index, {part.begin(), part.end()});
  }
}

Result<void> WindowReader::ReadAt(const ObjectReader& object, uint64_t offset_bytes,
                                  std::span<std::byte> target) {
  if (target.empty() || target.size() > kWindowBytes || offset_bytes >= end_bytes_ ||
      target.size() > end_bytes_ - offset_bytes) {
    return object.ReadAt(offset_bytes, target);
  }
  if (CopyFromWindows(offset_bytes, target)) return {};
  const uint64_t first = offset_bytes / kWindowBytes;
  const uint64_t needed = (offset_bytes + target.size() - 1) / kWindowBytes - first + 1;
  const uint64_t begin_bytes = first * kWindowBytes;
  const uint64_t length_bytes =
      std::min(PlanRead(first, needed) * kWindowBytes, end_bytes_ - begin_bytes);
  std::vector<std::byte> bytes(length_bytes);
  CAIRN_TRY(object.ReadAt(begin_bytes, bytes));
  std::copy_n(bytes.begin() + static_cast<ptrdiff_t>(offset_bytes - begin_bytes), target.size(),
              target.begin());
  Keep(first, bytes);
  return {};
}

Result<TableFile> TableFile::Open(std::shared_ptr<Storage> storage, const TableInfo& info) {
  CAIRN_TRY_ASSIGN(
      ObjectReader object,
      ObjectReader::Open(storage, ObjectName(ObjectKind::kTable, info.id), info.file_bytes));
  TableFile file(std::move(object));
  if (file.size_bytes() != info.file_bytes) {
    return Fail(Damaged(file, fmt::format("the table has {} bytes and not {}", file.size_bytes(),
                                          info.file_bytes)));
  }
  if (storage->local_files() != nullptr) {
    CAIRN_TRY(file.LoadTail(kTailBytes));
  } else {
    CAIRN_TRY(file.LoadTail(std::clamp(info.file_bytes / kRemoteTailFraction, kMinRemoteTailBytes,
                                       kMaxRemoteTailBytes)));
    file.windows_ = std::make_unique<WindowReader>(file.tail_offset_bytes_);
  }
  if (!HasSoundFooter(file)) {
    return Fail(Damaged(file, "the footer or the properties of the table are damaged"));
  }
  return file;
}

Result<void> TableFile::LoadTail(uint64_t tail_bytes) {
  tail_bytes = std::min(size_bytes(), tail_bytes);
  tail_offset_bytes_ = size_bytes() - tail_bytes;
  tail_ = std::make_unique_for_overwrite<std::byte[]>(tail_bytes);
  return object_.ReadAt(tail_offset_bytes_, {tail_.get(), tail_bytes});
}

Result<void> TableFile::ReadAt(uint64_t offset_bytes, std::span<std::byte> target) const {
  if (offset_bytes >= tail_offset_bytes_ && offset_bytes <= size_bytes() &&
      target.size() <= size_bytes() - offset_bytes) {
    std::copy_n(tail_.get() + (offset_bytes - tail_offset_bytes_), target.size(), target.begin());
    return {};
  }
  if (windows_ != nullptr) return windows_->ReadAt(object_, offset_bytes, target);
  return object_.ReadAt(offset_bytes, target);
}

Result<void> TableFile::VerifyDigest(uint64_t digest) const {
  StreamChecksum64 checksum;
  std::vector<std::byte> buffer(std::min(size_bytes(), kVerifyReadBytes));
  for (uint64_t at = 0; at < size_bytes(); at += buffer.size()) {
    const auto piece = std::span(buffer).first(std::min(size_bytes() - at, kVerifyReadBytes));
    CAIRN_TRY(object_.ReadAt(at, piece));
    checksum.Update(piece);
  }
  if (checksum.value() == digest) return {};
  return Fail(Damaged(*this, fmt::format("the XXH3-64 of the table is {:016x} and not {:016x}",
                                         checksum.value(), digest)));
}

}  // namespace cairn::kv::internal
