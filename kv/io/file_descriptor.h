#pragma once
// SPDX-License-Identifier: Apache-2.0
/// The owner of a file descriptor: files, directories, sockets; and calls that signals interrupt.

#include <unistd.h>

#include <cerrno>
#include <utility>

namespace cairn::kv {

/// Repeats a system call, which returns -1 and sets errno, as long as signals interrupt it: an open
/// or a sync on a network file system, for example.
template <typename Call>
auto RetryInterrupted(const Call& call) -> decltype(call()) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

/// Ownership: move-only. The destructor closes the descriptor and ignores the result, which is
/// right for a file that was only read; call `Close` after writing. Threads: one at a time.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  /// Takes ownership of `fd`. A negative value, such as the result of a failed open, owns nothing.
  explicit FileDescriptor(int fd) noexcept : fd_(fd) {}
  ~FileDescriptor() { Close(); }
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(other.Release()) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    if (this != &other) {
      Close();
      fd_ = other.Release();
    }
    return *this;
  }

  /// Returns the descriptor, which this object continues to own; negative if there is none.
  int get() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }

  /// Closes the descriptor now, if there is one. Returns 0 or errno: some file systems report a
  /// failed write only here. The descriptor is closed in either case, as close(2) requires.
  int Close() noexcept {
    const int fd = Release();
    return fd >= 0 && ::close(fd) != 0 ? errno : 0;
  }

  /// Releases ownership without closing.
  [[nodiscard]] int Release() noexcept { return std::exchange(fd_, -1); }

 private:
  int fd_ = -1;
};

}  // namespace cairn::kv
