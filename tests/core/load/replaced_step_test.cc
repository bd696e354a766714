// Goal: an identity never repeats, so that a reader never mixes two steps. The newest step is
// deleted, the store is opened again, and another step is saved with the same number. A reader in
// which this happens at any of its calls to the storage returns the old step, the new one or
// kNotFound.

#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string>

#include "core/checkpoint_store.h"
#include "kv/storage/files/internal/memory_storage.h"
#include "tests/core/tensor/test_tensor.h"
#include "tests/support/faulty_storage.h"

namespace cairn::core {
namespace {

using kv::internal::FaultyStorage;
using kv::internal::MemoryStorage;
using kv::internal::StorageCall;
using kv::internal::StorageFault;
using testing::IsError;

class ReplacedStepTest : public ::testing::TestWithParam<int> {
 protected:
  Result<std::unique_ptr<CheckpointStore>> OpenWriter() const {
    return CheckpointStore::Open(base_, kv::OpenMode::kWrite,
                                 {.grace = std::chrono::milliseconds(GetParam())});
  }
  /// Three tensors with the same bytes.
  static void Save(CheckpointStore& writer, uint64_t step, uint8_t seed) {
    const TestTensor tensor(DType::kInt8, {90'000}, seed);
    StateDict state;
    for (const char* fqn : kFqns) state.root().Tensor(fqn, tensor.view());
    CAIRN_ASSERT_OK(writer.Save(step, state));
  }
  /// Replaces step 2 as described above.
  void Replace() const {
    {
      CAIRN_ASSERT_OK_AND_ASSIGN(const auto writer, OpenWriter());
      CAIRN_ASSERT_OK(writer->Delete(std::array<uint64_t, 1>{2}));
    }
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto writer, OpenWriter());
    Save(*writer, 2, kNew);
  }
  /// Returns the seed of step 2.
  static Result<uint8_t> Read(const CheckpointStore& reader) {
    CAIRN_TRY_ASSIGN(const Contents contents, reader.List(2));
    std::vector<TestTensor> targets;
    for (int i = 0; i < 3; ++i) targets.emplace_back(DType::kInt8, Shape{90'000}, 50 + i);
    for (int i = 0; i < 3; ++i) {
      const LoadRequest request = WholeRequest(kFqns[i], targets[i]);
      CAIRN_TRY(reader.Load(contents.step, {&request, 1}));
    }
    for (const uint8_t seed : {kOld, kNew}) {
      const TestTensor expected(DType::kInt8, {90'000}, seed);
      if (std::ranges::all_of(
              targets, [&](const TestTensor& target) { return target.bytes == expected.bytes; })) {
        return seed;
      }
    }
    return Fail(ErrorCode::kInternal, "the tensors are of two steps");
  }

  static constexpr std::array kFqns{"a", "b", "c"};
  static constexpr uint8_t kOld = 1, kNew = 2;
  std::shared_ptr<MemoryStorage> base_ = std::make_shared<MemoryStorage>("memory");
};

TEST_P(ReplacedStepTest, IsReadCompletelyOrNotAtAll) {
  uint64_t calls = 0;
  int old_reads = 0, new_reads = 0;
  for (uint64_t n = 1; calls >= n - 1; ++n) {
    SCOPED_TRACE("at call " + std::to_string(n));
    base_ = std::make_shared<MemoryStorage>("memory");
    uint64_t old_generation = 0;
    {
      CAIRN_ASSERT_OK_AND_ASSIGN(const auto writer, OpenWriter());
      Save(*writer, 1, 9);
      Save(*writer, 2, kOld);
      CAIRN_ASSERT_OK_AND_ASSIGN(const auto steps, writer->Steps());
      old_generation = steps.back().generation;
    }
    const auto seen = std::make_shared<FaultyStorage>(base_);
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto reader, CheckpointStore::Open(seen, kv::OpenMode::kRead));
    calls = 0;
    seen->SetPlan([&](const StorageCall&) {
      if (++calls == n) Replace();
      return StorageFault::kNone;
    });
    const auto read = Read(*reader);
    if (read) {
      ++(*read == kOld ? old_reads : new_reads);
    } else {
      EXPECT_THAT(read, IsError(ErrorCode::kNotFound, ""));
    }
    seen->SetPlan({});
    if (calls >= n) {
      CAIRN_ASSERT_OK_AND_ASSIGN(const uint8_t now, Read(*reader));
      EXPECT_EQ(now, kNew);
      CAIRN_ASSERT_OK_AND_ASSIGN(const auto steps, reader->Steps());
      EXPECT_GT(steps.back().generation, old_generation);
    }
    if (HasFailure()) return;
  }
  EXPECT_GT(calls, 5u);
  EXPECT_GT(old_reads, 0);
  EXPECT_GT(new_reads, 0);
}

INSTANTIATE_TEST_SUITE_P(GraceMs, ReplacedStepTest, ::testing::Values(0, 60'000),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace cairn::core
