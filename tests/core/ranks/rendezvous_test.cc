// Ranks that meet in a directory, in a bucket or in memory, and objects that are not theirs.

#include "core/ranks/internal/rendezvous.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "kv/storage/files/internal/memory_storage.h"
#include "kv/storage/open/open_storage.h"
#include "tests/support/fake_s3.h"
#include "tests/support/result_matchers.h"
#include "tests/support/scoped_temp_dir.h"

namespace cairn::core::internal {
namespace {

using cairn::testing::FakeS3;
using cairn::testing::IsError;
using cairn::testing::ScopedTempDir;
using kv::internal::MemoryStorage;
using Messages = std::vector<std::string>;
using std::chrono::milliseconds;

Deadline In(milliseconds time) { return std::chrono::steady_clock::now() + time; }
constexpr milliseconds kAmple = std::chrono::seconds(300);
constexpr milliseconds kShort(200);

Party PartyOf(int rank, int world_size = 2, std::string run_id = "run") {
  return {.rank = rank, .world_size = world_size, .run_id = std::move(run_id)};
}

TEST(RendezvousRecordTest, RejectsTruncationDamageAndExtraBytes) {
  const std::vector<std::byte> bytes =
      EncodeRecord({.rank = 1, .world_size = 3, .message = "from 1"});
  for (size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_FALSE(DecodeRecord(std::span(bytes).first(length))) << length;
  }
  for (size_t i = 0; i < bytes.size(); ++i) {
    std::vector<std::byte> damaged = bytes;
    damaged[i] ^= std::byte{0x41};
    EXPECT_THAT(DecodeRecord(damaged), IsError(ErrorCode::kDataLoss, "")) << i;
  }
  std::vector<std::byte> longer = bytes;
  longer.emplace_back();
  EXPECT_THAT(DecodeRecord(longer), IsError(ErrorCode::kDataLoss, ""));
}

void ExpectMeeting(kv::Storage& storage) {
  constexpr int kRanks = 3;
  std::vector<Result<Messages>> results(kRanks);
  {
    std::vector<std::jthread> ranks;
    for (int rank = 0; rank < kRanks; ++rank) {
      ranks.emplace_back([&, rank] {
        results[static_cast<size_t>(rank)] =
            Meet(storage, PartyOf(rank, kRanks), fmt::format("from {}", rank), In(kAmple));
      });
    }
  }
  for (const Result<Messages>& result : results) {
    CAIRN_ASSERT_OK(result);
    EXPECT_THAT(*result, ::testing::ElementsAre("from 0", "from 1", "from 2"));
  }
  CAIRN_EXPECT_OK(Forget(storage, PartyOf(0, kRanks)));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto left, storage.List(""));
  EXPECT_THAT(left, ::testing::IsEmpty());
}

TEST(RendezvousTest, RanksMeetInADirectoryOrABucketAndLeaveNothing) {
  ScopedTempDir dir;
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto directory, kv::OpenStorage("file://" + dir.path()));
  ExpectMeeting(*directory);
  const FakeS3 server;
  ExpectMeeting(*testing::OpenBucket(server));
}

TEST(RendezvousTest, SecondOfTheSameRankAndStaleRunsAreRefused) {
  MemoryStorage storage("memory");
  EXPECT_THAT(Meet(storage, PartyOf(0), "a", In(kShort)),
              IsError(ErrorCode::kUnavailable, "in time: 1 of 2"));
  // The object of the first one still exists, as if it had died.
  EXPECT_THAT(Meet(storage, PartyOf(0), "b", In(kAmple)),
              IsError(ErrorCode::kFailedPrecondition, "another run id"));
  EXPECT_THAT(Meet(storage, PartyOf(0, 2, "run-2"), "a", In(kShort)),
              IsError(ErrorCode::kUnavailable, "1 of 2"));
}

TEST(RendezvousTest, APutThatIsRepeatedAfterALostResponseIsNotASecondProcess) {
  MemoryStorage storage("memory");
  CAIRN_ASSERT_OK(storage.PutIfAbsent("rendezvous/run/rank-0",
                                      EncodeRecord({.rank = 0, .world_size = 1, .message = "a"})));
  CAIRN_EXPECT_OK(Meet(storage, PartyOf(0, 1), "a", In(kAmple)));
}

TEST(RendezvousTest, WaitsForAnObjectThatIsNotComplete) {
  MemoryStorage storage("memory");
  const std::string name = "rendezvous/run/rank-1";
  const std::vector<std::byte> record =
      EncodeRecord({.rank = 1, .world_size = 2, .message = "from 1"});
  CAIRN_ASSERT_OK(storage.Put(name, std::span(record).first(record.size() / 2)));
  EXPECT_THAT(Meet(storage, PartyOf(0), "a", In(kShort)),
              IsError(ErrorCode::kUnavailable, "1 of 2"));
  CAIRN_ASSERT_OK(storage.Put(name, record));
  CAIRN_ASSERT_OK_AND_ASSIGN(const Messages found, Meet(storage, PartyOf(0), "a", In(kAmple)));
  EXPECT_THAT(found, ::testing::ElementsAre("a", "from 1"));
}

TEST(RendezvousTest, RankOfAnotherWorldIsRefused) {
  MemoryStorage storage("memory");
  CAIRN_ASSERT_OK(storage.Put("rendezvous/run/rank-1",
                              EncodeRecord({.rank = 1, .world_size = 3, .message = ""})));
  EXPECT_THAT(Meet(storage, PartyOf(0), "a", In(kAmple)),
              IsError(ErrorCode::kFailedPrecondition, "rank 1 of 3"));
}

}  // namespace
}  // namespace cairn::core::internal
