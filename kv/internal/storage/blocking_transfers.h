#pragma once
/// Transfers of a storage that has no queue of its own: each request is performed when it is
/// submitted, with the operations of the storage.

#include <cstdint>
#include <memory>
#include <string_view>

#include "kv/error.h"
#include "kv/io_queue.h"
#include "kv/storage.h"

namespace cairn::kv::internal {

/// See Storage::MakeQueue. Ownership: `storage` outlives the result.
std::unique_ptr<IoQueue> MakeBlockingQueue(Storage& storage, uint32_t depth);
/// See Storage::BeginUpload. The requests must go through a queue of MakeBlockingQueue.
Result<std::unique_ptr<Upload>> BeginBlockingUpload(Storage& storage, std::string_view name);

}  // namespace cairn::kv::internal
