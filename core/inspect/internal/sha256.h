#pragma once
/// SHA-256 (FIPS 180-4).

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace cairn::core::internal {

std::array<std::byte, 32> Sha256(std::span<const std::byte> bytes);

}  // namespace cairn::core::internal
