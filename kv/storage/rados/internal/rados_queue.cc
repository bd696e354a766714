// Requests become reads and stripes, and their callbacks become completions.

#include "kv/storage/rados/internal/rados_queue.h"

#include <deque>
#include <span>
#include <utility>

#include "kv/base/mutex.h"
#include "kv/storage/rados/internal/object_read.h"
#include "kv/storage/rados/internal/rados_upload.h"

namespace cairn::kv::internal {
namespace {

std::unexpected<Error> Forked() {
  return Fail(ErrorCode::kFailedPrecondition,
              "this process was forked from the one that made the queue");
}

}  // namespace

struct RadosQueue::Completions {
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
  std::deque<IoCompletion> entries CAIRN_GUARDED_BY(mutex);
};

RadosQueue::RadosQueue(RadosSession& session, uint32_t depth)
    : IoQueue(depth), session_(session), completions_(std::make_shared<Completions>()) {
  CAIRN_CHECK(depth > 0);
}

RadosQueue::~RadosQueue() {
  if (!session_.is_usable()) return;  // the thread that would complete them is not in this process
  while (in_flight_ > 0) (void)Wait();
}

Result<void> RadosQueue::Submit(const IoRequest& request) {
  CAIRN_CHECK(in_flight_ < depth_ && request.fd < 0 && request.length_bytes > 0);
  CAIRN_CHECK(request.write == (request.upload != nullptr));
  if (!session_.is_usable()) return Forked();
  const std::span bytes(request.data, request.length_bytes);
  auto done = [completions = completions_, request](Result<void> result) {
    completions->Add(request, std::move(result));
  };
  if (request.write) {
    // Every upload of this storage is a RadosUpload.
    auto& upload = static_cast<RadosUpload&>(*request.upload);
    upload.StartPart(bytes, request.offset_bytes, std::move(done));
  } else {
    StartRead(session_, request.object, request.offset_bytes, bytes, std::move(done));
  }
  ++in_flight_;  // not if there was no memory for it: Wait would wait forever
  return {};
}

Result<IoCompletion> RadosQueue::Wait() {
  CAIRN_CHECK(in_flight_ > 0);
  if (!session_.is_usable()) return Forked();
  const MutexLock lock(completions_->mutex);
  while (completions_->entries.empty()) completions_->changed.Wait(completions_->mutex);
  IoCompletion completion = std::move(completions_->entries.front());
  completions_->entries.pop_front();
  --in_flight_;
  return completion;
}

bool RadosQueue::HasCompletion() {
  if (!session_.is_usable()) return false;
  const MutexLock lock(completions_->mutex);
  return !completions_->entries.empty();
}

}  // namespace cairn::kv::internal
