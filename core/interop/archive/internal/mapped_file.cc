// open, fstat, mmap.

#include "core/interop/archive/internal/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "kv/mapping.h"

namespace cairn::core::internal {
namespace {

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

}  // namespace

Result<std::shared_ptr<const kv::Mapping>> MapFile(const std::string& path) {
  // O_NONBLOCK: a FIFO must not make the open wait for a writer.
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0) return Fail(SystemError(errno, "cannot open the file", path));
  struct stat status{};
  if (::fstat(file.get(), &status) != 0) {
    return Fail(SystemError(errno, "cannot examine the file", path));
  }
  if (!S_ISREG(status.st_mode)) {
    return Fail(
        Error{.code = ErrorCode::kDataLoss, .message = "it is no regular file", .file = path});
  }
  const auto size = static_cast<uint64_t>(status.st_size);
  if (size == 0) return std::make_shared<const kv::Mapping>(std::span<const std::byte>());
  void* const memory = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (memory == MAP_FAILED) return Fail(SystemError(errno, "cannot map the file", path));
  return std::make_shared<const kv::Mapping>(
      std::span(static_cast<const std::byte*>(memory), size));
}

}  // namespace cairn::core::internal
