// The CAIRN file: four lines of text.
//
//   cairn store
//   format 1
//   uuid <32 hex digits>
//   checksum <16 hex digits>      XXH3-64 of the lines before

#include "kv/internal/commit/store_identity.h"

#include <fmt/format.h>
#include <sys/random.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>

#include "kv/digest.h"
#include "kv/internal/index/index.h"
#include "kv/internal/io/file.h"

namespace cairn::kv::internal {
namespace {

constexpr std::string_view kFirstLine = "cairn store\n";

/// The files and directories that CreateStore creates before CAIRN.
constexpr std::string_view kOwnNames[] = {"LOCK",    "index",   "segments",
                                          "pending", "commits", "CAIRN.new"};

Error Damaged(const StorePaths& paths, std::string what) {
  return Error{.code = ErrorCode::kDataLoss, .message = std::move(what), .file = paths.identity()};
}

Error IsAFile(const StorePaths& paths) {
  return Error{.code = ErrorCode::kInvalidArgument,
               .message = "this is a file and not a Cairn store; a store is a directory",
               .file = paths.root};
}

std::string EncodeIdentity(const Uuid& uuid) {
  std::string text = fmt::format("{}format {}\nuuid ", kFirstLine, kStoreFormat);
  for (const std::byte byte : uuid) text += fmt::format("{:02x}", std::to_integer<int>(byte));
  text += "\n";
  return text + fmt::format("checksum {:016x}\n", Checksum64(AsBytes(text)));
}

/// Removes "<name> <value>\n" from the front and returns the value.
std::optional<std::string_view> TakeLine(std::string_view& text, std::string_view name) {
  const size_t end = text.find('\n');
  if (end == std::string_view::npos || !text.starts_with(name) || end <= name.size() ||
      text[name.size()] != ' ') {
    return std::nullopt;
  }
  const std::string_view value = text.substr(name.size() + 1, end - name.size() - 1);
  text.remove_prefix(end + 1);
  return value;
}

template <typename T>
bool ParseWhole(std::string_view text, T& value, int base) {
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  return failed == std::errc() && end == text.data() + text.size();
}

Result<Uuid> DecodeIdentity(const StorePaths& paths, std::string_view text) {
  const std::string_view whole = text;
  if (!text.starts_with(kFirstLine))
    return Fail(Damaged(paths, "CAIRN does not begin with its first line"));
  text.remove_prefix(kFirstLine.size());
  const auto format = TakeLine(text, "format");
  const auto uuid_text = TakeLine(text, "uuid");
  const size_t covered = whole.size() - text.size();
  const auto checksum_text = TakeLine(text, "checksum");
  uint64_t checksum = 0;
  // Check the checksum first: a flipped bit in the format must not appear to be a newer version.
  if (!format || !uuid_text || !checksum_text || !text.empty() || checksum_text->size() != 16 ||
      !ParseWhole(*checksum_text, checksum, 16) ||
      fmt::format("{:016x}", checksum) != *checksum_text ||
      checksum != Checksum64(AsBytes(whole.substr(0, covered)))) {
    return Fail(Damaged(paths, "CAIRN does not match its checksum"));
  }
  int version = 0;
  if (!ParseWhole(*format, version, 10) || version != kStoreFormat) {
    return Fail(Error{.code = ErrorCode::kUnimplemented,
                      .message = fmt::format("the store has format {}, this build reads {}; use a "
                                             "newer Cairn",
                                             *format, kStoreFormat),
                      .file = paths.identity()});
  }
  Uuid uuid;
  if (uuid_text->size() != 2 * uuid.size()) return Fail(Damaged(paths, "CAIRN contains no uuid"));
  for (size_t i = 0; i < uuid.size(); ++i) {
    unsigned byte = 0;
    if (!ParseWhole(uuid_text->substr(2 * i, 2), byte, 16)) {
      return Fail(Damaged(paths, "CAIRN contains no uuid"));
    }
    uuid[i] = static_cast<std::byte>(byte);
  }
  return uuid;
}

/// Returns whether a directory without CAIRN nevertheless contains committed data.
bool LooksLikeStore(const StorePaths& paths) {
  const auto commits = ListDirectory(paths.commits());
  const auto segments = ListDirectory(paths.segments());
  return (commits && !commits->empty()) || (segments && !segments->empty());
}

}  // namespace

Result<Uuid> ReadIdentity(const StorePaths& paths) {
  struct stat status;
  if (::stat(paths.root.c_str(), &status) != 0) {
    Error error = SystemError(errno, "cannot open the store", paths.root);
    if (errno == ENOENT)
      error.message =
          "there is no store here; check the path, or open it for writing to create one";
    return Fail(std::move(error));
  }
  if (!S_ISDIR(status.st_mode)) {
    return Fail(IsAFile(paths));
  }
  auto bytes = ReadWholeFile(paths.identity(), 4096);
  if (!bytes) {
    if (bytes.error().code != ErrorCode::kNotFound)
      return std::unexpected(std::move(bytes).error());
    if (LooksLikeStore(paths)) return Fail(Damaged(paths, "CAIRN is missing from this store"));
    return Fail(Error{.code = ErrorCode::kInvalidArgument,
                      .message = "this directory is not a Cairn store: it contains no file CAIRN",
                      .file = paths.root});
  }
  return DecodeIdentity(
      paths, std::string_view(reinterpret_cast<const char*>(bytes->data()), bytes->size()));
}

Result<void> PrepareDirectory(const StorePaths& paths) {
  if (!Exists(paths.root)) {
    std::error_code failed;
    std::filesystem::create_directories(paths.root, failed);
    if (failed)
      return Fail(SystemError(failed.value(), "cannot create the store's directory", paths.root));
    const auto parent = std::filesystem::absolute(paths.root).lexically_normal().parent_path();
    return SyncDirectory(parent.string(), "store.directory_sync");
  }
  struct stat status;
  if (::stat(paths.root.c_str(), &status) == 0 && !S_ISDIR(status.st_mode)) {
    return Fail(IsAFile(paths));
  }
  if (Exists(paths.identity())) return {};
  if (LooksLikeStore(paths)) return Fail(Damaged(paths, "CAIRN is missing from this store"));
  CAIRN_TRY_ASSIGN(const std::vector<std::string> names, ListDirectory(paths.root));
  for (const std::string& name : names) {
    if (std::ranges::find(kOwnNames, name) != std::end(kOwnNames)) continue;
    return Fail(
        Error{.code = ErrorCode::kInvalidArgument,
              .message = fmt::format("this directory is not a Cairn store and not empty (it "
                                     "contains {}); choose an empty or a new one",
                                     name),
              .file = paths.root});
  }
  return {};
}

Result<void> CreateIndex(const StorePaths& paths, std::chrono::milliseconds deadline) {
  CAIRN_TRY(MakeDirectory(paths.index()));
  CAIRN_TRY_ASSIGN(const std::shared_ptr<Index> index,
                   Index::Open(paths.root, /*writable=*/true, /*create=*/true, deadline));
  CAIRN_TRY(index->Close());
  CAIRN_TRY(SyncDirectory(paths.index(), "store.directory_sync"));
  return SyncDirectory(paths.root, "store.directory_sync");
}

Result<void> CreateStore(const StorePaths& paths, std::chrono::milliseconds deadline) {
  CAIRN_TRY(RemoveTree(paths.index()));
  for (const std::string& directory : {paths.segments(), paths.pending(), paths.commits()}) {
    CAIRN_TRY(MakeDirectory(directory));
  }
  CAIRN_TRY(CreateIndex(paths, deadline));
  Uuid uuid;
  if (::getrandom(uuid.data(), uuid.size(), 0) != static_cast<ssize_t>(uuid.size())) {
    return Fail(SystemError(errno, "cannot generate a uuid"));
  }
  const std::string text = EncodeIdentity(uuid);
  CAIRN_CHECK(DecodeIdentity(paths, text).has_value());
  return ReplaceFile(paths.root, "CAIRN", AsBytes(text));
}

}  // namespace cairn::kv::internal
