#pragma once
// SPDX-License-Identifier: Apache-2.0
/// The storage at an address.

#include <cstdint>
#include <memory>
#include <string>

#include "kv/base/s3_options.h"
#include "kv/storage/storage.h"

namespace cairn::kv {

/// Returns how many requests for the store at `address` this process has sent again so far, through
/// all of its stores and storages: after a failure that may be temporary, or with other credentials
/// (kv/storage/s3/internal/s3_client.h). 0 for addresses that are not s3://BUCKET/PREFIX.
/// Threads: any.
uint64_t RepeatedRequests(const std::string& address);

/// Opens the storage at an address: PATH, file:PATH, s3://BUCKET/PREFIX, rados:POOL/NAMESPACE, or
/// memory:NAME (which is shared inside the process). Creates nothing, and sends no request. A
/// relative path whose first element contains ':' needs "file:" or "./" before it. The address of a
/// bucket may end with parameters, "?endpoint=URL&region=R&profile=P"; `s3` has precedence. The
/// parameters of a pool are "?conf=FILE&id=USER&data_pool=POOL&stripe=BYTES". kInvalidArgument: the
/// address has another scheme, or no path or name; the path begins with '~'; a parameter or an
/// option is not valid.
Result<std::shared_ptr<Storage>> OpenStorage(const std::string& address, const S3Options& s3 = {});

}  // namespace cairn::kv
