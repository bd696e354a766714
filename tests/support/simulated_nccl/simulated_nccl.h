#pragma once
/// Control and observation of the simulated NCCL. README.md in this folder states what is
/// simulated.
///
/// Threads: all functions are safe, except that no communicator may be in use during Reset.

#include <nccl.h>

#include <cstdint>
#include <string_view>

namespace cairn::simulated_nccl {

struct Config {
  /// How often ncclCommGetAsyncError returns ncclInProgress after a call on a communicator. The
  /// last of these polls executes the call: a caller that does not poll waits forever.
  int in_progress_polls = 1;
  int version = NCCL_VERSION_CODE;
  /// If true, ranks with the same device cannot connect, as in NCCL ("Duplicate GPU detected").
  bool refuses_shared_devices = false;
};

/// Clears ids, faults and counters. Existing communicators remain valid.
void Reset(const Config& config = {});

/// Makes `comm` report `error` from now on, as after a failure of the network or of a peer. Pending
/// work stays pending until the communicator is aborted.
void SetAsyncError(ncclComm_t comm, ncclResult_t error);

/// Makes the `nth` call from now (1 is the next) of `function` ("ncclSend") return `error` and do
/// nothing.
void FailCall(std::string_view function, uint64_t nth, ncclResult_t error);

struct Counters {
  uint64_t send_bytes = 0;        // of ncclSend
  uint64_t collective_bytes = 0;  // sum of what all ranks contribute
  uint64_t abort_count = 0;
};
Counters GetCounters();

/// Returns how many communicators were neither destroyed nor aborted.
uint64_t LiveCommunicatorCount();

}  // namespace cairn::simulated_nccl
