#pragma once
/// One rank's communicator: its state, and what is under way for it.

#include <nccl.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/simulated_cuda/completion.h"
#include "tests/support/simulated_nccl/clique.h"

namespace cairn::simulated_nccl {

/// Threads: any.
class Communicator : public std::enable_shared_from_this<Communicator> {
 public:
  Communicator(int device, int in_progress_polls)
      : device_(device), in_progress_polls_(in_progress_polls) {}

  int device() const { return device_; }
  /// Meaningful once it is ready.
  int rank() const;
  std::shared_ptr<Clique> clique() const;
  void Join(std::shared_ptr<Clique> clique, int rank);

  /// The work of a call: called repeatedly until its result is not empty.
  using Step = std::function<std::optional<ncclResult_t>()>;
  /// Returns ncclInProgress. Poll executes the step.
  ncclResult_t Begin(Step step);

  /// Implements ncclCommGetAsyncError.
  ncclResult_t Poll();
  /// Returns an error if another call is in progress or has failed, so that no new call may begin.
  ncclResult_t CheckReady();

  /// Enqueues operations on the stream: the part of one rank in a group.
  ncclResult_t Submit(std::vector<Operation> operations, cudaStream_t stream);
  /// Returns true if no operation is running, or those that are running will never end.
  bool Quiescent() const;

  void SetAsyncError(ncclResult_t error, std::string text);
  void Abort();
  bool Ended() const;
  std::string last_error() const;
  ncclResult_t Refuse(ncclResult_t error, std::string text);

 private:
  struct Pending {
    Step step;
    int polls_left = 0;
  };

  bool ResolveAddresses(Batch& batch) const;

  const int device_;
  const int in_progress_polls_;
  std::atomic<bool> aborted_ = false;
  std::atomic<int> under_way_count_ = 0;

  mutable std::mutex mutex_;
  std::shared_ptr<Clique> clique_;
  int rank_ = -1;
  std::optional<Pending> pending_;
  ncclResult_t async_error_ = ncclSuccess;
  std::string last_error_;
  std::vector<std::weak_ptr<Batch>> batches_;  // running
  simulated_cuda::CompletionPtr last_done_;  // NCCL executes the groups of a communicator in order
};

}  // namespace cairn::simulated_nccl
