#include "kv/table/internal/table_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "kv/table/internal/table_check.h"
#include "kv/table/internal/window_reader.h"

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
  std::vector<std::byte> tail(tail_bytes);
  CAIRN_TRY(object_.ReadAt(tail_offset_bytes_, tail));
  tail_ = std::move(tail);
  return {};
}

Result<void> TableFile::ReadAt(uint64_t offset_bytes, std::span<std::byte> target) const {
  if (offset_bytes >= tail_offset_bytes_ && offset_bytes <= size_bytes() &&
      target.size() <= size_bytes() - offset_bytes) {
    const auto source = std::span(tail_).subspan(offset_bytes - tail_offset_bytes_, target.size());
    std::ranges::copy(source, target.begin());
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
