#pragma once
/// The manifest: all records that one rank contributes to one step, durable before the commit and
/// kept while the step lives (docs/format/manifest.md).
///
///   header   128 bytes
///   blocks   u32 payload bytes, u32 entries, u32 stored bytes, u32 0, u64 XXH3-64 of what stands
///   before
///            and of the stored bytes, then the payload as one zstd frame
///   entry    u8 column, 3 zero bytes, u32 key bytes, u32 value bytes, key, value
///   end      a block with 0xffffffff entries whose payload is the number of entries (u64)

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kv/digest.h"
#include "kv/error.h"
#include "kv/internal/io/file.h"
#include "kv/internal/index/records.h"
#include "kv/internal/segment/segment_format.h"
#include "kv/key.h"

namespace cairn::kv::internal {

inline constexpr uint32_t kManifestVersion = 1;
inline constexpr size_t kManifestHeaderBytes = 128;
/// Room for "<session>-<step>-<counter>", NUL-padded.
inline constexpr size_t kMaxAttemptBytes = 56;

struct ManifestHeader {
  Uuid store_uuid{};
  uint64_t step = 0;
  uint32_t rank = 0;
  uint32_t world_size = 1;
  int64_t created_unix_ns = 0;
  std::string attempt;
};

/// Streams records into a new file. Memory: one block. Threads: one.
class ManifestWriter {
 public:
  static Result<std::unique_ptr<ManifestWriter>> Create(const std::string& path,
                                                        const ManifestHeader& header);
  ~ManifestWriter();

  /// kInvalidArgument: a key or value that does not fit into a block (1 GiB).
  Result<void> Add(Column column, std::string_view key, std::span<const std::byte> value);
  /// A block of another manifest, header and stored bytes, as ReadManifest found it to be right.
  Result<void> AddBlock(std::span<const std::byte> header, std::span<const std::byte> stored,
                        uint64_t entry_count);
  /// Writes the end and, unless told not to, syncs the file. The directory is the caller's to sync.
  Result<ManifestRef> Finish(bool sync = true);

 private:
  ManifestWriter(File file, const ManifestHeader& header);
  Result<void> Write(std::span<const std::byte> bytes);
  Result<void> FlushFile();
  Result<void> FlushBlock(uint32_t entry_count);

  File file_;
  const uint32_t rank_;
  std::vector<std::byte> block_;
  std::vector<std::byte> packed_;
  std::vector<std::byte> unwritten_;  // thousands of ranks' blocks are small
  uint32_t block_entries_ = 0;
  uint64_t entry_count_ = 0;
  uint64_t file_bytes_ = 0;
  struct Hash;
  std::unique_ptr<Hash> hash_;
};

/// Called for each entry; the value is 8-byte aligned and both live during the call only.
using ManifestCallback =
    std::function<Result<void>(Column, std::string_view key, std::span<const std::byte> value)>;

/// Reads the header alone.
Result<ManifestHeader> ReadManifestHeader(const std::string& path);
/// Reads and checks the whole file. kDataLoss names the file and the offset of the bad block, or
/// says that the file is not the one of `expected` (whose time does not count). Entries are copied
/// to `copy` too, in their blocks.
Result<ManifestRef> ReadManifest(const std::string& path, const ManifestCallback& callback,
                                 const ManifestHeader* expected = nullptr,
                                 ManifestWriter* copy = nullptr);

}  // namespace cairn::kv::internal
