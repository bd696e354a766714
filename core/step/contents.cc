#include "core/step/contents.h"

#include <fmt/format.h>

#include <algorithm>

#include "schema/dtype.h"

namespace cairn::core {

kv::ChunkExtents ChunkInfo::stored() const {
  kv::ChunkExtents stored(extents);
  stored.deltas = deltas;
  return stored;
}

kv::ChunkEntry ChunkInfo::entry() const {
  return {.sizes = box.sizes,
          .extents = stored(),
          .digest = digest,
          .since_step = since_step,
          .statistics = statistics};
}

bool HasBytesOf(const TensorInfo& tensor, const ValueInfo& value) {
  const auto* const chunked = std::get_if<ChunkedValue>(&value.value);
  return chunked != nullptr && tensor.hidden && tensor.fqn == value.fqn &&
         tensor.dtype == DType::kUInt8 && !tensor.alias_of &&
         tensor.shape == Shape{chunked->length_bytes};
}

Result<void> CheckRepeats(std::span<const TensorInfo> tensors) {
  uint64_t left_bytes = kMaxRepeatedBytes;
  for (const TensorInfo& tensor : tensors) {
    if (!tensor.alias_of || tensor.nbytes == 0) continue;
    const uint64_t span_bytes =
        SpanBytes(schema::ElementBytes(tensor.dtype), tensor.shape, tensor.alias_strides)
            .value_or(0);
    const uint64_t repeated_bytes = tensor.nbytes - std::min(tensor.nbytes, span_bytes);
    if (repeated_bytes > left_bytes) {
      return Fail(Error{.code = ErrorCode::kResourceExhausted,
                        .message = fmt::format("it repeats elements of '{}', as expand() does: {} "
                                               "bytes of which {} are stored; leave it out",
                                               *tensor.alias_of, tensor.nbytes, span_bytes),
                        .key = tensor.fqn});
    }
    left_bytes -= repeated_bytes;
  }
  return {};
}

}  // namespace cairn::core
