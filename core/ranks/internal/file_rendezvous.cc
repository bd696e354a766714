// Each rank writes one file, and polls the others until they are complete.

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string_view>
#include <thread>

#include "core/ranks/internal/rendezvous.h"
#include "kv/io/file_descriptor.h"

namespace cairn::core::internal {
namespace {

/// Returns the current contents of the file; nothing if it does not exist.
std::optional<std::string> ReadFile(const std::filesystem::path& path, uint64_t max_bytes) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::nullopt;
  std::string bytes(max_bytes, '\0');
  file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  bytes.resize(static_cast<size_t>(file.gcount()));
  return bytes;
}

/// Writes a new file; fails if it exists, so that a second process of the rank, or an earlier run,
/// is noticed. Readers may see a part of it, and wait until its length and checksum match, which
/// requires neither a rename nor a link.
Result<void> WriteNewFile(const std::string& path, std::string_view bytes) {
  const int fd = kv::RetryInterrupted(
      [&] { return ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666); });
  if (fd < 0) {
    if (errno == EEXIST) {
      return Fail(Error{.code = ErrorCode::kFailedPrecondition,
                        .message = "this rank of this run has been here before: a process runs "
                                   "twice, or an earlier start died while it connected; give each "
                                   "start another run id"}
                      .WithFile(path));
    }
    return Fail(SystemError(errno, "cannot create a rendezvous file", path));
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

/// Returns the message of rank `peer` for `party.rank`; nothing if its file is not complete yet.
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
      record->messages.size() != static_cast<size_t>(party.world_size)) {
    return Fail(Error{.code = ErrorCode::kFailedPrecondition,
                      .message = fmt::format("written by rank {} of {} of run '{}', where rank {} "
                                             "of {} of run '{}' was expected",
                                             record->rank, record->world_size, record->run_id, peer,
                                             party.world_size, party.run_id)}
                    .WithFile(path));
  }
  return std::move(record->messages[static_cast<size_t>(party.rank)]);
}

}  // namespace

Result<std::vector<std::string>> MeetByFile(const std::string& directory, const Party& party,
                                            const std::vector<std::string>& messages,
                                            Deadline deadline) {
  const std::filesystem::path run_directory = std::filesystem::path(directory) / party.run_id;
  std::error_code failed;
  std::filesystem::create_directories(run_directory, failed);
  if (failed) {
    return Fail(SystemError(failed.value(), "cannot create the rendezvous' directory",
                            run_directory.string()));
  }
  CAIRN_TRY(WriteNewFile(RankFile(run_directory, party.rank).string(),
                         EncodeRecord({.rank = static_cast<uint32_t>(party.rank),
                                       .world_size = static_cast<uint32_t>(party.world_size),
                                       .run_id = party.run_id,
                                       .messages = messages})));

  std::vector<std::string> found(static_cast<size_t>(party.world_size));
  std::vector<bool> present(found.size());
  // A file system does not report files of other hosts, so poll, at first frequently.
  std::chrono::milliseconds pause(1);
  while (true) {
    for (size_t peer = 0; peer < found.size(); ++peer) {
      if (present[peer]) continue;
      CAIRN_TRY_ASSIGN(auto message, ReadPiece(run_directory, party, static_cast<int>(peer)));
      if (!message) continue;
      found[peer] = *std::move(message);
      present[peer] = true;
    }
    if (std::ranges::find(present, false) == present.end()) return found;
    if (TimeLeft(deadline).count() == 0) {
      return Fail(Error{.code = ErrorCode::kUnavailable,
                        .message = fmt::format("ranks that did not arrive in time: "
                                               "{} of {}",
                                               MissingRanks(present), party.world_size)}
                      .WithFile(run_directory.string()));
    }
    std::this_thread::sleep_for(std::min(pause, TimeLeft(deadline)));
    pause = std::min(2 * pause, std::chrono::milliseconds(32));
  }
}

Result<void> ForgetFiles(const std::string& directory, const Party& party) {
  const std::filesystem::path run_directory = std::filesystem::path(directory) / party.run_id;
  // Only the files of the ranks: the run id may be the name of a directory with other files.
  for (int rank = 0; rank < party.world_size; ++rank) {
    const std::filesystem::path file = RankFile(run_directory, rank);
    if (::unlink(file.c_str()) != 0 && errno != ENOENT) {
      return Fail(SystemError(errno, "cannot remove a rendezvous file", file.string()));
    }
  }
  (void)::rmdir(run_directory.c_str());  // fails if there are other files
  return {};
}

}  // namespace cairn::core::internal
