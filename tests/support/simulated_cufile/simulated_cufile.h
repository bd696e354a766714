#pragma once
/// Control and observation of the simulated cuFile; README.md beside this file says what it is.
/// Threads: any.

#include <cstdint>
#include <string_view>

namespace cairn::simulated_cufile {

struct Config {
  /// Of CUfileDrvProps_t: what the driver claims to serve.
  unsigned status_flags = ~0u;
  /// A transfer moves at most so many bytes and tells that.
  uint64_t max_transfer_bytes = UINT64_MAX;
  /// Transfers start up to so many microseconds late.
  int jitter_us = 0;
};
/// As a fresh process: no driver, no counters, no faults. Requires that no handle is registered.
void Reset(const Config& config = {});

/// The `nth` call from now (1 is the next) of a function returns `status`: a positive
/// CUfileOpError; or for cuFileRead and cuFileWrite -errno.
void FailCall(std::string_view function, uint64_t nth, int status);
/// The `nth` write from now writes one wrong byte and says nothing.
void CorruptWrite(uint64_t nth);
/// The same for what a read brings.
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
