#pragma once
/// Uploads through a queue, as segments are written.

#include <algorithm>
#include <span>
#include <string_view>
#include <utility>

#include "kv/storage/storage.h"

namespace cairn::testing {

/// Uploads `bytes` as the object `name` in writes of `write_bytes`, up to `depth` at a time.
/// Discards the upload unless `finish` is set.
inline Result<void> UploadBytes(kv::Storage& storage, std::string_view name,
                                std::span<std::byte> bytes, uint64_t write_bytes, uint32_t depth,
                                bool finish = true) {
  CAIRN_TRY_ASSIGN(const auto upload, storage.BeginUpload(name, write_bytes));
  CAIRN_TRY_ASSIGN(const auto queue, storage.MakeQueue(depth));
  const auto await_one = [&]() -> Result<void> {
    CAIRN_TRY_ASSIGN(kv::IoCompletion completion, queue->Wait());
    if (completion.error) return Fail(*std::move(completion.error));
    return {};
  };
  for (uint64_t at = 0; at < bytes.size(); at += write_bytes) {
    if (queue->in_flight() == depth) CAIRN_TRY(await_one());
    CAIRN_TRY(queue->Submit({.upload = upload.get(),
                             .write = true,
                             .data = bytes.data() + at,
                             .length_bytes = std::min(write_bytes, bytes.size() - at),
                             .offset_bytes = at}));
  }
  while (queue->in_flight() > 0) CAIRN_TRY(await_one());
  return finish ? upload->Finish(bytes.size()) : Result<void>();
}

}  // namespace cairn::testing
