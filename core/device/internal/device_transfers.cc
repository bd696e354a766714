// Divides the transfers of all files into parts, which the threads take from one queue.

#include "core/device/internal/device_transfers.h"

#include <algorithm>
#include <new>
#include <system_error>
#include <utility>

namespace cairn::core::internal {

DeviceTransfers::~DeviceTransfers() {
  {
    const MutexLock lock(mutex_);
    stop_ = true;
    waiting_.clear();
  }
  begun_.NotifyAll();
  for (std::thread& thread : threads_) thread.join();
}

Result<bool> DeviceTransfers::Open(int fd, const std::string& path, FileUse use) {
  auto opened = backend_->OpenFile(fd, path, use);
  if (!opened && opened.error().code == ErrorCode::kInvalidArgument) {
    return Fail(std::move(opened).error());
  }
  if (!opened) return false;
  const MutexLock lock(mutex_);
  if (!StartThreads()) return false;
  files_[fd].file = std::move(*opened);
  return true;
}

bool DeviceTransfers::StartThreads() {
  try {
    while (threads_.size() < kThreads) threads_.emplace_back([this] { Loop(); });
  } catch (const std::system_error&) {  // fewer threads suffice
  }
  return !threads_.empty();
}

Result<void> DeviceTransfers::Write(int fd, int device, std::span<const std::byte> source,
                                    uint64_t offset_bytes) {
  const std::span memory(const_cast<std::byte*>(source.data()), source.size());  // only read
  return Begin({.write = true, .device = device, .memory = memory, .offset_bytes = offset_bytes},
               fd);
}

Result<void> DeviceTransfers::Read(int fd, int device, std::span<std::byte> target,
                                   uint64_t offset_bytes) {
  return Begin({.device = device, .memory = target, .offset_bytes = offset_bytes}, fd);
}

Result<void> DeviceTransfers::Begin(Part part, int fd) {
  const MutexLock lock(mutex_);
  File& file = files_.at(fd);
  part.file = &file;
  while (!part.memory.empty()) {
    while (waiting_.size() >= kMaxWaiting && !file.error) ended_.Wait(mutex_);
    if (file.error) return Fail(*file.error);
    Part next = part;
    next.memory = part.memory.first(std::min<uint64_t>(part.memory.size(), kPartBytes));
    part.memory = part.memory.subspan(next.memory.size());
    part.offset_bytes += next.memory.size();
    waiting_.push_back(next);
    ++file.pending;
    begun_.NotifyOne();
  }
  return {};
}

Result<void> DeviceTransfers::Execute(const Part& part) {
  try {
    DeviceFile& file = *part.file->file;
    return part.write ? file.Write(part.device, part.memory, part.offset_bytes)
                      : file.Read(part.device, part.memory, part.offset_bytes);
  } catch (const std::bad_alloc&) {
    return Fail(ErrorCode::kResourceExhausted, "not enough memory for a transfer");
  }
}

void DeviceTransfers::Loop() {
  MutexLock lock(mutex_);
  while (true) {
    while (!stop_ && waiting_.empty()) begun_.Wait(mutex_);
    if (stop_) return;
    const Part part = waiting_.front();
    waiting_.pop_front();
    Result<void> done;
    if (!part.file->error) {
      lock.Unlock();
      done = Execute(part);
      lock.Lock();
    }
    if (!done && !part.file->error) part.file->error = std::move(done).error();
    --part.file->pending;
    ended_.NotifyAll();
  }
}

Result<void> DeviceTransfers::Await(int fd) {
  const MutexLock lock(mutex_);
  const File& file = files_.at(fd);
  while (file.pending > 0) ended_.Wait(mutex_);
  if (file.error) return Fail(*file.error);
  return {};
}

void DeviceTransfers::Close(int fd) {
  std::map<int, File>::node_type closed;  // destroyed after the lock is released
  const MutexLock lock(mutex_);
  File& file = files_.at(fd);
  if (file.pending > 0 && !file.error) {
    file.error = Error{.code = ErrorCode::kCancelled, .message = "the file was closed"};
  }
  while (file.pending > 0) ended_.Wait(mutex_);
  closed = files_.extract(fd);
}

}  // namespace cairn::core::internal
