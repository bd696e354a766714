#pragma once
/// A storage in memory that counts its requests, and a reader cache before it.

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kv/storage/cache/internal/cached_storage.h"
#include "kv/storage/files/internal/memory_storage.h"
#include "kv/storage/internal/object_names.h"
#include "tests/kv/sample_step.h"
#include "tests/kv/storage/round_trip_storage.h"
#include "tests/support/result_matchers.h"
#include "tests/support/scoped_temp_dir.h"

namespace cairn::kv::internal {

using Bytes = std::vector<std::byte>;

inline std::string SegmentName(uint64_t id) { return ObjectName(ObjectKind::kSegment, {1, id}); }

/// Returns whether a segment, read in pieces, has these bytes. Usable in a child process.
inline bool ReadsAll(Storage& storage, uint64_t id, const Bytes& expected, uint64_t piece_bytes) {
  for (uint64_t at = 0; at < expected.size(); at += piece_bytes) {
    Bytes target(std::min<uint64_t>(piece_bytes, expected.size() - at));
    if (!storage.ReadRange(SegmentName(id), at, target)) return false;
    if (!std::equal(target.begin(), target.end(), expected.begin() + static_cast<ptrdiff_t>(at))) {
      return false;
    }
  }
  return true;
}

class CachedStorageTest : public ::testing::Test {
 protected:
  /// A new access to the same storage and cache, as another process would have.
  std::shared_ptr<CachedStorage> Open(uint64_t max_bytes = 1 << 30) const {
    return std::make_shared<CachedStorage>(
        remote_, CacheOptions{.directory = dir_.path(), .max_bytes = max_bytes});
  }
  /// Puts a segment and returns its bytes.
  Bytes PutSegment(uint64_t id, uint64_t size_bytes) {
    Bytes bytes = testing::RandomBytes(id, size_bytes);
    EXPECT_TRUE(cairn::testing::IsOk(base_->Put(SegmentName(id), bytes)));
    return bytes;
  }
  /// Reads a range and compares it with the same range of `expected`.
  static void ExpectRange(Storage& storage, uint64_t id, const Bytes& expected, uint64_t begin,
                          uint64_t end) {
    Bytes target(end - begin);
    CAIRN_ASSERT_OK(storage.ReadRange(SegmentName(id), begin, target));
    EXPECT_TRUE(
        std::equal(target.begin(), target.end(), expected.begin() + static_cast<ptrdiff_t>(begin)))
        << begin << " to " << end;
  }
  /// Returns the files of the cache whose names end with `suffix`.
  std::vector<std::string> Files(std::string_view suffix) const {
    std::vector<std::string> paths;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(dir_.path())) {
      if (entry.is_regular_file() && entry.path().string().ends_with(suffix)) {
        paths.push_back(entry.path());
      }
    }
    return paths;
  }
  static void FlipByte(const std::string& path, uint64_t at) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(at));
    const auto byte = static_cast<char>(file.get() ^ 0x10);
    file.seekp(static_cast<std::streamoff>(at));
    file.put(byte);
    ASSERT_TRUE(file.good());
  }
  uint64_t AllocatedBytes() const {
    uint64_t total = 0;
    for (const std::string& path : Files("")) {
      struct stat status;
      EXPECT_EQ(::stat(path.c_str(), &status), 0);
      total += static_cast<uint64_t>(status.st_blocks) * 512;
    }
    return total;
  }

  const cairn::testing::ScopedTempDir dir_;
  const std::shared_ptr<MemoryStorage> base_ = std::make_shared<MemoryStorage>("far");
  const std::shared_ptr<testing::RoundTripStorage> remote_ =
      std::make_shared<testing::RoundTripStorage>(base_);
};

}  // namespace cairn::kv::internal
