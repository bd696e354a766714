// The functions of cufile.h, with pread, pwrite and the memory of the simulated runtime.

#include <cufile.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <map>
#include <mutex>
#include <new>
#include <random>
#include <set>
#include <string>
#include <thread>

#include "tests/support/simulated_cuda/simulated_cuda.h"
#include "tests/support/simulated_cufile/simulated_cufile.h"

namespace cairn::simulated_cufile {
namespace {

constexpr uint64_t kPageBytes = 4096;

struct Handle {
  int fd = -1;
  int running = 0;  // transfers
};

struct Fault {
  uint64_t nth = 0;
  int status = 0;
};

struct State {
  std::mutex mutex;
  Config config;
  Counters counters;
  bool open = false;
  std::set<Handle*> handles;
  std::map<std::string, Fault, std::less<>> faults;
  uint64_t corrupt_write = 0;  // 1: the next; 0: none
  uint64_t corrupt_read = 0;
  std::mt19937 random{1};
};
State& Get() {
  static State& state = *new State;  // threads may outlive statics
  return state;
}

/// Returns the status that the call must return, or 0. Requires the mutex.
int TakeFault(State& state, std::string_view function) {
  const auto found = state.faults.find(function);
  if (found == state.faults.end() || --found->second.nth > 0) return 0;
  const int status = found->second.status;
  state.faults.erase(found);
  return status;
}
bool CountDown(uint64_t& left) { return left > 0 && --left == 0; }

CUfileError_t Status(int status) {
  return {.err = static_cast<CUfileOpError>(status), .cu_err = CUDA_SUCCESS};
}

/// Memory with the alignment that direct I/O requires.
class AlignedBuffer {
 public:
  explicit AlignedBuffer(uint64_t bytes)
      : data_(static_cast<std::byte*>(::operator new(bytes, std::align_val_t{kPageBytes}))) {}
  ~AlignedBuffer() { ::operator delete(data_, std::align_val_t{kPageBytes}); }
  AlignedBuffer(const AlignedBuffer&) = delete;
  AlignedBuffer& operator=(const AlignedBuffer&) = delete;
  std::byte* data() const { return data_; }

 private:
  std::byte* data_;
};

ssize_t WriteFrom(const std::byte* memory, int fd, uint64_t bytes, off_t offset, bool corrupt) {
  if (bytes % kPageBytes != 0 || offset % kPageBytes != 0) {
    errno = EINVAL;  // cuFile would read, modify and write the pages at the ends
    return -1;
  }
  const AlignedBuffer buffer(bytes);
  simulated_cuda::PeekDevice(buffer.data(), memory, bytes);
  if (corrupt) buffer.data()[bytes / 2] ^= std::byte{0x10};
  return ::pwrite(fd, buffer.data(), bytes, offset);
}

ssize_t ReadTo(std::byte* memory, int fd, uint64_t bytes, off_t offset, bool corrupt) {
  const off_t begin = offset / static_cast<off_t>(kPageBytes) * static_cast<off_t>(kPageBytes);
  const auto skipped = static_cast<uint64_t>(offset - begin);
  const uint64_t wanted = (skipped + bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  const AlignedBuffer buffer(wanted);
  const ssize_t count = ::pread(fd, buffer.data(), wanted, begin);
  if (count < 0) return count;
  const uint64_t got = std::min(bytes, std::max(static_cast<uint64_t>(count), skipped) - skipped);
  if (corrupt && got > 0) buffer.data()[skipped + got / 2] ^= std::byte{0x10};
  simulated_cuda::PokeDevice(memory, buffer.data() + skipped, got);
  return static_cast<ssize_t>(got);
}

// The differences between reads and writes.
struct Direction {
  const char* function;
  uint64_t State::* corrupt;
  uint64_t Counters::* count;
  uint64_t Counters::* bytes;
};
constexpr Direction kReads{"cuFileRead", &State::corrupt_read, &Counters::read_count,
                           &Counters::read_bytes};
constexpr Direction kWrites{"cuFileWrite", &State::corrupt_write, &Counters::write_count,
                            &Counters::write_bytes};

/// `move(fd, bytes, corrupt)` transfers at most that many bytes, and returns the result of pread or
/// pwrite.
template <typename Move>
ssize_t Transfer(const Direction& direction, CUfileHandle_t fh, const void* base, size_t size,
                 const Move& move) {
  State& state = Get();
  auto* const handle = static_cast<Handle*>(fh);
  uint64_t bytes = 0;
  int delay_us = 0;
  bool corrupt = false;
  {
    const std::lock_guard lock(state.mutex);
    if (const int status = TakeFault(state, direction.function); status != 0) {
      errno = status < 0 ? -status : 0;
      return status < 0 ? -1 : -status;
    }
    if (!state.open) return -CU_FILE_DRIVER_NOT_INITIALIZED;
    if (!state.handles.contains(handle)) return -CU_FILE_HANDLE_NOT_REGISTERED;
    cudaPointerAttributes attributes{};
    int current = -1;
    if (cudaPointerGetAttributes(&attributes, base) != cudaSuccess ||
        attributes.type != cudaMemoryTypeDevice) {
      return -CU_FILE_CUDA_POINTER_INVALID;
    }
    if (cudaGetDevice(&current) != cudaSuccess || current != attributes.device) {
      return -CU_FILE_CUDA_CONTEXT_MISMATCH;
    }
    ++handle->running;
    corrupt = CountDown(state.*direction.corrupt);
    bytes = std::min<uint64_t>(size, state.config.max_transfer_bytes);
    if (state.config.jitter_us > 0) {
      delay_us = static_cast<int>(state.random() % static_cast<unsigned>(state.config.jitter_us));
    }
  }
  std::this_thread::sleep_for(std::chrono::microseconds(delay_us));
  const ssize_t moved = move(handle->fd, bytes, corrupt);
  const int error_number = errno;
  const std::lock_guard lock(state.mutex);
  --handle->running;
  ++(state.counters.*direction.count);
  if (moved > 0) state.counters.*direction.bytes += static_cast<uint64_t>(moved);
  errno = error_number;
  return moved;
}

}  // namespace

void Reset(const Config& config) {
  State& state = Get();
  const std::lock_guard lock(state.mutex);
  if (!state.handles.empty()) std::abort();
  state.config = config;
  state.counters = {};
  state.open = false;
  state.faults.clear();
  state.corrupt_write = state.corrupt_read = 0;
}

void FailCall(std::string_view function, uint64_t nth, int status) {
  State& state = Get();
  const std::lock_guard lock(state.mutex);
  state.faults[std::string(function)] = {.nth = nth, .status = status};
}
void CorruptWrite(uint64_t nth) {
  State& state = Get();
  const std::lock_guard lock(state.mutex);
  state.corrupt_write = nth;
}
void CorruptRead(uint64_t nth) {
  State& state = Get();
  const std::lock_guard lock(state.mutex);
  state.corrupt_read = nth;
}

Counters GetCounters() {
  State& state = Get();
  const std::lock_guard lock(state.mutex);
  Counters counters = state.counters;
  counters.live_handles = state.handles.size();
  return counters;
}

}  // namespace cairn::simulated_cufile

using namespace cairn::simulated_cufile;  // NOLINT: the C functions below are this file's

extern "C" {

CUfileError_t cuFileDriverOpen(void) {
  State& state = Get();
  const std::lock_guard lock(state.mutex);
  ++state.counters.driver_open_count;
  if (const int status = TakeFault(state, "cuFileDriverOpen")) return Status(status);
  state.open = true;
  return Status(CU_FILE_SUCCESS);
}

CUfileError_t cuFileDriverGetProperties(CUfileDrvProps_t* properties) {
  State& state = Get();
  const std::lock_guard lock(state.mutex);
  if (const int status = TakeFault(state, "cuFileDriverGetProperties")) return Status(status);
  *properties = {};
  properties->nvfs.major_version = 2;
  properties->nvfs.dstatusflags = state.config.status_flags;
  return Status(CU_FILE_SUCCESS);
}

CUfileError_t cuFileHandleRegister(CUfileHandle_t* fh, CUfileDescr_t* descriptor) {
  State& state = Get();
  const std::lock_guard lock(state.mutex);
  if (const int status = TakeFault(state, "cuFileHandleRegister")) return Status(status);
  if (!state.open) return Status(CU_FILE_DRIVER_NOT_INITIALIZED);
  const int flags = ::fcntl(descriptor->handle.fd, F_GETFL);
  if (flags < 0) return Status(CU_FILE_INVALID_FILE_TYPE);
  if ((flags & O_DIRECT) == 0) return Status(CU_FILE_DIO_NOT_SET);
  for (const Handle* const handle : state.handles) {
    if (handle->fd == descriptor->handle.fd) return Status(CU_FILE_HANDLE_ALREADY_REGISTERED);
  }
  auto* const handle = new Handle{.fd = descriptor->handle.fd};
  state.handles.insert(handle);
  ++state.counters.handle_count;
  *fh = handle;
  return Status(CU_FILE_SUCCESS);
}

void cuFileHandleDeregister(CUfileHandle_t fh) {
  State& state = Get();
  const std::lock_guard lock(state.mutex);
  auto* const handle = static_cast<Handle*>(fh);
  // In use, unknown, or its file was closed first: misuse that a real driver may not survive.
  if (!state.handles.contains(handle) || handle->running > 0) std::abort();
  if (::fcntl(handle->fd, F_GETFL) < 0) std::abort();
  state.handles.erase(handle);
  delete handle;
}

ssize_t cuFileRead(CUfileHandle_t fh, void* base, size_t size, off_t file_offset,
                   off_t base_offset) {
  auto* const memory = static_cast<std::byte*>(base) + base_offset;
  return Transfer(kReads, fh, memory, size, [&](int fd, uint64_t bytes, bool corrupt) {
    return ReadTo(memory, fd, bytes, file_offset, corrupt);
  });
}

ssize_t cuFileWrite(CUfileHandle_t fh, const void* base, size_t size, off_t file_offset,
                    off_t base_offset) {
  const auto* const memory = static_cast<const std::byte*>(base) + base_offset;
  return Transfer(kWrites, fh, memory, size, [&](int fd, uint64_t bytes, bool corrupt) {
    return WriteFrom(memory, fd, bytes, file_offset, corrupt);
  });
}

}  // extern "C"
