#include "core/interop/archive/internal/crc32.h"

#include <gtest/gtest.h>

#include <string>

namespace cairn::core::internal {
namespace {

std::span<const std::byte> BytesOf(const std::string& text) {
  return std::as_bytes(std::span(text));
}

TEST(Crc32Test, MatchesThePublishedCheckValue) {
  EXPECT_EQ(Crc32(0, BytesOf("123456789")), 0xcbf43926u);
}

TEST(Crc32Test, NoBytesLeaveTheChecksumUnchanged) {
  EXPECT_EQ(Crc32(0, {}), 0u);
  EXPECT_EQ(Crc32(0xcbf43926u, {}), 0xcbf43926u);
}

TEST(Crc32Test, DoesNotDependOnHowTheBytesAreCut) {
  std::string text;
  for (int i = 0; i < 1000; ++i) text += static_cast<char>(i * 37);
  const auto bytes = BytesOf(text);
  const uint32_t expected = Crc32(0, bytes);
  for (size_t cut = 0; cut < text.size(); cut += 13) {
    EXPECT_EQ(Crc32(Crc32(0, bytes.first(cut)), bytes.subspan(cut)), expected);
  }
}

}  // namespace
}  // namespace cairn::core::internal
