// Which casts exist, and selected numbers. Comparisons of all numbers with torch are in
// tests/python/test_convert.py.

#include "core/tensor/element_cast.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "tests/support/scoped_vector_target.h"
#include "tests/support/seeded_random.h"

namespace cairn::core {
namespace {

using schema::DType;

template <typename To, typename From>
To CastOne(DType from, DType to, From value) {
  To result{};
  const ElementCast cast = FindElementCast(from, to);
  EXPECT_NE(cast, nullptr);
  cast(reinterpret_cast<const std::byte*>(&value), reinterpret_cast<std::byte*>(&result), 1);
  return result;
}

TEST(ElementCastTest, OnlyFloatingPointNumbersAreCast) {
  EXPECT_EQ(FindElementCast(DType::kInt32, DType::kFloat32), nullptr);
  EXPECT_EQ(FindElementCast(DType::kFloat32, DType::kInt32), nullptr);
  EXPECT_EQ(FindElementCast(DType::kFloat32, DType::kFloat8E4M3FN), nullptr);
  EXPECT_EQ(FindElementCast(DType::kFloat32, DType::kFloat32), nullptr);
  EXPECT_EQ(FindElementCast(DType::kComplex64, DType::kFloat32), nullptr);
}

TEST(ElementCastTest, RoundsToNearestEven) {
  const auto bfloat16 = [](uint32_t bits) {
    return CastOne<uint16_t>(DType::kFloat32, DType::kBFloat16, bits);
  };
  EXPECT_EQ(bfloat16(0x3f80'8000), 0x3f80);  // a tie
  EXPECT_EQ(bfloat16(0x3f81'8000), 0x3f82);  // a tie
  EXPECT_EQ(bfloat16(0x3f80'8001), 0x3f81);
  EXPECT_EQ(bfloat16(0x7f7f'ffff), 0x7f80);  // the largest number becomes infinity
  const auto float16 = [](float value) {
    return CastOne<uint16_t>(DType::kFloat32, DType::kFloat16, value);
  };
  EXPECT_EQ(float16(65519.0F), 0x7bff);
  EXPECT_EQ(float16(65520.0F), 0x7c00);
  EXPECT_EQ(float16(0x1p-24F), 0x0001);
  EXPECT_EQ(float16(0x1p-25F), 0x0000);  // a tie
  EXPECT_EQ(float16(-0x1.8p-24F), 0x8002);
}

TEST(ElementCastTest, RoundsFloat64ToFloat32First) {
  const auto to = [](DType dtype, double value) {
    return CastOne<uint16_t>(DType::kFloat64, dtype, value);
  };
  // Above a tie by less than a float32 has: the tie is rounded to even. A single rounding would
  // give 0x3c01 and 0x3f81, and the next larger numbers here have them.
  EXPECT_EQ(to(DType::kFloat16, 1 + 0x1p-11 + 0x1p-40), 0x3c00);
  EXPECT_EQ(to(DType::kFloat16, 1 + 0x1p-11 + 0x1p-23), 0x3c01);
  EXPECT_EQ(to(DType::kBFloat16, 1 + 0x1p-8 + 0x1p-40), 0x3f80);
  EXPECT_EQ(to(DType::kBFloat16, 1 + 0x1p-8 + 0x1p-23), 0x3f81);
  EXPECT_EQ(to(DType::kFloat16, 65520 - 0x1p-10), 0x7c00);  // infinity
  EXPECT_EQ(to(DType::kFloat16, 0x1p-25 + 0x1p-60), 0x0000);
  EXPECT_EQ(to(DType::kFloat16, -1e300), 0xfc00);
}

TEST(ElementCastTest, ANaNKeepsItsSignAndIsQuiet) {
  EXPECT_EQ(CastOne<uint16_t>(DType::kFloat32, DType::kBFloat16, uint32_t{0xff80'0001}), 0xffc0);
  EXPECT_EQ(CastOne<uint16_t>(DType::kFloat32, DType::kFloat16, uint32_t{0x7f80'0001}), 0x7e00);
  EXPECT_EQ(CastOne<uint32_t>(DType::kFloat16, DType::kFloat32, uint16_t{0xfc01}), 0xffc0'2000);
  EXPECT_TRUE(std::isnan(CastOne<double>(DType::kFloat8E4M3FN, DType::kFloat64, uint8_t{0xff})));
}

TEST(ElementCastTest, CastsAnyNumberOfUnalignedElements) {
  const ElementCast cast = FindElementCast(DType::kFloat32, DType::kFloat64);
  for (const size_t count : {0, 1, 7, 1023, 1024, 1025, 5000}) {
    std::vector<std::byte> source(4 * count + 1), target(8 * count + 1, std::byte{0x55});
    for (size_t i = 0; i < count; ++i) {
      const auto value = static_cast<float>(i);
      std::memcpy(&source[4 * i + 1], &value, 4);
    }
    cast(source.data() + 1, target.data(), count);
    for (size_t i = 0; i < count; ++i) {
      double value = -1;
      std::memcpy(&value, &target[8 * i], 8);
      ASSERT_EQ(value, static_cast<double>(i));
    }
    EXPECT_EQ(target.back(), std::byte{0x55});
  }
}

// Every set of vector instructions, of which only the best of this processor is used otherwise.
TEST(ElementCastTest, EveryVariantReturnsTheSameBits) {
  cairn::testing::SeededRandom random;
  const auto cast_all = [](DType from, DType to, const std::vector<std::byte>& source) {
    const uint64_t count = source.size() / schema::ElementBytes(from);
    std::vector<std::byte> target(count * schema::ElementBytes(to));
    FindElementCast(from, to)(source.data(), target.data(), count);
    return target;
  };
  for (const DType from : {DType::kFloat64, DType::kFloat32, DType::kFloat16, DType::kBFloat16,
                           DType::kFloat8E4M3FN, DType::kFloat8E5M2}) {
    // Every number of at most 16 bits. Random bits of float64 are mostly beyond float32, so each
    // number is given as a float32 too.
    std::vector<std::byte> source(5 * 1023 * schema::ElementBytes(from));
    random.Fill(source);
    if (from == DType::kFloat64) {
      for (size_t i = 0; i < source.size(); i += 16) {
        float narrow = 0;
        std::memcpy(&narrow, &source[i], sizeof(narrow));
        const double wide = narrow;
        std::memcpy(&source[i], &wide, sizeof(wide));
      }
    } else if (from != DType::kFloat32) {
      for (uint32_t bits = 0; bits < 0x10000; ++bits) {
        for (const uint32_t byte : {bits & 0xff, bits >> 8}) {
          source.push_back(static_cast<std::byte>(byte));
        }
      }
    }
    for (const DType to : {DType::kFloat64, DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
      if (from == to) continue;
      const auto expected = [&] {
        const cairn::testing::ScopedVectorTarget scope(0);
        return cast_all(from, to, source);
      }();
      for (const int64_t target : cairn::testing::VectorTargets()) {
        const cairn::testing::ScopedVectorTarget scope(target);
        EXPECT_EQ(cast_all(from, to, source), expected)
            << schema::DTypeName(from) << " to " << schema::DTypeName(to) << ", target " << target;
      }
    }
  }
}

}  // namespace
}  // namespace cairn::core
