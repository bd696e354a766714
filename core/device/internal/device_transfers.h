#pragma once
/// Bytes between device memory and files, past host memory: by a few threads, each of which waits
/// for one transfer.

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "core/device/device.h"
#include "kv/error.h"

namespace cairn::core::internal {

/// Ownership: the backend is the process's; the destructor drops what has not begun, and waits.
/// Threads: safe; calls for one file one at a time.
class DeviceTransfers {
 public:
  using FileUse = DeviceBackend::FileUse;

  explicit DeviceTransfers(DeviceBackend* backend) : backend_(backend) {}
  ~DeviceTransfers();
  DeviceTransfers(const DeviceTransfers&) = delete;
  DeviceTransfers& operator=(const DeviceTransfers&) = delete;

  /// False: devices have no way to this file. `fd` stays open until Close.
  /// kInvalidArgument: settings of the environment that mean nothing.
  Result<bool> Open(int fd, const std::string& path, FileUse use);

  /// Begin, and wait only where much has begun before. Until Await the memory is the transfer's;
  /// all that was enqueued for it on the device is done. Require that the file is open. Errors: of
  /// an earlier transfer of the file, which then gets no more.
  Result<void> Write(int fd, int device, std::span<const std::byte> source, uint64_t offset_bytes);
  Result<void> Read(int fd, int device, std::span<std::byte> target, uint64_t offset_bytes);

  /// Waits for what has begun with the file. Errors: the first of a transfer.
  Result<void> Await(int fd);
  /// Drops what has not begun, waits for the rest, and forgets the file.
  void Close(int fd);

 private:
  static constexpr size_t kThreads = 8;
  static constexpr size_t kMaxWaiting = 64;
  static constexpr uint64_t kPartBytes = 16ull << 20;

  struct File {
    std::unique_ptr<DeviceFile> file;
    size_t pending = 0;          // guarded by mutex_
    std::optional<Error> error;  // guarded by mutex_; the first
  };
  struct Part {
    File* file = nullptr;
    bool write = false;
    int device = 0;
    std::span<std::byte> memory;  // only read, if `write`
    uint64_t offset_bytes = 0;
  };

  Result<void> Begin(Part part, int fd);
  bool StartThreads();
  static Result<void> Run(const Part& part);
  void Loop();

  DeviceBackend* const backend_;
  std::mutex mutex_;
  std::condition_variable begun_;  // waiting_ or stop_
  std::condition_variable ended_;  // pending, or waiting_ has room
  std::map<int, File> files_;      // guarded by mutex_; entries stay where they are
  std::deque<Part> waiting_;       // guarded by mutex_
  bool stop_ = false;              // guarded by mutex_
  std::vector<std::thread> threads_;
};

}  // namespace cairn::core::internal
