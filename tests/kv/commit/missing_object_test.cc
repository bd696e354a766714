// Goal: if an object that the newest root reaches is missing, everything that needs it returns
// kDataLoss and names it. It never looks as if the step did not exist.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <string>

#include "kv/compact.h"
#include "kv/copy_steps.h"
#include "kv/root/internal/root_log.h"
#include "kv/root/internal/step_list.h"
#include "kv/storage/files/internal/memory_storage.h"
#include "kv/storage/internal/object_names.h"
#include "kv/store.h"
#include "tests/kv/sample_step.h"
#include "tests/support/result_matchers.h"

namespace cairn::kv {
namespace {

using cairn::testing::IsError;
using internal::MemoryStorage;
using internal::ObjectKind;
using ::testing::Contains;
using ::testing::HasSubstr;
using namespace cairn::kv::testing;  // NOLINT(google-build-using-namespace)

constexpr SampleShape kTiny{.tensor_count = 3, .largest_bytes = 500};
constexpr uint64_t kStepCount = 70;  // the first ones are in a page

class MissingObjectTest : public ::testing::Test {
 protected:
  void SetUp() override {
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto writer, Open(OpenMode::kWrite));
    for (uint64_t step = 0; step < kStepCount; ++step) {
      CAIRN_ASSERT_OK(SaveSample(*writer, MakeSample(step, 0, kTiny)));
    }
  }
  Result<std::unique_ptr<Store>> Open(OpenMode mode) const {
    return Store::Open(storage_, mode, {.take_over = true});
  }
  /// Removes the only page, or the first object of this kind that the entry of a step names.
  void RemoveObjectOf(ObjectKind kind, uint64_t step) {
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto root, internal::FindNewest(*storage_));
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto entry, internal::StepList(storage_, *root).Find(step));
    internal::ObjectId id = root->pages.front().id;
    if (kind == ObjectKind::kTable) id = entry->tables.front().id;
    if (kind == ObjectKind::kSegment) id = entry->usage.front().segment;
    name_ = internal::ObjectName(kind, id);
    CAIRN_ASSERT_OK(storage_->Size(name_));
    CAIRN_ASSERT_OK(storage_->Remove(name_));
  }
  template <typename T>
  void ExpectNamed(const Result<T>& result) const {
    EXPECT_THAT(result, IsError(ErrorCode::kDataLoss, name_));
  }
  void ExpectReported(const Snapshot& snapshot) const {
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto lines, Verify(snapshot));
    EXPECT_THAT(lines, Contains(HasSubstr(name_)));
  }

  const std::shared_ptr<MemoryStorage> storage_ = std::make_shared<MemoryStorage>("store");
  std::string name_;
};

TEST_F(MissingObjectTest, PageOfSteps) {
  RemoveObjectOf(ObjectKind::kPage, 0);
  {
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto reader, Open(OpenMode::kRead));
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto snapshot, reader->Latest());
    EXPECT_EQ(snapshot->step_numbers().size(), kStepCount);
    ExpectNamed(snapshot->FindStep(0));
    ExpectNamed(snapshot->Steps());
    ExpectNamed(snapshot->Segments());
    ExpectNamed(LoadSample(*snapshot, 0));
    CAIRN_EXPECT_OK(LoadSample(*snapshot, kStepCount - 1));
    ExpectReported(*snapshot);
  }
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto writer, Open(OpenMode::kWrite));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto snapshot, writer->Latest());
  ExpectNamed(snapshot->FindStep(0));
  ExpectNamed(writer->Delete(std::array<uint64_t, 1>{0}));
  ExpectNamed(Compact(*writer, {}));
  const auto other = std::make_shared<MemoryStorage>("other");
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto target, Store::Open(other, OpenMode::kWrite));
  ExpectNamed(CopySteps(*writer, *target, {.steps = {0}}));
  CAIRN_ASSERT_OK(SaveSample(*target, MakeSample(500, 1, kTiny)));
  ExpectNamed(CopySteps(*target, *writer, {.steps = {500}}));
}

TEST_F(MissingObjectTest, Table) {
  RemoveObjectOf(ObjectKind::kTable, kStepCount - 1);
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto reader, Open(OpenMode::kRead));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto snapshot, reader->Latest());
  ExpectNamed(LoadSample(*snapshot, kStepCount - 1));
  CAIRN_ASSERT_OK_AND_ASSIGN(const StepInfo step, snapshot->FindStep(kStepCount - 1));
  ExpectNamed(snapshot->GetStructure(step));
  ExpectNamed(snapshot->SegmentsOf(step));
  ExpectReported(*snapshot);
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto writer, Open(OpenMode::kWrite));
  ExpectNamed(SaveSample(*writer, MakeSample(500, 0, kTiny)));  // its base is the step
  ExpectNamed(Compact(*writer, {}));
  const auto other = std::make_shared<MemoryStorage>("other");
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto target, Store::Open(other, OpenMode::kWrite));
  ExpectNamed(CopySteps(*writer, *target, {.steps = {kStepCount - 1}}));
}

TEST_F(MissingObjectTest, Segment) {
  RemoveObjectOf(ObjectKind::kSegment, kStepCount - 1);
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto reader, Open(OpenMode::kRead));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto snapshot, reader->Latest());
  ExpectNamed(LoadSample(*snapshot, kStepCount - 1));
  ExpectReported(*snapshot);
  const auto other = std::make_shared<MemoryStorage>("other");
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto target, Store::Open(other, OpenMode::kWrite));
  ExpectNamed(CopySteps(*reader, *target, {.steps = {kStepCount - 1}}));
}

}  // namespace
}  // namespace cairn::kv
