#pragma once
/// What the golden stores hold. Never changed once a store with it is in git.

#include "tests/kv/sample_step.h"

namespace cairn::kv::testing {

/// Three tensors by a formula that needs no library, small to keep git small. "frozen" is the same
/// in every step.
inline SampleStep GoldenStep(uint64_t step, uint64_t version) {
  const auto fill = [](uint64_t length_bytes, uint64_t salt) {
    std::vector<std::byte> bytes(length_bytes);
    for (uint64_t i = 0; i < length_bytes; ++i) {
      bytes[i] = static_cast<std::byte>((i / 64 * 7 + salt) & 0xff);
    }
    return bytes;
  };
  SampleStep sample{.step = step, .version = version, .tensors = {}};
  sample.tensors["empty"] = {};
  sample.tensors["frozen"] = fill(1'500, 3);
  sample.tensors["hot"] = fill(1'000, 16 * step + version);
  return sample;
}

/// One tensor of a chunk of two pages and one of a short page. The first page is the same in every
/// step, the second is not, so that the chunk of steps behind the first lies in two extents.
inline SampleStep PagesGoldenStep(uint64_t step) {
  SampleStep sample{.step = step, .version = 0, .tensors = {}};
  std::vector<std::byte>& bytes = sample.tensors["paged"];
  bytes.resize(kSampleChunkBytes + 1'000);
  for (uint64_t i = 0; i < bytes.size(); ++i) {
    const uint64_t salt = i < kPageBytes ? 0 : step;
    bytes[i] = static_cast<std::byte>((i / 64 * 7 + salt) & 0xff);
  }
  return sample;
}
inline std::map<uint64_t, SampleStep> PagesGoldenSteps() {
  return {{2, PagesGoldenStep(2)}, {3, PagesGoldenStep(3)}};
}

/// Steps 10 and 30, and 20, which was overwritten once; 15 was deleted.
inline std::map<uint64_t, SampleStep> GoldenSteps() {
  return {{10, GoldenStep(10, 0)}, {20, GoldenStep(20, 1)}, {30, GoldenStep(30, 0)}};
}

}  // namespace cairn::kv::testing
