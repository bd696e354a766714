// Slicing by 16: sixteen tables, sixteen bytes a round.

#include "core/interop/archive/internal/crc32.h"

#include <array>

namespace cairn::core::internal {
namespace {

constexpr size_t kSlices = 16;
using Tables = std::array<std::array<uint32_t, 256>, kSlices>;

consteval Tables MakeTables() {
  Tables tables{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 1) != 0 ? crc >> 1 ^ 0xEDB88320u : crc >> 1;
    tables[0][i] = crc;
  }
  for (size_t slice = 1; slice < kSlices; ++slice) {
    for (uint32_t i = 0; i < 256; ++i) {
      const uint32_t before = tables[slice - 1][i];
      tables[slice][i] = before >> 8 ^ tables[0][before & 0xff];
    }
  }
  return tables;
}
constexpr Tables kTables = MakeTables();

}  // namespace

uint32_t Crc32(uint32_t crc, std::span<const std::byte> bytes) {
  crc = ~crc;
  const auto* at = reinterpret_cast<const uint8_t*>(bytes.data());
  size_t left = bytes.size();
  for (; left >= kSlices; at += kSlices, left -= kSlices) {
    uint32_t next = 0;
    for (size_t i = 0; i < kSlices; ++i) {
      const uint32_t mixed = i < 4 ? (at[i] ^ crc >> (8 * i)) & 0xff : at[i];
      next ^= kTables[kSlices - 1 - i][mixed];
    }
    crc = next;
  }
  for (; left > 0; ++at, --left) crc = crc >> 8 ^ kTables[0][(crc ^ *at) & 0xff];
  return ~crc;
}

}  // namespace cairn::core::internal
