// Compiled once for every set of vector instructions; Highway's foreach_target.h includes this file
// repeatedly.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/save/internal/chunk_statistics.cc"
#include "core/save/internal/chunk_statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>
// clang-format off
#include <hwy/foreach_target.h>  // before highway.h
#include <hwy/highway.h>
// clang-format on

#include "core/base/internal/vector_variants.h"

#ifndef CAIRN_CORE_SAVE_CHUNK_STATISTICS_
#define CAIRN_CORE_SAVE_CHUNK_STATISTICS_
namespace cairn::core::internal {
// Sums are added up in this many bytes of partial sums, the largest vector of any processor: with
// shorter vectors too, so that a mean has the same bits on all processors.
inline constexpr size_t kSumBytes = 64;

struct BlockSums {
  double min = 0;
  double max = 0;
  double sum = 0;  // added up in the type of the numbers; not finite if one of them is not
  double zeros = 0;
};
}  // namespace cairn::core::internal
#endif

HWY_BEFORE_NAMESPACE();
namespace cairn::core::internal {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <typename T>
size_t SumUpVectors(const T* numbers, size_t count, BlockSums& sums) {
  constexpr T kInfinity = std::numeric_limits<T>::infinity();
  constexpr size_t kPartialSums = kSumBytes / sizeof(T);
  const hn::ScalableTag<T> d;
  constexpr size_t kLanes = hn::MaxLanes(hn::ScalableTag<T>());
  static_assert(kPartialSums % kLanes == 0);
  const size_t summed = count / kPartialSums * kPartialSums;
  auto min = hn::Set(d, kInfinity);
  auto max = hn::Set(d, -kInfinity);
  hn::Vec<decltype(d)> sum[kPartialSums / kLanes];
  for (auto& vector : sum) vector = hn::Zero(d);
  auto zeros = hn::Zero(d);
  for (size_t i = 0; i < summed; i += kPartialSums) {
    for (size_t at = 0; at < kPartialSums; at += kLanes) {
      const auto vector = hn::LoadU(d, numbers + i + at);
      min = hn::Min(min, vector);
      max = hn::Max(max, vector);
      sum[at / kLanes] = hn::Add(sum[at / kLanes], vector);
      zeros = hn::Add(zeros, hn::IfThenElseZero(hn::Eq(vector, hn::Zero(d)), hn::Set(d, T{1})));
    }
  }
  T partial[kPartialSums];
  for (size_t at = 0; at < kPartialSums; at += kLanes)
    hn::StoreU(sum[at / kLanes], d, partial + at);
  for (size_t width = kPartialSums / 2; width > 0; width /= 2) {
    for (size_t i = 0; i < width; ++i) partial[i] += partial[i + width];
  }
  sums = {.min = static_cast<double>(hn::GetLane(hn::MinOfLanes(d, min))),
          .max = static_cast<double>(hn::GetLane(hn::MaxOfLanes(d, max))),
          .sum = static_cast<double>(partial[0]),
          .zeros = static_cast<double>(hn::GetLane(hn::SumOfLanes(d, zeros)))};
  return summed;
}

/// Sums up the first of `count` numbers (double or float), and returns how many: all but a rest of
/// less than kSumBytes.
size_t SumUp(bool are_doubles, const std::byte* numbers, size_t count, BlockSums& sums) {
  return are_doubles ? SumUpVectors(reinterpret_cast<const double*>(numbers), count, sums)
                     : SumUpVectors(reinterpret_cast<const float*>(numbers), count, sums);
}

}  // namespace HWY_NAMESPACE
}  // namespace cairn::core::internal
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cairn::core::internal {
CAIRN_VECTOR_VARIANTS(SumUp);

namespace {

constexpr size_t kBlockElements = 1024;
// While this number of bytes is summed up, one byte is fetched ahead, so that the memory is not
// idle.
constexpr size_t kPrefetchInterval = 4;
constexpr size_t kCacheLineBytes = 64;
constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

}  // namespace

ChunkStatisticsAccumulator::ChunkStatisticsAccumulator(DType dtype)
    : dtype_(dtype),
      to_float_(dtype == DType::kFloat64 ? nullptr : FindElementCast(dtype, DType::kFloat32)) {}

void ChunkStatisticsAccumulator::Add(std::span<const std::byte> bytes, const std::byte* ahead) {
  const bool are_doubles = dtype_ == DType::kFloat64;
  if (!are_doubles && dtype_ != DType::kFloat32 && !to_float_) return AddOneByOne(bytes);
  const uint64_t element_bytes = schema::ElementBytes(dtype_);
  for (size_t at = 0; at < bytes.size(); at += kBlockElements * element_bytes) {
    const auto block =
        bytes.subspan(at, std::min(kBlockElements * element_bytes, bytes.size() - at));
    for (size_t line = 0; line < block.size() / kPrefetchInterval; line += kCacheLineBytes) {
      __builtin_prefetch(ahead + at / kPrefetchInterval + line);
    }
    const size_t count = block.size() / element_bytes;
    const std::byte* numbers = block.data();
    float converted[kBlockElements];
    if (to_float_ != nullptr) {
      to_float_(block.data(), reinterpret_cast<std::byte*>(converted), count);
      numbers = reinterpret_cast<const std::byte*>(converted);
    }
    BlockSums sums;
    size_t summed = CAIRN_BEST_VARIANT(SumUp)(are_doubles, numbers, count, sums);
    if (!std::isfinite(sums.sum)) summed = 0;
    if (summed > 0) {
      all_.Add({.min = sums.min,
                .max = sums.max,
                .mean = sums.sum / static_cast<double>(summed),
                .zeros = static_cast<uint64_t>(sums.zeros)},
               static_cast<double>(summed));
    }
    if (summed < count) AddOneByOne(block.subspan(summed * element_bytes));
  }
}

void ChunkStatisticsAccumulator::AddOneByOne(std::span<const std::byte> bytes) {
  if (!others_) others_.emplace(dtype_);
  others_->Add(bytes);
}

kv::ChunkStatistics ChunkStatisticsAccumulator::Finish() {
  if (others_) {
    const Statistics others = others_->Finish();
    all_.Add({.min = others.min.value_or(kNone),
              .max = others.max.value_or(kNone),
              .mean = others.mean.value_or(kNone),
              .zeros = others.zeros,
              .nans = others.nans,
              .infs = others.infs},
             static_cast<double>(others.count - others.nans - others.infs));
  }
  // Whether the smaller of 0 and -0 is negative depends on the processor: neither result is.
  all_.sum.min += 0.0;
  all_.sum.max += 0.0;
  return all_.sum;
}

}  // namespace cairn::core::internal
#endif
