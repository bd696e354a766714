#pragma once
/// Files and directories: operations that return `Result` and state what is durable.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kv/base/error.h"
#include "kv/base/read_range.h"
#include "kv/io/file_descriptor.h"

namespace cairn::kv::internal {

/// Offsets and lengths of direct I/O are multiples of this. So are addresses of memory, unless
/// File::memory_align_bytes is less.
inline constexpr uint64_t kDirectAlignBytes = 4096;

/// An open file. Ownership: move-only owner of the descriptor. Threads: ReadAt may run on many
/// threads at once, the others on one at a time.
class File {
 public:
  File() = default;
  /// Opens a file for reading. Ignores `direct` if the file system refuses O_DIRECT. `fault_point`
  /// may be null. kNotFound: the file does not exist.
  static Result<File> OpenRead(const FilePlace& place, bool direct, const char* fault_point);
  /// Creates a file for writing. Ignores `direct` if the file system refuses O_DIRECT. kConflict:
  /// it exists.
  static Result<File> Create(const FilePlace& place, bool direct);

  int fd() const { return fd_.get(); }
  bool direct() const { return direct_; }
  /// Alignment of memory for I/O: often 4 bytes on NVMe, 512 elsewhere, 1 for buffered I/O.
  /// kDirectAlignBytes if the kernel (before Linux 6.1) does not report it.
  uint64_t memory_align_bytes() const { return direct_ ? memory_align_bytes_ : 1; }
  const std::string& path() const { return path_; }

  /// Disables O_DIRECT, for file systems that accept the flag and refuse the I/O.
  Result<void> DropDirect();
  Result<uint64_t> SizeBytes() const;
  /// Fills `target`. kDataLoss: the file ends before the range does.
  Result<void> ReadAt(uint64_t offset_bytes, std::span<std::byte> target) const;
  /// Writes at the current position. kResourceExhausted, kUnavailable: not all bytes were written.
  Result<void> Append(std::span<const std::byte> bytes, const char* fault_point);
  Result<void> Truncate(uint64_t size_bytes);
  /// Makes the contents and the size durable (fdatasync).
  Result<void> Sync(const char* fault_point);

 private:
  FileDescriptor fd_;
  bool direct_ = false;
  uint64_t memory_align_bytes_ = kDirectAlignBytes;
  std::string path_;
};

/// Succeeds if the directory exists.
Result<void> MakeDirectory(const std::string& path);
/// Makes the names in a directory durable.
Result<void> SyncDirectory(const FilePlace& place, const char* fault_point);
/// Succeeds if the file does not exist. Does not follow a link.
Result<void> RemoveFile(const FilePlace& place);
bool Exists(const std::string& path);
/// Returns the contents of a file. kNotFound: it does not exist. kDataLoss: it is longer than
/// `limit_bytes`.
Result<std::vector<std::byte>> ReadWholeFile(const FilePlace& place, uint64_t limit_bytes);

/// Returns the path of the directory that contains `path`; "." for a single name.
std::string ParentOfPath(const std::string& path);
/// Returns the path from the root directory, without "./" at its beginning. The path itself if the
/// working directory does not exist any more. Follows no link.
std::string AbsolutePath(std::string path);

inline std::span<const std::byte> AsBytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

}  // namespace cairn::kv::internal
