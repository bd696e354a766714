#include "core/interop/safetensors/safetensors_writer.h"

#include <fmt/format.h>

#include "core/interop/safetensors/internal/durable_file.h"
#include "core/interop/safetensors/internal/safetensors_header.h"
#include "schema/little_endian.h"

namespace cairn::core {

SafetensorsWriter::SafetensorsWriter() = default;
SafetensorsWriter::~SafetensorsWriter() = default;

Result<std::unique_ptr<SafetensorsWriter>> SafetensorsWriter::Create(
    const std::string& path, std::span<const Entry> entries,
    const std::map<std::string, std::string>& metadata) {
  CAIRN_TRY_ASSIGN(const internal::EncodedSafetensorsHeader header,
                   internal::EncodeSafetensorsHeader(entries, metadata));
  std::unique_ptr<SafetensorsWriter> writer(new SafetensorsWriter());
  writer->missing_bytes_ = header.data_bytes;
  CAIRN_TRY_ASSIGN(writer->file_, internal::DurableFile::Create(path));
  std::string beginning;
  schema::AppendLittleEndian(beginning, uint64_t{header.json.size()});
  beginning += header.json;
  CAIRN_TRY(writer->file_->Write(std::as_bytes(std::span(beginning))));
  return writer;
}

Result<void> SafetensorsWriter::Append(std::span<const std::byte> bytes) {
  if (bytes.size() > missing_bytes_) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("{} bytes were given, but the entries have only {} left", bytes.size(),
                            missing_bytes_));
  }
  missing_bytes_ -= bytes.size();
  return file_->Write(bytes);
}

Result<void> SafetensorsWriter::Finish() {
  if (missing_bytes_ != 0) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("{} bytes of tensors are missing", missing_bytes_));
  }
  return file_->Finish();
}

}  // namespace cairn::core
