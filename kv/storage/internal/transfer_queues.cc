#include "kv/storage/internal/transfer_queues.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "kv/base/catch_exhaustion.h"
#include "kv/base/mutex.h"

namespace cairn::kv {
namespace internal {
namespace {

std::unexpected<Error> QueueOfParent() {
  return Fail(ErrorCode::kFailedPrecondition,
              "this process was forked from the one that made the queue");
}

}  // namespace

struct CallbackQueue::Completions {
  void Add(const IoRequest& request, Result<void> result) {
    IoCompletion completion;
    completion.request = request;
    if (result) {
      completion.done_bytes = request.length_bytes;
    } else {
      completion.error = std::move(result).error();
    }
    const MutexLock lock(mutex);
    entries.push_back(std::move(completion));
    changed.NotifyOne();
  }

  Mutex mutex;
  CondVar changed;
  std::vector<IoCompletion> entries CAIRN_GUARDED_BY(mutex);  // with memory for all
};

CallbackQueue::CallbackQueue(uint32_t depth)
    : IoQueue(depth), completions_(std::make_shared<Completions>()) {
  CAIRN_CHECK(depth > 0);
  const MutexLock lock(completions_->mutex);
  completions_->entries.reserve(depth);
}

void CallbackQueue::WaitForAll() {
  while (is_usable() && in_flight_ > 0) (void)Wait();
}

Result<void> CallbackQueue::Submit(const IoRequest& request) {
  CAIRN_CHECK(in_flight_ < depth_ && request.fd < 0 && request.length_bytes > 0);
  CAIRN_CHECK(request.write == (request.upload != nullptr));
  if (!is_usable()) return QueueOfParent();
  ++in_flight_;
  // A request that is not begun completes with the error.
  auto begun = CatchExhaustion("a request", [&]() -> Result<void> {
    auto done = [completions = completions_, request](Result<void> result) {
      completions->Add(request, std::move(result));
    };
    if (request.write) {
      request.upload->StartWrite(std::span(request.data, request.length_bytes),
                                 request.offset_bytes, std::move(done));
    } else {
      BeginRead(request, std::move(done));
    }
    return {};
  });
  if (!begun) completions_->Add(request, std::move(begun));
  return {};
}

Result<IoCompletion> CallbackQueue::Wait() {
  CAIRN_CHECK(in_flight_ > 0);
  if (!is_usable()) return QueueOfParent();
  const MutexLock lock(completions_->mutex);
  while (completions_->entries.empty()) completions_->changed.Wait(completions_->mutex);
  IoCompletion completion = std::move(completions_->entries.front());
  completions_->entries.erase(completions_->entries.begin());
  --in_flight_;
  return completion;
}

bool CallbackQueue::HasCompletion() {
  if (!is_usable()) return false;
  const MutexLock lock(completions_->mutex);
  return !completions_->entries.empty();
}

namespace {

class UploadWriter final : public ObjectWriter {
 public:
  UploadWriter(std::unique_ptr<Upload> upload, std::unique_ptr<IoQueue> queue, uint64_t part_bytes,
               std::function<Result<void>(std::span<const std::byte>)> put_whole)
      : part_bytes_(part_bytes),
        put_whole_(std::move(put_whole)),
        upload_(std::move(upload)),
        buffers_(queue->depth()),
        queue_(std::move(queue)) {}

  Result<void> Append(std::span<const std::byte> bytes) override {
    if (error_) return Fail(*error_);
    while (!bytes.empty()) {
      // A full part waits for further bytes, because the last part may be all of the object.
      if (part_.size() == part_bytes_) CAIRN_TRY(SubmitPart());
      const size_t length = std::min<size_t>(bytes.size(), part_bytes_ - part_.size());
      part_.insert(part_.end(), bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(length));
      bytes = bytes.subspan(length);
    }
    return {};
  }

  Result<void> Finish() override {
    if (error_) return Fail(*error_);
    if (put_whole_ && submitted_bytes_ == 0) return put_whole_(part_);
    if (!part_.empty()) CAIRN_TRY(SubmitPart());
    CAIRN_TRY(WaitUntil(0));
    return upload_->Finish(submitted_bytes_);
  }

 private:
  /// Begins to write the part that has been collected.
  Result<void> SubmitPart() {
    CAIRN_TRY(WaitUntil(queue_->depth() - 1));
    const auto free =
        std::ranges::find_if(buffers_, [](const auto& buffer) { return buffer.empty(); });
    CAIRN_CHECK(free != buffers_.end());
    std::swap(*free, part_);
    CAIRN_TRY(queue_->Submit({.upload = upload_.get(),
                              .write = true,
                              .data = free->data(),
                              .length_bytes = free->size(),
                              .offset_bytes = submitted_bytes_,
                              .tag = static_cast<uint64_t>(free - buffers_.begin())}));
    submitted_bytes_ += free->size();
    return {};
  }

  /// Waits until at most `count` parts are in flight.
  Result<void> WaitUntil(uint32_t count) {
    while (queue_->in_flight() > count) {
      CAIRN_TRY_ASSIGN(IoCompletion completion, queue_->Wait());
      if (completion.error && !error_) error_ = std::move(completion.error);
      buffers_[completion.request.tag].clear();  // its memory is used for another part
    }
    if (error_) return Fail(*error_);
    return {};
  }

  const uint64_t part_bytes_;
  const std::function<Result<void>(std::span<const std::byte>)> put_whole_;
  const std::unique_ptr<Upload> upload_;
  std::vector<std::vector<std::byte>> buffers_;  // buffers of the parts in flight, by tag
  const std::unique_ptr<IoQueue> queue_;         // after the buffers and the upload, which it uses
  std::vector<std::byte> part_;
  uint64_t submitted_bytes_ = 0;
  std::optional<Error> error_;  // error of a part, after which nothing else is written
};

}  // namespace

std::unique_ptr<ObjectWriter> MakeUploadWriter(
    std::unique_ptr<Upload> upload, std::unique_ptr<IoQueue> queue, uint64_t part_bytes,
    std::function<Result<void>(std::span<const std::byte> bytes)> put_whole) {
  return std::make_unique<UploadWriter>(std::move(upload), std::move(queue), part_bytes,
                                        std::move(put_whole));
}

}  // namespace internal

namespace {

// The defaults of Storage: each request is complete when Submit returns.

class BlockingUpload final : public Upload {
 public:
  explicit BlockingUpload(std::unique_ptr<ObjectWriter> writer) : writer_(std::move(writer)) {}

  void StartWrite(std::span<const std::byte> bytes, uint64_t offset_bytes, Done done) override {
    done(Write(offset_bytes, bytes));
  }
  Result<void> Finish(uint64_t size_bytes) override {
    CAIRN_CHECK(size_bytes == size_bytes_);
    return writer_->Finish();
  }

 private:
  Result<void> Write(uint64_t offset_bytes, std::span<const std::byte> bytes) {
    // Others may have been submitted before their owner has noticed the failure of one.
    if (failure_) return Fail(*failure_);
    CAIRN_CHECK(offset_bytes == size_bytes_);
    if (auto appended = writer_->Append(bytes); !appended) {
      failure_ = appended.error();
      return appended;
    }
    size_bytes_ += bytes.size();
    return {};
  }

  const std::unique_ptr<ObjectWriter> writer_;
  uint64_t size_bytes_ = 0;
  std::optional<Error> failure_;  // error of a write
};

class BlockingQueue final : public internal::CallbackQueue {
 public:
  BlockingQueue(Storage& storage, uint32_t depth) : CallbackQueue(depth), storage_(storage) {}
  bool can_scatter() const override { return true; }
  const char* name() const override { return "blocking"; }

 private:
  void BeginRead(const IoRequest& request, Done done) override { done(Read(request)); }
  bool is_usable() const override { return true; }

  Result<void> Read(const IoRequest& request) {
    const std::span bytes(request.data, request.length_bytes);
    if (request.slices.empty()) {
      return storage_.ReadRange(request.object, request.offset_bytes, bytes);
    }
    uint64_t offset_bytes = request.offset_bytes;
    for (const IoSlice& slice : request.slices) {
      if (slice.data != nullptr) {
        CAIRN_TRY(storage_.ReadRange(request.object, offset_bytes,
                                     std::span(slice.data, slice.length_bytes)));
      }
      offset_bytes += slice.length_bytes;
    }
    return {};
  }

  Storage& storage_;
};

}  // namespace

Result<std::unique_ptr<IoQueue>> Storage::MakeQueue(uint32_t depth) {
  return std::make_unique<BlockingQueue>(*this, depth);
}

Result<std::unique_ptr<Upload>> Storage::BeginUpload(std::string_view name, uint64_t) {
  CAIRN_TRY_ASSIGN(auto writer, Create(name));
  return std::make_unique<BlockingUpload>(std::move(writer));
}

}  // namespace cairn::kv
