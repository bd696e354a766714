#pragma once
/// Checks a table before RocksDB parses it.
///
/// RocksDB (7.8) parses a table's properties block before it verifies the block's checksum, and one
/// flipped bit there ends the process in an assertion. It also allocates the length of the index in
/// the footer, which has no checksum. So both are checked here first. RocksDB itself checks
/// everything else in a table before use.

#include <cstdint>
#include <functional>
#include <span>

namespace cairn::kv::internal {

/// Fills `target` from `offset_bytes` of the table. Returns false if that failed or the file ended.
using TableRead = std::function<bool(uint64_t offset_bytes, std::span<std::byte> target)>;

/// Returns whether the footer, the meta index block and the properties block are valid and as in
/// the tables of this project (format version 5, XXH3), and the index is inside the file. Cost: one
/// read of the last 4 KiB, rarely a second read.
bool HasSoundFooter(uint64_t file_bytes, const TableRead& read);

}  // namespace cairn::kv::internal
