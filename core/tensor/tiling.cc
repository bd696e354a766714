// Compares random weights of boxes, and searches for an element that shows a flaw.

#include "core/tensor/tiling.h"

#include <algorithm>
#include <numeric>
#include <random>

namespace cairn::core {
namespace {

constexpr uint64_t kPrime = (uint64_t{1} << 61) - 1;

uint64_t Reduce(uint64_t value) {
  value = (value & kPrime) + (value >> 61);
  return value >= kPrime ? value - kPrime : value;
}

uint64_t Multiply(uint64_t a, uint64_t b) {
  const unsigned __int128 product = static_cast<unsigned __int128>(a) * b;
  return Reduce((static_cast<uint64_t>(product) & kPrime) + static_cast<uint64_t>(product >> 61));
}

// The finalizer of SplitMix64 (Steele, Lea, Flood 2014).
uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// Random for each process, so that no forged store can be made to match it.
uint64_t ProcessSeed() {
  static const uint64_t seed = [] {
    std::random_device device;
    return (uint64_t{device()} << 32) | device();
  }();
  return seed;
}

// The random function F of the header.
uint64_t WeightAt(size_t d, uint64_t boundary) {
  const uint64_t seed = Mix(ProcessSeed() + d);
  return Reduce(Mix(Mix(boundary ^ seed) + seed));
}

uint64_t Subtract(uint64_t a, uint64_t b) { return a >= b ? a - b : a + kPrime - b; }

uint64_t RangeWeight(size_t d, uint64_t begin, uint64_t end) {
  return Subtract(WeightAt(d, end), WeightAt(d, begin));
}

struct Region {
  std::vector<uint64_t> begin;
  std::vector<uint64_t> end;
};

class Search {
 public:
  Search(const BoxList& boxes, std::span<const uint64_t> shape)
      : boxes_(boxes),
        region_{.begin = std::vector<uint64_t>(shape.size()), .end = {shape.begin(), shape.end()}} {
  }

  // Requires that the boxes do not tile the region.
  TilingFlaw Locate() {
    std::vector<size_t> near(boxes_.size());  // boxes that may overlap the region
    std::iota(near.begin(), near.end(), size_t{0});
    for (size_t d = 0; d < region_.begin.size(); ++d) {
      while (region_.end[d] - region_.begin[d] > 1) near = Halve(d, near);
    }
    TilingFlaw flaw{.kind = TilingFlaw::Kind::kGap, .element = region_.begin, .boxes = {}};
    for (const size_t i : near) {
      if (WeightInRegion(region_, i) != 0 && flaw.boxes.size() < TilingFlaw::kMaxNamed) {
        flaw.boxes.push_back(i);
      }
    }
    if (!flaw.boxes.empty()) flaw.kind = TilingFlaw::Kind::kOverlap;
    return flaw;
  }

 private:
  uint64_t RegionWeight(const Region& region) const {
    uint64_t weight = 1;
    for (size_t d = 0; d < region.begin.size(); ++d) {
      weight = Multiply(weight, RangeWeight(d, region.begin[d], region.end[d]));
    }
    return weight;
  }

  // Weight of the part of box i that is in the region.
  uint64_t WeightInRegion(const Region& region, size_t i) const {
    const auto offsets = boxes_.offsets(i);
    const auto sizes = boxes_.sizes(i);
    uint64_t weight = 1;
    for (size_t d = 0; d < offsets.size(); ++d) {
      const uint64_t begin = std::max(region.begin[d], offsets[d]);
      const uint64_t end = std::min(region.end[d], offsets[d] + sizes[d]);
      if (begin >= end) return 0;
      weight = Multiply(weight, RangeWeight(d, begin, end));
    }
    return weight;
  }

  // Reduces the region to a half that is not tiled. Returns the boxes of `near` that overlap it.
  std::vector<size_t> Halve(size_t d, const std::vector<size_t>& near) {
    Region half = region_;
    half.end[d] = region_.begin[d] + (region_.end[d] - region_.begin[d]) / 2;
    uint64_t sum = 0;
    for (const size_t i : near) sum = Reduce(sum + WeightInRegion(half, i));
    if (sum == RegionWeight(half)) {
      half.begin[d] = half.end[d];
      half.end[d] = region_.end[d];
    }
    region_ = half;
    std::vector<size_t> nearer;
    for (const size_t i : near) {
      if (WeightInRegion(region_, i) != 0) nearer.push_back(i);
    }
    return nearer;
  }

  const BoxList& boxes_;
  Region region_;
};

}  // namespace

void TilingSum::Add(std::span<const uint64_t> offsets, std::span<const uint64_t> sizes) {
  CAIRN_CHECK(offsets.size() == sizes.size());
  last_.resize(sizes.size());
  uint64_t weight = 1;
  for (size_t d = 0; d < sizes.size(); ++d) {
    const uint64_t begin = offsets[d];
    const uint64_t end = begin + sizes[d];
    Range& last = last_[d];
    if (begin != last.begin || end != last.end) {
      const bool is_adjacent = begin == last.end && begin != 0;
      const uint64_t begin_weight = is_adjacent ? last.end_weight : WeightAt(d, begin);
      last = {.begin = begin, .end = end, .end_weight = WeightAt(d, end)};
      last.weight = Subtract(last.end_weight, begin_weight);
    }
    weight = Multiply(weight, last.weight);
  }
  sum_ = Reduce(sum_ + weight);
}

bool TilingSum::IsTiling(std::span<const uint64_t> shape) const {
  TilingSum whole;
  whole.Add(std::vector<uint64_t>(shape.size()), shape);
  return sum_ == whole.sum_;
}

void BoxList::Add(std::span<const uint64_t> offsets, std::span<const uint64_t> sizes) {
  CAIRN_CHECK(offsets.size() == dimensions_ && sizes.size() == dimensions_);
  numbers_.insert(numbers_.end(), offsets.begin(), offsets.end());
  numbers_.insert(numbers_.end(), sizes.begin(), sizes.end());
  ++count_;
}

std::optional<TilingFlaw> FindTilingFlaw(std::span<const uint64_t> shape, const BoxList& boxes) {
  CAIRN_CHECK(boxes.dimensions() == shape.size());
  TilingSum sum;
  for (size_t i = 0; i < boxes.size(); ++i) {
    const auto offsets = boxes.offsets(i);
    const auto sizes = boxes.sizes(i);
    for (size_t d = 0; d < shape.size(); ++d) {
      if (offsets[d] > shape[d] || sizes[d] > shape[d] - offsets[d]) {
        return TilingFlaw{.kind = TilingFlaw::Kind::kOutside, .element = {}, .boxes = {i}};
      }
    }
    sum.Add(offsets, sizes);
  }
  if (HasNoElements(shape) || sum.IsTiling(shape)) return std::nullopt;
  return Search(boxes, shape).Locate();
}

}  // namespace cairn::core
