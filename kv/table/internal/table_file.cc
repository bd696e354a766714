#include "kv/table/internal/table_file.h"

#include <fmt/format.h>

#include <algorithm>

#include "kv/base/digest.h"
#include "kv/table/internal/table_check.h"

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

}  // namespace

bool WindowReader::CopyFromWindows(uint64_t offset_bytes, std::span<std::byte> target) {
  const MutexLock lock(mutex_);
  while (!target.empty()) {
    const auto found = by_index_.find(offset_bytes / kWindowBytes);
    if (found == by_index_.end()) return false;
    recent_.splice(recent_.begin(), recent_, found->second);
    const std::vector<std::byte>& window = *found->second->second;
    const uint64_t at = offset_bytes % kWindowBytes;
    if (at >= window.size()) return false;
    const uint64_t length = std::min<uint64_t>(target.size(), window.size() - at);
    std::copy_n(window.begin() + static_cast<ptrdiff_t>(at), length, target.begin());
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
    if (by_index_.contains(index)) continue;  // another thread has read it
    recent_.emplace_front(index,
                          std::make_shared<const std::vector<std::byte>>(part.begin(), part.end()));
    by_index_[index] = recent_.begin();
  }
  while (recent_.size() > kMaxWindows) {
    by_index_.erase(recent_.back().first);
    recent_.pop_back();
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
  const auto read = [&file](uint64_t offset_bytes, std::span<std::byte> target) {
    return file.ReadAt(offset_bytes, target).has_value();
  };
  if (!HasSoundFooter(file.size_bytes(), read)) {
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
