// Goal: verification reports damage, and nothing else, whatever a writer does at the same time.

#include <gmock/gmock.h>

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "core/checkpoint_store.h"
#include "core/state_dict/state_dict.h"
#include "kv/base/key.h"
#include "kv/storage/files/internal/memory_storage.h"
#include "tests/core/tensor/test_tensor.h"
#include "tests/support/faulty_storage.h"

namespace cairn::core {
namespace {

using kv::internal::FaultyStorage;
using kv::internal::MemoryStorage;
using kv::internal::StorageCall;
using kv::internal::StorageFault;
using ::testing::IsEmpty;

void SaveStep(CheckpointStore& store, uint64_t step) {
  const TestTensor large(DType::kInt8, {200'000}, static_cast<uint8_t>(step));
  const TestTensor small(DType::kInt8, {1'000}, static_cast<uint8_t>(step));
  StateDict state = StateOf({{"large", large.view()}, {"small", small.view()}});
  state.root().Value("step", static_cast<int64_t>(step));
  CAIRN_ASSERT_OK(store.Save(step, state, {.overwrite = true, .incremental = false}));
}

TEST(VerifyTest, CountsTheRecordsBeforeThePayload) {
  const auto base = std::make_shared<MemoryStorage>("memory");
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto store, CheckpointStore::Open(base, kv::OpenMode::kWrite));
  for (const uint64_t step : {1, 2}) SaveStep(*store, step);
  const auto no_damage = [](const kv::Damage& one) { ADD_FAILURE() << one.error.ToString(); };
  uint64_t records = 0, bytes = 0;
  const auto count_records = [&](uint64_t done, uint64_t total) {
    EXPECT_EQ(total, 8u);  // two tensors of one chunk in each of two steps
    EXPECT_EQ(bytes, 0u);
    records = done;
    return true;
  };
  const auto count_bytes = [&](uint64_t done, uint64_t total) {
    EXPECT_EQ(total, 402'000u);
    bytes = done;
    return true;
  };
  CAIRN_EXPECT_OK(store->Verify(std::nullopt, no_damage, count_bytes, count_records));
  EXPECT_EQ(records, 8u);
  EXPECT_EQ(bytes, 402'000u);

  const auto stop = [](uint64_t, uint64_t) { return false; };
  EXPECT_THAT(store->Verify(std::nullopt, no_damage, {}, stop),
              testing::IsError(ErrorCode::kCancelled, ""));
}

TEST(VerifyTest, NamesARecordOfAnApplicationThatIsDamaged) {
  CAIRN_ASSERT_OK_AND_ASSIGN(
      const auto store,
      CheckpointStore::Open(std::make_shared<MemoryStorage>("memory"), kv::OpenMode::kWrite));
  StateDict state;
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto writer, store->kv().Begin(3, {}));
  const std::array<std::byte, 32> no_record = {};
  CAIRN_ASSERT_OK(writer->AddRecord(kv::Column::kApplication, "eval", no_record));
  CAIRN_ASSERT_OK(writer->SetStructure(EncodeTree(state.tree)));
  CAIRN_ASSERT_OK_AND_ASSIGN(const kv::StepInfo step, writer->Commit({}));

  std::vector<kv::Damage> found;
  const auto collect = [&](const kv::Damage& one) { found.push_back(one); };
  CAIRN_EXPECT_OK(store->Verify(std::nullopt, collect));
  ASSERT_EQ(found.size(), 1u);
  for (const Error& error : {found.front().error, store->ReadRecord(step, "eval").error()}) {
    EXPECT_EQ(error.step, 3u);
    EXPECT_THAT(error.message, ::testing::HasSubstr("the record 'eval'"));
  }
}

// A writer without a grace period deletes and replaces steps at the n-th call of the verification
// to the storage.
TEST(VerifyTest, StepsThatAreDeletedMeanwhileAreNotDamaged) {
  uint64_t calls = 0;
  for (uint64_t n = 1; calls >= n - 1; ++n) {
    const auto base = std::make_shared<MemoryStorage>("memory");
    CAIRN_ASSERT_OK_AND_ASSIGN(
        const auto writer,
        CheckpointStore::Open(base, kv::OpenMode::kWrite, {.grace = std::chrono::milliseconds(0)}));
    for (const uint64_t step : {1, 2, 3}) SaveStep(*writer, step);
    const auto seen = std::make_shared<FaultyStorage>(base);
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto reader, CheckpointStore::Open(seen, kv::OpenMode::kRead));
    calls = 0;
    seen->SetPlan([&](const StorageCall&) {
      if (++calls == n) {
        CAIRN_EXPECT_OK(writer->Delete(std::array<uint64_t, 2>{1, 3}));
        SaveStep(*writer, 2);
      }
      return StorageFault::kNone;
    });
    std::vector<std::string> damage;
    CAIRN_EXPECT_OK(reader->Verify(
        std::nullopt, [&](const kv::Damage& one) { damage.push_back(one.error.ToString()); }));
    EXPECT_THAT(damage, IsEmpty()) << "at call " << n;
    seen->SetPlan({});
  }
  EXPECT_GT(calls, 10u);
}

}  // namespace
}  // namespace cairn::core
