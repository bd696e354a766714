#pragma once
/// Objects with the format of parts (docs/format/part.md) around the entries of an input.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kv/commit/internal/part_file.h"

namespace cairn::fuzz {

/// Makes the checksums of all blocks from `begin` on right.
void RepairBlocks(std::span<std::byte> bytes, size_t begin);
/// Makes the checksums of the header and of all blocks right.
void RepairPart(std::span<std::byte> part);
/// Returns one block, without its checksum.
std::vector<std::byte> BlockOf(std::span<const std::byte> payload, uint32_t entry_count);
/// Returns a part with one block of these entries.
std::vector<std::byte> PartOf(const kv::internal::PartHeader& header,
                              std::span<const std::byte> entries, uint32_t entry_count);

}  // namespace cairn::fuzz
