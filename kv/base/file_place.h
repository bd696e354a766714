#pragma once
// SPDX-License-Identifier: Apache-2.0
/// Where a file is: a path, or a name in a directory that is held open.

#include <fcntl.h>

#include <string>
#include <utility>

namespace cairn::kv {

/// Arguments of openat(2), unlinkat(2) and the like. A name in a directory that is held open means
/// the same file when the directory was renamed, or the link to it replaced. Ownership: borrows the
/// descriptor, which outlives it.
struct FilePlace {
  FilePlace(std::string path_in)  // NOLINT(google-explicit-constructor): a path is a place
      : name(path_in), path(std::move(path_in)) {}
  FilePlace(int directory_in, std::string name_in, std::string path_in)
      : directory(directory_in), name(std::move(name_in)), path(std::move(path_in)) {}

  int directory = AT_FDCWD;
  std::string name;  // "." is the directory itself
  std::string path;  // for error messages
};

}  // namespace cairn::kv
