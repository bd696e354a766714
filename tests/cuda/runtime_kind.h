#pragma once
/// Which CUDA runtime a test program is linked to.

namespace cairn::testing {

/// True on the real runtime, false on the simulated one: the sources are compiled once for both.
extern const bool kOnRealGpu;

}  // namespace cairn::testing
