#include "kv/io/internal/block_io.h"

#include <liburing.h>

#include <algorithm>
#include <cerrno>
#include <deque>
#include <string>
#include <thread>
#include <utility>

#include "kv/base/catch_exhaustion.h"

namespace cairn::kv::internal {
namespace {

constexpr size_t kMaxIdle = 4;

/// Advances `request` past `done` bytes.
void Skip(IoRequest& request, uint64_t done) {
  request.data += done;
  request.length_bytes -= done;
  request.offset_bytes += done;
}

class UringQueue final : public IoQueue {
 public:
  static std::unique_ptr<IoQueue> TryMake(uint32_t depth) {
    auto queue = std::unique_ptr<UringQueue>(new UringQueue(depth));
    if (io_uring_queue_init(depth, &queue->ring_, 0) != 0) return nullptr;
    queue->live_ = true;
    return queue;
  }

  ~UringQueue() override {
    if (!live_) return;
    while (in_flight_ > 0 && Wait()) {
    }
    io_uring_queue_exit(&ring_);
  }

  const char* name() const override { return "io_uring"; }

  bool is_reusable() const override { return live_ && in_flight_ == 0 && !failed_; }

  bool HasCompletion() override { return io_uring_cq_ready(&ring_) > 0; }

  Result<void> Submit(const IoRequest& request) override {
    CAIRN_CHECK(in_flight_ < depth_);
    uint32_t slot = 0;
    while (slots_[slot].busy) ++slot;
    slots_[slot] = Slot{.request = request, .done_bytes = 0, .busy = true};
    CAIRN_TRY(Start(slot));
    ++in_flight_;
    return {};
  }

  Result<IoCompletion> Wait() override {
    CAIRN_CHECK(in_flight_ > 0);
    while (true) {
      io_uring_cqe* entry = nullptr;
      const int failed = io_uring_wait_cqe(&ring_, &entry);
      if (failed == -EINTR) continue;
      if (failed < 0) return Failed(-failed, "io_uring cannot wait");
      const auto index = static_cast<uint32_t>(io_uring_cqe_get_data64(entry));
      const int result = entry->res;
      io_uring_cqe_seen(&ring_, entry);
      Slot& slot = slots_[index];
      IoRequest rest = slot.request;
      if (result == -EINTR || result == -EAGAIN) {
        CAIRN_TRY(Start(index));
        continue;
      }
      if (result > 0) {
        slot.done_bytes += static_cast<uint64_t>(result);
        Skip(rest, slot.done_bytes);
        if (rest.length_bytes > 0) {
          CAIRN_TRY(Start(index));
          continue;
        }
      }
      slot.busy = false;
      --in_flight_;
      return IoCompletion{.request = slot.request,
                          .error_number = result < 0 ? -result : 0,
                          .error = std::nullopt,
                          .done_bytes = slot.done_bytes};
    }
  }

 private:
  struct Slot {
    IoRequest request;
    uint64_t done_bytes = 0;
    bool busy = false;
  };

  explicit UringQueue(uint32_t depth) : IoQueue(depth), slots_(depth) {}

  Result<void> Start(uint32_t index) {
    IoRequest rest = slots_[index].request;
    Skip(rest, slots_[index].done_bytes);
    io_uring_sqe* entry = io_uring_get_sqe(&ring_);
    CAIRN_CHECK(entry != nullptr);
    const auto length = static_cast<unsigned>(rest.length_bytes);
    if (rest.write) {
      io_uring_prep_write(entry, rest.fd, rest.data, length, rest.offset_bytes);
    } else {
      io_uring_prep_read(entry, rest.fd, rest.data, length, rest.offset_bytes);
    }
    io_uring_sqe_set_data64(entry, index);
    while (true) {
      const int submitted = io_uring_submit(&ring_);
      if (submitted == -EINTR || submitted == -EAGAIN) continue;
      if (submitted < 0) return Failed(-submitted, "io_uring cannot submit");
      return {};
    }
  }

  std::unexpected<Error> Failed(int error_number, std::string what) {
    failed_ = true;
    return Fail(SystemError(error_number, std::move(what)));
  }

  io_uring ring_{};
  bool live_ = false;
  bool failed_ = false;  // requests that were not submitted may be in the ring
  std::vector<Slot> slots_;
};

class ThreadQueue final : public IoQueue {
 public:
  explicit ThreadQueue(uint32_t depth) : IoQueue(depth) {
    // More threads do not make one device faster; each of them blocks in one system call.
    const uint32_t thread_count = std::min<uint32_t>(depth, 4);
    threads_.reserve(thread_count);
    completions_.reserve(depth);  // the threads need no memory
    while (threads_.size() < thread_count) {
      auto started = StartThread("reading and writing", [this] { Work(); });
      if (!started) break;  // fewer suffice; without any, Submit transfers
      threads_.push_back(*std::move(started));
    }
  }

  ~ThreadQueue() override {
    {
      const MutexLock lock(mutex_);
      stopping_ = true;
    }
    submitted_.NotifyAll();
    for (std::thread& thread : threads_) thread.join();  // after the last request is done
  }

  const char* name() const override { return "threads"; }

  bool HasCompletion() override {
    const MutexLock lock(mutex_);
    return !completions_.empty();
  }

  Result<void> Submit(const IoRequest& request) override {
    CAIRN_CHECK(in_flight_ < depth_);
    {
      const MutexLock lock(mutex_);
      if (threads_.empty()) {
        completions_.push_back(TransferNow(request));
      } else {
        requests_.push_back(request);
      }
    }
    ++in_flight_;  // not if there was no memory for it: Wait would wait forever
    submitted_.NotifyOne();
    return {};
  }

  Result<IoCompletion> Wait() override {
    CAIRN_CHECK(in_flight_ > 0);
    const MutexLock lock(mutex_);
    while (completions_.empty()) completed_.Wait(mutex_);
    IoCompletion completion = std::move(completions_.front());
    completions_.erase(completions_.begin());
    --in_flight_;
    return completion;
  }

 private:
  void Work() {
    MutexLock lock(mutex_);
    while (true) {
      while (!stopping_ && requests_.empty()) submitted_.Wait(mutex_);
      if (requests_.empty()) return;
      const IoRequest request = requests_.front();
      requests_.pop_front();
      lock.Unlock();
      const IoCompletion completion = TransferNow(request);
      lock.Lock();
      completions_.push_back(completion);
      completed_.NotifyOne();
    }
  }

  std::vector<std::thread> threads_;
  Mutex mutex_;
  CondVar submitted_;
  CondVar completed_;
  std::deque<IoRequest> requests_ CAIRN_GUARDED_BY(mutex_);
  std::vector<IoCompletion> completions_ CAIRN_GUARDED_BY(mutex_);  // at most `depth_`
  bool stopping_ CAIRN_GUARDED_BY(mutex_) = false;
};

}  // namespace

IoCompletion TransferNow(const IoRequest& request) {
  IoCompletion completion{.request = request};
  IoRequest rest = request;
  while (rest.length_bytes > 0) {
    const auto offset = static_cast<off_t>(rest.offset_bytes);
    const ssize_t moved = rest.write ? ::pwrite(rest.fd, rest.data, rest.length_bytes, offset)
                                     : ::pread(rest.fd, rest.data, rest.length_bytes, offset);
    if (moved < 0 && errno == EINTR) continue;
    if (moved < 0) completion.error_number = errno;
    if (moved <= 0) break;
    completion.done_bytes += static_cast<uint64_t>(moved);
    Skip(rest, static_cast<uint64_t>(moved));
  }
  return completion;
}

std::unique_ptr<IoQueue> MakeFileQueue(bool uring, uint32_t depth) {
  CAIRN_CHECK(depth > 0);
  if (uring) {
    if (auto queue = UringQueue::TryMake(depth)) return queue;
  }
  return std::make_unique<ThreadQueue>(depth);
}

FileQueues::~FileQueues() {
  if (!is_forked()) return;
  for (std::unique_ptr<IoQueue>& queue : idle_) (void)queue.release();
}

std::unique_ptr<IoQueue> FileQueues::Take(uint32_t depth) {
  if (!is_forked()) {
    const MutexLock lock(mutex_);
    const auto found =
        std::ranges::find(idle_, depth, [](const auto& idle) { return idle->depth(); });
    if (found != idle_.end()) {
      std::unique_ptr<IoQueue> queue = std::move(*found);
      idle_.erase(found);
      return queue;
    }
  }
  return MakeFileQueue(uring_, depth);
}

IoQueue* FileQueues::Give(std::unique_ptr<IoQueue> queue) {
  if (queue == nullptr || !queue->is_reusable() || is_forked()) return nullptr;
  const MutexLock lock(mutex_);
  if (idle_.size() == kMaxIdle) return nullptr;
  return idle_.emplace_back(std::move(queue)).get();
}

}  // namespace cairn::kv::internal
