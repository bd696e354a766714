#pragma once
/// A stream: a queue of operations, and a thread that runs one after another.

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <vector>

#include "tests/support/simulated_cuda/completion.h"

namespace cairn::simulated_cuda {

/// Its thread starts with the first operation and lives until Close and the queue's end; it keeps
/// the stream alive, so that a stream can be destroyed with work under way.
/// Threads: any; the order of operations is that of the calls of Enqueue.
class StreamQueue : public std::enable_shared_from_this<StreamQueue> {
 public:
  struct Options {
    int device = 0;
    unsigned flags = 0;
    int priority = 0;
    int jitter_us = 0;  // the most that an operation starts late
    uint64_t jitter_seed = 0;
  };

  explicit StreamQueue(const Options& options)
      : options_(options), random_(options.jitter_seed), tail_(std::make_shared<Completion>()) {
    tail_->Finish();
  }

  const Options& options() const { return options_; }

  /// `run`, once all that is enqueued and all of `after` is finished. The result is raised then.
  CompletionPtr Enqueue(std::function<void()> run, std::vector<CompletionPtr> after = {});

  /// The end of what was enqueued last.
  CompletionPtr tail() const;

  /// The thread ends when the queue is empty. Nothing may be enqueued any more.
  void Close();

  /// Waits until the threads of all closed streams have ended.
  static void WaitForClosedStreams();

 private:
  struct Operation {
    std::function<void()> run;
    std::vector<CompletionPtr> after;
    CompletionPtr done;
  };

  void Work();
  void RunOne(Operation& operation);

  const Options options_;
  std::mt19937_64 random_;  // of the thread only

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Operation> queue_;
  CompletionPtr tail_;
  bool started_ = false;
  bool closed_ = false;
};

}  // namespace cairn::simulated_cuda
