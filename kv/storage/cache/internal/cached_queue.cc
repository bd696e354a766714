#include "kv/storage/cache/internal/cached_queue.h"

#include <deque>
#include <span>
#include <utility>

#include "kv/storage/internal/object_names.h"

namespace cairn::kv::internal {
namespace {

class CachedQueue final : public IoQueue {
 public:
  CachedQueue(CacheDirectory& cache, std::unique_ptr<IoQueue> base)
      : IoQueue(base->depth()), cache_(cache), base_(std::move(base)) {}

  Result<void> Submit(const IoRequest& request) override {
    CAIRN_CHECK(in_flight_ < depth_);
    if (IsCacheable(request) && cache_.Read(request.object, request.offset_bytes,
                                            std::span(request.data, request.length_bytes))) {
      IoCompletion completion;
      completion.request = request;
      completion.done_bytes = request.length_bytes;
      completions_.push_back(std::move(completion));
    } else {
      CAIRN_TRY(base_->Submit(request));
    }
    ++in_flight_;
    return {};
  }

  Result<IoCompletion> Wait() override {
    CAIRN_CHECK(in_flight_ > 0);
    if (!completions_.empty()) {
      IoCompletion completion = std::move(completions_.front());
      completions_.pop_front();
      --in_flight_;
      return completion;
    }
    auto completion = base_->Wait();
    if (!completion) return completion;
    --in_flight_;
    const IoRequest& request = completion->request;
    if (IsCacheable(request) && !completion->error && completion->error_number == 0) {
      cache_.Add(request.object, request.offset_bytes,
                 std::span(request.data, completion->done_bytes));
    }
    return completion;
  }

  bool HasCompletion() override { return !completions_.empty() || base_->HasCompletion(); }
  const char* name() const override { return base_->name(); }

 private:
  static bool IsCacheable(const IoRequest& request) {
    return !request.write && ParseObjectName(request.object).has_value();
  }

  CacheDirectory& cache_;
  const std::unique_ptr<IoQueue> base_;
  std::deque<IoCompletion> completions_;  // completions of reads from the cache
};

}  // namespace

std::unique_ptr<IoQueue> MakeCachedQueue(CacheDirectory& cache, std::unique_ptr<IoQueue> base) {
  return std::make_unique<CachedQueue>(cache, std::move(base));
}

}  // namespace cairn::kv::internal
