// The limit of the contents of a zstd frame holds for contents that compress as well as any can.

#include <gtest/gtest.h>
#include <zstd.h>

#include <vector>

#include "kv/root/internal/framed_record.h"

namespace cairn::kv::internal {
namespace {

TEST(ZstdLimitTest, ZerosOfEveryLengthAreWithinTheLimit) {
  for (const size_t length : {0, 1, 100, 131'072, 131'073, 1'000'000, 64 << 20}) {
    const std::vector<std::byte> zeros(length);
    std::vector<std::byte> stored(ZSTD_compressBound(length));
    for (const int level : {1, 3, 19}) {
      if (level == 19 && length > 1'000'000) continue;
      const size_t stored_bytes =
          ZSTD_compress(stored.data(), stored.size(), zeros.data(), zeros.size(), level);
      ASSERT_FALSE(ZSTD_isError(stored_bytes));
      EXPECT_LE(length, MaxZstdContentBytes(stored_bytes)) << length << " at level " << level;
    }
  }
}

}  // namespace
}  // namespace cairn::kv::internal
