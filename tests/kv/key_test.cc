// Keys sort in the order of what they encode.

#include "kv/base/key.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <tuple>

#include "tests/support/result_matchers.h"
#include "tests/support/seeded_random.h"

namespace cairn::kv {
namespace {

using cairn::testing::IsError;
using cairn::testing::SeededRandom;

TEST(KeyTest, MalformedKeysAreRefused) {
  EXPECT_THAT(ParseKey(""), IsError(ErrorCode::kDataLoss, "malformed"));
  EXPECT_THAT(ParseKey("no end"), IsError(ErrorCode::kDataLoss, "malformed"));
  EXPECT_THAT(ParseKey(FqnKey("a") + "1234567"), IsError(ErrorCode::kDataLoss, "malformed"));
}

TEST(KeyTest, OrderOfKeysIsOrderOfNameThenOffsets) {
  SeededRandom random;
  const auto draw = [&random] {
    std::string fqn;
    // Few letters, so that names are often prefixes of each other. Bytes above 127 sort as
    // unsigned.
    const char* letters[] = {"a", "b", ".", "\xc3\xa4", "\x01", "~"};
    for (uint64_t i = random.Between(0, 4); i > 0; --i) fqn += letters[random.Between(0, 5)];
    std::vector<uint64_t> offsets(random.Between(0, 3));
    for (uint64_t& offset : offsets) offset = random.Between(0, 3) << (8 * random.Between(0, 7));
    return std::pair(fqn, offsets);
  };
  const auto unsigned_less = [](const auto& a, const auto& b) {
    const auto bytes = [](const std::string& text) {
      return std::vector<uint8_t>(text.begin(), text.end());
    };
    return std::tuple(bytes(a.first), a.second) < std::tuple(bytes(b.first), b.second);
  };
  for (int i = 0; i < 20'000; ++i) {
    const auto a = draw(), b = draw();
    const std::string key_a = ChunkKey(a.first, a.second), key_b = ChunkKey(b.first, b.second);
    ASSERT_EQ(key_a < key_b, unsigned_less(a, b)) << a.first << " | " << b.first;
    ASSERT_EQ(key_a == key_b, a == b);
    CAIRN_ASSERT_OK_AND_ASSIGN(const ParsedKey parsed, ParseKey(key_a));
    ASSERT_EQ(parsed.fqn, a.first);
    ASSERT_EQ(parsed.offsets_elements, a.second);
  }
}

}  // namespace
}  // namespace cairn::kv
