#pragma once
/// The blocks of a table (docs/format/sst.md): checksums, compression and entries. Nothing of a
/// block is used before its checksum is compared, and no length in it is believed.

#include <cstddef>
#include <cstdint>
#include <expected>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace cairn::kv::internal {

/// The place of a block in its file. A trailer of kBlockTrailerBytes follows it.
struct BlockHandle {
  uint64_t offset_bytes = 0;
  uint64_t length_bytes = 0;
};
inline constexpr uint64_t kBlockTrailerBytes = 5;

/// Removes a handle from the front of `bytes`; nothing if there is none.
std::optional<BlockHandle> TakeHandle(std::span<const std::byte>& bytes);

/// Memory that is reused, and is not cleared.
class BlockMemory {
 public:
  /// Returns `length_bytes` of memory with any contents, valid until the next call.
  std::span<std::byte> Resize(uint64_t length_bytes);

 private:
  std::unique_ptr<std::byte[]> bytes_;
  uint64_t capacity_bytes_ = 0;
};

/// Returns the contents of a block, or what is wrong with it. `stored` is the block and its
/// trailer. The contents are in `stored`, or in `decompressed` if the block is compressed.
std::expected<std::span<const std::byte>, const char*> DecodeBlock(
    std::span<const std::byte> stored, BlockMemory& decompressed);

/// A position among the entries of a block. Ownership: borrows the block. Threads: one.
class BlockCursor {
 public:
  enum class Kind {
    kRecords,  // keys are followed by eight bytes, which are checked and removed
    kIndex,    // values are handles
    kOther,
  };

  explicit BlockCursor(Kind kind) : kind_(kind) {}

  /// Moves before the first entry of `block`.
  void Open(std::span<const std::byte> block);
  // Each returns false if there is no such entry, or if the block is damaged.
  bool Next();
  /// Moves to the first entry whose key is not less than `key`.
  bool Seek(std::string_view key);
  /// Leaves the block: there are no entries.
  void Close() {
    left_ = {};
    is_damaged_ = false;
  }
  bool is_damaged() const { return is_damaged_; }

  // Require that the last Next or Seek has returned true. Valid until the next one.
  std::string_view key() const { return {key_.data(), key_bytes_ - key_tail_bytes_}; }
  std::span<const std::byte> value() const { return value_; }
  const BlockHandle& handle() const { return handle_; }

 private:
  bool Damage();
  bool MoveToRestart(uint32_t restart);

  Kind kind_;
  std::span<const std::byte> entries_;
  std::span<const std::byte> restarts_;  // u32 each
  std::span<const std::byte> left_;      // of the entries
  std::vector<char> key_;                // and unused memory
  size_t key_bytes_ = 0;
  size_t key_tail_bytes_ = 0;  // that are not part of the result
  std::span<const std::byte> value_;
  BlockHandle handle_;
  bool is_damaged_ = false;
};

}  // namespace cairn::kv::internal
