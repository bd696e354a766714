#pragma once
/// Streams of devices, as Python gives them.

#include <cstdint>
#include <utility>
#include <vector>

#include "core/device/device.h"

namespace cairn::python {

/// (device, address of the stream) of each.
using Streams = std::vector<std::pair<int, uintptr_t>>;

inline std::vector<core::DeviceStream> ToStreams(const Streams& streams) {
  std::vector<core::DeviceStream> result;
  for (const auto& [device, stream] : streams) {
    result.push_back({.device = device, .stream = reinterpret_cast<void*>(stream)});
  }
  return result;
}

}  // namespace cairn::python
