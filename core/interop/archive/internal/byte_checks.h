#pragma once
/// Checksums of foreign files, checked on all cores before anything of them is kept.

#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "core/base/progress.h"
#include "core/interop/archive/internal/zip_reader.h"
#include "kv/mapping.h"

namespace cairn::core::internal {

/// Gathers what is to be checked, and checks it.
///
/// Ownership: shares the mappings. Threads: one, which takes others to help.
class ByteChecks {
 public:
  /// All members of `zip`, which lies in `mapping`, a file called `path`. Without checksums of its
  /// own it is only noted.
  void Add(const ZipReader& zip, std::shared_ptr<const kv::Mapping> mapping,
           const std::string& path);

  /// A file whose format has no checksums.
  void AddUnchecked(const std::string& path) { unchecked_.insert(path); }

  /// Reads every byte once; the process keeps none of them in its memory. kDataLoss: a checksum
  /// disagrees, or bytes cannot be read; names file and member. kCancelled: as `progress` says.
  Result<void> Run(const Progress& progress) const;

  /// Files of which nothing can be checked, each once.
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
    std::shared_ptr<const kv::Mapping> mapping;  // shared with whoever reads it
    std::string path;
  };
  Result<void> Check(const Item& item) const;

  std::vector<File> files_;
  std::vector<Item> items_;
  std::set<std::string> unchecked_;
};

}  // namespace cairn::core::internal
