#pragma once
/// Names and directories of the commit protocol, and what they say after a crash.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kv/error.h"

namespace cairn::kv::internal {

/// Paths of one store.
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

/// "<generation>-<rank>.manifest" or "....deleting" in commits/.
struct CommitFile {
  uint64_t generation = 0;
  uint32_t rank = 0;
  bool deleting = false;
};
std::optional<CommitFile> ParseCommitFile(const std::string& name);

/// What commits/ lists; other names are left out.
Result<std::vector<CommitFile>> ListCommits(const StorePaths& paths);

/// "<generation>-<rank>.manifest" to "....deleting", or back; fine if already so.
Result<void> MarkDeleting(const StorePaths& paths, uint64_t generation, uint32_t rank);
Result<void> UnmarkDeleting(const StorePaths& paths, uint64_t generation, uint32_t rank);
std::string DeletingPath(const StorePaths& paths, uint64_t generation, uint32_t rank);

}  // namespace cairn::kv::internal
