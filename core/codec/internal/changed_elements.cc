// Compiled once for every set of vector instructions; Highway's foreach_target.h includes this file
// repeatedly.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/codec/internal/changed_elements.cc"
#define HWY_WANT_AVX3_DL 1  // compresses lanes of 16 bits in one instruction
#include "core/codec/internal/changed_elements.h"

#include <hwy/cache_control.h>

#include <bit>
#include <cstring>
// clang-format off
#include <hwy/foreach_target.h>  // before highway.h
#include <hwy/highway.h>
// clang-format on

#include "core/base/internal/vector_variants.h"
#include "core/codec/internal/delta_format.h"
#include "kv/base/error.h"

#ifndef CAIRN_CORE_DELTA_SEARCH_
#define CAIRN_CORE_DELTA_SEARCH_
namespace cairn::core::internal {
/// Where Find looks, and the lists that it fills: sparse elements if `sparse` is not null, and
/// dense ones if the threshold is not 0.
struct Search {
  uint32_t element_bytes = 1;
  const std::byte* base = nullptr;
  const std::byte* page = nullptr;  // for sparse elements
  size_t bytes = 0;
  uint8_t threshold = 0;
  ElementList* sparse = nullptr;
  ElementList* dense = nullptr;
};
}  // namespace cairn::core::internal
#endif

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

/// Requests bytes that will be needed soon, because the processor does not do this by itself across
/// its pages of 4 KiB. The address may be past the end: most callers continue with what is there.
HWY_INLINE void PrefetchAfter(const std::byte* bytes) {
  constexpr size_t kAheadBytes = 2048;
  hwy::Prefetch(bytes + kAheadBytes);
}

/// Whether the processor compresses lanes of 16 bits itself. Where Highway emulates this with
/// tables, it is ten times as slow as the bits of a mask, one by one.
#undef CAIRN_COMPRESSES_LANES
#if HWY_TARGET == HWY_AVX3_DL
#define CAIRN_COMPRESSES_LANES 1
/// Appends the positions whose lane is set in `mask`. Writes a complete vector at `end`.
template <class D, class M>
HWY_INLINE void Append(D d, hn::Vec<D> positions, M mask, uint16_t*& end) {
  hn::StoreU(hn::Compress(positions, mask), d, end);
  end += hn::CountTrue(d, mask);
}
#else
#define CAIRN_COMPRESSES_LANES 0
#endif

constexpr size_t kWordBits = 64;

/// Appends the positions of the bits that are set in `word`, whose lowest bit is element `first`.
/// Writes up to three more positions at `end`.
HWY_INLINE void AppendBits(uint64_t word, size_t first, uint16_t*& end) {
#if CAIRN_COMPRESSES_LANES
  const hn::CappedTag<uint16_t, kWordBits> d;
  alignas(16) uint8_t bits[16] = {};  // LoadMaskBits may read 8 bytes from any of the first 8
  std::memcpy(bits, &word, sizeof(word));
  for (size_t i = 0; i < kWordBits; i += hn::Lanes(d)) {
    Append(d, hn::Iota(d, static_cast<uint16_t>(first + i)), hn::LoadMaskBits(d, bits + i / 8),
           end);
  }
#else
  // Four at a time, because the end of a loop is often mispredicted.
  uint16_t* out = end;
  end += hwy::PopCount(word);
  while (out < end) {
    for (size_t i = 0; i < 4; ++i) {
      // 64 if no bit is left.
      *out++ = static_cast<uint16_t>(first + static_cast<size_t>(std::countr_zero(word)));
      word &= word - 1;
    }
  }
#endif
}

/// Sets the bits [first, first + lanes) of `word`, which are 0, to the bits of a mask.
template <class D, class M>
HWY_INLINE void SetBits(D d, M mask, size_t first, uint64_t& word) {
  alignas(8) uint8_t bytes[8];
  const size_t byte_count = hn::StoreMaskBits(d, mask, bytes);
  // Loads as many bytes as were stored: a longer load would have to wait for the store.
  const auto load = [&](auto bits) HWY_ATTR {
    std::memcpy(&bits, bytes, sizeof(bits));
    word |= uint64_t{bits} << first;
  };
  if (byte_count == 1) {
    load(uint8_t{});
  } else if (byte_count == 2) {
    load(uint16_t{});
  } else if (byte_count == 4) {
    load(uint32_t{});
  } else {
    load(uint64_t{});
  }
}

/// Lists sparse elements that changed, dense elements, or both.
template <typename T, bool kSparse, bool kDense>
void FindIn(const Search& search) {
  const hn::ScalableTag<T> d;
  const size_t lanes = hn::Lanes(d);
  const size_t count = search.bytes / sizeof(T);
  const std::byte* const base = search.base;
  const std::byte* const page = search.page;
  const auto limit = hn::Set(d, static_cast<T>(T{search.threshold} << (8 * sizeof(T) - 8)));
  uint16_t* sparse_end = kSparse ? search.sparse->positions.data() : nullptr;
  uint16_t* dense_end = kDense ? search.dense->positions.data() : nullptr;
  // Calls `use_sparse` and `use_dense` with the masks of one vector.
  const auto examine = [&](size_t i, auto use_sparse, auto use_dense) HWY_ATTR {
    const auto before = LoadVector(d, base, i);
    PrefetchAfter(base + i * sizeof(T));
    const auto dense = hn::Lt(hn::Add(before, before), limit);
    if constexpr (kSparse) {
      PrefetchAfter(page + i * sizeof(T));
      const auto changed = hn::Ne(before, LoadVector(d, page, i));
      use_sparse(kDense ? hn::AndNot(dense, changed) : changed);
    }
    if constexpr (kDense) use_dense(dense);
  };
  size_t i = 0;
#if CAIRN_COMPRESSES_LANES
  if constexpr (sizeof(T) == sizeof(uint16_t)) {
    auto positions = hn::Iota(d, 0);
    for (; i + lanes <= count; i += lanes) {
      examine(
          i, [&](auto mask) HWY_ATTR { Append(d, positions, mask, sparse_end); },
          [&](auto mask) HWY_ATTR { Append(d, positions, mask, dense_end); });
      positions = hn::Add(positions, hn::Set(d, static_cast<T>(lanes)));
    }
  }
#endif
  if constexpr (sizeof(T) != sizeof(uint16_t) || !CAIRN_COMPRESSES_LANES) {
    for (; i + kWordBits <= count; i += kWordBits) {
      uint64_t sparse_bits = 0;
      uint64_t dense_bits = 0;
      for (size_t j = 0; j < kWordBits; j += lanes) {
        examine(
            i + j, [&](auto mask) HWY_ATTR { SetBits(d, mask, j, sparse_bits); },
            [&](auto mask) HWY_ATTR { SetBits(d, mask, j, dense_bits); });
      }
      if constexpr (kSparse) AppendBits(sparse_bits, i, sparse_end);
      if constexpr (kDense) AppendBits(dense_bits, i, dense_end);
    }
  }
  for (; i < count; ++i) {
    const T before = LoadElement<T>(base, i);
    if (kDense && IsDense(before, search.threshold)) {
      *dense_end++ = static_cast<uint16_t>(i);
    } else if (kSparse && before != LoadElement<T>(page, i)) {
      *sparse_end++ = static_cast<uint16_t>(i);
    }
  }
  if (kSparse) search.sparse->SetEnd(sparse_end);
  if (kDense) search.dense->SetEnd(dense_end);
}

void Find(const Search& search) {
  WithElementType(search.element_bytes, [&](auto zero) {
    using T = decltype(zero);
    if (search.sparse == nullptr) {
      FindIn<T, false, true>(search);
    } else if (search.threshold == 0) {
      FindIn<T, true, false>(search);
    } else {
      FindIn<T, true, true>(search);
    }
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace cairn::core::internal
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cairn::core::internal {
CAIRN_VECTOR_VARIANTS(Find);

void FindElements(uint32_t element_bytes, std::span<const std::byte> base,
                  std::span<const std::byte> page, uint8_t threshold, PageElements& found) {
  CAIRN_CHECK(base.size() == page.size() && page.size() <= kv::kPageBytes);
  found.dense.count = 0;
  CAIRN_BEST_VARIANT(Find)
  ({.element_bytes = element_bytes,
    .base = base.data(),
    .page = page.data(),
    .bytes = page.size(),
    .threshold = threshold,
    .sparse = &found.sparse,
    .dense = &found.dense});
}

void FindDenseElements(uint32_t element_bytes, std::span<const std::byte> base, uint8_t threshold,
                       ElementList& dense) {
  CAIRN_CHECK(base.size() <= kv::kPageBytes);
  CAIRN_BEST_VARIANT(Find)
  ({.element_bytes = element_bytes,
    .base = base.data(),
    .bytes = base.size(),
    .threshold = threshold,
    .dense = &dense});
}

}  // namespace cairn::core::internal
#endif
