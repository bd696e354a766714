#pragma once
// SPDX-License-Identifier: Apache-2.0
/// Requests to buckets that were sent again after a failure, to observe how reliable a bucket is.

#include <cstdint>
#include <string>

namespace cairn::kv {

/// Returns how many requests for the store at `address` this process has sent again so far, through
/// all of its stores and storages: after a failure that may be temporary, or with other credentials
/// (kv/storage/s3/internal/s3_client.h). 0 for addresses that are not s3://BUCKET/PREFIX.
/// Threads: any.
uint64_t RepeatedRequests(const std::string& address);

}  // namespace cairn::kv
