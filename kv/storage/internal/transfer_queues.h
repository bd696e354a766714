#pragma once
/// Queues of requests that callbacks complete, on threads of another library; and objects that are
/// written in pieces of any length, to storages that take them in parts.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "kv/base/error.h"
#include "kv/io/io_queue.h"
#include "kv/storage/storage.h"

namespace cairn::kv::internal {

/// A derived class begins reads, and calls WaitForAll in its destructor.
class CallbackQueue : public IoQueue {
 public:
  /// kFailedPrecondition: this is a forked child.
  Result<void> Submit(const IoRequest& request) final;
  Result<IoCompletion> Wait() final;
  bool HasCompletion() final;

 protected:
  using Done = Upload::Done;

  explicit CallbackQueue(uint32_t depth);
  /// Begins a read; `done` is called exactly once, unless this throws.
  virtual void BeginRead(const IoRequest& request, Done done) = 0;
  /// Returns false in a forked child, which lacks the threads that would complete the requests.
  virtual bool is_usable() const = 0;
  /// Waits for the requests in flight, unless nobody would complete them.
  void WaitForAll();

 private:
  struct Completions;
  const std::shared_ptr<Completions> completions_;  // shared with the callbacks
};

/// Returns a writer that collects parts of `part_bytes` for `upload`, and writes as many at a time
/// as `queue` is deep while it collects the next one. If `put_whole` is set, Finish calls it for an
/// object of at most one part, and not the upload.
std::unique_ptr<ObjectWriter> MakeUploadWriter(
    std::unique_ptr<Upload> upload, std::unique_ptr<IoQueue> queue, uint64_t part_bytes,
    std::function<Result<void>(std::span<const std::byte> bytes)> put_whole = nullptr);

}  // namespace cairn::kv::internal
