#pragma once
/// The contents of the golden stores. Never changed after a store with them was added to git.

#include "tests/kv/sample_step.h"

namespace cairn::kv::testing {

/// Three tensors from a formula that needs no library, and small, to keep the repository small.
/// "frozen" is the same in every step.
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

/// One tensor with a chunk of two pages and a chunk of a short page. The first page is the same in
/// every step and the second is not, so that in steps after the first the chunk has two extents.
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

/// The store that three ranks wrote has so many steps that its root refers to a page.
inline constexpr uint64_t kFirstRanksStep = 1;
inline constexpr uint64_t kLastRanksStep = 66;
/// All steps between the first and the last are equal, so that they add no payload.
inline std::map<uint64_t, SampleStep> RanksGoldenSteps() {
  std::map<uint64_t, SampleStep> steps;
  for (uint64_t step = kFirstRanksStep; step <= kLastRanksStep; ++step) {
    steps[step] = GoldenStep(step == kLastRanksStep ? 2 : 1, 0);
    steps[step].step = step;
  }
  return steps;
}

/// Steps 10, 20 (which was overwritten once) and 30. Step 15 was deleted.
inline std::map<uint64_t, SampleStep> GoldenSteps() {
  return {{10, GoldenStep(10, 0)}, {20, GoldenStep(20, 1)}, {30, GoldenStep(30, 0)}};
}

}  // namespace cairn::kv::testing
