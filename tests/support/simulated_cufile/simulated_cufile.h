#pragma once
/// Control and observation of the simulated cuFile, which README.md in this folder describes.
/// Threads: all functions are safe.

#include <cstdint>
#include <string_view>

namespace cairn::simulated_cufile {

struct Config {
  /// Status flags of CUfileDrvProps_t: what the driver claims to serve.
  unsigned status_flags = ~0u;
  /// Limit of the bytes of one transfer, which returns how many it has transferred.
  uint64_t max_transfer_bytes = UINT64_MAX;
  /// Transfers start up to this many microseconds late.
  int jitter_us = 0;
};
/// Restores the state of a new process: no open driver, no counters, no faults. Requires that no
/// handle is registered.
void Reset(const Config& config = {});

/// Makes the `nth` call from now (1 is the next) of a function return `status`: a positive
/// CUfileOpError, or -errno for cuFileRead and cuFileWrite.
void FailCall(std::string_view function, uint64_t nth, int status);
/// Makes the `nth` write from now write one wrong byte and succeed.
void CorruptWrite(uint64_t nth);
/// Makes the `nth` read from now return one wrong byte and succeed.
void CorruptRead(uint64_t nth);

struct Counters {
  uint64_t driver_open_count = 0;
  uint64_t handle_count = 0;  // registered since Reset
  uint64_t live_handles = 0;
  uint64_t read_count = 0, read_bytes = 0;
  uint64_t write_count = 0, write_bytes = 0;
};
Counters GetCounters();

}  // namespace cairn::simulated_cufile
