// safetensors files: opening, and writing one durably.

#include "core/interop/safetensors/safetensors.h"

#include <fmt/format.h>

#include <array>

#include "core/interop/archive/internal/durable_file.h"
#include "core/interop/archive/internal/mapped_file.h"
#include "core/interop/safetensors/internal/safetensors_header.h"

namespace cairn::core {

Result<SafetensorsFile> SafetensorsFile::Open(const std::string& path) {
  SafetensorsFile file;
  file.path_ = path;
  CAIRN_TRY_ASSIGN(file.mapping_, internal::MapFile(path));
  auto contents = internal::ReadSafetensors(file.mapping_->bytes());
  if (!contents) return Fail(std::move(contents).error().WithFile(path));
  file.tensors_ = std::move(contents->tensors);
  file.metadata_ = std::move(contents->metadata);
  return file;
}

StateDict SafetensorsState(std::span<const SafetensorsFile> files) {
  StateDict state;
  auto root = state.root();
  for (const SafetensorsFile& file : files) {
    for (const SafetensorsTensor& tensor : file.tensors()) {
      root.Tensor(tensor.name, {.dtype = tensor.dtype,
                                .shape = tensor.shape,
                                .strides = {},
                                .data = tensor.bytes.data()});
    }
  }
  return state;
}

SafetensorsWriter::SafetensorsWriter() = default;
SafetensorsWriter::~SafetensorsWriter() = default;

Result<std::unique_ptr<SafetensorsWriter>> SafetensorsWriter::Create(
    const std::string& path, std::span<const Entry> entries,
    const std::map<std::string, std::string>& metadata) {
  std::unique_ptr<SafetensorsWriter> writer(new SafetensorsWriter());
  CAIRN_TRY_ASSIGN(const std::string header,
                   internal::FormatSafetensorsHeader(entries, metadata, &writer->left_bytes_));
  CAIRN_TRY_ASSIGN(writer->file_, internal::DurableFile::Create(path));
  std::array<std::byte, 8> length;
  for (size_t i = 0; i < 8; ++i) length[i] = static_cast<std::byte>(header.size() >> (8 * i));
  CAIRN_TRY(writer->file_->Write(length));
  CAIRN_TRY(writer->file_->Write(std::as_bytes(std::span(header))));
  return writer;
}

Result<void> SafetensorsWriter::Append(std::span<const std::byte> bytes) {
  if (bytes.size() > left_bytes_) {
    return Fail(
        ErrorCode::kInvalidArgument,
        fmt::format("{} bytes given where the entries have {} left", bytes.size(), left_bytes_));
  }
  left_bytes_ -= bytes.size();
  return file_->Write(bytes);
}

Result<void> SafetensorsWriter::Finish() {
  if (left_bytes_ != 0) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("{} bytes of tensors are missing", left_bytes_));
  }
  return file_->Finish();
}

}  // namespace cairn::core
