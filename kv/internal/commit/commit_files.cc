// Names in commits/ and pending/.

#include "kv/internal/commit/commit_files.h"

#include <fmt/format.h>

#include <charconv>

#include "kv/internal/io/file.h"

namespace cairn::kv::internal {

std::string StorePaths::pending_manifest(const std::string& attempt_name, uint32_t rank) const {
  return fmt::format("{}/{}/{}.manifest", pending(), attempt_name, rank);
}

std::string StorePaths::manifest(uint64_t generation, uint32_t rank) const {
  return fmt::format("{}/{}-{}.manifest", commits(), generation, rank);
}

std::string DeletingPath(const StorePaths& paths, uint64_t generation, uint32_t rank) {
  return fmt::format("{}/{}-{}.deleting", paths.commits(), generation, rank);
}

std::optional<CommitFile> ParseCommitFile(const std::string& name) {
  CommitFile file;
  const char* const end = name.data() + name.size();
  const auto generation = std::from_chars(name.data(), end, file.generation);
  if (generation.ec != std::errc() || generation.ptr == end || *generation.ptr != '-') {
    return std::nullopt;
  }
  const auto rank = std::from_chars(generation.ptr + 1, end, file.rank);
  if (rank.ec != std::errc()) return std::nullopt;
  const std::string_view suffix(rank.ptr, static_cast<size_t>(end - rank.ptr));
  if (suffix != ".manifest" && suffix != ".deleting") return std::nullopt;
  file.deleting = suffix == ".deleting";
  return file;
}

Result<std::vector<CommitFile>> ListCommits(const StorePaths& paths) {
  CAIRN_TRY_ASSIGN(const std::vector<std::string> names, ListDirectory(paths.commits()));
  std::vector<CommitFile> files;
  for (const std::string& name : names) {
    if (const auto file = ParseCommitFile(name)) files.push_back(*file);
  }
  return files;
}

Result<void> MarkDeleting(const StorePaths& paths, uint64_t generation, uint32_t rank) {
  const std::string from = paths.manifest(generation, rank);
  if (!Exists(from)) return {};
  return Rename(from, DeletingPath(paths, generation, rank), "delete.rename");
}

Result<void> UnmarkDeleting(const StorePaths& paths, uint64_t generation, uint32_t rank) {
  const std::string from = DeletingPath(paths, generation, rank);
  if (!Exists(from)) return {};
  return Rename(from, paths.manifest(generation, rank), "delete.restore");
}

}  // namespace cairn::kv::internal
