// Encodes and decodes records, parses endpoints, and selects the way to meet.

#include "core/ranks/internal/rendezvous.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "core/ranks/internal/message_codec.h"
#include "kv/base/digest.h"
#include "schema/little_endian.h"

namespace cairn::core::internal {
namespace {

constexpr uint64_t kMagic = 0x524e5243;  // "CRNR"
constexpr uint64_t kChecksumBytes = 8;

uint64_t ChecksumOf(std::string_view bytes) {
  return kv::Checksum64(std::as_bytes(std::span(bytes)));
}

uint64_t LengthOf(const RendezvousRecord& record) {
  uint64_t length =
      kRecordHeaderBytes + 5 * sizeof(uint64_t) + record.run_id.size() + kChecksumBytes;
  for (const std::string& message : record.messages) length += sizeof(uint64_t) + message.size();
  return length;
}

}  // namespace

std::chrono::milliseconds TimeLeft(Deadline deadline) {
  return std::max(std::chrono::milliseconds(0), std::chrono::ceil<std::chrono::milliseconds>(
                                                    deadline - std::chrono::steady_clock::now()));
}

std::string EncodeRecord(const RendezvousRecord& record) {
  CAIRN_CHECK(record.run_id.size() <= kMaxRunIdBytes);
  MessageWriter writer;
  writer.Number(kMagic);
  writer.Number(LengthOf(record));
  writer.Number(static_cast<uint64_t>(record.kind));
  writer.Number(record.rank);
  writer.Number(record.world_size);
  writer.Text(record.run_id);
  writer.Number(record.messages.size());
  for (const std::string& message : record.messages) {
    CAIRN_CHECK(message.size() <= kMaxRendezvousMessageBytes);
    writer.Text(message);
  }
  std::vector<std::byte> bytes = std::move(writer).Take();
  schema::AppendLittleEndian(bytes, kv::Checksum64(bytes));
  CAIRN_CHECK(bytes.size() == LengthOf(record));
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

uint64_t MaxRecordBytes(int world_size) {
  return kRecordHeaderBytes + 5 * sizeof(uint64_t) + kMaxRunIdBytes + kChecksumBytes +
         static_cast<uint64_t>(world_size) * (sizeof(uint64_t) + kMaxRendezvousMessageBytes);
}

Result<std::optional<uint64_t>> RecordLength(std::string_view bytes, uint64_t max_bytes) {
  if (bytes.size() < kRecordHeaderBytes) return std::nullopt;
  MessageReader reader(std::as_bytes(std::span(bytes)));
  if (reader.Number() != kMagic) {
    return Fail(ErrorCode::kDataLoss, "this is not a record of a rank at a rendezvous");
  }
  const uint64_t length = reader.Number();
  if (length <= kRecordHeaderBytes + kChecksumBytes || length > max_bytes) {
    return Fail(ErrorCode::kDataLoss,
                fmt::format("a rendezvous record of {} bytes, at most {} were expected", length,
                            max_bytes));
  }
  return length;
}

Result<RendezvousRecord> DecodeRecord(std::string_view bytes) {
  CAIRN_TRY_ASSIGN(const auto length, RecordLength(bytes, bytes.size()));
  const auto damaged = [] { return Fail(ErrorCode::kDataLoss, "a rendezvous record is damaged"); };
  if (length != bytes.size()) return damaged();
  const std::string_view body = bytes.substr(0, bytes.size() - kChecksumBytes);
  MessageReader checksum(std::as_bytes(std::span(bytes.substr(body.size()))));
  if (checksum.Number() != ChecksumOf(body)) return damaged();
  MessageReader reader(std::as_bytes(std::span(body)));
  reader.Number();  // the magic and the length, which RecordLength has checked
  reader.Number();
  const uint64_t kind = reader.Number();
  const uint64_t rank = reader.Number();
  const uint64_t world_size = reader.Number();
  if (kind < 1 || kind > 4 || rank > UINT32_MAX || world_size > UINT32_MAX) return damaged();
  RendezvousRecord record{.kind = static_cast<RendezvousRecord::Kind>(kind),
                          .rank = static_cast<uint32_t>(rank),
                          .world_size = static_cast<uint32_t>(world_size),
                          .run_id = reader.Text(),
                          .messages = {}};
  if (record.run_id.size() > kMaxRunIdBytes) return damaged();
  for (uint64_t left = reader.Number(); left > 0 && reader.ok(); --left) {
    record.messages.push_back(reader.Text());
    if (record.messages.back().size() > kMaxRendezvousMessageBytes) return damaged();
  }
  if (!reader.ok() || !reader.at_end()) return damaged();
  return record;
}

std::string MissingRanks(const std::vector<bool>& present) {
  std::string names;
  for (size_t i = 0; i < present.size(); ++i) {
    if (!present[i]) names += fmt::format("{}{}", names.empty() ? "" : ", ", i);
  }
  return names;
}

Result<Endpoint> ParseEndpoint(std::string_view url) {
  constexpr std::string_view kFile = "file://";
  constexpr std::string_view kTcp = "tcp://";
  Endpoint endpoint;
  if (url.starts_with(kFile) && url.substr(kFile.size()).starts_with('/')) {
    endpoint.directory = url.substr(kFile.size());
    return endpoint;
  }
  const size_t colon = url.rfind(':');
  if (url.starts_with(kTcp) && colon >= kTcp.size() && colon != std::string_view::npos) {
    std::string_view host = url.substr(kTcp.size(), colon - kTcp.size());
    if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
    const std::string_view port = url.substr(colon + 1);
    const bool is_number = !port.empty() && port.size() <= 5 &&
                           std::ranges::all_of(port, [](char c) { return c >= '0' && c <= '9'; });
    if (!host.empty() && is_number) {
      endpoint.host = host;
      endpoint.port = port;
      return endpoint;
    }
  }
  return Fail(ErrorCode::kInvalidArgument,
              fmt::format("rendezvous '{}' is neither file:///directory nor tcp://host:port", url));
}

Result<std::vector<std::string>> Meet(const Endpoint& endpoint, const Party& party,
                                      const std::vector<std::string>& messages, Deadline deadline) {
  if (!endpoint.directory.empty()) return MeetByFile(endpoint.directory, party, messages, deadline);
  return party.rank == 0 ? ServeTcpMeeting(endpoint, party, messages, deadline)
                         : JoinTcpMeeting(endpoint, party, messages, deadline);
}

Result<void> Forget(const Endpoint& endpoint, const Party& party) {
  if (endpoint.directory.empty()) return {};
  return ForgetFiles(endpoint.directory, party);
}

}  // namespace cairn::core::internal
