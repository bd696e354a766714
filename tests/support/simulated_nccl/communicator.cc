// The states of a communicator, and its groups in streams.
#include "tests/support/simulated_nccl/communicator.h"

#include <utility>

#include "tests/support/simulated_cuda/simulated_cuda.h"
#include "tests/support/simulated_cuda/stream_work.h"

namespace cairn::simulated_nccl {

using simulated_cuda::Completion;
using simulated_cuda::CompletionPtr;

int Communicator::rank() const {
  const std::lock_guard lock(mutex_);
  return rank_;
}

std::shared_ptr<Clique> Communicator::clique() const {
  const std::lock_guard lock(mutex_);
  return clique_;
}

void Communicator::Join(std::shared_ptr<Clique> clique, int rank) {
  const std::lock_guard lock(mutex_);
  clique_ = std::move(clique);
  rank_ = rank;
}

ncclResult_t Communicator::Begin(Step step) {
  const std::lock_guard lock(mutex_);
  pending_ = Pending{std::move(step), in_progress_polls_};
  return ncclInProgress;
}

ncclResult_t Communicator::Poll() {
  std::optional<Pending> pending;
  {
    const std::lock_guard lock(mutex_);
    if (async_error_ == ncclSuccess) {
      for (const std::weak_ptr<Batch>& weak : batches_) {
        const std::shared_ptr<Batch> batch = weak.lock();
        if (!batch || !clique_->Locked([&] { return batch->mismatched; })) continue;
        async_error_ = ncclInvalidUsage;
        last_error_ = "ranks do not agree on what they exchange";
      }
    }
    if (async_error_ != ncclSuccess) return async_error_;
    if (!pending_) return ncclSuccess;
    if (pending_->polls_left > 0) {
      --pending_->polls_left;
      return ncclInProgress;
    }
    pending = std::move(pending_);
    pending_.reset();
  }
  const std::optional<ncclResult_t> result = pending->step();
  const std::lock_guard lock(mutex_);
  if (!result) {
    pending_ = std::move(pending);
    return ncclInProgress;
  }
  async_error_ = *result;
  return *result;
}

ncclResult_t Communicator::CheckReady() {
  const std::lock_guard lock(mutex_);
  if (aborted_) return ncclInvalidUsage;
  if (async_error_ != ncclSuccess) return async_error_;
  if (!pending_ && clique_) return ncclSuccess;  // no clique: its split is still in progress
  last_error_ = "used before the previous operation returned ncclSuccess";
  return ncclInvalidArgument;
}

bool Communicator::ResolveAddresses(Batch& batch) const {
  for (Operation& operation : batch.operations) {
    if (operation.bytes == 0) continue;
    if (operation.source != nullptr) {
      operation.read =
          simulated_cuda::AccessibleByDevice(operation.source, operation.bytes, device_);
      if (operation.read == nullptr) return false;
    }
    if (operation.target != nullptr) {
      operation.write =
          simulated_cuda::AccessibleByDevice(operation.target, operation.bytes, device_);
      if (operation.write == nullptr) return false;
    }
  }
  return true;
}

ncclResult_t Communicator::Submit(std::vector<Operation> operations, cudaStream_t stream) {
  const auto batch = std::make_shared<Batch>();
  batch->rank = rank();
  batch->operations = std::move(operations);
  if (!ResolveAddresses(*batch)) {
    return Refuse(ncclInvalidArgument, "memory that is not the device's, or not all of it");
  }
  const auto done = std::make_shared<Completion>();
  CompletionPtr before;
  {
    const std::lock_guard lock(mutex_);
    before = std::exchange(last_done_, done);
    std::erase_if(batches_, [](const std::weak_ptr<Batch>& weak) { return weak.expired(); });
    batches_.push_back(batch);
  }
  ++under_way_count_;
  const auto self = shared_from_this();
  // Destroyed when the work has run or was skipped because the device is lost.
  const std::shared_ptr<void> under_way(nullptr, [self, done](void*) {
    --self->under_way_count_;
    done->Finish();
  });
  const auto work = [self, batch, before, under_way] {
    if (before) before->Wait();
    if (!self->ResolveAddresses(*batch)) {  // freed in the meantime
      simulated_cuda::LoseDevice(self->device_, cudaErrorIllegalAddress);
      return;
    }
    self->clique()->Run(batch, [&] { return self->Ended(); });
  };
  if (simulated_cuda::EnqueueWork(stream, device_, work) != cudaSuccess) {
    return Refuse(ncclUnhandledCudaError, "a stream that is not the device's, or a lost device");
  }
  return ncclSuccess;
}

bool Communicator::Quiescent() const { return under_way_count_ == 0 || Ended(); }

void Communicator::SetAsyncError(ncclResult_t error, std::string text) {
  const std::lock_guard lock(mutex_);
  async_error_ = error;
  last_error_ = std::move(text);
}

void Communicator::Abort() {
  aborted_ = true;
  if (const std::shared_ptr<Clique> mine = clique()) mine->Wake();
}

bool Communicator::Ended() const { return aborted_ || simulated_cuda::IsLost(device_); }

std::string Communicator::last_error() const {
  const std::lock_guard lock(mutex_);
  return last_error_;
}

ncclResult_t Communicator::Refuse(ncclResult_t error, std::string text) {
  const std::lock_guard lock(mutex_);
  last_error_ = std::move(text);
  return error;
}

}  // namespace cairn::simulated_nccl
