// For each member the local header, the data and the descriptor; the directory at the end.

#include "core/interop/archive/internal/zip_writer.h"

#include "core/interop/archive/internal/crc32.h"

namespace cairn::core::internal {

Result<void> ZipWriter::Write(std::span<const std::byte> bytes) {
  length_bytes_ += bytes.size();
  return file_->Write(bytes);
}

Result<void> ZipWriter::Add(const std::string& name, std::span<const std::byte> bytes) {
  CAIRN_TRY(Begin(name, bytes.size()));
  CAIRN_TRY(Append(bytes));
  return End();
}

Result<void> ZipWriter::Begin(const std::string& name, uint64_t length_bytes) {
  CAIRN_CHECK(!is_open_);
  members_.push_back(
      {.name = name, .length_bytes = length_bytes, .header_offset_bytes = length_bytes_});
  is_open_ = true;
  missing_bytes_ = length_bytes;
  return Write(EncodeZipHeader(members_.back()));
}

Result<void> ZipWriter::Append(std::span<const std::byte> bytes) {
  CAIRN_CHECK(is_open_ && bytes.size() <= missing_bytes_);
  missing_bytes_ -= bytes.size();
  members_.back().crc32 = Crc32(members_.back().crc32, bytes);
  return Write(bytes);
}

Result<void> ZipWriter::End() {
  CAIRN_CHECK(is_open_ && missing_bytes_ == 0);
  is_open_ = false;
  return Write(EncodeZipDescriptor(members_.back()));
}

Result<uint64_t> ZipWriter::Finish() {
  CAIRN_CHECK(!is_open_);
  CAIRN_TRY(Write(EncodeZipDirectory(members_, length_bytes_)));
  return length_bytes_;
}

}  // namespace cairn::core::internal
