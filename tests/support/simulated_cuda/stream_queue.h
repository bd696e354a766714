#pragma once
/// A stream: a queue of operations, and a thread that runs them one after another.

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

/// The thread starts with the first operation and ends when the queue is closed and empty. It keeps
/// the stream alive, so that a stream can be destroyed while it has work.
/// Threads: all members are safe. Operations run in the order of the calls of Enqueue.
class StreamQueue : public std::enable_shared_from_this<StreamQueue> {
 public:
  struct Options {
    int device = 0;
    unsigned flags = 0;
    int jitter_us = 0;  // limit of the random delay of an operation
    uint64_t jitter_seed = 0;
  };

  explicit StreamQueue(const Options& options)
      : options_(options), random_(options.jitter_seed), tail_(std::make_shared<Completion>()) {
    tail_->Finish();
  }

  const Options& options() const { return options_; }

  /// Enqueues `run`, which starts when all earlier operations and all of `after` are finished.
  /// Returns its completion.
  CompletionPtr Enqueue(std::function<void()> run, std::vector<CompletionPtr> after = {});

  /// Returns the completion of the operation that was enqueued last.
  CompletionPtr tail() const;

  /// Lets the thread end when the queue is empty. Nothing may be enqueued any more.
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
  std::mt19937_64 random_;  // only the thread uses it

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Operation> queue_;
  CompletionPtr tail_;
  bool started_ = false;
  bool closed_ = false;
};

}  // namespace cairn::simulated_cuda
