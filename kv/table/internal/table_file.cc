// The end of a table, which is read and checked when the table is opened (docs/format/sst.md).

#include "kv/table/internal/table_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

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
constexpr uint64_t kTableMagic = 0x88e241b785f4cff7;
constexpr uint32_t kFormatVersion = 5;
constexpr std::byte kXxh3Blocks{4};
constexpr std::string_view kPropertiesName = "rocksdb.properties";

/// Properties without which reading would return wrong records. They and the keys of the properties
/// ascend.
constexpr std::pair<std::string_view, std::string_view> kRequiredProperties[] = {
    {"rocksdb.block.based.table.index.type", {"\2\0\0\0", 4}},
    {"rocksdb.comparator", "leveldb.BytewiseComparator"},
    {"rocksdb.deleted.keys", {"\0", 1}},
    {"rocksdb.external_sst_file.global_seqno", {"\0\0\0\0\0\0\0\0", 8}},
    {"rocksdb.external_sst_file.version", {"\2\0\0\0", 4}},
    {"rocksdb.filter.size", {"\0", 1}},
    {"rocksdb.index.key.is.user.key", "\1"},
    {"rocksdb.index.value.is.delta.encoded", "\1"},
    {"rocksdb.merge.operands", {"\0", 1}},
    {"rocksdb.num.range-deletions", {"\0", 1}},
};

std::string_view ToText(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// Returns whether the metaindex has the properties and nothing else, and these have the values
/// above.
bool HasSoundProperties(const TableFile& file, const BlockHandle& meta_index) {
  TableBlock block;
  if (!file.ReadBlock(meta_index, block)) return false;
  BlockCursor cursor(BlockCursor::Kind::kOther);
  cursor.Open(block.contents);
  if (!cursor.Next() || cursor.key() != kPropertiesName) return false;
  std::span<const std::byte> value = cursor.value();
  const auto properties = TakeHandle(value);
  if (!properties || cursor.Next() || !file.ReadBlock(*properties, block)) return false;
  cursor.Open(block.contents);
  for (const auto& [key, expected] : kRequiredProperties) {
    while (cursor.Next() && cursor.key() < key) {
    }
    if (cursor.is_damaged() || cursor.key() != key || ToText(cursor.value()) != expected) {
      return false;
    }
  }
  return true;
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
  if (!file.ReadFooter()) {
    return Fail(Damaged(file, "the footer or the properties of the table are damaged"));
  }
  return file;
}

bool TableFile::ReadFooter() {
  using schema::GetLittleEndian;
  std::array<std::byte, kFooterBytes> bytes;
  if (size_bytes() < bytes.size() || !ReadAt(size_bytes() - bytes.size(), bytes) ||
      GetLittleEndian<uint64_t>(bytes, kFooterBytes - 8) != kTableMagic ||
      GetLittleEndian<uint32_t>(bytes, kFooterBytes - 12) != kFormatVersion ||
      bytes[0] != kXxh3Blocks) {
    return false;
  }
  auto handles = std::span<const std::byte>(bytes).first(kFooterBytes - 12).subspan(1);
  const auto meta_index = TakeHandle(handles);
  const auto index = TakeHandle(handles);
  if (!meta_index || !index || !Contains(*index) || !HasSoundProperties(*this, *meta_index) ||
      std::ranges::any_of(handles, [](std::byte byte) { return byte != std::byte{0}; })) {
    return false;
  }
  index_ = *index;
  return true;
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

bool TableFile::Contains(const BlockHandle& handle) const {
  const uint64_t limit = size_bytes() - kFooterBytes;
  return handle.offset_bytes <= limit && handle.length_bytes <= limit - handle.offset_bytes &&
         kBlockTrailerBytes <= limit - handle.offset_bytes - handle.length_bytes;
}

Result<void> TableFile::ReadBlock(const BlockHandle& handle, TableBlock& block) const {
  if (!Contains(handle)) {
    return Fail(DamagedBlock("a block is not in the file", handle.offset_bytes));
  }
  BlockMemory memory;
  const auto stored = memory.Resize(handle.length_bytes + kBlockTrailerBytes);
  CAIRN_TRY(ReadAt(handle.offset_bytes, stored));
  const auto contents = DecodeBlock(stored, block.memory);
  if (!contents) return Fail(DamagedBlock(contents.error(), handle.offset_bytes));
  block.contents = *contents;
  if (contents->data() == stored.data()) block.memory = std::move(memory);
  return {};
}

Error TableFile::DamagedBlock(const char* what, uint64_t offset_bytes) const {
  return Damaged(*this, std::string("cannot read the table: ") + what).WithOffset(offset_bytes);
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
