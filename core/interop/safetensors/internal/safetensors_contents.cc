#include "core/interop/safetensors/internal/safetensors_contents.h"

#include <fmt/format.h>

#include <utility>

#include "core/interop/safetensors/internal/safetensors_header.h"
#include "schema/little_endian.h"

namespace cairn::core::internal {

Result<SafetensorsContents> ReadSafetensors(std::span<const std::byte> file) {
  constexpr uint64_t kLengthBytes = 8;  // size of the field with the header's length
  if (file.size() < kLengthBytes) {
    return Fail(ErrorCode::kDataLoss, "it is not a safetensors file: it is too short");
  }
  const auto header_bytes = schema::GetLittleEndian<uint64_t>(file);
  if (header_bytes > kMaxSafetensorsHeaderBytes || header_bytes > file.size() - kLengthBytes) {
    return Fail(ErrorCode::kDataLoss,
                fmt::format("it is not a safetensors file: a header of {} bytes in a file of {}",
                            header_bytes, file.size()));
  }
  const auto text = file.subspan(kLengthBytes, header_bytes);
  const auto data = file.subspan(kLengthBytes + header_bytes);
  const std::string_view json(reinterpret_cast<const char*>(text.data()), text.size());
  CAIRN_TRY_ASSIGN(SafetensorsHeader header, DecodeSafetensorsHeader(json, data.size()));
  SafetensorsContents contents{.tensors = {}, .metadata = std::move(header.metadata)};
  contents.tensors.reserve(header.tensors.size());
  for (auto& tensor : header.tensors) {
    contents.tensors.push_back(
        {.name = std::move(tensor.name),
         .dtype = tensor.dtype,
         .shape = std::move(tensor.shape),
         .bytes = data.subspan(tensor.begin_bytes, tensor.end_bytes - tensor.begin_bytes)});
  }
  return contents;
}

}  // namespace cairn::core::internal
