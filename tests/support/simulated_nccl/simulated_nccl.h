#pragma once
/// Control and observation of the simulated NCCL. README.md beside this file says what is
/// simulated.
///
/// Threads: any, except that no communicator may be in use during Reset.

#include <nccl.h>

#include <cstdint>
#include <string_view>

namespace cairn::simulated_nccl {

struct Config {
  /// How often ncclCommGetAsyncError says ncclInProgress after a call on a non-blocking
  /// communicator, before what was asked for is done. It is done by that poll: who does not ask,
  /// waits for ever.
  int in_progress_polls = 1;
  int version = NCCL_VERSION_CODE;
  /// Ranks on one device cannot connect, as in NCCL ("Duplicate GPU detected").
  bool refuses_shared_devices = false;
};

/// Forgets ids, faults and counters. Communicators that are alive stay so.
void Reset(const Config& config = {});

/// From now on `comm` reports `error`, as after a failure in the network or of a peer. What is
/// pending stays pending until the communicator is aborted.
void SetAsyncError(ncclComm_t comm, ncclResult_t error);

/// The `nth` call from now (1 is the next) of `function` ("ncclSend") returns `error` and does
/// nothing.
void FailCall(std::string_view function, uint64_t nth, ncclResult_t error);

struct Counters {
  uint64_t send_count = 0, send_bytes = 0;  // ncclSend calls
  uint64_t collective_count = 0;            // calls, each rank's
  uint64_t collective_bytes = 0;            // given to them by each rank
  uint64_t split_count = 0;                 // calls
  uint64_t abort_count = 0;
};
Counters GetCounters();

/// Communicators neither destroyed nor aborted.
uint64_t LiveCommunicatorCount();

}  // namespace cairn::simulated_nccl
