#pragma once
/// The manifest: all records that one rank contributes to one step, durable before the commit and
/// kept while the step exists (docs/format/manifest.md).
///
///   header   128 bytes
///   blocks   u32 payload bytes, u32 entries, u32 stored bytes, u32 0, u64 XXH3-64 of the stored
///            bytes (seeded with payload bytes and entries), then the payload as one zstd frame
///   entry    u8 column, 3 zero bytes, u32 key bytes, u32 value bytes, key, value
///   end      a block with 0xffffffff entries, whose payload is the number of entries (u64)

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kv/digest.h"
#include "kv/error.h"
#include "kv/internal/index/index_records.h"
#include "kv/internal/io/file.h"
#include "kv/internal/segment/segment_format.h"
#include "kv/key.h"

namespace cairn::kv::internal {

inline constexpr uint32_t kManifestVersion = 1;
inline constexpr size_t kManifestHeaderBytes = 128;
/// Space for "<session>-<step>-<counter>", padded with NUL.
inline constexpr size_t kMaxAttemptBytes = 56;

struct ManifestHeader {
  Uuid store_uuid{};
  uint64_t step = 0;
  uint32_t rank = 0;
  uint32_t world_size = 1;
  int64_t created_unix_ns = 0;
  std::string attempt;
};

/// Writes records to a new file as a stream. Memory: one block. Threads: one.
class ManifestWriter {
 public:
  /// kConflict: the file exists. Requires `header.attempt.size() < kMaxAttemptBytes`.
  static Result<std::unique_ptr<ManifestWriter>> Create(const std::string& path,
                                                        const ManifestHeader& header);
  ~ManifestWriter();

  /// kInvalidArgument: the key and the value do not fit into a block (1 GiB).
  Result<void> Add(Column column, std::string_view key, std::span<const std::byte> value);
  /// Adds a block of another manifest, with its header, after ReadManifest has checked it.
  Result<void> AddBlock(std::span<const std::byte> header, std::span<const std::byte> stored,
                        uint64_t entry_count);
  /// Writes the end of the file and, if `sync` is set, syncs it. The caller syncs the directory.
  /// Nothing can be added after this.
  Result<ManifestRef> Finish(bool sync = true);

 private:
  ManifestWriter(File file, const ManifestHeader& header);
  Result<void> Write(std::span<const std::byte> bytes);
  Result<void> FlushFile();
  Result<void> FlushBlock(uint32_t entry_count);

  File file_;
  const uint32_t rank_;
  std::vector<std::byte> block_;
  std::vector<std::byte> compressed_;
  std::vector<std::byte> unwritten_;  // joins the small blocks of thousands of ranks
  uint32_t block_entries_ = 0;
  uint64_t entry_count_ = 0;
  uint64_t file_bytes_ = 0;
  struct Hash;
  std::unique_ptr<Hash> hash_;
};

/// Called with each entry. The value is aligned to 8 bytes; both are valid only during the call.
using ManifestCallback =
    std::function<Result<void>(Column, std::string_view key, std::span<const std::byte> value)>;

/// Reads only the header. kDataLoss: it is damaged. kUnimplemented: its version is newer.
Result<ManifestHeader> ReadManifestHeader(const std::string& path);
/// Reads and checks the complete file, and calls `callback` with each entry. With `copy`, also adds
/// all blocks to that manifest. kDataLoss: a block is damaged (the error names the file and the
/// offset of the block), or the header is not `expected` (whose time is ignored). kUnimplemented:
/// the version is newer.
Result<ManifestRef> ReadManifest(const std::string& path, const ManifestCallback& callback,
                                 const ManifestHeader* expected = nullptr,
                                 ManifestWriter* copy = nullptr);

}  // namespace cairn::kv::internal
