// Headers of safetensors files.

#include "core/interop/safetensors/internal/safetensors_header.h"
#include "tests/fuzz/fuzz_support.h"

namespace cairn::fuzz {

using namespace core;            // NOLINT(google-build-using-namespace): the code under test
using namespace core::internal;  // NOLINT(google-build-using-namespace): the code under test

void Fuzz(Input input) {
  const uint64_t data_bytes = input.Number<uint32_t>();
  Result<SafetensorsHeader> header;
  {
    const MemoryLimit limit(input.rest(), 256);
    header = DecodeSafetensorsHeader(input.rest_text(), data_bytes);
  }
  if (!header) return UseError(header.error());
  std::vector<SafetensorsEntry> entries;
  uint64_t end_bytes = 0;
  for (const SafetensorsHeader::Tensor& tensor : header->tensors) {
    CAIRN_FUZZ_CHECK(tensor.begin_bytes == end_bytes && tensor.end_bytes >= end_bytes);
    end_bytes = tensor.end_bytes;
    entries.push_back({.name = tensor.name, .dtype = tensor.dtype, .shape = tensor.shape});
  }
  CAIRN_FUZZ_CHECK(end_bytes == data_bytes);
  const auto encoded = EncodeSafetensorsHeader(entries, header->metadata);
  if (!encoded) return UseError(encoded.error());
  CAIRN_FUZZ_CHECK(Is(DecodeSafetensorsHeader(encoded->json, encoded->data_bytes), *header));
}

}  // namespace cairn::fuzz
