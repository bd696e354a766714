// Exchanges the lengths of errors first, so that a success takes one AllGather.

#include "core/ranks/status_agreement.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "core/ranks/gather_values.h"
#include "core/ranks/internal/message_codec.h"

namespace cairn::core {
namespace {

using internal::MessageReader;
using internal::MessageWriter;

std::vector<std::byte> EncodeError(const Error& error) {
  MessageWriter writer;
  writer.Number(static_cast<uint64_t>(error.code));
  writer.Number(static_cast<uint64_t>(error.hint));
  writer.Text(error.message);
  writer.Text(error.key);
  writer.Text(error.file);
  return std::move(writer).Take();
}

Error DecodeError(std::span<const std::byte> bytes, int rank) {
  MessageReader reader(bytes);
  Error error;
  error.code = static_cast<ErrorCode>(
      std::min(reader.Number(), static_cast<uint64_t>(ErrorCode::kInternal)));  // it may be unknown
  error.hint = static_cast<Hint>(reader.Number());
  error.message = fmt::format("rank {}: {}", rank, reader.Text());
  error.key = reader.Text();
  error.file = reader.Text();
  if (reader.ok()) return error;
  return {.code = ErrorCode::kInternal,
          .message = fmt::format("rank {} failed; what it sent about it is damaged", rank)};
}

}  // namespace

Result<void> AgreeOnStatus(Communicator& communicator, const Result<void>& own) {
  std::vector<std::byte> error = own ? std::vector<std::byte>() : EncodeError(own.error());
  const uint64_t length_bytes = error.size();
  const auto gathered = AllGatherValues(communicator, length_bytes);
  if (!gathered) {
    return own ? Result<void>(std::unexpected(gathered.error()))
               : own;  // `own` may be the cause of the failure
  }
  const std::vector<uint64_t>& lengths = *gathered;
  for (int rank = 0; rank < communicator.world_size(); ++rank) {
    const uint64_t length = lengths[static_cast<size_t>(rank)];
    if (length == 0) continue;
    if (rank != communicator.rank()) error.resize(length);
    CAIRN_TRY(communicator.Broadcast(error, rank));
    return Fail(DecodeError(error, rank));
  }
  return {};
}

}  // namespace cairn::core
