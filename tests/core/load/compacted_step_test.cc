// Goal: a reader notices nothing of a compaction, even without a grace period: it takes the newest
// root and continues. The writer compacts the store before the n-th read of a reader.

#include <gmock/gmock.h>

#include <array>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/checkpoint_store.h"
#include "core/inspect/compare.h"
#include "core/inspect/space.h"
#include "kv/copy_steps.h"
#include "kv/storage/files/internal/memory_storage.h"
#include "tests/core/tensor/test_tensor.h"
#include "tests/support/forwarding_storage.h"

namespace cairn::core {
namespace {

using kv::internal::MemoryStorage;
using testing::IsError;

/// Calls a hook before each read of an object or of a length.
class WatchedStorage final : public testing::ForwardingStorage {
 public:
  WatchedStorage(std::shared_ptr<kv::Storage> base, uint32_t small_requests)
      : ForwardingStorage(std::move(base)), small_requests_(small_requests) {}
  std::function<void()> before_read;
  bool loses_segments = false;  // that are written

  Result<std::unique_ptr<kv::ObjectWriter>> Create(std::string_view name) override {
    if (loses_segments && name.starts_with("segments/")) {
      return Fail(Error{.code = ErrorCode::kNotFound,
                        .message = "there is no such upload",
                        .file = std::string(name)});
    }
    return ForwardingStorage::Create(name);
  }
  Result<void> ReadRange(std::string_view name, uint64_t offset_bytes,
                         std::span<std::byte> target) override {
    Watch();
    return ForwardingStorage::ReadRange(name, offset_bytes, target);
  }
  Result<uint64_t> Size(std::string_view name) override {
    Watch();
    return ForwardingStorage::Size(name);
  }
  Result<std::vector<std::string>> List(std::string_view prefix) override {
    Watch();
    return ForwardingStorage::List(prefix);
  }
  kv::TransferSizes transfer_sizes() const override { return {.small_requests = small_requests_}; }

 private:
  void Watch() {
    const std::lock_guard lock(mutex_);
    if (before_read) before_read();
  }

  const uint32_t small_requests_;  // more than 1 where each takes long, as in a bucket
  std::mutex mutex_;
};

struct ReaderCall {
  const char* name;
  std::function<Result<void>(const CheckpointStore&, const kv::StepInfo&)> call;
};

constexpr std::array kFqns{"a", "b", "c"};

TestTensor Expected(size_t i) { return {DType::kInt8, {90'000}, static_cast<uint8_t>(i + 1)}; }

Result<void> Load(const CheckpointStore& reader, const kv::StepInfo& step) {
  std::vector<TestTensor> targets(3, TestTensor(DType::kInt8, {90'000}, 77));
  std::vector<LoadRequest> requests;
  for (size_t i = 0; i < 3; ++i) requests.push_back(WholeRequest(kFqns[i], targets[i]));
  CAIRN_TRY(reader.Load(step, requests));
  for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(targets[i].bytes == Expected(i).bytes) << kFqns[i];
  return {};
}

Result<void> Map(const CheckpointStore& reader, const kv::StepInfo& step) {
  const std::vector<std::string> fqns(kFqns.begin(), kFqns.end());
  CAIRN_TRY(reader.Map(step, fqns, /*verify=*/true, {}));
  return {};
}

Result<void> Verify(const CheckpointStore& reader, const kv::StepInfo&) {
  uint64_t read_bytes = 0;
  const auto fail = [](const kv::Damage& damage) { ADD_FAILURE() << damage.error.ToString(); };
  CAIRN_TRY_ASSIGN(read_bytes, reader.Verify(std::nullopt, fail));
  EXPECT_GE(read_bytes, 3 * 90'000u) << "what was compacted was not verified";
  return {};
}

Result<void> Copy(const CheckpointStore& reader, const kv::StepInfo& step) {
  const auto target = std::make_shared<MemoryStorage>("target");
  CAIRN_TRY_ASSIGN(const auto store, CheckpointStore::Open(target, kv::OpenMode::kWrite));
  CAIRN_TRY_ASSIGN(const auto report,
                   kv::CopySteps(reader.kv(), store->kv(), {.steps = {step.step}, .threads = 1}));
  EXPECT_EQ(report.steps[0].outcome, kv::CopiedStep::Outcome::kCopied);
  CAIRN_TRY_ASSIGN(const auto steps, store->Steps());
  return Load(*store, steps.back());
}

const std::vector<ReaderCall>& Calls() {
  static const std::vector<ReaderCall> calls = {
      {"List",
       [](const CheckpointStore& reader, const kv::StepInfo& step) -> Result<void> {
         CAIRN_TRY_ASSIGN(const Contents contents, reader.List(step.step));
         EXPECT_EQ(contents.tensors.size(), 3);
         return {};
       }},
      {"Chunks",
       [](const CheckpointStore& reader, const kv::StepInfo& step) -> Result<void> {
         CAIRN_TRY_ASSIGN(const auto chunks, reader.Chunks(step, "b"));
         EXPECT_FALSE(chunks.empty());
         return {};
       }},
      {"Load", Load},
      {"Map", Map},
      {"Compare",
       [](const CheckpointStore& reader, const kv::StepInfo&) -> Result<void> {
         CAIRN_TRY(CompareSteps(reader.kv(), 2, 3));
         return {};
       }},
      {"Space",
       [](const CheckpointStore& reader, const kv::StepInfo& step) -> Result<void> {
         CAIRN_TRY(MeasureSpace(reader.kv(), step.step, {}, 1));
         return {};
       }},
      {"History",
       [](const CheckpointStore& reader, const kv::StepInfo&) -> Result<void> {
         return FindVersions(reader.kv(), "a", [](const KeyVersion&) { return Result<void>(); });
       }},
      {"Verify", Verify},
      {"Copy", Copy},
  };
  return calls;
}

class CompactedStepTest : public ::testing::TestWithParam<std::tuple<size_t, uint32_t>> {
 protected:
  void SetUp() override {
    CAIRN_ASSERT_OK_AND_ASSIGN(writer_,
                               CheckpointStore::Open(base_, kv::OpenMode::kWrite,
                                                     {.grace = std::chrono::milliseconds(0)}));
    for (const uint64_t step : {1, 2, 3}) {
      StateDict state;
      std::vector<TestTensor> tensors;
      for (size_t i = 0; i < 3; ++i) {
        // Each step has one new tensor of those of step 3.
        tensors.push_back(i < step ? Expected(i) : TestTensor(DType::kInt8, {90'000}, 50 + step));
      }
      for (size_t i = 0; i < 3; ++i) state.root().Tensor(kFqns[i], tensors[i].view());
      CAIRN_ASSERT_OK(writer_->Save(step, state));
    }
    CAIRN_ASSERT_OK(writer_->Delete(std::array<uint64_t, 1>{1}));
  }
  /// Opens a reader, and calls the operation, before whose n-th read the store is compacted.
  /// Returns the number of reads.
  Result<uint64_t> CallWithCompactionAt(uint64_t n) {
    const auto storage = std::make_shared<WatchedStorage>(base_, std::get<1>(GetParam()));
    CAIRN_TRY_ASSIGN(const auto reader, CheckpointStore::Open(storage, kv::OpenMode::kRead));
    CAIRN_TRY_ASSIGN(const auto steps, reader->Steps());
    uint64_t reads = 0;
    storage->before_read = [&] {
      if (++reads == n) CAIRN_EXPECT_OK(writer_->Compact({.max_dead = 0}));
    };
    CAIRN_TRY(call().call(*reader, steps.back()));
    return reads;
  }
  const ReaderCall& call() const { return Calls()[std::get<0>(GetParam())]; }

  std::shared_ptr<MemoryStorage> base_ = std::make_shared<MemoryStorage>("memory");
  std::unique_ptr<CheckpointStore> writer_;
};

INSTANTIATE_TEST_SUITE_P(Calls, CompactedStepTest,
                         ::testing::Combine(::testing::Range<size_t>(0, 9),
                                            ::testing::Values(1u, 8u)),
                         [](const auto& info) {
                           return std::string(Calls()[std::get<0>(info.param)].name) +
                                  std::to_string(std::get<1>(info.param));
                         });

TEST_P(CompactedStepTest, ReaderGoesOnInTheNewestRoot) {
  uint64_t reads = 1;
  for (uint64_t n = 1; n <= reads; ++n) {
    SCOPED_TRACE("compacted before read " + std::to_string(n));
    base_ = std::make_shared<MemoryStorage>("memory");
    SetUp();
    CAIRN_ASSERT_OK_AND_ASSIGN(reads, CallWithCompactionAt(n));
    if (HasFailure()) return;
  }
  EXPECT_GE(reads, 1u);
}

TEST(LostBaseTest, WriteOfASaveThatFindsNothingIsNotALostBase) {
  const auto storage = std::make_shared<WatchedStorage>(std::make_shared<MemoryStorage>("m"), 1);
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto store,
                             CheckpointStore::Open(storage, kv::OpenMode::kWrite));
  for (const uint64_t step : {1, 2}) {
    const TestTensor tensor(DType::kInt8, {90'000}, static_cast<uint8_t>(step));
    const StateDict state = StateOf({{"a", tensor.view()}});
    storage->loses_segments = step == 2;
    const auto saved = store->Save(step, state);
    if (step == 1) CAIRN_ASSERT_OK(saved);
    if (step == 2) EXPECT_THAT(saved, IsError(ErrorCode::kNotFound, "no such upload"));
  }
}

}  // namespace
}  // namespace cairn::core
