#pragma once
/// Names and directories of the commit protocol.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kv/error.h"

namespace cairn::kv::internal {

/// The paths of one store.
struct StorePaths {
  std::string root;
  std::string identity() const { return root + "/CAIRN"; }
  std::string lock() const { return root + "/LOCK"; }
  std::string index() const { return root + "/index"; }
  std::string segments() const { return root + "/segments"; }
  std::string pending() const { return root + "/pending"; }
  std::string commits() const { return root + "/commits"; }
  std::string attempt(const std::string& name) const { return pending() + "/" + name; }
  std::string pending_manifest(const std::string& attempt_name, uint32_t rank) const;
  std::string manifest(uint64_t generation, uint32_t rank) const;
};

/// "<generation>-<rank>.manifest" or "<generation>-<rank>.deleting" in commits/.
struct CommitFile {
  uint64_t generation = 0;
  uint32_t rank = 0;
  bool deleting = false;
};
/// Returns nothing for any other name.
std::optional<CommitFile> ParseCommitFile(const std::string& name);

/// Lists commits/ without files that have other names.
Result<std::vector<CommitFile>> ListCommits(const StorePaths& paths);

/// Renames "<generation>-<rank>.manifest" to "<generation>-<rank>.deleting". Succeeds if there is
/// no such file, as after an earlier call.
Result<void> MarkDeleting(const StorePaths& paths, uint64_t generation, uint32_t rank);
/// Undoes MarkDeleting. Succeeds if there is nothing to undo.
Result<void> UnmarkDeleting(const StorePaths& paths, uint64_t generation, uint32_t rank);
std::string DeletingPath(const StorePaths& paths, uint64_t generation, uint32_t rank);

}  // namespace cairn::kv::internal
