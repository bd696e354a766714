// The newest root and the next: races, lost responses, stale hints and listings, removed roots.

#include "kv/root/internal/root_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <future>
#include <thread>

#include "kv/storage/files/internal/memory_storage.h"
#include "tests/kv/root/hooked_storage.h"
#include "tests/kv/root/sample_root.h"
#include "tests/support/faulty_storage.h"
#include "tests/support/result_matchers.h"

namespace cairn::kv {
namespace {

using cairn::testing::IsError;
using internal::CommitOutcome;
using internal::CommitRoot;
using internal::FaultyStorage;
using internal::FindNewer;
using internal::FindNewest;
using internal::FindNewestOf;
using internal::kHintName;
using internal::kKeptRoots;
using internal::kMaxRemovedRoots;
using internal::ListRoots;
using internal::MemoryStorage;
using internal::RemoveOldRoots;
using internal::Root;
using internal::RootName;
using internal::StorageFault;
using ::testing::ElementsAre;
using testing::EmptyRoot;
using ::testing::HasSubstr;
using testing::HookedStorage;
using testing::RootAfter;
using State = internal::CommitOutcome::State;

std::unexpected<Error> Lost() { return Fail(ErrorCode::kUnavailable, "the response was lost"); }

class RootLogTest : public ::testing::Test {
 protected:
  /// Commits roots up to number `last`.
  void CommitUpTo(uint64_t last) {
    for (; next_ <= last; ++next_) {
      Root root = RootAfter(last_);
      ASSERT_EQ(CommitRoot(storage_, root).state, State::kCommitted) << next_;
      last_ = root;
    }
  }
  void CommitAndRemoveUpTo(uint64_t last) {
    CommitUpTo(last);
    CAIRN_ASSERT_OK(RemoveOldRoots(storage_, last));
  }
  void ExpectNewest(uint64_t number) {
    CAIRN_ASSERT_OK_AND_ASSIGN(const std::optional<Root> root, FindNewest(storage_));
    ASSERT_TRUE(root.has_value());
    EXPECT_EQ(root->number, number);
  }
  void ExpectNewer(const Root& known, uint64_t number) {
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto newer, FindNewer(storage_, known));
    ASSERT_TRUE(newer.has_value());
    EXPECT_EQ(newer->number, number);
  }
  void ExpectNoneNewer(const Root& known) {
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto newer, FindNewer(storage_, known));
    EXPECT_EQ(newer, std::nullopt);
  }
  /// `words` are in the message of the error, or in the path of its object.
  void ExpectOutcome(Root next, State state, ErrorCode code, const std::string& words) {
    const CommitOutcome outcome = CommitRoot(storage_, next);
    EXPECT_EQ(outcome.state, state);
    EXPECT_EQ(outcome.error.code, code);
    EXPECT_THAT(outcome.error.message + outcome.error.file, HasSubstr(words));
  }
  void ExpectAbsent(uint64_t number) {
    EXPECT_THAT(storage_.Size(RootName(number)), IsError(ErrorCode::kNotFound, ""));
  }
  /// Returns a root of another store whose writer was killed after the put, or will be refused.
  static Root Stray(uint64_t number) {
    Root root = EmptyRoot(number);
    root.store_uuid.fill(std::byte{8});
    root.predecessor = internal::NewUuid();
    return root;
  }
  void PutHint(uint64_t number) { internal::WriteHint(storage_, EmptyRoot(1).store_uuid, number); }
  std::string HintText() {
    const auto bytes = storage_.Read(kHintName, 100).value();
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  void PutHintText(std::string_view text) {
    CAIRN_ASSERT_OK(storage_.Put(kHintName, std::as_bytes(std::span(text))));
  }
  void RemoveRoots(std::vector<uint64_t> numbers) {
    for (const uint64_t number : numbers) CAIRN_ASSERT_OK(storage_.Remove(RootName(number)));
  }
  /// Puts a root without the checks of CommitRoot, as a writer does that ends in between.
  void PutRoot(const Root& root) {
    CAIRN_ASSERT_OK(storage_.base().PutIfAbsent(RootName(root.number), EncodeRoot(root).value()));
  }
  static std::vector<std::string> NamesOf(std::vector<uint64_t> numbers) {
    std::vector<std::string> names;
    for (const uint64_t number : numbers) names.push_back(RootName(number));
    return names;
  }

  HookedStorage storage_;
  Root last_;  // that was committed
  uint64_t next_ = 1;
};

TEST_F(RootLogTest, NewStoreHasNoRoot) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto root, FindNewest(storage_));
  EXPECT_EQ(root, std::nullopt);
}

TEST_F(RootLogTest, NewestIsFoundAtEveryDistanceFromTheHint) {
  for (uint64_t last = 1; last <= 100; ++last) {
    CommitUpTo(last);
    ExpectNewest(last);
    if (last % 7 != 0) continue;
    CAIRN_ASSERT_OK(RemoveOldRoots(storage_, last));
  }
}

// A writer that was paused writes an old hint late.
TEST_F(RootLogTest, HintOfARemovedRootDoesNoHarm) {
  CommitAndRemoveUpTo(100);
  for (const uint64_t number : {1u, 5u, 36u, 37u, 100u}) {
    PutHint(number);
    ExpectNewest(100);
  }
}

TEST_F(RootLogTest, TornHintAndHintOfAnotherStoreAreIgnored) {
  CommitUpTo(9);
  const std::string old = HintText();
  CommitUpTo(20);
  RemoveRoots({20});
  const std::string hint = HintText();
  for (size_t at = 0; at < hint.size(); ++at) {
    const std::string torn = hint.substr(0, at) + old.substr(at);
    if (torn == hint) continue;
    PutHintText(torn);
    ExpectNewest(19);
    PutHintText(hint.substr(0, at));
    ExpectNewest(19);
  }
  for (const uint64_t number : {uint64_t{20}, ~uint64_t{0}}) {
    internal::WriteHint(storage_, Stray(1).store_uuid, number);
    ExpectNewest(19);
  }
  PutHint(~uint64_t{0});  // no root has such a number
  ExpectNewest(19);
}

TEST_F(RootLogTest, LossOfTheNewestRootsIsNoticed) {
  CommitUpTo(20);
  const auto is_noticed = IsError(ErrorCode::kDataLoss, "root 19 is the newest one");
  RemoveRoots({20});
  EXPECT_THAT(FindNewest(storage_), is_noticed);
  EXPECT_THAT(FindNewer(storage_, last_), is_noticed);
  PutRoot(Stray(20));
  EXPECT_THAT(FindNewestOf(storage_, last_.store_uuid, FindNewest(storage_)), is_noticed);
  RemoveRoots({19, 20});
  EXPECT_THAT(FindNewest(storage_), IsError(ErrorCode::kDataLoss, "root 18 is the newest one"));
}

// Where each request takes long, a commit writes the hint at the same time as others.
TEST_F(RootLogTest, LateHintNamesTheRootBefore) {
  storage_.small_requests = 8;
  CommitUpTo(20);
  RemoveRoots({20});
  ExpectNewest(19);
  internal::WriteLateHint(storage_, last_);
  EXPECT_THAT(FindNewest(storage_), IsError(ErrorCode::kDataLoss, "root 19 is the newest one"));
}

TEST_F(RootLogTest, HintIsWrittenAlsoIfTheAnswerToThePutWasLost) {
  storage_.small_requests = 8;
  storage_.on_put_if_absent = [&](auto name, auto bytes) -> Result<void> {
    CAIRN_TRY(storage_.base().PutIfAbsent(name, bytes));
    return Lost();
  };
  CommitUpTo(20);
  EXPECT_EQ(internal::ReadHint(storage_, last_.store_uuid).value(), 20u);
}

// The store has another writer, or was replaced, and this writer does not know it yet.
TEST_F(RootLogTest, LateHintReplacesOnlyAnOlderOne) {
  storage_.small_requests = 8;
  CommitUpTo(20);
  PutHint(30);
  const std::string of_other_writer = HintText();
  internal::WriteLateHint(storage_, last_);
  EXPECT_EQ(HintText(), of_other_writer);
  internal::WriteHint(storage_, Stray(1).store_uuid, 3);
  const std::string of_other_store = HintText();
  internal::WriteLateHint(storage_, last_);
  EXPECT_EQ(HintText(), of_other_store);
  PutHintText("torn");
  internal::WriteLateHint(storage_, last_);
  EXPECT_EQ(internal::ReadHint(storage_, last_.store_uuid).value(), 20u);
}

// A root that is refused is never in the hint: its writer removes it.
TEST_F(RootLogTest, HintNamesOnlyConfirmedRoots) {
  CommitAndRemoveUpTo(200);
  for (const uint32_t requests : {1u, 8u}) {
    storage_.small_requests = requests;
    storage_.on_put_if_absent = [&](auto name, auto bytes) -> Result<void> {
      CAIRN_TRY(storage_.base().PutIfAbsent(name, bytes));
      RemoveRoots({200});
      return {};
    };
    ExpectOutcome(RootAfter(last_), State::kUnknown, ErrorCode::kConflict, "");
    EXPECT_EQ(internal::ReadHint(storage_, last_.store_uuid).value(), 200u);
    CAIRN_ASSERT_OK(storage_.base().PutIfAbsent(RootName(200), EncodeRoot(last_).value()));
  }
}

TEST_F(RootLogTest, LateListingIsProbedForward) {
  CommitUpTo(60);
  CAIRN_ASSERT_OK(storage_.Remove(kHintName));
  storage_.on_list = [] { return NamesOf({3, 17, 12}); };
  ExpectNewest(60);
  storage_.on_list = [] { return NamesOf({}); };
  ExpectNewest(60);
}

TEST_F(RootLogTest, ListingOfRemovedRootsIsRepeated) {
  CommitAndRemoveUpTo(100);
  CAIRN_ASSERT_OK(storage_.Remove(kHintName));
  int listings = 0;
  storage_.on_list = [&listings] { return NamesOf({++listings < 3 ? 20u : 90u}); };
  ExpectNewest(100);
  storage_.on_list = [] { return NamesOf({20}); };
  EXPECT_THAT(FindNewest(storage_), IsError(ErrorCode::kUnavailable, "root 20"));
}

TEST_F(RootLogTest, LostPredecessorOfTheNewestRootIsDataLoss) {
  CommitUpTo(20);
  RemoveRoots({19});
  EXPECT_THAT(FindNewest(storage_), IsError(ErrorCode::kDataLoss, "root 19 is missing"));
  internal::WriteHint(storage_, Stray(1).store_uuid, 100);
  EXPECT_THAT(FindNewest(storage_), IsError(ErrorCode::kDataLoss, "root 19 is missing"));
  // This may be the root of a paused writer, in a listing that omits all newer ones.
  PutHint(100);
  EXPECT_THAT(FindNewest(storage_), IsError(ErrorCode::kUnavailable, "try again"));
}

TEST_F(RootLogTest, RootThatIsRemovedDuringTheSearchIsSearchedAgain) {
  CommitUpTo(40);
  storage_.before_read = [this](std::string_view name) {
    if (name != RootName(40)) return;
    storage_.before_read = nullptr;
    CommitAndRemoveUpTo(200);
  };
  ExpectNewest(200);
}

TEST_F(RootLogTest, DamagedRootIsNamed) {
  CommitUpTo(3);
  auto bytes = storage_.Read(RootName(3), 1 << 20).value();
  bytes[20] ^= std::byte{1};
  CAIRN_ASSERT_OK(storage_.Put(RootName(3), bytes));
  EXPECT_THAT(FindNewest(storage_), IsError(ErrorCode::kDataLoss, RootName(3)));
  CAIRN_ASSERT_OK(storage_.Put(RootName(3), storage_.Read(RootName(2), 1 << 20).value()));
  EXPECT_THAT(FindNewest(storage_), IsError(ErrorCode::kDataLoss, "number 2 instead of 3"));
}

TEST_F(RootLogTest, PollWithoutChangesCostsTwoSizes) {
  CommitUpTo(20);
  const Root known = FindNewest(storage_).value().value();
  storage_.size_count = 0;
  ExpectNoneNewer(known);
  EXPECT_EQ(storage_.size_count, 2);
}

TEST_F(RootLogTest, PollFindsNewerRootsEvenIfTheKnownOneIsRemoved) {
  CommitUpTo(20);
  const Root known = FindNewest(storage_).value().value();
  for (const uint64_t last : {21u, 50u, 83u, 84u, 85u, 500u}) {
    CommitAndRemoveUpTo(last);
    ExpectNewer(known, last);
  }
}

// The known root is removed after the answer for it, and the next one before the answer for that.
TEST_F(RootLogTest, PollThatIsOvertakenDoesNotTakeARemovedRootForTheNewest) {
  CommitUpTo(20);
  const Root known = FindNewest(storage_).value().value();
  CommitUpTo(100);
  storage_.small_requests = 8;
  std::promise<void> known_is_answered;
  storage_.on_size = [&](std::string_view name) -> Result<uint64_t> {
    auto answer = storage_.base().Size(name);
    if (name == RootName(20)) known_is_answered.set_value();
    if (name != RootName(21)) return answer;
    // Does not come if the storage is asked for one after the other.
    (void)known_is_answered.get_future().wait_for(std::chrono::milliseconds(100));
    CAIRN_TRY(RemoveOldRoots(storage_.base(), 100));
    return storage_.base().Size(name);
  };
  ExpectNewer(known, 100);
}

TEST_F(RootLogTest, PollSeesThatAllRootsAreLost) {
  CommitUpTo(2);
  const Root known = FindNewest(storage_).value().value();
  RemoveRoots({1, 2});
  EXPECT_THAT(FindNewer(storage_, known), IsError(ErrorCode::kDataLoss, "no roots"));
}

TEST_F(RootLogTest, OldRootsAreRemovedInAscendingOrder) {
  CommitAndRemoveUpTo(kKeptRoots);
  EXPECT_EQ(ListRoots(storage_).value().front(), 1u);
  CommitAndRemoveUpTo(kKeptRoots + 30);
  EXPECT_EQ(ListRoots(storage_).value().front(), 31u);
  EXPECT_EQ(ListRoots(storage_).value().size(), kKeptRoots);
  CAIRN_ASSERT_OK(RemoveOldRoots(storage_, kKeptRoots + 30, 2));
  EXPECT_THAT(ListRoots(storage_).value(), ElementsAre(kKeptRoots + 29, kKeptRoots + 30));
}

TEST_F(RootLogTest, ManyOldRootsAreRemovedByManyCalls) {
  constexpr uint64_t kLast = 2'500;
  for (uint64_t number = 1; number <= kLast; ++number) {
    CAIRN_ASSERT_OK(storage_.base().Put(RootName(number), std::as_bytes(std::span("root"))));
  }
  for (const uint64_t oldest : {kMaxRemovedRoots + 1, 2 * kMaxRemovedRoots + 1,
                                kLast - kKeptRoots + 1, kLast - kKeptRoots + 1}) {
    CAIRN_ASSERT_OK_AND_ASSIGN(const uint64_t remaining, RemoveOldRoots(storage_, kLast));
    EXPECT_EQ(remaining, oldest);
    EXPECT_EQ(ListRoots(storage_).value().front(), oldest) << "they are not removed in order";
  }
}

TEST_F(RootLogTest, AServerThatSaysThatEachRootExistsIsNotAskedForEach) {
  storage_.on_size = [](std::string_view) { return Result<uint64_t>(100); };
  CAIRN_ASSERT_OK(RemoveOldRoots(storage_, 1'000'000));
  EXPECT_LT(storage_.size_count, 50);
  CAIRN_ASSERT_OK_AND_ASSIGN(const uint64_t remaining,
                             RemoveOldRoots(storage_, 1'000'000, kKeptRoots, /*oldest=*/1));
  EXPECT_EQ(remaining, kMaxRemovedRoots + 1);
}

TEST_F(RootLogTest, PutThatIsLostIsRepeatedWhetherItWasAcknowledgedOrNot) {
  int puts = 0;
  for (const bool is_acknowledged : {false, true}) {
    storage_.on_put_if_absent = [&](auto name, auto bytes) -> Result<void> {
      if (++puts >= 3) return storage_.base().PutIfAbsent(name, bytes);
      return is_acknowledged ? Result<void>() : Lost();
    };
    puts = 0;
    CommitUpTo(is_acknowledged ? 2 : 1);
    EXPECT_EQ(puts, 3);
  }
  storage_.on_put_if_absent = [](auto, auto) { return Result<void>(); };
  Root next = RootAfter(last_);
  EXPECT_EQ(CommitRoot(storage_, next).state, State::kUnknown);
}

TEST_F(RootLogTest, PutWithoutAnAnswerIsUnknown) {
  CommitUpTo(5);
  storage_.on_put_if_absent = [](auto, auto) -> Result<void> { return Lost(); };
  const std::string words = "unknown whether root 6 was committed";
  ExpectOutcome(RootAfter(last_), State::kUnknown, ErrorCode::kUnavailable, words);
  storage_.on_size = [](auto) -> Result<uint64_t> { return Lost(); };  // nor can it be read
  ExpectOutcome(RootAfter(last_), State::kUnknown, ErrorCode::kUnavailable, words);
}

TEST_F(RootLogTest, OtherWriterIsNamed) {
  CommitUpTo(4);
  Root next = RootAfter(last_);
  CommitUpTo(5);
  const CommitOutcome outcome = CommitRoot(storage_, next);
  EXPECT_EQ(outcome.state, State::kNotCommitted);
  EXPECT_EQ(outcome.error.code, ErrorCode::kConflict);
  EXPECT_THAT(outcome.error.message,
              HasSubstr("process 17 on host node1 (writer since 2026-01-31 12:00:00 UTC) has taken "
                        "over this store"));
  ASSERT_TRUE(outcome.other.has_value());
  EXPECT_EQ(outcome.other->number, 5u);
}

TEST_F(RootLogTest, EachCommitHasAnotherIdentifier) {
  Root root = EmptyRoot(1);
  const internal::Uuid before = root.commit_id;
  ASSERT_EQ(CommitRoot(storage_, root).state, State::kCommitted);
  EXPECT_NE(root.commit_id, before);
  EXPECT_EQ(FindNewest(storage_).value()->commit_id, root.commit_id);
}

// A writer is paused for so long that the root whose number it wants has been removed again.
TEST_F(RootLogTest, NumberThatIsFreeAgainIsNotCommitted) {
  CommitAndRemoveUpTo(200);
  for (const uint64_t number : {1u, 2u, 50u, 136u}) {
    PutHint(number);
    SCOPED_TRACE(number);
    ExpectOutcome(EmptyRoot(number), State::kUnknown, ErrorCode::kConflict, "host node1");
    ExpectAbsent(number);
    ExpectNewest(200);
  }
}

// The same writer is killed after its put.
TEST_F(RootLogTest, RootWithoutPredecessorIsNotTheNewest) {
  CommitAndRemoveUpTo(200);
  for (const uint64_t number : {1u, 2u, 50u, 135u}) {
    PutRoot(EmptyRoot(number));
    PutHint(number);
    ExpectNewest(200);
    if (number > 1) ExpectNewer(EmptyRoot(number - 1), 200);
    CAIRN_ASSERT_OK(storage_.Remove(RootName(number)));
  }
}

// Two writers are paused until their numbers are free again. The second one puts its root after
// that of the first one, which has not looked for its predecessor yet.
TEST_F(RootLogTest, RootOfAnotherPausedWriterIsNoPredecessor) {
  CommitUpTo(31);
  const Root of_first = RootAfter(last_);
  CommitUpTo(32);
  const Root of_second = RootAfter(last_);
  CommitAndRemoveUpTo(200);
  PutRoot(of_first);
  ExpectOutcome(of_second, State::kUnknown, ErrorCode::kConflict, "");
  ExpectAbsent(33);
  PutRoot(of_second);  // it is killed after its put
  for (const uint64_t hint : {32u, 33u}) {
    PutHint(hint);
    ExpectNewest(200);
  }
  ExpectNewer(of_first, 200);
}

// A reader asks whether its root is the newest, and finds one that has its number again.
TEST_F(RootLogTest, PollDoesNotTakeARootWithTheSameNumberForTheKnownOne) {
  CommitUpTo(20);
  const Root known = last_;
  CommitAndRemoveUpTo(200);
  PutRoot(EmptyRoot(20));
  ExpectNewer(known, 200);
}

// A put whose response was lost is performed when the root, which was put again, has been removed.
TEST_F(RootLogTest, RootThatIsPutAgainLaterIsNoPredecessor) {
  CommitUpTo(20);
  std::vector<std::byte> late;
  storage_.on_put_if_absent = [&](auto name, auto bytes) -> Result<void> {
    if (!late.empty()) return storage_.base().PutIfAbsent(name, bytes);
    late.assign(bytes.begin(), bytes.end());
    return Lost();
  };
  CommitUpTo(21);
  Root of_paused = RootAfter(last_);
  CommitAndRemoveUpTo(200);
  CAIRN_ASSERT_OK(storage_.PutIfAbsent(RootName(21), late));
  EXPECT_EQ(CommitRoot(storage_, of_paused).state, State::kUnknown);
  ExpectNewest(200);
}

// A rebuild was interrupted between its two roots.
TEST_F(RootLogTest, RootWithoutAPredecessorIsNotTheNewest) {
  CommitUpTo(20);
  Root rebuilt = EmptyRoot(21);
  rebuilt.predecessor.reset();
  PutRoot(rebuilt);
  EXPECT_THAT(FindNewest(storage_), IsError(ErrorCode::kDataLoss, "run the rebuild again"));
  RemoveRoots({20});  // the reason for the rebuild
  EXPECT_THAT(FindNewest(storage_), IsError(ErrorCode::kDataLoss, "run the rebuild again"));
  PutRoot(last_);
  PutRoot(RootAfter(rebuilt));
  ExpectNewest(22);
  ExpectNewer(last_, 22);
}

TEST_F(RootLogTest, DamagedPredecessorDoesNotHideTheNewestRoot) {
  CommitUpTo(20);
  CAIRN_ASSERT_OK(storage_.Put(RootName(19), std::as_bytes(std::span("damage"))));
  ExpectNewest(20);
  CAIRN_ASSERT_OK(storage_.Remove(kHintName));
  ExpectNewest(20);
}

// --- the store was replaced by another one

TEST_F(RootLogTest, RootThatWasPutIntoAnotherStoreIsRemoved) {
  CommitUpTo(20);
  for (const uint64_t number : {21u, 40u, 85u}) {
    SCOPED_TRACE(number);
    ExpectOutcome(Stray(number), State::kNotCommitted, ErrorCode::kConflict,
                  "was replaced by another one");
    ExpectAbsent(number);
  }
  ExpectOutcome(Stray(20), State::kUnknown, ErrorCode::kConflict, "was replaced by another one");
  ExpectNewest(20);
}

// Its writer was killed after the put.
TEST_F(RootLogTest, RootOfAnotherStoreIsIgnored) {
  CommitUpTo(3);
  const Root known = last_;
  for (const uint64_t number : {4u, 5u, 40u}) {
    SCOPED_TRACE(number);
    PutRoot(Stray(number));
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto newest,
                               FindNewestOf(storage_, known.store_uuid, FindNewest(storage_)));
    ASSERT_TRUE(newest.has_value());
    EXPECT_EQ(newest->commit_id, known.commit_id);
    ExpectNoneNewer(known);
    CAIRN_ASSERT_OK(storage_.Remove(RootName(number)));
  }
}

TEST_F(RootLogTest, WriterWhoseNumberIsTakenByAStrayRootNamesIt) {
  CommitUpTo(3);
  PutRoot(Stray(4));
  for (const std::string& words : {std::string("remove this object"), RootName(4)}) {
    ExpectOutcome(RootAfter(last_), State::kUnknown, ErrorCode::kFailedPrecondition, words);
  }
  CAIRN_ASSERT_OK(storage_.Remove(RootName(4)));
  CommitUpTo(4);
}

TEST_F(RootLogTest, StrayRootThatItsWriterRemovesDuringACommitDoesNotFailIt) {
  CommitUpTo(3);
  PutRoot(Stray(4));
  storage_.before_read = [this](std::string_view name) {
    if (name != RootName(4)) return;
    storage_.before_read = nullptr;
    CAIRN_ASSERT_OK(storage_.Remove(RootName(4)));
  };
  CommitUpTo(4);
}

TEST_F(RootLogTest, ReaderSeesThatTheStoreWasReplaced) {
  CommitUpTo(20);
  for (const uint64_t number : {7u, 20u, 70u}) {
    EXPECT_THAT(FindNewer(storage_, Stray(number)),
                IsError(ErrorCode::kConflict, "was replaced by another one"));
  }
}

// The creator of a store is paused after its put, until another writer has continued from its root.
// It removed root 1, so that the store could not be opened any more.
TEST_F(RootLogTest, FirstRootRemainsIfAnotherWriterContinues) {
  for (const uint64_t newest : {uint64_t{2}, kKeptRoots}) {
    HookedStorage storage;
    storage.on_put_if_absent = [&](auto name, auto bytes) -> Result<void> {
      CAIRN_TRY(storage.base().PutIfAbsent(name, bytes));
      CAIRN_TRY_ASSIGN(Root last, internal::DecodeRoot(bytes));
      while (last.number < newest) {
        last = RootAfter(last);
        CAIRN_TRY(storage.base().PutIfAbsent(RootName(last.number), EncodeRoot(last).value()));
      }
      return {};
    };
    Root first = EmptyRoot(1);
    EXPECT_EQ(CommitRoot(storage, first).state, State::kCommitted);
    CAIRN_ASSERT_OK_AND_ASSIGN(const std::optional<Root> found, FindNewest(storage));
    ASSERT_TRUE(found.has_value());
    EXPECT_EQ(found->number, newest);
  }
}

TEST_F(RootLogTest, CommitThatWasReplacedSinceIsUnknown) {
  CommitUpTo(10);
  storage_.on_put_if_absent = [this](auto name, auto bytes) -> Result<void> {
    storage_.on_put_if_absent = nullptr;
    CAIRN_TRY(storage_.PutIfAbsent(name, bytes));
    CAIRN_TRY_ASSIGN(last_, internal::DecodeRoot(bytes));
    ++next_;
    CommitUpTo(300);
    CAIRN_TRY(RemoveOldRoots(storage_, 300));
    return Lost();
  };
  storage_.on_size = [this](std::string_view name) -> Result<uint64_t> {
    return storage_.base().Size(name);
  };
  Root next = RootAfter(last_);
  // The put is repeated, because root 11 is absent.
  EXPECT_EQ(CommitRoot(storage_, next).state, State::kUnknown);
  ExpectNewest(300);
}

// The third root is committed, with a fault at each of the calls of an undisturbed commit.
TEST(RootLogFaultTest, OutcomeOfACommitWithAFaultIsTrue) {
  for (const StorageFault fault :
       {StorageFault::kRefuse, StorageFault::kLoseResponse, StorageFault::kLoseWrite,
        StorageFault::kConflict, StorageFault::kPowerCut, StorageFault::kDelay}) {
    for (uint64_t index = 0;; ++index) {
      const auto base = std::make_shared<MemoryStorage>("test");
      Root last;
      for (int i = 0; i < 2; ++i) {
        last = RootAfter(last);
        ASSERT_EQ(CommitRoot(*base, last).state, State::kCommitted);
      }
      FaultyStorage faulty(base);
      faulty.SetPlan(internal::FaultAt(index, fault));
      Root next = RootAfter(last);
      const State state = CommitRoot(faulty, next).state;

      CAIRN_ASSERT_OK_AND_ASSIGN(const auto newest, FindNewest(*base));
      const bool is_there = newest->commit_id == next.commit_id;
      EXPECT_TRUE(state == State::kUnknown || (state == State::kCommitted) == is_there) << index;
      // A single lost response is not enough to be in doubt.
      EXPECT_TRUE(state == State::kCommitted || fault == StorageFault::kPowerCut) << index;
      if (faulty.Log().size() <= index) break;
    }
  }
}

TEST_F(RootLogTest, EightWritersRaceAndEachRootHasOneWinner) {
  constexpr int kWriters = 8;
  constexpr uint64_t kRounds = 1000;
  MemoryStorage storage("race");
  std::barrier round_begin(kWriters);
  std::vector<std::atomic<int>> winners(kRounds + 1);
  std::atomic<int> wrong = 0;
  const auto write = [&](int writer) {
    for (uint64_t number = 1; number <= kRounds; ++number) {
      round_begin.arrive_and_wait();
      Root root = number == 1 ? EmptyRoot(1) : RootAfter(**internal::ReadRoot(storage, number - 1));
      root.writer.pid = static_cast<uint32_t>(writer);
      const CommitOutcome outcome = CommitRoot(storage, root);
      if (outcome.state == State::kCommitted) ++winners[number];
      if (outcome.state == State::kUnknown) ++wrong;
      if (outcome.state == State::kNotCommitted &&
          (!outcome.other || outcome.other->writer.pid == root.writer.pid)) {
        ++wrong;
      }
    }
  };
  std::vector<std::thread> threads;
  for (int writer = 0; writer < kWriters; ++writer) threads.emplace_back(write, writer);
  for (std::thread& thread : threads) thread.join();

  EXPECT_EQ(wrong, 0);
  for (uint64_t number = 1; number <= kRounds; ++number) EXPECT_EQ(winners[number], 1) << number;
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto numbers, ListRoots(storage));
  EXPECT_EQ(numbers.size(), kRounds);
  EXPECT_EQ(numbers.back(), kRounds);
}

// Writers take over from each other, and old roots are removed, while a reader polls.
TEST_F(RootLogTest, ReaderSeesAscendingRootsWhileWritersRace) {
  MemoryStorage storage("race");
  Root first = EmptyRoot(1);
  ASSERT_EQ(CommitRoot(storage, first).state, State::kCommitted);
  std::atomic<int> failures = 0;
  const auto write = [&storage, &failures] {
    for (int i = 0; i < 500; ++i) {
      const auto newest = FindNewest(storage);
      if (!newest || !*newest) {
        ++failures;
        continue;
      }
      Root next = RootAfter(**newest);
      const CommitOutcome outcome = CommitRoot(storage, next);
      // A writer that waits while the others commit many roots cannot know.
      if (outcome.state == State::kUnknown && outcome.error.code != ErrorCode::kConflict)
        ++failures;
      if (outcome.state == State::kCommitted) (void)RemoveOldRoots(storage, next.number);
    }
  };
  std::vector<std::thread> writers;
  for (int i = 0; i < 3; ++i) writers.emplace_back(write);
  std::atomic<bool> done = false;
  std::thread reader([&storage, &done, known = first]() mutable {
    while (!done) {
      const auto newer = FindNewer(storage, known);
      ASSERT_TRUE(cairn::testing::IsOk(newer));
      if (!*newer) continue;
      ASSERT_GT((*newer)->number, known.number);
      known = **newer;
    }
  });
  for (std::thread& writer : writers) writer.join();
  done = true;
  reader.join();

  EXPECT_EQ(failures, 0);
  EXPECT_LE(ListRoots(storage).value().size(), kKeptRoots + 3);
}

}  // namespace
}  // namespace cairn::kv
