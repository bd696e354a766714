// Lengths of the errors first, then the error of the lowest rank that has one.

#include "core/vote.h"

#include <fmt/format.h>

#include "core/internal/wire.h"

namespace cairn::core {
namespace {

std::vector<std::byte> EncodeError(const Error& error) {
  internal::WireWriter writer;
  writer.Number(static_cast<uint64_t>(error.code));
  writer.Text(error.message);
  writer.Text(error.key);
  writer.Text(error.file);
  return std::move(writer).Take();
}

Error DecodeError(std::span<const std::byte> bytes, int rank) {
  internal::WireReader reader(bytes);
  Error error;
  error.code = static_cast<ErrorCode>(reader.Number());
  error.message = fmt::format("rank {}: {}", rank, reader.Text());
  error.key = reader.Text();
  error.file = reader.Text();
  if (reader.ok()) return error;
  return {.code = ErrorCode::kInternal,
          .message = fmt::format("rank {} failed; what it sent about it is damaged", rank)};
}

}  // namespace

Result<void> Vote(Communicator& communicator, const Result<void>& mine) {
  std::vector<std::byte> error = mine ? std::vector<std::byte>() : EncodeError(mine.error());
  const uint64_t length_bytes = error.size();
  std::vector<uint64_t> lengths(static_cast<size_t>(communicator.world_size()));
  std::vector<ByteTarget> targets;
  for (uint64_t& length : lengths) targets.push_back(std::as_writable_bytes(std::span(&length, 1)));
  CAIRN_TRY(communicator.AllGather(std::as_bytes(std::span(&length_bytes, 1)), targets));
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
