#pragma once
/// CRC-32 as zip files have it (ISO 3309, polynomial 0xEDB88320 reflected).

#include <cstddef>
#include <cstdint>
#include <span>

namespace cairn::core::internal {

/// The checksum of what `crc` is the checksum of, followed by `bytes`; begin with 0. About 2 GB a
/// second and core. Algorithm: Kounavis and Berry, "A Systematic Approach to Building High
/// Performance Software-based CRC Generators" (slicing by 16).
uint32_t Crc32(uint32_t crc, std::span<const std::byte> bytes);

}  // namespace cairn::core::internal
