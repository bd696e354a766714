// Tags, metrics and notes of steps, and which steps a policy keeps.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kv/base/annotations.h"
#include "kv/base/retention.h"
#include "kv/compact.h"
#include "kv/read/snapshot.h"
#include "kv/root/internal/root_record.h"
#include "kv/storage/files/internal/memory_storage.h"
#include "kv/store.h"
#include "tests/kv/sample_step.h"
#include "tests/kv/store_checks.h"
#include "tests/support/result_matchers.h"

namespace cairn::kv {
namespace {

using cairn::testing::IsError;
using internal::MemoryStorage;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;
using namespace cairn::kv::testing;  // NOLINT(google-build-using-namespace)

class TagsTest : public ::testing::Test {
 protected:
  void SetUp() override { Open(); }
  void Open() {
    store_.reset();
    CAIRN_ASSERT_OK_AND_ASSIGN(store_, Store::Open(storage_, OpenMode::kWrite));
  }
  /// Saves steps 1 to `count`, which have no tensors.
  void Save(uint64_t count) {
    for (uint64_t step = 1; step <= count; ++step) {
      CAIRN_ASSERT_OK(SaveSample(*store_, MakeSample(step, 0, {.tensor_count = 0})));
    }
  }
  Result<StepInfo> SaveWith(uint64_t step, BeginOptions options) {
    CAIRN_TRY_ASSIGN(const auto writer, store_->Begin(step, options));
    CAIRN_TRY(writer->SetStructure(std::as_bytes(std::span("structure"))));
    return writer->Commit({});
  }
  Tags TagsNow() {
    const auto snapshot = store_->Latest();
    EXPECT_TRUE(cairn::testing::IsOk(snapshot));
    return (*snapshot)->tags();
  }

  std::shared_ptr<MemoryStorage> storage_ = std::make_shared<MemoryStorage>("memory");
  std::unique_ptr<Store> store_;
};

TEST_F(TagsTest, NameSteps) {
  Save(3);
  CAIRN_ASSERT_OK(store_->ChangeTags({{"best", 2}, {"release-1.0", 1}}));
  Open();
  EXPECT_THAT(TagsNow(), ElementsAre(Pair("best", 2), Pair("release-1.0", 1)));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto snapshot, store_->Latest());
  EXPECT_EQ(snapshot->FindTag("best").value(), 2);
  EXPECT_THAT(snapshot->FindTag("worst"), IsError(ErrorCode::kNotFound, "best, release-1.0"));
  CAIRN_ASSERT_OK(store_->ChangeTags({{"best", 3}, {"release-1.0", std::nullopt}}));
  EXPECT_THAT(TagsNow(), ElementsAre(Pair("best", 3)));
}

TEST_F(TagsTest, AreRefusedAltogetherOrNotAtAll) {
  Save(1);
  EXPECT_THAT(store_->ChangeTags({{"a", 1}, {"b", 7}}), IsError(ErrorCode::kNotFound, "step"));
  EXPECT_THAT(store_->ChangeTags({{"a", 1}, {"b", std::nullopt}}),
              IsError(ErrorCode::kNotFound, "'b'"));
  for (const char* const name : {"", "12", "a b", "a/b", "a@b", "\xc3\xa9"}) {
    EXPECT_THAT(store_->ChangeTags({{name, 1}}), IsError(ErrorCode::kInvalidArgument, "tag"));
  }
  EXPECT_THAT(store_->ChangeTags({{std::string(65, 'a'), 1}}),
              IsError(ErrorCode::kInvalidArgument, "tag"));
  EXPECT_THAT(TagsNow(), IsEmpty());
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto reader, Store::Open(storage_, OpenMode::kRead));
  EXPECT_THAT(reader->ChangeTags({{"a", 1}}), IsError(ErrorCode::kFailedPrecondition, "reading"));
}

TEST_F(TagsTest, VanishWithTheirStep) {
  Save(3);
  CAIRN_ASSERT_OK(store_->ChangeTags({{"a", 1}, {"b", 2}}));
  CAIRN_ASSERT_OK(store_->Delete(std::array<uint64_t, 1>{1}));
  EXPECT_THAT(TagsNow(), ElementsAre(Pair("b", 2)));
}

TEST_F(TagsTest, StayThroughCommitsAndCompactions) {
  Save(100);  // older steps are in pages
  CAIRN_ASSERT_OK(store_->ChangeTags({{"first", 1}}));
  CAIRN_ASSERT_OK(SaveSample(*store_, MakeSample(101)));
  CAIRN_ASSERT_OK(Compact(*store_, {.max_dead = 0}));
  Open();
  EXPECT_THAT(TagsNow(), ElementsAre(Pair("first", 1)));
}

TEST_F(TagsTest, ASaveRecordsThem) {
  const double nan = std::bit_cast<double>(0x7ff8'0000'0000'1234);
  const BeginOptions options{.metrics = {{.name = "val/loss", .value = 2.5},
                                         {.name = "nan", .value = nan},
                                         {.name = "zero", .value = -0.0}},
                             .note = "warm start\nfrom 7",
                             .tags = {"best"}};
  CAIRN_ASSERT_OK(SaveWith(1, options));
  CAIRN_ASSERT_OK(SaveWith(2, {.tags = {"best"}}));
  Open();
  EXPECT_THAT(TagsNow(), ElementsAre(Pair("best", 2)));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto snapshot, store_->Latest());
  CAIRN_ASSERT_OK_AND_ASSIGN(const StepInfo info, snapshot->FindStep(1));
  ASSERT_THAT(info.metrics, SizeIs(3));
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(info.metrics[i].name, options.metrics[i].name);
    EXPECT_EQ(std::bit_cast<uint64_t>(info.metrics[i].value),
              std::bit_cast<uint64_t>(options.metrics[i].value));
  }
  EXPECT_EQ(info.note, options.note);
}

TEST_F(TagsTest, ASaveIsRefusedBeforeItBegins) {
  const std::string long_note(kMaxNoteBytes + 1, 'n');
  const BeginOptions refused[] = {
      {.metrics = {{.name = "", .value = 1}}},
      {.metrics = {{.name = "a b", .value = 1}}},
      {.metrics = {{.name = "a", .value = 1}, {.name = "a", .value = 2}}},
      {.metrics = std::vector<Metric>(kMaxMetrics + 1, {.name = "a", .value = 1})},
      {.note = long_note},
      {.tags = {"17"}},
  };
  for (const BeginOptions& options : refused) {
    EXPECT_FALSE(store_->Begin(1, options));
    EXPECT_THAT(SaveWith(1, options), IsError(ErrorCode::kInvalidArgument, ""));
  }
  CAIRN_ASSERT_OK(SaveWith(1, {}));
}

TEST_F(TagsTest, SurviveARebuildAsFarAsRootsDo) {
  CAIRN_ASSERT_OK(SaveWith(1, {.metrics = {{.name = "loss", .value = 3}}, .note = "n"}));
  CAIRN_ASSERT_OK(store_->Close());
  RemoveObjects(*storage_, "roots/");
  CAIRN_ASSERT_OK(Store::Rebuild(std::static_pointer_cast<Storage>(storage_)));
  Open();
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto snapshot, store_->Latest());
  CAIRN_ASSERT_OK_AND_ASSIGN(const StepInfo info, snapshot->FindStep(1));
  ASSERT_THAT(info.metrics, SizeIs(1));
  EXPECT_EQ(info.metrics[0].value, 3);
  EXPECT_EQ(info.note, "n");
}

TEST(RootTagsTest, ATagOfAMissingStepIsDamage) {
  internal::Root root{.number = 1};
  internal::StepEntry entry;
  entry.info.step = 5;
  root.recent = {std::make_shared<const internal::StepEntry>(entry)};
  root.tags = {{"best", 5}};
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto object, internal::EncodeRoot(root));
  CAIRN_ASSERT_OK_AND_ASSIGN(const internal::Root decoded, internal::DecodeRoot(object));
  EXPECT_EQ(decoded.tags, root.tags);

  root.tags = {{"best", 6}};
  const auto refused = internal::EncodeRoot(root);  // which decodes what it returns
  ASSERT_FALSE(refused.has_value());
  EXPECT_THAT(refused.error().message, ::testing::HasSubstr("readers would refuse it"));
}

// --- retention

StepInfo WithLoss(uint64_t step, double loss) {
  StepInfo info{.step = step};
  info.metrics = {{.name = "loss", .value = loss}};
  return info;
}

class RetentionTest : public ::testing::Test {
 protected:
  const double nan_ = std::numeric_limits<double>::quiet_NaN();
  std::vector<StepInfo> steps_ = {WithLoss(10, 3), WithLoss(20, 1), WithLoss(30, nan_),
                                  WithLoss(40, 1), WithLoss(50, 9), StepInfo{.step = 60}};
  std::vector<uint64_t> Doomed(RetentionPolicy policy, const Tags& tags = {},
                               std::optional<uint64_t> newest = {}) {
    return StepsToDelete(policy, steps_, tags, newest.value_or(60), newest.has_value());
  }
};

TEST_F(RetentionTest, KeepsTheLastTheMultiplesAndTheTagged) {
  EXPECT_THAT(Doomed({.keep_last = 2}), ElementsAre(10, 20, 30, 40));
  EXPECT_THAT(Doomed({.keep_last = 9}), IsEmpty());
  EXPECT_THAT(Doomed({.keep_every = 20}), ElementsAre(10, 30, 50));
  EXPECT_THAT(Doomed({.keep_last = 1, .keep_every = 30}, {{"best", 10}}), ElementsAre(20, 40, 50));
}

TEST_F(RetentionTest, KeepsTheBest) {
  EXPECT_THAT(Doomed({.keep_best = {{.metric = "loss", .count = 1}}}),
              ElementsAre(10, 20, 30, 50, 60));  // of equal ones the later
  EXPECT_THAT(Doomed({.keep_best = {{.metric = "loss", .count = 3}}}), ElementsAre(30, 50, 60));
  EXPECT_THAT(Doomed({.keep_best = {{.metric = "loss", .count = 1, .highest = true}}}),
              ElementsAre(10, 20, 30, 40, 60));
  EXPECT_THAT(Doomed({.keep_last = 1, .keep_best = {{.metric = "other", .count = 1}}}), SizeIs(5));
}

TEST_F(RetentionTest, NeverDeletesTheNewestOrLaterSteps) {
  EXPECT_THAT(Doomed({.keep_last = 1}, {}, 40), ElementsAre(10, 20, 30));
  EXPECT_THAT(Doomed({.keep_last = 2}, {}, 40), ElementsAre(10, 20));
  EXPECT_THAT(Doomed({.keep_every = 1000}, {}, 40), ElementsAre(10, 20, 30));
}

class PolicyTest : public TagsTest {
 protected:
  std::vector<uint64_t> Steps() {
    const auto snapshot = store_->Latest();
    EXPECT_TRUE(cairn::testing::IsOk(snapshot));
    return (*snapshot)->step_numbers();
  }
  Result<StepInfo> SaveStep(uint64_t step) {
    return SaveSample(*store_, MakeSample(step, 0, {.tensor_count = 2, .largest_bytes = 5000}));
  }
};

TEST_F(PolicyTest, EachSaveAppliesItInItsCommit) {
  for (uint64_t step = 1; step <= 6; ++step) CAIRN_ASSERT_OK(SaveStep(step));
  CAIRN_ASSERT_OK(store_->ChangeTags({{"best", 2}}));
  CAIRN_ASSERT_OK(store_->SetRetention({.keep_last = 2, .keep_every = 5, .keep_best = {}}));
  EXPECT_THAT(Steps(), SizeIs(6));  // by itself it deletes nothing
  Open();                           // the policy is that of the store, not of the process
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto before, store_->Latest());
  CAIRN_ASSERT_OK(SaveStep(7));
  EXPECT_THAT(Steps(), ElementsAre(2, 5, 6, 7));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto after, store_->Latest());
  EXPECT_EQ(after->FindStep(7)->generation, before->FindStep(6)->generation + 4);  // one commit
  ExpectSound(*after);
  CAIRN_ASSERT_OK(store_->SetRetention({}));
  CAIRN_ASSERT_OK(SaveStep(8));
  EXPECT_THAT(Steps(), ElementsAre(2, 5, 6, 7, 8));
}

TEST_F(PolicyTest, KeepsTheStepThatIsSavedAndWhatTheProcessKeeps) {
  for (uint64_t step = 1; step <= 5; ++step) CAIRN_ASSERT_OK(SaveStep(10 * step));
  CAIRN_ASSERT_OK(store_->SetRetention({.keep_last = 1, .keep_best = {}}));
  store_->KeepSteps(std::vector<uint64_t>{10});
  CAIRN_ASSERT_OK(SaveStep(35));  // does not continue 50, which remains the latest
  EXPECT_THAT(Steps(), ElementsAre(10, 35, 50));
  store_->KeepSteps({});
  CAIRN_ASSERT_OK(SaveStep(60));
  EXPECT_THAT(Steps(), ElementsAre(60));
}

TEST_F(PolicyTest, KeepsTheBestWithTheStepThatIsSaved) {
  const KeepBest best{.metric = "loss", .count = 1};
  CAIRN_ASSERT_OK(store_->SetRetention({.keep_last = 1, .keep_best = {best}}));
  CAIRN_ASSERT_OK(SaveWith(1, {.metrics = {{.name = "loss", .value = 3}}}));
  CAIRN_ASSERT_OK(SaveWith(2, {.metrics = {{.name = "loss", .value = 1}}}));
  EXPECT_THAT(Steps(), ElementsAre(2));
  CAIRN_ASSERT_OK(SaveWith(3, {.metrics = {{.name = "loss", .value = 2}}}));
  EXPECT_THAT(Steps(), ElementsAre(2, 3));
  CAIRN_ASSERT_OK(SaveWith(4, {.tags = {"release"}}));
  CAIRN_ASSERT_OK(SaveWith(5, {}));
  EXPECT_THAT(Steps(), ElementsAre(2, 4, 5));
}

TEST_F(PolicyTest, IsRefusedIfItIsImpossible) {
  EXPECT_THAT(store_->SetRetention({.keep_last = 1, .keep_best = {{.metric = "", .count = 1}}}),
              IsError(ErrorCode::kInvalidArgument, "metric"));
  EXPECT_THAT(store_->SetRetention({.keep_last = 1, .keep_best = {{.metric = "a", .count = 0}}}),
              IsError(ErrorCode::kInvalidArgument, "no step"));
  const std::vector<KeepBest> many(kMaxKeepBest + 1, KeepBest{.metric = "a", .count = 1});
  EXPECT_THAT(store_->SetRetention({.keep_best = many}),
              IsError(ErrorCode::kInvalidArgument, "at most"));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto reader, Store::Open(storage_, OpenMode::kRead));
  EXPECT_THAT(reader->SetRetention({.keep_last = 1, .keep_best = {}}),
              IsError(ErrorCode::kFailedPrecondition, "reading"));
}

TEST_F(PolicyTest, CompressionIsASettingOfTheStore) {
  const auto compresses = [&] {
    const auto snapshot = store_->Latest();
    EXPECT_TRUE(cairn::testing::IsOk(snapshot));
    return (*snapshot)->compresses_saves();
  };
  EXPECT_FALSE(compresses());
  CAIRN_ASSERT_OK(store_->SetCompression(true));
  EXPECT_TRUE(compresses());
  CAIRN_ASSERT_OK(SaveStep(1));
  CAIRN_ASSERT_OK(store_->SetRetention({.keep_last = 2, .keep_best = {}}));
  Open();
  EXPECT_TRUE(compresses());
  CAIRN_ASSERT_OK(store_->Delete(std::vector<uint64_t>{1}));
  EXPECT_TRUE(compresses());
  CAIRN_ASSERT_OK(store_->SetCompression(false));
  EXPECT_FALSE(compresses());
  CAIRN_ASSERT_OK_AND_ASSIGN(
      const auto reader, Store::Open(std::static_pointer_cast<Storage>(storage_), OpenMode::kRead));
  EXPECT_THAT(reader->SetCompression(true),
              IsError(ErrorCode::kFailedPrecondition, "for reading only"));
}

TEST_F(PolicyTest, ARebuildKeepsTagsAndForgetsThePolicy) {
  for (uint64_t step = 1; step <= 3; ++step) CAIRN_ASSERT_OK(SaveStep(step));
  CAIRN_ASSERT_OK(store_->SetCompression(true));
  CAIRN_ASSERT_OK(store_->ChangeTags({{"best", 1}}));
  CAIRN_ASSERT_OK(store_->SetRetention({.keep_last = 1, .keep_best = {}}));
  CAIRN_ASSERT_OK(store_->Close());
  const std::vector<std::string> roots = storage_->List("roots/").value();
  // Names of newer roots are lower.
  const std::string newest = *std::ranges::min_element(roots);
  CAIRN_ASSERT_OK(storage_->Remove(newest));
  CAIRN_ASSERT_OK(storage_->PutIfAbsent(newest, std::vector<std::byte>(100)));
  CAIRN_ASSERT_OK(Store::Rebuild(std::static_pointer_cast<Storage>(storage_)));
  Open();
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto snapshot, store_->Latest());
  EXPECT_FALSE(snapshot->retention().keeps_any());
  EXPECT_TRUE(snapshot->compresses_saves());
  EXPECT_THAT(TagsNow(), ElementsAre(Pair("best", 1)));
  EXPECT_THAT(Steps(), ElementsAre(1, 2, 3));
}

TEST(ParseKeepBestTest, ReadsMetricNumberAndDirection) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const KeepBest lowest, ParseKeepBest("val_loss:3"));
  EXPECT_EQ(lowest.metric, "val_loss");
  EXPECT_EQ(lowest.count, 3);
  EXPECT_FALSE(lowest.highest);
  CAIRN_ASSERT_OK_AND_ASSIGN(const KeepBest highest, ParseKeepBest("accuracy:1:max"));
  EXPECT_EQ(highest.metric, "accuracy");
  EXPECT_TRUE(highest.highest);
  for (const char* const text : {"", "loss", "loss:", ":3", "loss:0", "loss:3x", "loss:-1"}) {
    EXPECT_THAT(ParseKeepBest(text), IsError(ErrorCode::kInvalidArgument, "METRIC:N"));
  }
}

}  // namespace
}  // namespace cairn::kv
