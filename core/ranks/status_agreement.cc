// Exchanges lengths of errors, or fixed messages, first, so that a success takes one AllGather.

#include "core/ranks/status_agreement.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "core/ranks/gather_values.h"
#include "core/ranks/internal/message_codec.h"

namespace cairn::core {
namespace {

using internal::MessageReader;
using internal::MessageWriter;

/// Returns kInternal for a number that is not an error code.
ErrorCode CodeOf(uint64_t number) {
  return static_cast<ErrorCode>(std::min(number, static_cast<uint64_t>(ErrorCode::kInternal)));
}

// Byte 0: 1 for a success; bytes 1 and 2: the code and the hint of the error; from byte 8 on: text
// that ends with NUL.
struct StatusMessage {
  static constexpr size_t kTextBytes = 1016;
  std::array<std::byte, kTextBytes + 8> bytes{};

  static StatusMessage Success(std::string_view text) { return StatusMessage(true, {}, text); }
  static StatusMessage Failure(const Error& error) {
    return StatusMessage(false, error, error.ToString());
  }
  StatusMessage() = default;

  bool is_success() const { return bytes[0] != std::byte{0}; }
  ErrorCode code() const { return CodeOf(std::to_integer<uint64_t>(bytes[1])); }
  Hint hint() const { return static_cast<Hint>(bytes[2]); }
  std::string text() const {
    const auto* const begin = reinterpret_cast<const char*>(bytes.data() + 8);
    return std::string(begin, ::strnlen(begin, kTextBytes));
  }

 private:
  StatusMessage(bool is_success, const Error& error, std::string_view text) {
    bytes[0] = std::byte{is_success};
    bytes[1] = static_cast<std::byte>(error.code);
    bytes[2] = static_cast<std::byte>(error.hint);
    std::memcpy(bytes.data() + 8, text.data(), std::min(text.size(), kTextBytes));
  }
};

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
  error.code = CodeOf(reader.Number());
  error.hint = static_cast<Hint>(reader.Number());
  error.message = fmt::format("rank {}: {}", rank, reader.Text());
  error.key = reader.Text();
  error.file = reader.Text();
  if (reader.ok()) return error;
  return {.code = ErrorCode::kInternal,
          .message = fmt::format("rank {} failed; what it sent about it is damaged", rank)};
}

}  // namespace

Result<std::string> BroadcastStatus(Communicator& communicator, const Result<std::string>& own) {
  const StatusMessage mine =
      own ? StatusMessage::Success(*own) : StatusMessage::Failure(own.error());
  const auto gathered = AllGatherValues(communicator, mine);
  if (!own) return own;
  if (!gathered) return std::unexpected(gathered.error());
  const std::vector<StatusMessage>& messages = *gathered;
  for (size_t rank = 0; rank < messages.size(); ++rank) {
    if (messages[rank].is_success()) continue;
    return Fail(Error{.code = messages[rank].code(),
                      .hint = messages[rank].hint(),
                      .message = fmt::format("rank {}: {}", rank, messages[rank].text())});
  }
  return messages[0].text();
}

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
