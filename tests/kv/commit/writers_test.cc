// Two writers of one store: the second is refused, or takes over; the first then changes nothing.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "kv/base/options.h"
#include "kv/read/snapshot.h"
#include "kv/root/internal/root_log.h"
#include "kv/root/internal/root_record.h"
#include "kv/state/internal/store_state.h"
#include "kv/storage/open/open_storage.h"
#include "kv/store.h"
#include "tests/kv/byte_payload.h"
#include "tests/kv/root/hooked_storage.h"
#include "tests/kv/sample_step.h"
#include "tests/kv/store_checks.h"
#include "tests/support/fault_hook.h"
#include "tests/support/result_matchers.h"
#include "tests/support/scoped_temp_dir.h"

namespace cairn::kv {
namespace {

using cairn::testing::FailAt;
using cairn::testing::FaultPass;
using cairn::testing::IsError;
using cairn::testing::ScopedFaults;
using cairn::testing::ScopedTempDir;
using internal::StoreAccess;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using namespace cairn::kv::testing;  // NOLINT(google-build-using-namespace)

class WritersTest : public ::testing::Test {
 protected:
  void SetUp() override {
    CAIRN_ASSERT_OK_AND_ASSIGN(storage_, OpenStorage(path_));
    first_ = OpenWriter();
    CAIRN_ASSERT_OK(SaveSample(*first_, MakeSample(1)));
  }
  std::unique_ptr<Store> OpenWriter(bool take_over = false) {
    auto store = Store::Open(path_, OpenMode::kWrite, {.take_over = take_over});
    EXPECT_TRUE(cairn::testing::IsOk(store));
    return store ? *std::move(store) : nullptr;
  }
  /// Returns all objects and their bytes, except for the lease, which its writer renews.
  std::map<std::string, std::vector<std::byte>> Contents() {
    auto contents = ContentsOf(*storage_);
    std::erase_if(contents, [](const auto& object) { return object.first.starts_with("leases/"); });
    return contents;
  }

  ScopedTempDir dir_{std::filesystem::exists("/dev/shm") ? "/dev/shm" : ""};
  const std::string path_ = dir_ / "store";
  std::shared_ptr<Storage> storage_;
  std::unique_ptr<Store> first_;
};

TEST_F(WritersTest, SecondWriterIsRefusedAndTheFirstIsNamed) {
  const auto before = Contents();
  const auto second = Store::Open(path_, OpenMode::kWrite);
  EXPECT_THAT(second, IsError(ErrorCode::kConflict, "has this store open for writing"));
  const std::string& message = second.error().message;
  EXPECT_THAT(message, HasSubstr(fmt::format("process {} on host {} (writer since ", ::getpid(),
                                             internal::HostName())));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto root, internal::FindNewest(*storage_));
  EXPECT_THAT(message, HasSubstr(internal::FormatUtc(root->writer.since_unix_ns)));
  EXPECT_TRUE(Contents() == before);
  CAIRN_EXPECT_OK(SaveSample(*first_, MakeSample(2)));
  CAIRN_ASSERT_OK(first_->Close());
  CAIRN_EXPECT_OK(Store::Open(path_, OpenMode::kWrite));
}

TEST_F(WritersTest, CloseIsRepeatedUntilTheLeaseIsRemoved) {
  {
    const ScopedFaults faults(FailAt("leases.remove", 1, EIO));
    EXPECT_THAT(first_->Close(), IsError(ErrorCode::kUnavailable, "leases/"));
    EXPECT_THAT(SaveSample(*first_, MakeSample(2)),
                IsError(ErrorCode::kFailedPrecondition, "closed"));
    EXPECT_EQ(storage_->List("leases/")->size(), 1u);
    CAIRN_EXPECT_OK(first_->Close());
  }
  EXPECT_THAT(storage_->List("leases/").value(), IsEmpty());
  CAIRN_EXPECT_OK(first_->Close());
}

TEST_F(WritersTest, LeaseThatCannotBeRemovedDoesNotLockItsOwnProcessOut) {
  const ScopedFaults faults(
      [](const FaultPass& pass, uint32_t) { return pass.point == "leases.remove" ? EIO : 0; });
  EXPECT_THAT(first_->Close(), IsError(ErrorCode::kUnavailable, "leases/"));
  first_.reset();
  const auto second = OpenWriter();
  ASSERT_NE(second, nullptr);
  CAIRN_EXPECT_OK(SaveSample(*second, MakeSample(2)));
}

// The root may exist although its put was reported as failed; it then names the session.
TEST_F(WritersTest, OpenThatFailsKeepsNoLease) {
  CAIRN_ASSERT_OK(first_->Close());
  for (const uint32_t failed_removals : {1u, 100u}) {
    {
      const ScopedFaults faults([&](const FaultPass& pass, uint32_t) {
        if (pass.point == "leases.remove") return pass.occurrence <= failed_removals ? EIO : 0;
        return pass.point == "roots.directory_sync" ? EIO : 0;
      });
      ASSERT_THAT(Store::Open(path_, OpenMode::kWrite), IsError(ErrorCode::kUnavailable, ""));
      EXPECT_EQ(storage_->List("leases/")->size(), failed_removals == 1 ? 0u : 1u);
    }
    OpenWriter();
  }
}

// Neither has taken over from the other, and the lease of neither was to be seen.
TEST(SimultaneousWritersTest, OneOpensAndTheOtherIsToldSo) {
  for (const bool is_new : {true, false}) {
    const auto storage = std::make_shared<HookedStorage>();
    if (!is_new) {
      CAIRN_ASSERT_OK(Store::Open(storage, OpenMode::kWrite));
    }
    std::unique_ptr<Store> winner;
    bool has_begun = false;
    storage->on_put_if_absent = [&](std::string_view name, auto bytes) -> Result<void> {
      if (name.starts_with(internal::kRootFolder) && !std::exchange(has_begun, true)) {
        CAIRN_TRY_ASSIGN(winner, Store::Open(storage, OpenMode::kWrite));
      }
      return storage->base().PutIfAbsent(name, bytes);
    };
    const auto loser = Store::Open(storage, OpenMode::kWrite);
    ASSERT_THAT(loser, IsError(ErrorCode::kConflict,
                               "has opened this store for writing at the same "
                               "time"));
    EXPECT_THAT(loser.error().message,
                HasSubstr(fmt::format("process {} on host {}", ::getpid(), internal::HostName())));
    CAIRN_EXPECT_OK(SaveSample(*winner, MakeSample(1)));
  }
}

TEST_F(WritersTest, FencedWriterGetsConflictAndChangesNothing) {
  const auto second = OpenWriter(/*take_over=*/true);
  CAIRN_ASSERT_OK(SaveSample(*second, MakeSample(2)));
  const auto before = Contents();
  const std::string who = fmt::format("process {} on host {}", ::getpid(), internal::HostName());

  EXPECT_THAT(SaveSample(*first_, MakeSample(3)), IsError(ErrorCode::kConflict, who));
  EXPECT_THAT(SaveSample(*first_, MakeSample(1, 1), /*overwrite=*/true),
              IsError(ErrorCode::kConflict, "taken over"));
  EXPECT_THAT(first_->Delete(std::array<uint64_t, 1>{1}),
              IsError(ErrorCode::kConflict, "taken over"));
  EXPECT_THAT(first_->Begin(9, {}), IsError(ErrorCode::kConflict, "taken over"));
  EXPECT_TRUE(Contents() == before);

  CAIRN_EXPECT_OK(first_->Close());
  EXPECT_TRUE(Contents() == before);
  // The lease of the second writer is still there.
  EXPECT_THAT(Store::Open(path_, OpenMode::kWrite), IsError(ErrorCode::kConflict, "open for"));
  CAIRN_ASSERT_OK(SaveSample(*second, MakeSample(3)));
  ExpectSteps(path_, Steps{{1, MakeSample(1)}, {2, MakeSample(2)}, {3, MakeSample(3)}});
  ExpectNoLeftovers(path_);
}

TEST_F(WritersTest, FencedDeleteIsTheFirstToLearnOfIt) {
  const auto second = OpenWriter(/*take_over=*/true);
  const auto before = Contents();
  EXPECT_THAT(first_->Delete(std::array<uint64_t, 1>{1}),
              IsError(ErrorCode::kConflict, "taken over"));
  EXPECT_TRUE(Contents() == before);
}

// The writer is paused between its payload and its commit, while another one removes its segments.
TEST_F(WritersTest, WriterThatResumesInTheMiddleOfASaveGetsConflict) {
  const auto payload = RandomBytes(5, 100'000);
  {
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto paused, first_->Begin(2, {}));
    CAIRN_ASSERT_OK(
        SaveChunk(*paused, 2, ChunkKey("w", std::array{uint64_t{0}}), CopiedPayload(payload)));
    CAIRN_ASSERT_OK(paused->SetStructure(std::vector<std::byte>(8)));

    const auto second = OpenWriter(/*take_over=*/true);
    CAIRN_ASSERT_OK(SaveSample(*second, MakeSample(2)));
    CAIRN_ASSERT_OK(second->Close());
    EXPECT_THAT(paused->Commit({}), IsError(ErrorCode::kConflict, "taken over"));
  }
  const auto third = OpenWriter();
  ExpectSteps(path_, {{1, MakeSample(1)}, {2, MakeSample(2)}});
  ExpectNoLeftovers(path_);
}

TEST_F(WritersTest, FencedWriterThatWasPausedForManyCommitsGetsConflict) {
  const auto second = OpenWriter(/*take_over=*/true);
  const SampleShape tiny{.tensor_count = 2, .largest_bytes = 300};
  for (uint64_t i = 0; i < 2 * internal::kKeptRoots; ++i) {
    CAIRN_ASSERT_OK(SaveSample(*second, MakeSample(5, i, tiny), /*overwrite=*/i > 0));
  }
  const auto late = SaveSample(*first_, MakeSample(6));
  ASSERT_FALSE(late);
  EXPECT_THAT(late.error().message, HasSubstr("taken over"));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto snapshot, second->Latest());
  EXPECT_THAT(snapshot->step_numbers(), ElementsAre(1u, 5u));
  CAIRN_EXPECT_OK(SaveSample(*second, MakeSample(7)));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto steps, LoadAll(path_));
  EXPECT_FALSE(steps.contains(6));
  EXPECT_TRUE(steps.at(7) == MakeSample(7));
}

// So that segments which are copied into two stores, one after the other at the same address, have
// different names.
TEST(FirstEpochTest, DiffersBetweenStores) {
  std::set<uint32_t> epochs;
  for (int i = 0; i < 4; ++i) {
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto store,
                               Store::Open(std::make_shared<HookedStorage>(), OpenMode::kWrite));
    epochs.insert(StoreAccess::StateOf(*store).epoch);
  }
  EXPECT_EQ(epochs.size(), 4u);
}

// It is paused before it removes leftovers. Those of later epochs are what its successor writes.
TEST(PausedSweepTest, LeavesWhatALaterWriterHasBegunToWrite) {
  const auto storage = std::make_shared<HookedStorage>();
  std::unique_ptr<Store> successor;
  std::vector<uint32_t> end_epochs;
  storage->on_remove_leftovers = [&](uint32_t end_epoch) {
    end_epochs.push_back(end_epoch);
    if (end_epochs.size() > 1) return;
    successor = Store::Open(storage, OpenMode::kWrite, {.take_over = true}).value();
    EXPECT_EQ(StoreAccess::StateOf(*successor).epoch, end_epoch + 1);
  };
  CAIRN_ASSERT_OK(Store::Open(storage, OpenMode::kWrite));
  ASSERT_EQ(end_epochs.size(), 2u);
  EXPECT_EQ(end_epochs[1], end_epochs[0] + 1);
}

// In a bucket, a close writes the hint.
TEST(LateHintTest, IsNotWrittenByAWriterThatWasTakenOver) {
  const auto storage = std::make_shared<HookedStorage>();
  storage->small_requests = 8;
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto first, Store::Open(storage, OpenMode::kWrite));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto second,
                             Store::Open(storage, OpenMode::kWrite, {.take_over = true}));
  EXPECT_THAT(first->SetCompression(true), IsError(ErrorCode::kConflict, ""));
  CAIRN_ASSERT_OK(storage->Remove(internal::kHintName));
  CAIRN_ASSERT_OK(first->Close());
  EXPECT_THAT(storage->Size(internal::kHintName), IsError(ErrorCode::kNotFound, ""));
  CAIRN_ASSERT_OK(second->Close());
  CAIRN_EXPECT_OK(storage->Size(internal::kHintName));
}

TEST_F(WritersTest, ReadersSeeTheCommitsOfEitherWriterAtOnce) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto reader, Store::Open(path_, OpenMode::kRead));
  const auto seen = [&] { return (*reader->Latest())->step_numbers(); };
  EXPECT_THAT(seen(), ElementsAre(1u));
  CAIRN_ASSERT_OK(SaveSample(*first_, MakeSample(2)));
  EXPECT_THAT(seen(), ElementsAre(1u, 2u));
  const auto second = OpenWriter(/*take_over=*/true);
  EXPECT_THAT(seen(), ElementsAre(1u, 2u));
  CAIRN_ASSERT_OK(second->Delete(std::array<uint64_t, 1>{1}));
  EXPECT_THAT(seen(), ElementsAre(2u));
  CAIRN_ASSERT_OK(SaveSample(*second, MakeSample(2, 1), /*overwrite=*/true));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto snapshot, reader->Latest());
  ExpectSample(*snapshot, MakeSample(2, 1));
}

}  // namespace
}  // namespace cairn::kv
