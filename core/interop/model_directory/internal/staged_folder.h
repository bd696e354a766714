#pragma once
/// A directory that appears complete or not at all.

#include <filesystem>
#include <memory>
#include <string>

#include "kv/base/error.h"

namespace cairn::core::internal {

/// 1. The caller writes all files into a temporary folder "PATH.PID.tmp" next to the directory.
/// 2. Commit syncs the folders and renames the temporary folder to PATH. If PATH is a directory
///    that is to be replaced, the two exchange their names, and the old one is removed.
///
/// A crash at any time therefore leaves the old directory or the new one under PATH. On a file
/// system that cannot exchange names, it may leave none; both then have temporary names. Without
/// Commit the destructor removes the temporary folder.
///
/// Threads: one. Requires that nobody else writes to the directory.
class StagedFolder {
 public:
  /// Creates the temporary folder and the parents of `path`. kInvalidArgument: `path` is a file.
  /// kConflict: it is a directory that is not empty, and `overwrite` is false, or IsReplaceable
  /// does not accept it.
  static Result<std::unique_ptr<StagedFolder>> Open(const std::string& path, bool overwrite);
  ~StagedFolder();
  StagedFolder(const StagedFolder&) = delete;
  StagedFolder& operator=(const StagedFolder&) = delete;

  /// Where to write the files.
  const std::filesystem::path& temporary() const { return temporary_; }
  /// The final path of the directory.
  const std::filesystem::path& path() const { return path_; }

  /// Makes the files, which have been synced, durable under their final names.
  Result<void> Commit();

 private:
  StagedFolder() = default;
  Result<void> CheckTarget(bool overwrite);
  Result<void> Replace();

  std::filesystem::path path_;
  std::filesystem::path temporary_;
  bool replaces_ = false;
};

}  // namespace cairn::core::internal
