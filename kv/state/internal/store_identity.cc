// CAIRN: lines of text. Between the format and the checksum they are in any order, and a reader
// ignores those that it does not know.
//
//   cairn store
//   format 3
//   uuid <32 hex digits>
//   read-features <names>         absent if there are none
//   write-features <names>
//   checksum <16 hex digits>      XXH3-64 of the lines before

#include "kv/state/internal/store_identity.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <iterator>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kv/base/digest.h"
#include "kv/io/internal/file.h"
#include "kv/storage/files/internal/directory_entries.h"
#include "kv/storage/files/internal/directory_storage.h"
#include "kv/storage/internal/object_names.h"

namespace cairn::kv::internal {
namespace {

constexpr std::string_view kFirstLine = "cairn store\n";

constexpr uint64_t kMaxBytes = 4096;

Error Damaged(const Storage& storage, std::string what) {
  return Error{.code = ErrorCode::kDataLoss,
               .hint = Hint::kRestoreStore,
               .message = std::move(what),
               .file = ObjectPath(storage.address(), kIdentityName)};
}

Error NotAStore(const Storage& storage, std::string why) {
  return Error{.code = ErrorCode::kInvalidArgument,
               .hint = Hint::kFindStore,
               .message = std::move(why),
               .file = storage.address()};
}

std::string EncodeIdentity(const Uuid& uuid) {
  const std::string text =
      fmt::format("{}format {}\nuuid {}\n", kFirstLine, kStoreFormat, UuidText(uuid));
  return text + fmt::format("checksum {:016x}\n", Checksum64(AsBytes(text)));
}

/// Removes the first line, "<name> <value>\n", from the text. Returns nothing if it is not one.
std::optional<std::pair<std::string_view, std::string_view>> TakeLine(std::string_view& text) {
  const std::string_view line = text.substr(0, text.find('\n'));
  const size_t space = line.find(' ');
  if (line.size() == text.size() || space == 0 || space == std::string_view::npos) {
    return std::nullopt;
  }
  text.remove_prefix(line.size() + 1);
  return std::pair(line.substr(0, space), line.substr(space + 1));
}

template <typename T>
bool ParseWhole(std::string_view text, T& value, int base) {
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  return failed == std::errc() && end == text.data() + text.size();
}

/// Returns the names, which a space separates; nothing if they are not names of features.
std::optional<std::vector<std::string>> ParseFeatures(std::string_view text) {
  std::vector<std::string> names;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(' ', at), text.size());
    names.emplace_back(text.substr(at, end - at));
    at = end + 1;
  }
  if (!AreFeatures(names)) return std::nullopt;
  return names;
}

std::optional<Uuid> ParseUuid(std::string_view text) {
  Uuid uuid;
  if (text.size() != 2 * uuid.size()) return std::nullopt;
  for (size_t i = 0; i < uuid.size(); ++i) {
    unsigned byte = 0;
    if (!ParseWhole(text.substr(2 * i, 2), byte, 16)) return std::nullopt;
    uuid[i] = static_cast<std::byte>(byte);
  }
  return uuid;
}

Result<void> CheckFormat(const Storage& storage, std::string_view format) {
  int version = 0;
  if (ParseWhole(format, version, 10) && version == kStoreFormat) return {};
  const char* const advice =
      version < kStoreFormat ? "save the state again with this Cairn" : "use a newer Cairn";
  return Fail(Error{.code = ErrorCode::kUnimplemented,
                    .message = fmt::format("the store has format {}, this build reads {}; {}",
                                           format, kStoreFormat, advice),
                    .file = ObjectPath(storage.address(), kIdentityName)});
}

/// Returns the lines between the first and the last one, whose checksum is right; the format is the
/// first of them.
Result<std::vector<std::pair<std::string_view, std::string_view>>> ReadLines(
    const Storage& storage, std::string_view text) {
  if (!text.starts_with(kFirstLine))
    return Fail(Damaged(storage, "CAIRN does not begin with its first line"));
  const std::string_view whole = text;
  text.remove_prefix(kFirstLine.size());
  std::vector<std::pair<std::string_view, std::string_view>> lines;
  while (!text.empty()) {
    const size_t covered = whole.size() - text.size();
    const auto line = TakeLine(text);
    if (!line) break;
    if (text.empty() && line->first == "checksum" && !lines.empty() &&
        lines.front().first == "format" &&
        line->second == fmt::format("{:016x}", Checksum64(AsBytes(whole.substr(0, covered))))) {
      return lines;
    }
    lines.push_back(*line);
  }
  return Fail(Damaged(storage, "CAIRN does not match its checksum"));
}

/// Checks the checksum first: a flipped bit in the format must not appear to be a newer version.
Result<Uuid> DecodeIdentity(const Storage& storage, std::string_view text, Features* features) {
  CAIRN_TRY_ASSIGN(const auto lines, ReadLines(storage, text));
  CAIRN_TRY(CheckFormat(storage, lines.front().second));
  std::map<std::string_view, std::string_view> values;
  for (const auto& [name, value] : lines) {
    if (!values.emplace(name, value).second) {
      return Fail(Damaged(storage, fmt::format("CAIRN contains two lines {}", name)));
    }
  }
  Features listed;
  for (auto [name, names] :
       {std::pair("read-features", &listed.read), std::pair("write-features", &listed.write)}) {
    if (!values.contains(name)) continue;
    auto parsed = ParseFeatures(values.at(name));
    if (!parsed) return Fail(Damaged(storage, "CAIRN contains an impossible name of a feature"));
    *names = *std::move(parsed);
  }
  if (auto can_read = CheckCanRead(listed); !can_read) {
    return Fail(std::move(can_read).error().WithFile(ObjectPath(storage.address(), kIdentityName)));
  }
  const auto uuid = values.contains("uuid") ? ParseUuid(values.at("uuid")) : std::nullopt;
  if (!uuid) return Fail(Damaged(storage, "CAIRN contains no uuid"));
  if (features != nullptr) *features = std::move(listed);
  return *uuid;
}

Error NoStore(const Storage& storage) {
  return Error{.code = ErrorCode::kNotFound,
               .hint = Hint::kCreateStore,
               .message = "there is no store here",
               .file = storage.address()};
}

/// Returns kInvalidArgument if the path exists and is not a directory, kNotFound if it does not
/// exist.
Result<void> CheckDirectory(Storage& storage) {
  if (storage.local_files() == nullptr) return {};
  struct stat status;
  if (::stat(storage.address().c_str(), &status) != 0) {
    if (errno == ENOENT) return Fail(NoStore(storage));
    return Fail(SystemError(errno, "cannot open the store", storage.address()));
  }
  if (S_ISDIR(status.st_mode)) return {};
  return Fail(NotAStore(storage, "this is a file and not a Cairn store; a store is a directory"));
}

/// Creates the directory and the directories above it, and makes their names durable.
Result<void> CreateDirectories(const std::string& path) {
  if (Exists(path)) return {};
  const std::string parent = ParentOfPath(path);
  CAIRN_TRY(CreateDirectories(parent));
  CAIRN_TRY(MakeDirectory(path));
  return SyncDirectory(parent, "CAIRN.directory_sync");
}

/// Returns the names of all entries of the directory.
Result<std::vector<std::string>> ListDirectory(const Storage& storage) {
  CAIRN_TRY_ASSIGN(DirectoryEntries entries,
                   ReadEntries(storage.address(), DirectoryLinks::kFollow));
  std::ranges::move(entries.directories, std::back_inserter(entries.files));
  std::ranges::sort(entries.files);
  return std::move(entries.files);
}

/// Returns whether a directory contains nothing, or only CAIRN and what precedes it while a store
/// is created.
Result<bool> IsNew(Storage& storage) {
  CAIRN_TRY_ASSIGN(const auto names, ListDirectory(storage));
  return std::ranges::all_of(names, [](const std::string& name) {
    return name == kIdentityName || IsTemporaryName(name);
  });
}

bool IsOneOf(std::string_view name, std::span<const std::string_view> names) {
  return std::ranges::find(names, name) != names.end();
}

/// Returns true for the files by which checkpoints of other formats are recognized.
bool IsOtherCheckpoint(std::string_view name) {
  constexpr std::string_view kNames[] = {
      ".metadata",  // torch.distributed.checkpoint
      "_CHECKPOINT_METADATA",
      "_METADATA",  // Orbax
      "manifest.ocdbt",
      ".zarray",
      ".zgroup",
      "zarr.json",  // TensorStore, Zarr
      "CURRENT",    // RocksDB
  };
  constexpr std::string_view kEnds[] = {".distcp", "_model_states.pt", "_optim_states.pt"};
  return IsOneOf(name, kNames) ||
         std::ranges::any_of(kEnds, [&](std::string_view end) { return name.ends_with(end); });
}

/// Returns whether this is the `.metadata` of a store (docs/format/store.md), which remains when
/// the files of the store are removed with a pattern that does not match it.
bool IsMarker(Storage& storage, std::string_view name) {
  constexpr std::string_view kBegin = "cbuiltins\nThis is a Cairn store";
  std::string begin(kBegin.size(), '\0');
  return name == ".metadata" &&
         storage.ReadRange(name, 0, std::as_writable_bytes(std::span(begin))) && begin == kBegin;
}

/// Returns why a store cannot be created in this directory, which has no CAIRN; nothing if it can
/// be. Entries that a store does not use may be there.
std::optional<std::string> Obstacle(Storage& storage) {
  if (storage.local_files() == nullptr) return std::nullopt;
  constexpr std::string_view kFolders[] = {"roots", "tables",  "segments",
                                           "pages", "pending", "leases"};
  const auto names = ListDirectory(storage);
  if (!names) return std::nullopt;
  for (const std::string& name : *names) {
    if (IsOtherCheckpoint(name) && !IsMarker(storage, name)) {
      return fmt::format("contains a checkpoint of another format ({})", name);
    }
    const bool is_used = name == "hint" || IsOneOf(name, kFolders);
    std::error_code ignored;
    const auto path = std::filesystem::path(storage.address()) / name;
    const bool is_empty_folder = name != "hint" && std::filesystem::is_directory(path, ignored) &&
                                 std::filesystem::is_empty(path, ignored);
    if (is_used && !is_empty_folder) {
      return fmt::format("contains {}, a name that a store uses", name);
    }
  }
  return std::nullopt;
}

Result<Uuid> ReadCairn(Storage& storage, Features* features) {
  CAIRN_TRY_ASSIGN(const auto bytes, storage.Read(kIdentityName, kMaxBytes));
  return DecodeIdentity(storage,
                        std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()),
                        features);
}

/// Reads CAIRN. Returns nothing if there is none, and there are no other objects of a store.
Result<std::optional<Uuid>> FindIdentity(Storage& storage, Features* features) {
  auto uuid = ReadCairn(storage, features);
  if (uuid || uuid.error().code != ErrorCode::kNotFound) return uuid;
  CAIRN_TRY_ASSIGN(const bool is_store, HasObjects(storage, {"roots/", "tables/", "segments/"}));
  if (!is_store) return std::nullopt;
  uuid = ReadCairn(storage, features);  // it may have been created in the meantime
  if (uuid || uuid.error().code != ErrorCode::kNotFound) return uuid;
  return Fail(Damaged(storage, "CAIRN is missing from this store"));
}

}  // namespace

Result<bool> HasObjects(Storage& storage, std::initializer_list<std::string_view> folders) {
  for (const std::string_view folder : folders) {
    std::error_code ignored;
    const bool is_local = storage.local_files() != nullptr;
    // A file with this name is not part of a store.
    if (is_local &&
        !std::filesystem::is_directory(ObjectPath(storage.address(), folder), ignored)) {
      continue;
    }
    CAIRN_TRY_ASSIGN(const auto names, storage.List(folder));
    if (!names.empty()) return true;
  }
  return false;
}

Result<Uuid> ReadIdentity(Storage& storage, Features* features) {
  CAIRN_TRY(CheckDirectory(storage));
  CAIRN_TRY_ASSIGN(const auto uuid, FindIdentity(storage, features));
  if (uuid) return *uuid;
  if (storage.local_files() != nullptr) {
    CAIRN_TRY_ASSIGN(const bool is_new, IsNew(storage));
    if (!is_new) {
      return Fail(
          NotAStore(storage, "this directory is not a Cairn store: it contains no file CAIRN"));
    }
  }
  return Fail(NoStore(storage));
}

Result<Uuid> CreateIdentity(Storage& storage, Features* features) {
  if (storage.local_files() != nullptr) {
    const Result<void> created = CreateDirectories(storage.address());
    if (auto checked = CheckDirectory(storage); !checked) {
      const bool is_other = checked.error().code == ErrorCode::kInvalidArgument;
      return std::unexpected(created || is_other ? checked.error() : created.error());
    }
    CAIRN_TRY(created);
  }
  CAIRN_TRY_ASSIGN(const auto uuid, FindIdentity(storage, features));
  if (uuid) return *uuid;
  if (const auto obstacle = Obstacle(storage)) {
    // Another process may have created the store since CAIRN was not found.
    auto created = ReadCairn(storage, features);
    if (created || created.error().code != ErrorCode::kNotFound) return created;
    return Fail(NotAStore(storage, fmt::format("this directory is not a Cairn store and {}; "
                                               "choose an empty or a new one",
                                               *obstacle)));
  }
  if (storage.local_files() != nullptr) {
    // A process that created the directory may have ended before it synced the name. Best effort:
    // the directory that contains it may not be readable.
    (void)SyncDirectory(ParentOfPath(storage.address()), "CAIRN.directory_sync");
  }
  const std::string text = EncodeIdentity(NewUuid());
  CAIRN_CHECK(DecodeIdentity(storage, text, nullptr).has_value());
  const Result<void> put = storage.PutIfAbsent(kIdentityName, AsBytes(text));
  if (!put && put.error().code != ErrorCode::kConflict) return std::unexpected(put.error());
  return ReadCairn(storage, features);
}

}  // namespace cairn::kv::internal
