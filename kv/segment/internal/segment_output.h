#pragma once
/// Where the bytes of a segment that is being written go: to the file of the object, or, in a
/// storage without files, to an upload.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "kv/base/error.h"
#include "kv/io/internal/file.h"
#include "kv/io/internal/free_space.h"
#include "kv/io/io_queue.h"
#include "kv/storage/storage.h"

namespace cairn::kv::internal {

/// Ownership: move-only owner of the file descriptor or the upload. Threads: one at a time.
class SegmentOutput {
 public:
  /// `storage` outlives the output. The writes have `block_bytes`, except for the last one, if
  /// there is no file. `free_space` may be null. kConflict: the file exists.
  static Result<SegmentOutput> Create(Storage& storage, const std::string& name, bool direct,
                                      uint64_t block_bytes, FreeSpace free_space = nullptr);
  SegmentOutput(SegmentOutput&&) = default;
  /// Without Finish, removes the file or discards the upload. Requires that nothing is in flight.
  ~SegmentOutput();

  /// For error messages.
  const std::string& path() const { return path_; }
  /// Returns null if there is an upload: then all bytes pass through blocks, in order.
  File* file() { return file_ ? &*file_ : nullptr; }
  /// Returns a request that writes to the output.
  IoRequest Write(std::byte* data, uint64_t length_bytes, uint64_t offset_bytes, uint64_t tag);
  /// Waits until a write in `queue` has ended, and calls `ended` with it, also if it has failed. A
  /// write that the file system refuses to make with O_DIRECT is submitted again without; one for
  /// which it has no space is repeated as long as free_space frees some.
  Result<void> AwaitWrite(IoQueue& queue, const std::function<void(const IoRequest&)>& ended);
  /// Makes the first `size_bytes` durable: an object under its name, a file except for its name.
  Result<void> Finish(uint64_t size_bytes);

 private:
  SegmentOutput() = default;

  Storage* storage_ = nullptr;
  std::string name_;
  std::string path_;
  std::optional<File> file_;
  std::unique_ptr<Upload> upload_;  // null: file_
  FreeSpace free_space_;
  bool finished_ = false;
};

}  // namespace cairn::kv::internal
