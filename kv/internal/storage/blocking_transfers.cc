// Requests that are complete when Submit returns.

#include "kv/internal/storage/blocking_transfers.h"

#include <deque>
#include <span>
#include <utility>

namespace cairn::kv::internal {
namespace {

class BlockingUpload final : public Upload {
 public:
  explicit BlockingUpload(std::unique_ptr<ObjectWriter> writer) : writer_(std::move(writer)) {}

  Result<void> Write(uint64_t offset_bytes, std::span<const std::byte> bytes) {
    CAIRN_CHECK(offset_bytes == size_bytes_);
    CAIRN_TRY(writer_->Append(bytes));
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
  const char* name() const override { return "blocking"; }

 private:
  Result<void> Perform(const IoRequest& request) {
    const std::span bytes(request.data, request.length_bytes);
    if (!request.write) return storage_.ReadRange(request.object, request.offset_bytes, bytes);
    // MakeQueue and BeginUpload of one storage match.
    return static_cast<BlockingUpload*>(request.upload)->Write(request.offset_bytes, bytes);
  }

  Storage& storage_;
  std::deque<IoCompletion> completions_;
};

}  // namespace

std::unique_ptr<IoQueue> MakeBlockingQueue(Storage& storage, uint32_t depth) {
  CAIRN_CHECK(depth > 0);
  return std::make_unique<BlockingQueue>(storage, depth);
}

Result<std::unique_ptr<Upload>> BeginBlockingUpload(Storage& storage, std::string_view name) {
  CAIRN_TRY_ASSIGN(auto writer, storage.Create(name));
  return std::make_unique<BlockingUpload>(std::move(writer));
}

}  // namespace cairn::kv::internal
