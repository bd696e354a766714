// Encodes and decodes records, and parses endpoints.

#include "core/ranks/internal/rendezvous_record.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "kv/base/digest.h"

namespace cairn::core::internal {
namespace {

constexpr uint32_t kMagic = 0x524e5243;  // "CRNR"
constexpr uint64_t kChecksumBytes = 8;

uint64_t ChecksumOf(std::string_view bytes) {
  return kv::Checksum64(std::as_bytes(std::span(bytes)));
}

class Writer {
 public:
  template <typename T>
  void Integer(T value) {
    for (size_t i = 0; i < sizeof(T); ++i) {
      bytes_.push_back(static_cast<char>(static_cast<uint64_t>(value) >> (8 * i)));
    }
  }
  void Bytes(std::string_view value) {
    Integer(static_cast<uint16_t>(value.size()));
    bytes_ += value;
  }
  std::string& bytes() { return bytes_; }

 private:
  std::string bytes_;
};

/// Once the record is too short for a value, this value and all later ones are 0 or empty, and ok()
/// is false.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}

  template <typename T>
  T Integer() {
    const std::string_view taken = Take(sizeof(T));
    uint64_t value = 0;
    for (size_t i = 0; i < taken.size(); ++i) {
      value |= static_cast<uint64_t>(static_cast<unsigned char>(taken[i])) << (8 * i);
    }
    return static_cast<T>(value);
  }
  std::string Bytes(uint64_t max_bytes) {
    const uint16_t length = Integer<uint16_t>();
    if (length > max_bytes) ok_ = false;
    return std::string(Take(length));
  }
  bool ok() const { return ok_; }
  bool at_end() const { return ok_ && rest_.empty(); }

 private:
  std::string_view Take(size_t count) {
    if (count > rest_.size()) ok_ = false;
    if (!ok_) return {};
    const std::string_view taken = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return taken;
  }

  std::string_view rest_;
  bool ok_ = true;
};

}  // namespace

std::chrono::milliseconds TimeLeft(Deadline deadline) {
  return std::max(std::chrono::milliseconds(0), std::chrono::ceil<std::chrono::milliseconds>(
                                                    deadline - std::chrono::steady_clock::now()));
}

std::string EncodeRecord(const RendezvousRecord& record) {
  Writer writer;
  writer.Integer(kMagic);
  writer.Integer(static_cast<uint32_t>(record.kind));
  uint64_t length = kRecordHeaderBytes + 4 + 4 + 2 + record.run_id.size() + 4 + kChecksumBytes;
  for (const std::string& message : record.messages) {
    CAIRN_CHECK(message.size() <= kMaxRendezvousMessageBytes);
    length += 2 + message.size();
  }
  CAIRN_CHECK(record.run_id.size() <= kMaxRunIdBytes);
  writer.Integer(length);
  writer.Integer(record.rank);
  writer.Integer(record.world_size);
  writer.Bytes(record.run_id);
  writer.Integer(static_cast<uint32_t>(record.messages.size()));
  for (const std::string& message : record.messages) writer.Bytes(message);
  writer.Integer(ChecksumOf(writer.bytes()));
  CAIRN_CHECK(writer.bytes().size() == length);
  return std::move(writer.bytes());
}

uint64_t MaxRecordBytes(int world_size) {
  return kRecordHeaderBytes + 4 + 4 + 2 + kMaxRunIdBytes + 4 + kChecksumBytes +
         static_cast<uint64_t>(world_size) * (2 + kMaxRendezvousMessageBytes);
}

Result<std::optional<uint64_t>> RecordLength(std::string_view bytes, uint64_t max_bytes) {
  if (bytes.size() < kRecordHeaderBytes) return std::nullopt;
  Reader reader(bytes.substr(0, kRecordHeaderBytes));
  if (reader.Integer<uint32_t>() != kMagic) {
    return Fail(ErrorCode::kDataLoss, "this is not a record of a rank at a rendezvous");
  }
  reader.Integer<uint32_t>();
  const uint64_t length = reader.Integer<uint64_t>();
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
  if (Reader(bytes.substr(body.size())).Integer<uint64_t>() != ChecksumOf(body)) return damaged();

  Reader reader(body);
  reader.Integer<uint32_t>();  // the magic, which RecordLength has checked
  RendezvousRecord record;
  const uint32_t kind = reader.Integer<uint32_t>();
  if (kind < 1 || kind > 4) return damaged();
  record.kind = static_cast<RendezvousRecord::Kind>(kind);
  reader.Integer<uint64_t>();
  record.rank = reader.Integer<uint32_t>();
  record.world_size = reader.Integer<uint32_t>();
  record.run_id = reader.Bytes(kMaxRunIdBytes);
  const uint32_t count = reader.Integer<uint32_t>();
  // Each message has at least two bytes, so that `count` cannot cause an allocation larger than the
  // record.
  if (count > body.size() / 2) return damaged();
  record.messages.reserve(count);
  for (uint32_t i = 0; i < count && reader.ok(); ++i) {
    record.messages.push_back(reader.Bytes(kMaxRendezvousMessageBytes));
  }
  if (!reader.at_end()) return damaged();
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

}  // namespace cairn::core::internal
