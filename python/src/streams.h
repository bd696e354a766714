#pragma once
/// Streams of devices in the form that Python passes.

#include <cstdint>
#include <utility>
#include <vector>

#include "core/device/device.h"

namespace cairn::python {

/// Pairs of a device and the address of a stream.
using Streams = std::vector<std::pair<int, uintptr_t>>;

inline std::vector<core::DeviceStream> ToStreams(const Streams& streams) {
  std::vector<core::DeviceStream> result;
  for (const auto& [device, stream] : streams) {
    result.push_back({.device = device, .stream = reinterpret_cast<void*>(stream)});
  }
  return result;
}

}  // namespace cairn::python
