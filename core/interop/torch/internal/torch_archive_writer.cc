// First the pickle, which numbers the storages; then the storages, which are streamed.

#include "core/interop/torch/internal/torch_archive_writer.h"

#include <fmt/format.h>

namespace cairn::core::internal {

Result<void> TorchArchiveWriter::AddText(const std::string& name, std::string_view text) {
  return zip_.Add("archive/" + name, std::as_bytes(std::span(text)));
}

Result<void> TorchArchiveWriter::Begin() {
  CAIRN_TRY(AddText("data.pkl", pickle_.pickle));
  CAIRN_TRY(AddText(".format_version", "1"));
  CAIRN_TRY(AddText(".storage_alignment", fmt::format("{}", kZipAlignmentBytes)));
  return AddText("byteorder", "little");
}

Result<void> TorchArchiveWriter::BeginStorage() {
  if (next_ > 0) CAIRN_TRY(zip_.End());
  CAIRN_TRY(zip_.Begin(fmt::format("archive/data/{}", next_), pickle_.storages[next_].nbytes));
  ++next_;
  return {};
}

Result<void> TorchArchiveWriter::Append(size_t storage, std::span<const std::byte> bytes) {
  CAIRN_CHECK(storage < pickle_.storages.size() && storage + 1 >= next_);
  while (next_ <= storage) CAIRN_TRY(BeginStorage());  // also those without bytes
  return zip_.Append(bytes);
}

Result<uint64_t> TorchArchiveWriter::Finish() {
  while (next_ < pickle_.storages.size()) CAIRN_TRY(BeginStorage());
  if (next_ > 0) CAIRN_TRY(zip_.End());
  CAIRN_TRY(AddText("version", "3\n"));
  return zip_.Finish();
}

}  // namespace cairn::core::internal
