// Compiled once for every set of vector instructions; Highway's foreach_target.h includes this file
// repeatedly.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/tensor/internal/finite_summary.cc"
#include "core/tensor/internal/finite_summary.h"

#include <hwy/cache_control.h>

#include <cmath>
// clang-format off
#include <hwy/foreach_target.h>  // before highway.h
#include <hwy/highway.h>
// clang-format on

#include "core/base/internal/vector_variants.h"
#include "kv/base/error.h"

#ifndef CAIRN_CORE_TENSOR_FINITE_SUMMARY_
#define CAIRN_CORE_TENSOR_FINITE_SUMMARY_
namespace cairn::core::internal {
struct Block {
  const std::byte* begin = nullptr;
  size_t bytes = 0;
  const std::byte* ahead = nullptr;
};
}  // namespace cairn::core::internal
#endif

HWY_BEFORE_NAMESPACE();
namespace cairn::core::internal {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// One cache line is requested each time that this number of bytes was summed up.
constexpr size_t kBytesPerPrefetch = 64 * kPrefetchInterval;

// A format states the bits of an element, the bits of an infinity, the numbers to which elements
// are converted, and the conversion: Convert calls `use` with all elements of a vector.

struct Float32Format {
  using Bits = uint32_t;
  using Number = float;
  static constexpr Bits kInfinity = 0x7f80'0000;
  template <class D, class Use>
  static HWY_INLINE void Convert(D, hn::Vec<D> bits, Use use) {
    use(hn::BitCast(hn::Repartition<float, D>(), bits));
  }
};

struct Float64Format {
  using Bits = uint64_t;
  using Number = double;
  static constexpr Bits kInfinity = 0x7ff0'0000'0000'0000;
  template <class D, class Use>
  static HWY_INLINE void Convert(D, hn::Vec<D> bits, Use use) {
    use(hn::BitCast(hn::Repartition<double, D>(), bits));
  }
};

// A scalar has no pairs of elements: without vectors, these elements are not summed up here.
#if HWY_TARGET != HWY_SCALAR

struct Float16Format {
  using Bits = uint16_t;
  using Number = float;
  static constexpr Bits kInfinity = 0x7c00;
  template <class D, class Use>
  static HWY_INLINE void Convert(D, hn::Vec<D> bits, Use use) {
    const hn::Repartition<float, D> to;
    const hn::Half<hn::Repartition<hwy::float16_t, D>> half;
    const auto values = hn::BitCast(hn::Repartition<hwy::float16_t, D>(), bits);
    use(hn::PromoteTo(to, hn::LowerHalf(values)));
    use(hn::PromoteTo(to, hn::UpperHalf(half, values)));
  }
};

struct BFloat16Format {
  using Bits = uint16_t;
  using Number = float;
  static constexpr Bits kInfinity = 0x7f80;
  /// Elements with even positions, then elements with odd positions: the order does not matter.
  template <class D, class Use>
  static HWY_INLINE void Convert(D, hn::Vec<D> bits, Use use) {
    const hn::Repartition<uint32_t, D> pairs_tag;
    const hn::Repartition<float, D> to;
    const auto pairs = hn::BitCast(pairs_tag, bits);
    use(hn::BitCast(to, hn::ShiftLeft<16>(pairs)));
    use(hn::BitCast(to, hn::And(pairs, hn::Set(pairs_tag, 0xffff'0000))));
  }
};

#endif

template <typename Bits>
uint64_t CountZeros(const Block& block, size_t count) {
  const hn::ScalableTag<Bits> d;
  auto zeros = hn::Zero(d);
  for (size_t i = 0; i < count; i += hn::Lanes(d)) {
    const auto bits = hn::LoadU(d, reinterpret_cast<const Bits*>(block.begin) + i);
    zeros = hn::Sub(zeros, hn::VecFromMask(d, hn::Eq(hn::Add(bits, bits), hn::Zero(d))));
  }
  return static_cast<uint64_t>(hn::GetLane(hn::SumOfLanes(d, zeros)));
}

// The bits of a float are its sign and its magnitude. As unsigned integers, negative numbers are
// above all others, and the largest is the lowest number; as signed integers, the largest is the
// highest number, unless all are negative. So four integers tell the range, and whether there are
// zeros, or elements that are not finite.
template <class Format>
size_t SummarizeIn(const Block& block, FiniteSummary& summary) {
  using Bits = Format::Bits;
  constexpr Bits kMagnitude = static_cast<Bits>(Bits(~Bits{0}) >> 1);
  constexpr Bits kSign = Bits(~kMagnitude);
  const hn::ScalableTag<Bits> d;
  const hn::RebindToSigned<decltype(d)> integers;
  const hn::Repartition<typename Format::Number, decltype(d)> numbers;
  const size_t lanes = hn::Lanes(d);
  const size_t count = block.bytes / sizeof(Bits) / lanes * lanes;
  if (count == 0) return 0;
  const auto load = [&](size_t i) HWY_ATTR {
    return hn::LoadU(d, reinterpret_cast<const Bits*>(block.begin) + i);
  };
  auto smallest = load(0);
  auto largest = smallest;
  auto smallest_integer = hn::BitCast(integers, smallest);
  auto largest_integer = smallest_integer;
  auto sum = hn::Zero(numbers);
  for (size_t i = 0; i < count; i += lanes) {
    if (i % (kBytesPerPrefetch / sizeof(Bits)) == 0) {
      hwy::Prefetch(block.ahead + i * sizeof(Bits) / kPrefetchInterval);
    }
    const auto bits = load(i);
    smallest = hn::Min(smallest, bits);
    largest = hn::Max(largest, bits);
    smallest_integer = hn::Min(smallest_integer, hn::BitCast(integers, bits));
    largest_integer = hn::Max(largest_integer, hn::BitCast(integers, bits));
    Format::Convert(d, bits, [&](auto values) HWY_ATTR { sum = hn::Add(sum, values); });
  }
  const Bits unsigned_min = hn::GetLane(hn::MinOfLanes(d, smallest));
  const Bits unsigned_max = hn::GetLane(hn::MaxOfLanes(d, largest));
  const auto signed_min =
      static_cast<Bits>(hn::GetLane(hn::MinOfLanes(integers, smallest_integer)));
  const auto signed_max = static_cast<Bits>(hn::GetLane(hn::MaxOfLanes(integers, largest_integer)));
  const Bits lowest = unsigned_max >= kSign ? unsigned_max : unsigned_min;
  const Bits highest = signed_max < kSign ? signed_max : unsigned_min;
  if ((lowest & kMagnitude) >= Format::kInfinity || (highest & kMagnitude) >= Format::kInfinity)
    return 0;
  summary.sum = static_cast<double>(hn::GetLane(hn::SumOfLanes(numbers, sum)));
  if (!std::isfinite(summary.sum)) return 0;
  const auto number = [&](Bits bits) HWY_ATTR {
    double converted = 0;
    Format::Convert(d, hn::Set(d, bits), [&](auto values) HWY_ATTR {
      converted = static_cast<double>(hn::GetLane(values));
    });
    return converted;
  };
  summary.min = number(lowest);
  summary.max = number(highest);
  summary.zeros = 0;
  if (unsigned_min != 0 && signed_min != kSign) return count * sizeof(Bits);
  summary.zeros = CountZeros<Bits>(block, count);
  return count * sizeof(Bits);
}

size_t Summarize(schema::DType dtype, const Block& block, FiniteSummary& summary) {
  switch (dtype) {
#if HWY_TARGET != HWY_SCALAR
    case schema::DType::kBFloat16:
      return SummarizeIn<BFloat16Format>(block, summary);
    case schema::DType::kFloat16:
      return SummarizeIn<Float16Format>(block, summary);
#endif
    case schema::DType::kFloat32:
      return SummarizeIn<Float32Format>(block, summary);
    case schema::DType::kFloat64:
      return SummarizeIn<Float64Format>(block, summary);
    default:
      return 0;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace cairn::core::internal
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cairn::core::internal {
CAIRN_VECTOR_VARIANTS(Summarize);

bool HasFiniteSummary(schema::DType dtype) {
  return dtype == schema::DType::kBFloat16 || dtype == schema::DType::kFloat16 ||
         dtype == schema::DType::kFloat32 || dtype == schema::DType::kFloat64;
}

size_t SummarizeFinite(schema::DType dtype, std::span<const std::byte> block,
                       const std::byte* ahead, FiniteSummary& summary) {
  CAIRN_CHECK(HasFiniteSummary(dtype) && block.size() <= kSummaryBlockBytes);
  return CAIRN_BEST_VARIANT(Summarize)(
      dtype, {.begin = block.data(), .bytes = block.size(), .ahead = ahead}, summary);
}

}  // namespace cairn::core::internal
#endif
