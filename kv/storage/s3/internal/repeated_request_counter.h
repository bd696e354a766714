#pragma once
/// A counter per place in a bucket, for all clients of this process. A count in each client would
/// have to be passed through every interface between it and those who show it.

#include <atomic>
#include <cstdint>
#include <string>

namespace cairn::kv::internal {

/// Returns the counter of `address` ("s3://BUCKET/PREFIX"), which exists until the process ends.
/// Threads: any.
std::atomic<uint64_t>& RepeatedRequestCounter(const std::string& address);

}  // namespace cairn::kv::internal
