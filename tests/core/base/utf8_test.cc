#include "core/base/utf8.h"

#include <gtest/gtest.h>

#include <string>

namespace cairn::core {
namespace {

using namespace std::string_literals;

std::string Encode(uint32_t code) {
  const auto tail = [code](int shift) { return static_cast<char>(0x80 | (code >> shift & 0x3f)); };
  if (code < 0x80) return {static_cast<char>(code)};
  if (code < 0x800) return {static_cast<char>(0xc0 | code >> 6), tail(0)};
  if (code < 0x10000) return {static_cast<char>(0xe0 | code >> 12), tail(6), tail(0)};
  return {static_cast<char>(0xf0 | code >> 18), tail(12), tail(6), tail(0)};
}

TEST(Utf8Test, DecodesEveryCodePoint) {
  for (uint32_t code = 0; code <= 0x10ffff; ++code) {
    const std::string text = Encode(code);
    const auto decoded = DecodeUtf8(text + "x");
    ASSERT_TRUE(decoded) << code;
    ASSERT_EQ(decoded->value, code);
    ASSERT_EQ(decoded->length_bytes, text.size());
    ASSERT_FALSE(DecodeUtf8(text.substr(0, text.size() - 1))) << code;
  }
}

TEST(Utf8Test, RejectsOtherBytes) {
  for (const std::string& bad : {"\x80"s, "\xbf"s, "\xc0\x80"s, "\xc1\xbf"s, "\xe0\x80\x80"s,
                                 "\xe0\x9f\xbf"s, "\xf0\x80\x80\x80"s, "\xf4\x90\x80\x80"s,
                                 "\xf5\x80\x80\x80"s, "\xff"s, "\xc3("s, "\xe2\x82("s}) {
    EXPECT_FALSE(DecodeUtf8(bad));
  }
}

TEST(Utf8Test, DistinguishesSurrogatesFromTheirNeighbors) {
  EXPECT_FALSE(IsSurrogate(0xd7ff));
  EXPECT_TRUE(IsSurrogate(0xd800));
  EXPECT_TRUE(IsSurrogate(0xdfff));
  EXPECT_FALSE(IsSurrogate(0xe000));
  EXPECT_TRUE(DecodeUtf8("\xed\xb2\x80"));
}

}  // namespace
}  // namespace cairn::core
