// Compiled once for every set of vector instructions; Highway's foreach_target.h includes this file
// repeatedly.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/delta/internal/changed_elements.cc"
#define HWY_WANT_AVX3_DL 1  // compresses lanes of 16 bits in one instruction
#include "core/delta/internal/changed_elements.h"

#include <cstring>
// clang-format off
#include <hwy/foreach_target.h>  // before highway.h
#include <hwy/highway.h>
// clang-format on

#include "core/delta/internal/delta_format.h"
#include "kv/error.h"

HWY_BEFORE_NAMESPACE();
namespace cairn::core::internal {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <typename T>
T LoadElement(const std::byte* bytes, size_t index) {
  T value;
  std::memcpy(&value, bytes + index * sizeof(T), sizeof(T));
  return value;
}

/// Loads the vector that begins with element `index`, which need not be aligned.
template <class D>
HWY_INLINE hn::Vec<D> LoadVector(D d, const std::byte* bytes, size_t index) {
  return hn::LoadU(d, reinterpret_cast<const hn::TFromD<D>*>(bytes) + index);
}

/// Stores the bits of a mask as the bits [first, first + lanes) of `words`.
template <class D, class M>
HWY_INLINE void StoreBits(D d, M mask, size_t first, uint64_t* words) {
  if (hn::Lanes(d) >= 8) {
    hn::StoreMaskBits(d, mask, reinterpret_cast<uint8_t*>(words) + first / 8);
  } else {
    alignas(8) uint8_t bits[8] = {};
    hn::StoreMaskBits(d, mask, bits);
    if (first % 64 == 0) words[first / 64] = 0;
    words[first / 64] |= uint64_t{bits[0]} << (first % 64);
  }
}

template <typename T, bool kHasDense>
void FindIn(const std::byte* base, const std::byte* page, size_t count, uint8_t threshold,
            PageElements& found) {
  const hn::ScalableTag<T> d;
  const size_t lanes = hn::Lanes(d);
  const auto limit = hn::Set(d, static_cast<T>(T{threshold} << (8 * sizeof(T) - 8)));
  size_t i = 0;
  for (; i + 64 <= count; i += 64) {
    for (size_t j = i; j < i + 64; j += lanes) {
      const auto before = LoadVector(d, base, j);
      const auto changed = hn::Ne(before, LoadVector(d, page, j));
      if constexpr (kHasDense) {
        const auto dense = hn::Lt(hn::Add(before, before), limit);
        StoreBits(d, hn::AndNot(dense, changed), j, found.sparse.data());
        StoreBits(d, dense, j, found.dense.data());
      } else {
        StoreBits(d, changed, j, found.sparse.data());
      }
    }
  }
  if (i == count) return;
  uint64_t sparse = 0;
  uint64_t dense = 0;
  for (size_t j = i; j < count; ++j) {
    const T before = LoadElement<T>(base, j);
    const uint64_t bit = uint64_t{1} << (j - i);
    if (kHasDense && IsDense(before, threshold)) {
      dense |= bit;
    } else if (before != LoadElement<T>(page, j)) {
      sparse |= bit;
    }
  }
  found.sparse[i / 64] = sparse;
  if constexpr (kHasDense) found.dense[i / 64] = dense;
}

template <typename T>
void FindDenseIn(const std::byte* base, size_t count, uint8_t threshold, ElementBits& dense) {
  const hn::ScalableTag<T> d;
  const auto limit = hn::Set(d, static_cast<T>(T{threshold} << (8 * sizeof(T) - 8)));
  size_t i = 0;
  for (; i + 64 <= count; i += 64) {
    for (size_t j = i; j < i + 64; j += hn::Lanes(d)) {
      const auto before = LoadVector(d, base, j);
      StoreBits(d, hn::Lt(hn::Add(before, before), limit), j, dense.data());
    }
  }
  if (i == count) return;
  uint64_t bits = 0;
  for (size_t j = i; j < count; ++j) {
    if (IsDense(LoadElement<T>(base, j), threshold)) bits |= uint64_t{1} << (j - i);
  }
  dense[i / 64] = bits;
}

void Find(uint32_t element_bytes, const std::byte* base, const std::byte* page, size_t bytes,
          uint8_t threshold, PageElements& found) {
  WithElementType(element_bytes, [&](auto zero) {
    using T = decltype(zero);
    if (threshold == 0) {
      FindIn<T, false>(base, page, bytes / sizeof(T), threshold, found);
    } else {
      FindIn<T, true>(base, page, bytes / sizeof(T), threshold, found);
    }
  });
}

void FindDense(uint32_t element_bytes, const std::byte* base, size_t bytes, uint8_t threshold,
               ElementBits& dense) {
  WithElementType(element_bytes, [&](auto zero) {
    using T = decltype(zero);
    FindDenseIn<T>(base, bytes / sizeof(T), threshold, dense);
  });
}

uint32_t List(const uint64_t* words, size_t word_count, uint16_t* list) {
  uint32_t count = 0;
#if HWY_TARGET == HWY_SCALAR
  for (size_t i = 0; i < word_count; ++i) {
    for (uint64_t bits = words[i]; bits != 0; bits &= bits - 1) {
      list[count++] = static_cast<uint16_t>(i * 64 + hwy::Num0BitsBelowLS1Bit_Nonzero64(bits));
    }
  }
#else
  // One vector of positions at a time is compressed to those whose bit is set.
  const hn::CappedTag<uint16_t, 64> d;
  const size_t lanes = hn::Lanes(d);
  const auto step = hn::Set(d, static_cast<uint16_t>(lanes));
  const uint64_t lane_bits = lanes == 64 ? ~uint64_t{0} : (uint64_t{1} << lanes) - 1;
  auto positions = hn::Iota(d, 0);
  for (size_t i = 0; i < word_count; ++i) {
    uint64_t word = words[i];
    for (size_t j = 0; j < 64; j += lanes) {
      const uint64_t bits = word & lane_bits;
      alignas(8) uint8_t bytes[8];
      std::memcpy(bytes, &bits, sizeof(bits));
      hn::StoreU(hn::Compress(positions, hn::LoadMaskBits(d, bytes)), d, list + count);
      count += static_cast<uint32_t>(hwy::PopCount(bits));
      positions = hn::Add(positions, step);
      word = lanes == 64 ? 0 : word >> lanes;
    }
  }
#endif
  return count;
}

}  // namespace HWY_NAMESPACE
}  // namespace cairn::core::internal
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cairn::core::internal {
HWY_EXPORT(Find);
HWY_EXPORT(FindDense);
HWY_EXPORT(List);

void FindElements(uint32_t element_bytes, std::span<const std::byte> base,
                  std::span<const std::byte> page, uint8_t threshold, PageElements& found) {
  CAIRN_CHECK(base.size() == page.size() && page.size() <= kv::kPageBytes);
  HWY_DYNAMIC_DISPATCH(Find)
  (element_bytes, base.data(), page.data(), page.size(), threshold, found);
}

void FindDenseElements(uint32_t element_bytes, std::span<const std::byte> base, uint8_t threshold,
                       ElementBits& dense) {
  CAIRN_CHECK(base.size() <= kv::kPageBytes);
  HWY_DYNAMIC_DISPATCH(FindDense)
  (element_bytes, base.data(), base.size(), threshold, dense);
}

uint32_t ListElements(const ElementBits& bits, uint64_t element_count, ElementList& list) {
  CAIRN_CHECK(element_count <= kv::kPageBytes);
  return HWY_DYNAMIC_DISPATCH(List)(bits.data(), DivCeil(element_count, 64), list.data());
}

}  // namespace cairn::core::internal
#endif
