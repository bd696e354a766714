#include "core/interop/dcp/internal/dcp_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <system_error>

namespace cairn::core::internal {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMetadata = ".metadata";

bool IsNumber(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
}

// True for names such as "__3_0.distcp", of any rank, and "__3.metadata", which a rank writes if it
// saves its own checkpoint.
bool IsDcpName(std::string_view name) {
  if (!name.starts_with("__")) return false;
  name.remove_prefix(2);
  if (name.ends_with(kMetadata)) return IsNumber(name.substr(0, name.size() - kMetadata.size()));
  constexpr std::string_view kSuffix = ".distcp";
  if (!name.ends_with(kSuffix)) return false;
  name.remove_suffix(kSuffix.size());
  const size_t bar = name.find('_');
  return bar != std::string_view::npos && IsNumber(name.substr(0, bar)) &&
         IsNumber(name.substr(bar + 1));
}

// If `name` is "NAME.NUMBER.tmp", the temporary file of a DurableFile in a process that was killed,
// reduces it to NAME and returns true.
bool CutTemporary(std::string_view& name) {
  constexpr std::string_view kSuffix = ".tmp";
  if (!name.ends_with(kSuffix)) return false;
  const std::string_view front = name.substr(0, name.size() - kSuffix.size());
  const size_t dot = front.rfind('.');
  if (dot == std::string_view::npos || !IsNumber(front.substr(dot + 1))) return false;
  name = front.substr(0, dot);
  return true;
}

bool IsReplaceable(std::string_view name) {
  const bool is_temporary = CutTemporary(name);
  return IsDcpName(name) || (is_temporary && name == kMetadata);
}

}  // namespace

Result<std::unique_ptr<DcpFolder>> DcpFolder::Open(const std::string& path) {
  std::unique_ptr<DcpFolder> folder(new DcpFolder());
  std::error_code error;
  folder->path_ = fs::absolute(path, error);
  if (error) return Fail(SystemError(error.value(), "cannot resolve the path", path));
  CAIRN_TRY(folder->CreateDirectories());
  return folder;
}

Result<void> DcpFolder::CreateDirectories() {
  std::vector<fs::path> missing;
  std::error_code error;
  for (fs::path at = path_; !at.empty() && !fs::exists(at, error); at = at.parent_path()) {
    missing.push_back(at);
  }
  for (; !missing.empty(); missing.pop_back()) {
    if (fs::create_directory(missing.back(), error)) created_.push_back(missing.back());
    if (error) {
      return Fail(
          SystemError(error.value(), "cannot create the directory", missing.back().string()));
    }
  }
  if (fs::is_directory(path_, error)) return {};
  return Fail(Error{.code = ErrorCode::kInvalidArgument,
                    .message = "a torch.distributed.checkpoint is a directory; this is a file",
                    .file = path_.string()});
}

DcpFolder::~DcpFolder() {
  if (is_committed_) return;
  file_.reset();            // with its temporary
  std::error_code ignored;  // files that cannot be removed are no checkpoint without metadata
  for (const std::string& name : names_) fs::remove(path_ / name, ignored);
  for (; !created_.empty(); created_.pop_back()) fs::remove(created_.back(), ignored);
}

Result<std::string> DcpFolder::BeginFile() {
  CAIRN_TRY(FinishFile());
  // Never use a name that exists: the old metadata needs its files until the new metadata replaces
  // it.
  std::string name;
  std::error_code error;
  do {
    name = fmt::format("__0_{}.distcp", next_number_++);
  } while (fs::exists(path_ / name, error));
  CAIRN_TRY_ASSIGN(file_, DurableFile::Create((path_ / name).string()));
  names_.push_back(name);
  return name;
}

Result<void> DcpFolder::FinishFile() {
  if (file_ == nullptr) return {};
  CAIRN_TRY(file_->Finish());
  file_.reset();
  return {};
}

Result<std::vector<std::string>> DcpFolder::Commit(std::string_view metadata) {
  CAIRN_TRY(FinishFile());
  for (const fs::path& folder : created_) {
    const fs::path parent = folder.parent_path();
    CAIRN_TRY(SyncDirectory(parent.empty() ? "." : parent.string()));
  }
  std::vector<std::string> paths;
  for (const std::string& name : names_) paths.push_back((path_ / name).string());
  paths.push_back((path_ / kMetadata).string());
  CAIRN_TRY_ASSIGN(const auto file, DurableFile::Create(paths.back()));
  CAIRN_TRY(file->Write(std::as_bytes(std::span(metadata))));
  const Result<void> finished = file->Finish();
  // Once the metadata has its name it needs its files, even if the directory could not be synced.
  is_committed_ = file->is_in_place();
  CAIRN_TRY(finished);
  RemoveReplaced();
  return paths;
}

void DcpFolder::RemoveReplaced() const {
  std::error_code ignored;  // a file that remains takes space, but the checkpoint is complete
  fs::directory_iterator entries(path_, ignored);
  std::vector<fs::path> replaced;
  for (; !ignored && entries != fs::directory_iterator(); entries.increment(ignored)) {
    const std::string name = entries->path().filename().string();
    if (IsReplaceable(name) && std::ranges::find(names_, name) == names_.end()) {
      replaced.push_back(*entries);
    }
  }
  for (const fs::path& path : replaced) fs::remove(path, ignored);
}

}  // namespace cairn::core::internal
