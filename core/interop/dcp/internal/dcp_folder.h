#pragma once
/// Writes the files of a torch.distributed.checkpoint directory.

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/interop/archive/internal/durable_file.h"

namespace cairn::core::internal {

/// 1. Data files are written, synced and renamed one after another, to names that no file has.
/// 2. `.metadata`, which makes them a checkpoint, is replaced last.
/// 3. The data files of the replaced checkpoint are removed.
///
/// A crash at any time therefore leaves the old checkpoint of the directory, if it had one, or the
/// new one. Files that no metadata names may remain until the next Commit. Without Commit the
/// destructor removes everything that was created, including directories.
///
/// Threads: one. Requires that nobody else writes to the directory.
class DcpFolder {
 public:
  /// Creates the directory and its parents if they do not exist. kInvalidArgument: `path` is a
  /// file. kNotFound, kUnavailable, kResourceExhausted: a directory cannot be created.
  static Result<std::unique_ptr<DcpFolder>> Open(const std::string& path);
  ~DcpFolder();
  DcpFolder(const DcpFolder&) = delete;
  DcpFolder& operator=(const DcpFolder&) = delete;

  /// Finishes the current file, if there is one, and begins the next. Returns the name of the new
  /// file; the first is "__0_0.distcp" unless that exists.
  Result<std::string> BeginFile();
  /// The current file. Requires BeginFile, and that Commit was not called.
  DurableFile& file() {
    CAIRN_CHECK(file_ != nullptr);
    return *file_;
  }

  /// Finishes the current file, writes `.metadata`, and removes the data files of the checkpoint
  /// that it replaced. Returns the paths of all files that were written.
  Result<std::vector<std::string>> Commit(std::string_view metadata);

 private:
  DcpFolder() = default;
  Result<void> CreateDirectories();
  Result<void> FinishFile();
  void RemoveReplaced() const;

  std::filesystem::path path_;
  std::vector<std::filesystem::path> created_;  // directories, the outermost first
  std::vector<std::string> names_;              // of data files, including the current one
  std::unique_ptr<DurableFile> file_;
  uint64_t next_number_ = 0;
  bool is_committed_ = false;
};

}  // namespace cairn::core::internal
