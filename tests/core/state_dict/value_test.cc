#include "core/state_dict/value.h"

#include <fmt/format.h>

#include <bit>
#include <limits>

#include "tests/support/result_matchers.h"

namespace cairn::core {
namespace {

using cairn::testing::IsError;

std::vector<std::byte> BytesOf(std::initializer_list<int> values) {
  std::vector<std::byte> bytes;
  for (const int value : values) bytes.push_back(static_cast<std::byte>(value));
  return bytes;
}

class ValueRoundTripTest : public ::testing::TestWithParam<Value> {};

TEST_P(ValueRoundTripTest, ComesBackAsItWas) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto record, EncodeValue(GetParam()));
  CAIRN_ASSERT_OK_AND_ASSIGN(const Value value, DecodeValue(record));
  EXPECT_EQ(value, GetParam());
}

INSTANTIATE_TEST_SUITE_P(
    All, ValueRoundTripTest,
    ::testing::Values(
        Value(std::monostate{}), Value(true), Value(false), Value(int64_t{0}),
        Value(std::numeric_limits<int64_t>::min()), Value(std::numeric_limits<int64_t>::max()),
        Value(BigInt{BytesOf({0, 0, 0, 0, 0, 0, 0, 0x80, 0})}),
        Value(BigInt{BytesOf({0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f, 0xff})}), Value(0.1),
        Value(-std::numeric_limits<double>::infinity()), Value(std::complex<double>(1.5, -2)),
        Value(std::string()), Value(std::string("h\xc3\xa9llo\0x", 8)),
        Value(std::string("\xed\xa0\x80")), Value(Bytes{}), Value(Bytes{BytesOf({0, 1, 255})}),
        Value(Pickle{BytesOf({0x80, 4})}), Value(*WithoutBytes(std::string(5'000, 'x')))));

TEST(ValueTest, DoublesKeepEveryBit) {
  for (const uint64_t bits : {uint64_t{0x7ff8000000000001}, uint64_t{0xfff0dead0000beef},
                              uint64_t{0x8000000000000000}, uint64_t{1}}) {
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto record, EncodeValue(std::bit_cast<double>(bits)));
    CAIRN_ASSERT_OK_AND_ASSIGN(const Value value, DecodeValue(record));
    EXPECT_EQ(std::bit_cast<uint64_t>(std::get<double>(value)), bits);
  }
}

TEST(ValueTest, RefusesWhatIsTooLarge) {
  EXPECT_THAT(EncodeValue(Bytes{std::vector<std::byte>(kMaxValueBytes + 1)}),
              IsError(ErrorCode::kInvalidArgument, "tensor"));
}

TEST(ValueTest, RefusesABigIntThatIsNotShortest) {
  EXPECT_THAT(EncodeValue(BigInt{BytesOf({1, 0})}),
              IsError(ErrorCode::kInvalidArgument, "shortest"));
  EXPECT_THAT(EncodeValue(BigInt{}), IsError(ErrorCode::kInvalidArgument, "shortest"));
}

// For each length there are four two's complements at the edges of the shortest form.
TEST(ValueTest, RoundTripsBigIntsAtTheEdgeOfEachLength) {
  for (size_t length = 1; length <= 251; ++length) {
    for (const int top : {0x00, 0x7f, 0x80, 0xff}) {
      for (const int below : {0x00, 0x7f, 0x80, 0xff}) {
        BigInt number{std::vector<std::byte>(length, static_cast<std::byte>(below))};
        number.twos_complement.back() = static_cast<std::byte>(top);
        const bool shortest =
            length == 1 || (top != 0x00 && top != 0xff) || (top == 0x00) == ((below & 0x80) != 0);
        const auto record = EncodeValue(number);
        ASSERT_EQ(record.has_value(), shortest) << length << " " << top << " " << below;
        if (!shortest) continue;
        CAIRN_ASSERT_OK_AND_ASSIGN(const Value value, DecodeValue(*record));
        EXPECT_EQ(value, Value(number));
      }
    }
  }
}

TEST(ValueTest, EveryTruncatedRecordIsRefused) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto record, EncodeValue(std::string("a long enough text")));
  for (size_t length = 0; length < record.size(); ++length) {
    // A truncated record may be complete if only padding is missing; it must not decode to another
    // value.
    const auto value = DecodeValue(std::span(record).first(length));
    if (value) {
      EXPECT_EQ(*value, Value(std::string("a long enough text"))) << length;
    } else {
      EXPECT_EQ(value.error().code, ErrorCode::kDataLoss) << length;
    }
  }
}

TEST(ValueTest, ReadsWell) {
  EXPECT_EQ(FormatValue(std::monostate{}), "null");
  EXPECT_EQ(FormatValue(true), "True");
  EXPECT_EQ(FormatValue(int64_t{-17}), "-17");
  EXPECT_EQ(FormatValue(1.0), "1.0");
  EXPECT_EQ(FormatValue(0.1), "0.1");
  EXPECT_EQ(FormatValue(1e300), "1e+300");
  EXPECT_EQ(FormatValue(std::numeric_limits<double>::infinity()), "inf");
  EXPECT_EQ(FormatValue(std::string("it's\n")), "'it\\'s\\n'");
  EXPECT_EQ(FormatValue(Bytes{BytesOf({'a', 0, 255})}), "b'a\\x00\\xff'");
  EXPECT_EQ(FormatValue(Pickle{BytesOf({1, 2})}), "<pickle, 2 bytes>");
  EXPECT_EQ(FormatValue(BigInt{BytesOf({0, 0, 0, 0, 0, 0, 0, 0x80, 0})}), "0x8000000000000000");
  EXPECT_EQ(FormatValue(BigInt{BytesOf({0, 0, 0, 0, 0, 0, 0, 0, 0xff})}), "-0x10000000000000000");
  EXPECT_EQ(FormatValue(std::string(100, 'x')), fmt::format("'{:x>64}'... (100 bytes)", ""));
}

}  // namespace
}  // namespace cairn::core
