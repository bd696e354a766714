#include "core/interop/archive/internal/crc32.h"

#include <libdeflate.h>

namespace cairn::core::internal {

uint32_t Crc32(uint32_t crc, std::span<const std::byte> bytes) {
  // libdeflate takes a null pointer for the start of a new checksum.
  if (bytes.empty()) return crc;
  return libdeflate_crc32(crc, bytes.data(), bytes.size());
}

}  // namespace cairn::core::internal
