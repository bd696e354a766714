#pragma once
/// Transfers between device memory and files without host memory, by a few threads, each of which
/// waits for one transfer.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "core/device/device.h"
#include "kv/error.h"
#include "kv/mutex.h"
#include "kv/thread_annotations.h"

namespace cairn::core::internal {

/// Ownership: the process owns the backend. The destructor discards transfers that have not begun,
/// and waits for the others. Threads: safe, with one call at a time per file.
class DeviceTransfers {
 public:
  using FileUse = DeviceBackend::FileUse;

  explicit DeviceTransfers(DeviceBackend* backend) : backend_(backend) {}
  ~DeviceTransfers();
  DeviceTransfers(const DeviceTransfers&) = delete;
  DeviceTransfers& operator=(const DeviceTransfers&) = delete;

  /// Returns false if devices cannot access this file directly. Requires that `fd` remains open
  /// until Close. kInvalidArgument: a setting in the environment is invalid.
  Result<bool> Open(int fd, const std::string& path, FileUse use);

  /// Start a transfer. They wait only while many transfers have not begun. Until Await returns, the
  /// memory must not be written (Write) or accessed (Read). Require an open file, and that all work
  /// that was enqueued for the memory on the device is complete. After a transfer of the file has
  /// failed, no more are started, and its error is returned.
  Result<void> Write(int fd, int device, std::span<const std::byte> source, uint64_t offset_bytes);
  Result<void> Read(int fd, int device, std::span<std::byte> target, uint64_t offset_bytes);

  /// Waits for all transfers of the file. Returns the first error of a transfer.
  Result<void> Await(int fd);
  /// Discards the transfers of the file that have not begun, waits for the others, and removes the
  /// file.
  void Close(int fd);

 private:
  static constexpr size_t kThreads = 8;
  static constexpr size_t kMaxWaiting = 64;
  static constexpr uint64_t kPartBytes = 16ull << 20;

  struct File {
    std::unique_ptr<DeviceFile> file;
    // The DeviceTransfers' mutex_ guards these.
    size_t pending = 0;
    std::optional<Error> error;  // the first
  };
  struct Part {
    File* file = nullptr;
    bool write = false;
    int device = 0;
    std::span<std::byte> memory;  // only read, if `write`
    uint64_t offset_bytes = 0;
  };

  Result<void> Begin(Part part, int fd);
  bool StartThreads() CAIRN_REQUIRES(mutex_);
  static Result<void> Execute(const Part& part);
  void Loop();

  DeviceBackend* const backend_;
  Mutex mutex_;
  CondVar begun_;  // signals waiting_ and stop_
  CondVar ended_;  // signals that pending decreased, or waiting_ has room
  std::map<int, File> files_ CAIRN_GUARDED_BY(mutex_);  // Parts point to entries, which do not move
  std::deque<Part> waiting_ CAIRN_GUARDED_BY(mutex_);
  bool stop_ CAIRN_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace cairn::core::internal
