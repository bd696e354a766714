// One file, two ranges of device memory, two comparisons.

#include "cuda/internal/file_trial.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <new>
#include <span>
#include <vector>

#include "kv/file_descriptor.h"

namespace cairn::cuda::internal {
namespace {

constexpr uint64_t kTrialBytes = 1ull << 20;
constexpr uint64_t kOffsetBytes = 8192;  // not where the file begins
constexpr size_t kAlignment = 4096;

struct AlignedBytes {
  std::byte* const data =
      static_cast<std::byte*>(::operator new(kTrialBytes, std::align_val_t{kAlignment}));
  ~AlignedBytes() { ::operator delete(data, std::align_val_t{kAlignment}); }
  std::span<std::byte> span() const { return {data, kTrialBytes}; }
};

/// Creates a file that disappears when it is closed.
Result<kv::FileDescriptor> MakeFile(const std::string& directory) {
  constexpr int kFlags = O_RDWR | O_CLOEXEC | O_DIRECT;
  kv::FileDescriptor fd(::open(directory.c_str(), O_TMPFILE | kFlags, 0600));
  if (fd.is_open()) return fd;
  // Not every file system supports unnamed files.
  std::string path = directory + "/.cairn-trial-XXXXXX";
  kv::FileDescriptor named(::mkostemp(path.data(), O_CLOEXEC | O_DIRECT));
  const int error_number = errno;
  if (named.is_open()) {
    (void)::unlink(path.c_str());
    return named;
  }
  Error error = SystemError(error_number, "cannot create a file for direct I/O", directory);
  if (error_number == EINVAL) error.code = ErrorCode::kFailedPrecondition;
  return Fail(std::move(error));
}

Result<void> Compare(std::span<const std::byte> found, std::span<const std::byte> written) {
  if (std::ranges::equal(found, written)) return {};
  return Fail(ErrorCode::kDataLoss,
              "in a trial of GPUDirect Storage the file did not contain the bytes that the GPU "
              "had written; it stays off for this file system");
}

}  // namespace

Result<void> TryOutFile(
    core::DeviceBackend& backend, int device, const std::string& directory,
    const std::function<Result<std::unique_ptr<core::DeviceFile>>(int fd)>& open) {
  CAIRN_TRY_ASSIGN(const kv::FileDescriptor descriptor, MakeFile(directory));
  CAIRN_TRY_ASSIGN(const std::unique_ptr<core::DeviceFile> file, open(descriptor.get()));
  // Declared before the queue, which uses them and is destroyed first.
  std::vector<std::byte> written(kTrialBytes);
  std::vector<std::byte> read(kTrialBytes);
  CAIRN_TRY_ASSIGN(const auto memory, backend.Allocate(device, 2 * kTrialBytes));
  CAIRN_TRY_ASSIGN(const std::shared_ptr<core::DeviceQueue> queue, backend.OpenQueue(device));

  uint64_t state = static_cast<uint64_t>(::getpid());
  for (std::byte& byte : written) {
    state = state * 6364136223846793005u + 1442695040888963407u;  // the generator of Knuth's MMIX
    byte = static_cast<std::byte>(state >> 56);
  }
  const auto target = [&](std::byte* data) {
    return core::TensorTarget{.dtype = core::DType::kUInt8,
                              .shape = {kTrialBytes},
                              .strides = {},
                              .data = data,
                              .device = device};
  };
  std::byte* const source = memory->data();
  std::byte* const copy = memory->data() + kTrialBytes;
  CAIRN_TRY(queue->CopyIn(written, target(source), 0));
  CAIRN_TRY_ASSIGN(const core::DeviceQueue::Mark copied_in, queue->Flush());
  CAIRN_TRY(queue->Await(copied_in));

  CAIRN_TRY(file->Write(device, {source, kTrialBytes}, kOffsetBytes));
  const AlignedBytes found;
  errno = 0;  // a short read does not set it
  if (::pread(descriptor.get(), found.data, kTrialBytes, kOffsetBytes) !=
      static_cast<ssize_t>(kTrialBytes)) {
    return Fail(SystemError(errno != 0 ? errno : EIO, "cannot read the trial file", directory));
  }
  CAIRN_TRY(Compare(found.span(), written));

  CAIRN_TRY(file->Read(device, {copy, kTrialBytes}, kOffsetBytes));
  const core::TensorView view{.dtype = core::DType::kUInt8,
                              .shape = {kTrialBytes},
                              .strides = {},
                              .data = copy,
                              .device = device};
  CAIRN_TRY(queue->CopyOut(view, 0, read));
  CAIRN_TRY_ASSIGN(const core::DeviceQueue::Mark copied_out, queue->Flush());
  CAIRN_TRY(queue->Await(copied_out));
  return Compare(read, written);
}

}  // namespace cairn::cuda::internal
