// First the pickle, which numbers the storages; then these, streamed.

#include "core/interop/torch/internal/torch_archive_writer.h"

#include <fmt/format.h>

namespace cairn::core::internal {

Result<void> TorchArchiveWriter::AddText(const std::string& name, std::string_view text) {
  return zip_.Add("archive/" + name, std::as_bytes(std::span(text)));
}

Result<void> TorchArchiveWriter::Begin() {
  CAIRN_TRY(AddText("data.pkl", what_.pickle));
  CAIRN_TRY(AddText(".format_version", "1"));
  CAIRN_TRY(AddText(".storage_alignment", fmt::format("{}", ZipWriter::kAlignmentBytes)));
  return AddText("byteorder", "little");
}

Result<void> TorchArchiveWriter::BeginStorage() {
  if (next_ > 0) CAIRN_TRY(zip_.End());
  CAIRN_TRY(zip_.Begin(fmt::format("archive/data/{}", next_), what_.storages[next_].nbytes));
  ++next_;
  return {};
}

Result<void> TorchArchiveWriter::Append(size_t storage, std::span<const std::byte> bytes) {
  while (next_ <= storage) CAIRN_TRY(BeginStorage());  // those without bytes, too
  return zip_.Append(bytes);
}

Result<uint64_t> TorchArchiveWriter::Finish() {
  while (next_ < what_.storages.size()) CAIRN_TRY(BeginStorage());
  if (next_ > 0) CAIRN_TRY(zip_.End());
  CAIRN_TRY(AddText("version", "3\n"));
  return zip_.Finish();
}

}  // namespace cairn::core::internal
