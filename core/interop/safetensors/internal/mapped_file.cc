#include "core/interop/safetensors/internal/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>

#include "kv/io/file_descriptor.h"

namespace cairn::core::internal {

Result<std::shared_ptr<const kv::Mapping>> MapFile(const std::string& path) {
  // O_NONBLOCK: opening a FIFO must not wait for a writer.
  const kv::FileDescriptor file(kv::RetryInterrupted(
      [&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK); }));
  if (!file.is_open()) return Fail(SystemError(errno, "cannot open the file", path));
  struct stat status{};
  if (::fstat(file.get(), &status) != 0) {
    return Fail(SystemError(errno, "cannot examine the file", path));
  }
  if (!S_ISREG(status.st_mode)) {
    return Fail(Error{.code = ErrorCode::kDataLoss,
                      .hint = Hint::kStated,
                      .message = "it is not a regular file",
                      .file = path});
  }
  const auto size = static_cast<uint64_t>(status.st_size);
  if (size == 0) return std::make_shared<const kv::Mapping>(std::span<const std::byte>());
  void* const memory = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (memory == MAP_FAILED) return Fail(SystemError(errno, "cannot map the file", path));
  return std::make_shared<const kv::Mapping>(
      std::span(static_cast<const std::byte*>(memory), size));
}

}  // namespace cairn::core::internal
