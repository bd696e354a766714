// The record, the place, and meeting by files.

#include "core/ranks/internal/rendezvous.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <thread>

#include "kv/digest.h"

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

/// Reads what is there; once something is not, everything is 0 or empty and ok() false.
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

/// The whole file, or as much of it as is there; nothing where there is none.
std::optional<std::string> ReadFile(const std::filesystem::path& path, uint64_t max_bytes) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::nullopt;
  std::string bytes(max_bytes, '\0');
  file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  bytes.resize(static_cast<size_t>(file.gcount()));
  return bytes;
}

/// A new file, so that neither a second process of the same rank nor a run before this one goes
/// unnoticed. Readers see it grow and wait for its length and checksum to agree, which needs no
/// rename or link of the file system.
Result<void> WriteNewFile(const std::string& path, std::string_view bytes) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (fd < 0) {
    if (errno == EEXIST) {
      return Fail(Error{.code = ErrorCode::kFailedPrecondition,
                        .message = "this rank of this run has been here before: a process runs "
                                   "twice, or an earlier start died while it connected; give each "
                                   "start a run id of its own"}
                      .WithFile(path));
    }
    return Fail(SystemError(errno, "cannot make a rendezvous file", path));
  }
  size_t written = 0;
  int failed = 0;
  while (written < bytes.size() && failed == 0) {
    const ssize_t count = ::write(fd, bytes.data() + written, bytes.size() - written);
    if (count >= 0) {
      written += static_cast<size_t>(count);
    } else if (errno != EINTR) {
      failed = errno;
    }
  }
  if (::close(fd) != 0 && failed == 0) failed = errno;
  if (failed != 0) return Fail(SystemError(failed, "cannot write a rendezvous file", path));
  return {};
}

std::filesystem::path RankFile(const std::filesystem::path& directory, int rank) {
  return directory / fmt::format("rank-{}", rank);
}

/// What rank `peer` wrote for `party.rank`; nothing while its file is not complete.
Result<std::optional<std::string>> ReadPiece(const std::filesystem::path& directory,
                                             const Party& party, int peer) {
  const std::string path = RankFile(directory, peer).string();
  const uint64_t max_bytes = MaxRecordBytes(party.world_size);
  const auto bytes = ReadFile(path, max_bytes);
  if (!bytes) return std::nullopt;
  auto record = DecodeRecord(*bytes);
  if (!record) return std::nullopt;
  if (record->rank != static_cast<uint32_t>(peer) || record->run_id != party.run_id ||
      record->world_size != static_cast<uint32_t>(party.world_size) ||
      record->pieces.size() != static_cast<size_t>(party.world_size)) {
    return Fail(Error{.code = ErrorCode::kFailedPrecondition,
                      .message = fmt::format("written by rank {} of {} of run '{}', where rank {} "
                                             "of {} of run '{}' was expected",
                                             record->rank, record->world_size, record->run_id, peer,
                                             party.world_size, party.run_id)}
                    .WithFile(path));
  }
  return std::move(record->pieces[static_cast<size_t>(party.rank)]);
}

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
  for (const std::string& piece : record.pieces) {
    CAIRN_CHECK(piece.size() <= kMaxPieceBytes);
    length += 2 + piece.size();
  }
  CAIRN_CHECK(record.run_id.size() <= kMaxRunIdBytes);
  writer.Integer(length);
  writer.Integer(record.rank);
  writer.Integer(record.world_size);
  writer.Bytes(record.run_id);
  writer.Integer(static_cast<uint32_t>(record.pieces.size()));
  for (const std::string& piece : record.pieces) writer.Bytes(piece);
  writer.Integer(ChecksumOf(writer.bytes()));
  CAIRN_CHECK(writer.bytes().size() == length);
  return std::move(writer.bytes());
}

uint64_t MaxRecordBytes(int world_size) {
  return kRecordHeaderBytes + 4 + 4 + 2 + kMaxRunIdBytes + 4 + kChecksumBytes +
         static_cast<uint64_t>(world_size) * (2 + kMaxPieceBytes);
}

Result<std::optional<uint64_t>> RecordLength(std::string_view bytes, uint64_t max_bytes) {
  if (bytes.size() < kRecordHeaderBytes) return std::nullopt;
  Reader reader(bytes.substr(0, kRecordHeaderBytes));
  if (reader.Integer<uint32_t>() != kMagic) {
    return Fail(ErrorCode::kDataLoss, "these are not the words of a rank at a rendezvous");
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
  reader.Integer<uint32_t>();  // the magic, as RecordLength checked
  RendezvousRecord record;
  const uint32_t kind = reader.Integer<uint32_t>();
  if (kind < 1 || kind > 4) return damaged();
  record.kind = static_cast<RendezvousRecord::Kind>(kind);
  reader.Integer<uint64_t>();
  record.rank = reader.Integer<uint32_t>();
  record.world_size = reader.Integer<uint32_t>();
  record.run_id = reader.Bytes(kMaxRunIdBytes);
  const uint32_t count = reader.Integer<uint32_t>();
  // Each piece takes two bytes at least, so `count` cannot make us allocate more than was sent.
  if (count > body.size() / 2) return damaged();
  record.pieces.reserve(count);
  for (uint32_t i = 0; i < count && reader.ok(); ++i) {
    record.pieces.push_back(reader.Bytes(kMaxPieceBytes));
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

Result<Place> ParsePlace(std::string_view url) {
  constexpr std::string_view kFile = "file://";
  constexpr std::string_view kTcp = "tcp://";
  Place place;
  if (url.starts_with(kFile) && url.substr(kFile.size()).starts_with('/')) {
    place.directory = url.substr(kFile.size());
    return place;
  }
  const size_t colon = url.rfind(':');
  if (url.starts_with(kTcp) && colon >= kTcp.size() && colon != std::string_view::npos) {
    std::string_view host = url.substr(kTcp.size(), colon - kTcp.size());
    if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
    const std::string_view port = url.substr(colon + 1);
    const bool is_number = !port.empty() && port.size() <= 5 &&
                           std::ranges::all_of(port, [](char c) { return c >= '0' && c <= '9'; });
    if (!host.empty() && is_number) {
      place.host = host;
      place.port = port;
      return place;
    }
  }
  return Fail(ErrorCode::kInvalidArgument,
              fmt::format("rendezvous '{}' is neither file:///directory nor tcp://host:port", url));
}

Result<std::vector<std::string>> MeetByFile(const std::string& directory, const Party& party,
                                            const std::vector<std::string>& pieces,
                                            Deadline deadline) {
  const std::filesystem::path run_directory = std::filesystem::path(directory) / party.run_id;
  std::error_code failed;
  std::filesystem::create_directories(run_directory, failed);
  if (failed) {
    return Fail(SystemError(failed.value(), "cannot make the rendezvous' directory",
                            run_directory.string()));
  }
  CAIRN_TRY(WriteNewFile(RankFile(run_directory, party.rank).string(),
                         EncodeRecord({.rank = static_cast<uint32_t>(party.rank),
                                       .world_size = static_cast<uint32_t>(party.world_size),
                                       .run_id = party.run_id,
                                       .pieces = pieces})));

  std::vector<std::string> found(static_cast<size_t>(party.world_size));
  std::vector<bool> present(found.size());
  // Nothing tells of a file on another host: look, at first often.
  std::chrono::milliseconds pause(1);
  while (true) {
    for (size_t peer = 0; peer < found.size(); ++peer) {
      if (present[peer]) continue;
      CAIRN_TRY_ASSIGN(auto piece, ReadPiece(run_directory, party, static_cast<int>(peer)));
      if (!piece) continue;
      found[peer] = *std::move(piece);
      present[peer] = true;
    }
    if (std::ranges::find(present, false) == present.end()) return found;
    if (TimeLeft(deadline).count() == 0) {
      return Fail(Error{.code = ErrorCode::kUnavailable,
                        .message = fmt::format("ranks that did not come to the rendezvous in time: "
                                               "{} of {}",
                                               MissingRanks(present), party.world_size)}
                      .WithFile(run_directory.string()));
    }
    std::this_thread::sleep_for(std::min(pause, TimeLeft(deadline)));
    pause = std::min(2 * pause, std::chrono::milliseconds(32));
  }
}

Result<std::vector<std::string>> Meet(const Place& place, const Party& party,
                                      const std::vector<std::string>& pieces, Deadline deadline) {
  if (!place.directory.empty()) return MeetByFile(place.directory, party, pieces, deadline);
  return party.rank == 0 ? ServeTcpMeeting(place, party, pieces, deadline)
                         : JoinTcpMeeting(place, party, pieces, deadline);
}

Result<void> Forget(const Place& place, const Party& party) {
  if (place.directory.empty()) return {};
  const std::filesystem::path run_directory = std::filesystem::path(place.directory) / party.run_id;
  std::error_code failed;
  std::filesystem::remove_all(run_directory, failed);
  if (failed) {
    return Fail(SystemError(failed.value(), "cannot remove the rendezvous' directory",
                            run_directory.string()));
  }
  return {};
}

}  // namespace cairn::core::internal
