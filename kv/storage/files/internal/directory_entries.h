#pragma once
/// The entries of directories, and waiting for new ones.

#include <chrono>
#include <string>
#include <vector>

#include "kv/base/error.h"
#include "kv/base/read_range.h"

namespace cairn::kv::internal {

/// Names, in no particular order.
struct DirectoryEntries {
  std::vector<std::string> files;
  std::vector<std::string> directories;
};

/// The symbolic links to directories that count as directories. Others are left out.
enum class DirectoryLinks : uint8_t {
  kFollow,        // the directory itself, and links in it
  kFollowItself,  // the directory itself
  kIgnore,        // none
};

/// Returns the entries of the directory at `place`, except "." and ".."; none if there is none.
/// A link to a file is a file. Cost: no stat per entry, where the file system returns the types of
/// entries.
Result<DirectoryEntries> ReadEntries(const FilePlace& place, DirectoryLinks links);

/// Waits until a name that does not begin with '.' appears in the directory at `path`, or a file
/// with such a name is closed after writing, at most until `deadline`. Returns false at once if the
/// directory cannot be watched, for example because it does not exist. Does not notice changes that
/// other machines make.
bool AwaitName(const std::string& path, std::chrono::steady_clock::time_point deadline);

}  // namespace cairn::kv::internal
