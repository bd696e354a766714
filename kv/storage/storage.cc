// Code that all kinds of storage share.

#include "kv/storage/storage.h"

#include <fmt/format.h>

#include <deque>
#include <optional>
#include <span>
#include <thread>
#include <utility>

#include "kv/storage/internal/object_names.h"

namespace cairn::kv {
namespace {

// Transfers without asynchronous requests: each is complete when Submit returns.

class BlockingUpload final : public Upload {
 public:
  explicit BlockingUpload(std::unique_ptr<ObjectWriter> writer) : writer_(std::move(writer)) {}

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
  Result<void> Finish(uint64_t size_bytes) override {
    CAIRN_CHECK(size_bytes == size_bytes_);
    return writer_->Finish();
  }

 private:
  const std::unique_ptr<ObjectWriter> writer_;
  uint64_t size_bytes_ = 0;
  std::optional<Error> failure_;  // error of a write
};

class BlockingQueue final : public IoQueue {
 public:
  BlockingQueue(Storage& storage, uint32_t depth) : IoQueue(depth), storage_(storage) {}

  Result<void> Submit(const IoRequest& request) override {
    CAIRN_CHECK(in_flight_ < depth_ && request.write == (request.upload != nullptr));
    IoCompletion completion;
    completion.request = request;
    Result<void> done = Perform(request);
    if (done) {
      completion.done_bytes = request.length_bytes;
    } else {
      completion.error = std::move(done).error();
    }
    completions_.push_back(std::move(completion));
    ++in_flight_;
    return {};
  }
  Result<IoCompletion> Wait() override {
    CAIRN_CHECK(in_flight_ > 0);
    IoCompletion completion = std::move(completions_.front());
    completions_.pop_front();
    --in_flight_;
    return completion;
  }
  bool HasCompletion() override { return !completions_.empty(); }
  bool can_scatter() const override { return true; }
  const char* name() const override { return "blocking"; }

 private:
  Result<void> Perform(const IoRequest& request) {
    if (!request.slices.empty()) return ReadSlices(request);
    const std::span bytes(request.data, request.length_bytes);
    if (!request.write) return storage_.ReadRange(request.object, request.offset_bytes, bytes);
    // MakeQueue and BeginUpload of one storage match.
    return static_cast<BlockingUpload*>(request.upload)->Write(request.offset_bytes, bytes);
  }

  Result<void> ReadSlices(const IoRequest& request) {
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
  std::deque<IoCompletion> completions_;
};

}  // namespace

void Storage::AwaitChange(std::string_view, std::chrono::milliseconds timeout) {
  std::this_thread::sleep_for(timeout);
}

Result<std::unique_ptr<IoQueue>> Storage::MakeQueue(uint32_t depth) {
  CAIRN_CHECK(depth > 0);
  return std::make_unique<BlockingQueue>(*this, depth);
}

Result<std::unique_ptr<Upload>> Storage::BeginUpload(std::string_view name, uint64_t) {
  CAIRN_TRY_ASSIGN(auto writer, Create(name));
  return std::make_unique<BlockingUpload>(std::move(writer));
}

Result<std::vector<std::byte>> Storage::Read(std::string_view name, uint64_t limit_bytes) {
  CAIRN_TRY_ASSIGN(const uint64_t size_bytes, Size(name));
  if (size_bytes > limit_bytes) {
    return Fail(Error{.code = ErrorCode::kDataLoss,
                      .message = fmt::format("the object has {} bytes, more than the limit of {}",
                                             size_bytes, limit_bytes),
                      .file = internal::ObjectPath(address(), name)});
  }
  std::vector<std::byte> bytes(size_bytes);
  CAIRN_TRY(ReadRange(name, 0, bytes));
  return bytes;
}

Result<void> CheckStored(Storage& storage, std::string_view name, uint64_t size_bytes) {
  const Result<uint64_t> found_bytes = storage.Size(name);
  if (found_bytes && *found_bytes == size_bytes) return {};
  if (!found_bytes && found_bytes.error().code != ErrorCode::kNotFound) {
    return Fail(found_bytes.error());
  }
  const std::string found = found_bytes ? fmt::format("has {} bytes", *found_bytes) : "is absent";
  return Fail(Error{.code = ErrorCode::kUnavailable,
                    .message = fmt::format("the storage acknowledged a write of {} bytes, but the "
                                           "object {}",
                                           size_bytes, found),
                    .file = internal::ObjectPath(storage.address(), name)});
}

Result<bool> ObjectExists(Storage& storage, std::string_view name) {
  const Result<uint64_t> size_bytes = storage.Size(name);
  if (size_bytes) return true;
  if (size_bytes.error().code == ErrorCode::kNotFound) return false;
  return Fail(size_bytes.error());
}

}  // namespace cairn::kv
