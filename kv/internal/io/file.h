#pragma once
/// Files and directories with errors as values and durability spelled out.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kv/error.h"
#include "kv/file_descriptor.h"

namespace cairn::kv::internal {

/// Offset and length of direct I/O are multiples of this; so is memory, unless File knows better.
inline constexpr uint64_t kDirectAlignBytes = 4096;

/// An open file. Ownership: move-only owner of the descriptor. Threads: ReadAt may run on many threads
/// at once, the others on one at a time.
class File {
 public:
  File() = default;
  /// Reads; `direct` is dropped silently where the file system refuses O_DIRECT.
  static Result<File> OpenRead(const std::string& path, bool direct);
  /// Makes a new file for writing; kConflict if it exists.
  static Result<File> Create(const std::string& path, bool direct);

  int fd() const { return fd_.get(); }
  bool direct() const { return direct_; }
  /// Addresses of memory for I/O are multiples of this: often 4 bytes on NVMe, 512 elsewhere, 1 for
  /// buffered I/O. kDirectAlignBytes where the kernel (before Linux 6.1) does not tell.
  uint64_t memory_align_bytes() const { return direct_ ? memory_align_bytes_ : 1; }
  const std::string& path() const { return path_; }

  /// Turns O_DIRECT off, for file systems that accept the flag and refuse the I/O.
  Result<void> DropDirect();
  Result<uint64_t> SizeBytes() const;
  /// Blocking, whole ranges. kDataLoss: the file ends before the range does.
  Result<void> ReadAt(uint64_t offset_bytes, std::span<std::byte> target) const;
  Result<void> Append(std::span<const std::byte> bytes, const char* fault_point);
  Result<void> Truncate(uint64_t size_bytes);
  /// fdatasync, which also makes a changed size durable.
  Result<void> Sync(const char* fault_point);

 private:
  FileDescriptor fd_;
  bool direct_ = false;
  uint64_t memory_align_bytes_ = kDirectAlignBytes;
  std::string path_;
};

Result<void> MakeDirectory(const std::string& path);  // fine if it exists
Result<void> SyncDirectory(const std::string& path, const char* fault_point);
Result<void> Rename(const std::string& from, const std::string& to, const char* fault_point);
/// Fine if it is gone already.
Result<void> RemoveFile(const std::string& path);
Result<void> RemoveTree(const std::string& path);
/// Names of the entries, sorted. A missing directory is empty.
Result<std::vector<std::string>> ListDirectory(const std::string& path);
bool Exists(const std::string& path);
/// kNotFound, or kDataLoss if longer than `limit_bytes`.
Result<std::vector<std::byte>> ReadWholeFile(const std::string& path, uint64_t limit_bytes);
/// write, fsync, rename, directory fsync, in that order: readers see the old or the new file, and
/// after a power cut too.
Result<void> ReplaceFile(const std::string& directory, const std::string& name,
                         std::span<const std::byte> bytes);

inline std::span<const std::byte> AsBytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

}  // namespace cairn::kv::internal
