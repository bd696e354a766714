// The example of docs/format/delta.md: what it shows is what the encoder writes, and decodes to the
// chunk that it describes. A delta that a released version has written must always decode.

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>

#include "tests/core/delta/delta_fixture.h"
#include "tests/support/result_matchers.h"

namespace cairn::core::internal {
namespace {

Bytes FromHex(std::string_view digits) {
  Bytes bytes;
  for (size_t i = 0; i < digits.size(); i += 2) {
    bytes.push_back(
        static_cast<std::byte>(std::stoul(std::string(digits.substr(i, 2)), nullptr, 16)));
  }
  return bytes;
}

/// Returns the bytes of all lines "0010: 649f 5e9a  comment" of a page.
Bytes ReadDump(const std::string& path) {
  std::ifstream page(path);
  EXPECT_TRUE(page) << path;
  Bytes bytes;
  for (std::string line; std::getline(page, line);) {
    const size_t comment = line.find("  ");
    if (line.find(": ") != 4 || comment == std::string::npos) continue;
    EXPECT_EQ(std::stoul(line.substr(0, 4), nullptr, 16), bytes.size()) << line;
    std::string digits = line.substr(6, comment - 6);
    std::erase(digits, ' ');
    std::ranges::copy(FromHex(digits), std::back_inserter(bytes));
  }
  return bytes;
}

TEST(DeltaGoldenTest, TheExampleOfTheFormatPageIsAccurate) {
  std::vector<uint16_t> base;
  for (uint16_t i = 1; i <= 12; ++i) base.push_back(i);
  std::vector<uint16_t> chunk = base;
  chunk[2] = 2;
  chunk[4] = 1000;
  const Bytes example = ReadDump(CAIRN_FORMAT_DIR "/delta.md");

  EXPECT_EQ(Encode(2, ToBytes(base), ToBytes(chunk)), example);
  CAIRN_ASSERT_OK_AND_ASSIGN(const Bytes decoded, Decode(example, ToBytes(base)));
  EXPECT_EQ(decoded, ToBytes(chunk));
}

// Written by version 1. The elements of the base whose index is a multiple of 8 are small, and most
// of them are dense.
constexpr std::string_view kDenseDelta =
    "43444c540102000000040000000000001d7b3cfef6bd30a50500000005000000"
    "0c0000000c000000030000000300000010000000100000001800000018000000"
    "0000000000000000010000000100000001000000010000003f0c003f00013131"
    "313131313131313102711c076ddbb66ddbb66ddbb66ddbb66ddbb62d0202ff03"
    "03030303030303030303030303030303030303031527";

TEST(DeltaGoldenTest, DecodesDenseElementsOfVersion1) {
  std::vector<uint16_t> base;
  for (int i = 0; i < 512; ++i) {
    base.push_back(static_cast<uint16_t>(i % 8 == 0 ? 16 * i : 0x4000 + i));
  }
  std::vector<uint16_t> chunk = base;
  for (int i = 0; i < 512; ++i) {
    if (i % 8 != 0 && i % 50 != 1) continue;
    chunk[static_cast<size_t>(i)] += static_cast<uint16_t>(i % 3 * 2 - 1 + (i == 401 ? 5000 : 0));
  }
  const Bytes delta = FromHex(kDenseDelta);

  CAIRN_ASSERT_OK_AND_ASSIGN(const Bytes decoded, Decode(delta, ToBytes(base)));
  EXPECT_EQ(decoded, ToBytes(chunk));
}

}  // namespace
}  // namespace cairn::core::internal
