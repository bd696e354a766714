// Requests become requests of the client, and their callbacks become completions.

#include "kv/storage/s3/internal/s3_queue.h"

#include <utility>
#include <vector>

#include "kv/base/catch_exhaustion.h"
#include "kv/base/mutex.h"

namespace cairn::kv::internal {

struct S3Queue::Completions {
  struct Entry {
    IoCompletion completion;
    uint64_t read_id = 0;
  };

  void Add(const IoRequest& request, Result<void> result, uint64_t read_id) {
    Entry entry;
    entry.completion.request = request;
    entry.read_id = read_id;
    if (result) {
      entry.completion.done_bytes = request.length_bytes;
    } else {
      entry.completion.error = std::move(result).error();
    }
    const MutexLock lock(mutex);
    entries.push_back(std::move(entry));
    changed.NotifyOne();
  }

  Mutex mutex;
  CondVar changed;
  std::vector<Entry> entries CAIRN_GUARDED_BY(mutex);  // with memory for all
};

S3Queue::S3Queue(S3Client& client, std::function<S3Object(std::string_view)> object_of,
                 uint32_t depth)
    : IoQueue(depth),
      client_(client),
      object_of_(std::move(object_of)),
      completions_(std::make_shared<Completions>()) {
  CAIRN_CHECK(depth > 0);
  const MutexLock lock(completions_->mutex);
  completions_->entries.reserve(depth);
}

S3Queue::~S3Queue() {
  if (!client_.is_usable()) return;  // the thread that would complete them is not in this process
  for (const uint64_t id : read_ids_) client_.Cancel(id);
  while (in_flight_ > 0) (void)Wait();
}

Result<void> S3Queue::Submit(const IoRequest& request) {
  CAIRN_CHECK(in_flight_ < depth_ && request.fd < 0 && request.length_bytes > 0);
  CAIRN_CHECK(request.write == (request.upload != nullptr));
  if (!client_.is_usable()) {
    return Fail(ErrorCode::kFailedPrecondition,
                "this process was forked from the one that made the queue");
  }
  ++in_flight_;
  // A request that is not begun completes with the error.
  auto begun = CatchExhaustion("a request", [&]() -> Result<void> {
    request.write ? StartWrite(request) : StartRead(request);
    return {};
  });
  if (!begun) completions_->Add(request, std::move(begun), /*read_id=*/0);
  return {};
}

void S3Queue::StartRead(const IoRequest& request) {
  S3Object object = object_of_(request.object);
  const uint64_t id = client_.NewId();
  read_ids_.insert(id);
  const bool scatters = !request.slices.empty();
  client_.Start({.operation = "read the object",
                 .file = std::move(object.file),
                 .key = std::move(object.key),
                 .target = std::span(request.data, scatters ? 0 : request.length_bytes),
                 .slices = request.slices,
                 .offset_bytes = request.offset_bytes},
                id, [completions = completions_, request, id](Result<HttpResponse> response) {
                  Result<void> result;
                  if (!response) {
                    result = std::unexpected(std::move(response).error());
                    result.error().offset_bytes = request.offset_bytes;
                  }
                  completions->Add(request, std::move(result), id);
                });
}

void S3Queue::StartWrite(const IoRequest& request) {
  // Every upload of this storage is an S3Upload.
  auto& upload = static_cast<S3Upload&>(*request.upload);
  upload.StartWrite(std::span(request.data, request.length_bytes), request.offset_bytes,
                    [completions = completions_, request](Result<void> result) {
                      completions->Add(request, std::move(result), 0);
                    });
}

Result<IoCompletion> S3Queue::Wait() {
  CAIRN_CHECK(in_flight_ > 0);
  if (!client_.is_usable()) {
    return Fail(ErrorCode::kFailedPrecondition,
                "this process was forked from the one that made the queue");
  }
  Completions::Entry entry;
  {
    const MutexLock lock(completions_->mutex);
    while (completions_->entries.empty()) completions_->changed.Wait(completions_->mutex);
    entry = std::move(completions_->entries.front());
    completions_->entries.erase(completions_->entries.begin());
  }
  --in_flight_;
  read_ids_.erase(entry.read_id);
  return std::move(entry.completion);
}

bool S3Queue::HasCompletion() {
  if (!client_.is_usable()) return false;
  const MutexLock lock(completions_->mutex);
  return !completions_->entries.empty();
}

}  // namespace cairn::kv::internal
