#pragma once
/// Verifies the checksums of imported files on all cores, before any of their bytes are saved.

#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "core/base/progress.h"
#include "core/interop/archive/internal/zip_reader.h"
#include "kv/error.h"
#include "kv/mapping.h"

namespace cairn::core::internal {

/// Collects archives, then verifies all of them.
///
/// Ownership: shares the mappings with the readers of the files. Threads: one; `Run` starts more.
class ChecksumVerifier {
 public:
  /// Adds all members of `zip`. Requires that its bytes are in `mapping`, which maps the file
  /// `path`. An archive without checksums is listed in unchecked() instead.
  void Add(const ZipReader& zip, std::shared_ptr<const kv::Mapping> mapping,
           const std::string& path);

  /// Adds a file whose format has no checksums.
  void AddUnchecked(const std::string& path) { unchecked_.insert(path); }

  /// Reads every byte once, and keeps none of them in the memory of the process. kDataLoss: a
  /// checksum does not match, or bytes cannot be read; the error names file and member. kCancelled:
  /// `progress` asked to stop.
  Result<void> Run(const Progress& progress) const;

  /// Paths of the files that could not be checked.
  const std::set<std::string>& unchecked() const { return unchecked_; }

 private:
  struct Item {
    std::string member;
    size_t file = 0;
    uint64_t offset_bytes = 0;  // in the file
    uint64_t length_bytes = 0;
    uint32_t crc32 = 0;
  };
  struct File {
    std::shared_ptr<const kv::Mapping> mapping;
    std::string path;
  };
  Result<void> Verify(const Item& item) const;

  std::vector<File> files_;
  std::vector<Item> items_;
  std::set<std::string> unchecked_;
};

}  // namespace cairn::core::internal
