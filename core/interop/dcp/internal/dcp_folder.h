#pragma once
/// The files of a torch.distributed.checkpoint directory while they are written.

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/interop/archive/internal/durable_file.h"

namespace cairn::core::internal {

/// Data files appear one by one, whole, synced, under names that no file has yet; `.metadata`,
/// which makes them a checkpoint, comes last. So a crash at any time leaves the old checkpoint of
/// the directory, if it had one, or the new one; only files that nothing names can be left over,
/// until the next Commit. Without Commit the destructor removes all that was made, new directories
/// included. Threads: one; one writer a directory.
class DcpFolder {
 public:
  /// Makes the directory, and those above it, if they are missing.
  static Result<std::unique_ptr<DcpFolder>> Open(const std::string& path);
  ~DcpFolder();
  DcpFolder(const DcpFolder&) = delete;
  DcpFolder& operator=(const DcpFolder&) = delete;

  /// Finishes the file before, and returns the name of the next, from "__0_0.distcp" on.
  Result<std::string> BeginFile();
  /// Requires BeginFile.
  DurableFile& file() { return *file_; }

  /// Finishes the last file, writes `.metadata`, and removes the data files of other checkpoints in
  /// the directory, which it has replaced. Returns the paths of all files written.
  Result<std::vector<std::string>> Commit(std::string_view metadata);

 private:
  DcpFolder() = default;
  Result<void> MakeFolders();
  Result<void> FinishFile();
  void RemoveReplaced() const;

  std::filesystem::path path_;
  std::vector<std::filesystem::path> made_;  // directories, the outermost first
  std::vector<std::string> names_;           // of data files, the one being written included
  std::unique_ptr<DurableFile> file_;
  uint64_t next_number_ = 0;
  bool is_committed_ = false;
};

}  // namespace cairn::core::internal
