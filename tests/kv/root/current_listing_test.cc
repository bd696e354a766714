// Goal: where listings are current and each request takes long, the newest root is found with a
// listing and one or two reads, and a listing that is late nevertheless does no harm.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kv/root/internal/root_log.h"
#include "kv/storage/files/internal/memory_storage.h"
#include "tests/kv/root/sample_root.h"
#include "tests/kv/storage/round_trip_storage.h"
#include "tests/support/faulty_storage.h"
#include "tests/support/result_matchers.h"

namespace cairn::kv::internal {
namespace {

using kv::testing::EmptyRoot;
using kv::testing::RootAfter;
using kv::testing::RoundTripStorage;
using ::testing::Field;
using ::testing::Optional;
using ::testing::SizeIs;

class CurrentListingTest : public ::testing::Test {
 protected:
  void CommitUpTo(uint64_t last) {
    for (; next_ <= last; ++next_) {
      Root root = RootAfter(last_);
      ASSERT_EQ(CommitRoot(storage_, root).state, CommitOutcome::State::kCommitted) << next_;
      last_ = root;
    }
  }
  void ExpectNewest(uint64_t number) {
    storage_.Restart();
    CAIRN_ASSERT_OK_AND_ASSIGN(const std::optional<Root> root, FindNewest(storage_));
    ASSERT_TRUE(root.has_value());
    EXPECT_EQ(root->number, number);
  }

  const std::shared_ptr<FaultyStorage> faulty_ =
      std::make_shared<FaultyStorage>(std::make_shared<MemoryStorage>("test"));
  RoundTripStorage storage_{faulty_};
  Root last_;
  uint64_t next_ = 1;
};

TEST_F(CurrentListingTest, ARootAndItsPredecessorAreTrusted) {
  for (const uint64_t last : {1, 2, 40}) {
    CommitUpTo(last);
    ExpectNewest(last);
    EXPECT_THAT(storage_.Calls(), SizeIs(4)) << "hint, listing, the root, and the one before it";
    storage_.Restart();
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto root, FindNewestUnchecked(storage_));
    EXPECT_THAT(root, Optional(Field(&Root::number, last)));
    EXPECT_THAT(storage_.Calls(), SizeIs(3)) << "the hint, a listing and the root";
  }
}

TEST_F(CurrentListingTest, ARootWithoutPredecessorIsNotTrusted) {
  CommitUpTo(40);
  CAIRN_ASSERT_OK(storage_.PutIfAbsent(RootName(60), EncodeRoot(EmptyRoot(60)).value()));
  ExpectNewest(40);
}

TEST_F(CurrentListingTest, ALateListingFindsAnOlderRootWhoseWriterIsRefused) {
  CommitUpTo(100);
  CAIRN_ASSERT_OK(storage_.Remove(kHintName));
  faulty_->SetStaleListing(/*omitted_put_count=*/10, /*kept_removal_count=*/0);
  CAIRN_ASSERT_OK_AND_ASSIGN(const std::optional<Root> found, FindNewest(storage_));
  ASSERT_TRUE(found.has_value());
  ASSERT_LT(found->number, 100u);
  ASSERT_GE(found->number, 90u);
  Root next = RootAfter(*found);
  const CommitOutcome outcome = CommitRoot(storage_, next);
  EXPECT_EQ(outcome.state, CommitOutcome::State::kNotCommitted);
  EXPECT_EQ(outcome.error.code, ErrorCode::kConflict);
}

TEST_F(CurrentListingTest, AListingThatIsOlderThanTheHintIsNotTrusted) {
  CommitUpTo(100);
  faulty_->SetStaleListing(/*omitted_put_count=*/10, /*kept_removal_count=*/0);
  ExpectNewest(100);
}

TEST_F(CurrentListingTest, FindNewerAsksForBothRootsAtOnce) {
  CommitUpTo(5);
  storage_.SetLatency(true);
  storage_.Restart();
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto none, FindNewer(storage_, EmptyRoot(5)));
  EXPECT_FALSE(none.has_value());
  EXPECT_EQ(storage_.LongestChain(), 1u);
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto newer, FindNewer(storage_, EmptyRoot(3)));
  ASSERT_TRUE(newer.has_value());
  EXPECT_EQ(newer->number, 5u);
}

TEST_F(CurrentListingTest, RemovalFromAKnownRootOnDoesNotSearch) {
  CommitUpTo(kKeptRoots + 10);
  CAIRN_ASSERT_OK(RemoveOldRoots(storage_, kKeptRoots + 5));
  storage_.Restart();
  CAIRN_ASSERT_OK(RemoveOldRoots(storage_, kKeptRoots + 10, kKeptRoots, /*oldest=*/6));
  EXPECT_THAT(storage_.Calls(), SizeIs(5));
  CAIRN_ASSERT_OK(RemoveOldRoots(storage_, kKeptRoots + 10, kKeptRoots, /*oldest=*/11));
  EXPECT_THAT(storage_.Calls(), SizeIs(5));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto numbers, ListRoots(storage_));
  EXPECT_EQ(numbers.front(), 11u);
  EXPECT_EQ(numbers.back(), kKeptRoots + 10);
}

}  // namespace
}  // namespace cairn::kv::internal
