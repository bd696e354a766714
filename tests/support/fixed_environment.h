#pragma once
/// The time, host, process and random numbers of programs that link cairn_fixed_environment.

namespace cairn::testing {

/// One second passes. Otherwise the time of day does not change.
void AdvanceClock();

}  // namespace cairn::testing
