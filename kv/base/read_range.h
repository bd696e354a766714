#pragma once
// SPDX-License-Identifier: Apache-2.0
/// Ranges of segments to be read, and the callbacks that receive what was read.

#include <fcntl.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "kv/base/error.h"

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

/// Called with a key (without its column) and a record that is aligned to 8 bytes. Both are valid
/// only during the call. Returns false to stop the scan.
using ScanCallback = std::function<Result<bool>(std::string_view key, std::span<const std::byte>)>;

/// Called with the index of a range and its bytes. An error ends the read.
using RangeCallback = std::function<Result<void>(size_t, std::span<const std::byte>)>;

/// One range of a segment, to be read into `target`. If `target` is empty, `lent_bytes` are read
/// into memory of the reader, and the callback gets a view of them that is valid only during the
/// call.
struct ReadRange {
  /// Such a range, with the part of a page before it, fits into a block of 2 MiB, whose memory is
  /// one huge page. A disk reads into 512 small pages at half the rate.
  static constexpr uint64_t kMaxLentBytes = 1 << 20;

  uint64_t segment_id = 0;
  uint64_t offset_bytes = 0;
  std::span<std::byte> target;
  uint64_t lent_bytes = 0;  // at most kMaxLentBytes

  uint64_t length_bytes() const { return target.empty() ? lent_bytes : target.size(); }
};

}  // namespace cairn::kv
