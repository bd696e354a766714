#pragma once
/// A look at a table file of the index before RocksDB takes it in.
///
/// RocksDB (7.8) parses a table's block of properties before it compares the block's checksum, and
/// one flipped bit there ends the process in an assertion. So that block is checked here first.
/// Everything else in a table RocksDB itself checks before use.

#include <cstdint>
#include <functional>
#include <span>

namespace cairn::kv::internal {

/// Fills `target` from `offset_bytes` of the table; false if that failed or the file ended.
using TableRead = std::function<bool(uint64_t offset_bytes, std::span<std::byte> target)>;

/// True if the footer, the index of meta blocks and the block of properties are as this project's
/// tables have them (format version 5, XXH3). Cost: one read of the last 4 KiB, rarely a second
/// one.
bool HasSoundProperties(uint64_t file_bytes, const TableRead& read);

}  // namespace cairn::kv::internal
