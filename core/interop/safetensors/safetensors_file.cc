#include "core/interop/safetensors/safetensors_file.h"

#include <utility>

#include "core/interop/safetensors/internal/mapped_file.h"
#include "core/interop/safetensors/internal/safetensors_contents.h"

namespace cairn::core {

Result<SafetensorsFile> SafetensorsFile::Open(const std::string& path) {
  SafetensorsFile file;
  file.path_ = path;
  CAIRN_TRY_ASSIGN(file.mapping_, internal::MapFile(path));
  auto contents = internal::ReadSafetensors(file.mapping_->bytes());
  if (!contents) return Fail(std::move(contents).error().WithFile(path).WithHint(Hint::kFetchFile));
  file.tensors_ = std::move(contents->tensors);
  file.metadata_ = std::move(contents->metadata);
  return file;
}

StateDict SafetensorsState(std::span<const SafetensorsFile> files, std::string_view prefix) {
  StateDict state;
  auto root = prefix.empty() ? state.root() : state.root().Map(prefix);
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

}  // namespace cairn::core
