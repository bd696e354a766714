// Who may write: processes that are alive, dead, of another host, of another namespace, and forked.

#include "kv/root/internal/lease.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <new>
#include <thread>
#include <utility>

#include "kv/storage/files/internal/memory_storage.h"
#include "tests/kv/root/hooked_storage.h"
#include "tests/support/result_matchers.h"

namespace cairn::kv {
namespace {

using cairn::testing::IsError;
using internal::CheckLease;
using internal::DecodeLease;
using internal::EncodeLease;
using internal::kLeaseLifetimeNs;
using internal::Lease;
using internal::LeaseKeeper;
using internal::LeaseName;
using internal::MemoryStorage;
using internal::NowUnixNs;
using internal::ThisProcessLease;
using internal::ThisWriter;

class LeaseTest : public ::testing::Test {
 protected:
  void PutLease(const Lease& lease) {
    CAIRN_ASSERT_OK(storage_->Put(LeaseName(lease.writer.session), EncodeLease(lease)));
  }
  std::optional<Lease> StoredLease(const std::string& session = "a") {
    const auto bytes = storage_->Read(LeaseName(session), 1 << 20);
    return bytes ? DecodeLease(*bytes) : std::nullopt;
  }
  /// Waits until the thread that renews a lease has done something.
  template <typename Condition>
  static void Await(const Condition& is_met) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!is_met() && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    ASSERT_TRUE(is_met());
  }
  static Lease OfOtherHost(int64_t age_ns) {
    return {.writer = {.host = "node7",
                       .pid = 4711,
                       .session = "other",
                       .since_unix_ns = 1'769'860'800'000'000'000},
            .epoch = 3,
            .boot_id = "another boot",
            .pid_namespace = "pid:[1]",
            .process_start = 5,
            .renewed_unix_ns = NowUnixNs() - age_ns};
  }

  std::shared_ptr<MemoryStorage> storage_ = std::make_shared<MemoryStorage>("test");
};

/// Runs `body` in a forked child, and returns its exit status.
template <typename Body>
int RunInChild(const Body& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(250);  // a hang is a failure
    ::_exit(body());
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + status;
}

TEST_F(LeaseTest, IsDecodedAsItWasEncoded) {
  const Lease lease = ThisProcessLease(ThisWriter("session"), 5);
  EXPECT_NE(lease.process_start, 0u);
  EXPECT_FALSE(lease.boot_id.empty());
  EXPECT_FALSE(lease.pid_namespace.empty());
  EXPECT_EQ(DecodeLease(EncodeLease(lease)), lease);
}

TEST_F(LeaseTest, DamagedLeaseIsNoLease) {
  const auto bytes = EncodeLease(OfOtherHost(0));
  for (size_t size = 0; size + 2 < bytes.size(); ++size) {
    EXPECT_EQ(DecodeLease(std::span(bytes).first(size)), std::nullopt) << size;
  }
  CAIRN_EXPECT_OK(CheckLease(*storage_, "a"));  // it is absent
  for (const std::string_view text : {"", "[]", "null", "{\"host\": 3}", "\xff\xfe"}) {
    CAIRN_ASSERT_OK(storage_->Put(LeaseName("a"), std::as_bytes(std::span(text))));
    CAIRN_EXPECT_OK(CheckLease(*storage_, "a"));
  }
}

TEST_F(LeaseTest, LiveProcessOfThisHostIsNamed) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto keeper, LeaseKeeper::Take(storage_, ThisWriter("a"), 1));
  const std::string name = "process " + std::to_string(::getpid()) + " on host " +
                           internal::HostName() + " (writer since 20";

  EXPECT_THAT(CheckLease(*storage_, "a"), IsError(ErrorCode::kConflict, "this process: " + name));
  EXPECT_EQ(RunInChild([this] {
              const auto checked = CheckLease(*storage_, "a");
              return checked || checked.error().message.starts_with("this process") ? 1 : 0;
            }),
            0);
}

// A process of this system counts as alive if it exists; any other one, until its lease expires. A
// renewal far in the future comes from a host whose clock was wrong, and is not believed.
TEST_F(LeaseTest, ProcessIsAliveOrItsLeaseIsValid) {
  constexpr int64_t kSecondNs = 1'000'000'000;
  using internal::kMaxClockLeadNs;
  const auto of_this_process = [](auto change) {
    Lease lease = ThisProcessLease(ThisWriter("other"), 1);
    change(lease);
    return lease;
  };
  const std::pair<Lease, const char*> cases[] = {
      // Not renewed for long.
      {of_this_process([](Lease& lease) { lease.renewed_unix_ns -= 100 * kLeaseLifetimeNs; }),
       "take over"},
      // Another process with the same number.
      {of_this_process([](Lease& lease) { lease.process_start -= 1; }), nullptr},
      // The numbers of another namespace mean nothing.
      {of_this_process([](Lease& lease) { lease.pid_namespace = "pid:[1]"; }), "writing"},
      {of_this_process([](Lease& lease) {
         lease.pid_namespace = "pid:[1]";
         lease.renewed_unix_ns -= 2 * kLeaseLifetimeNs;
       }),
       nullptr},
      {OfOtherHost(kLeaseLifetimeNs / 2),
       "process 4711 on host node7 (writer since 2026-01-31 12:00:00 UTC)"},
      {OfOtherHost(kLeaseLifetimeNs + kSecondNs), nullptr},
      {OfOtherHost(-kLeaseLifetimeNs), "node7"},  // its clock is ahead
      {OfOtherHost(-kMaxClockLeadNs / 2), "node7"},
      {OfOtherHost(-kMaxClockLeadNs - 3'600 * kSecondNs), nullptr},
      {OfOtherHost(-kMaxClockLeadNs - 360'000'000 * kSecondNs), nullptr},
  };
  int number = 0;
  for (const auto& [lease, words] : cases) {
    SCOPED_TRACE(number++);
    PutLease(lease);
    const auto checked = CheckLease(*storage_, "other");
    if (words == nullptr) {
      CAIRN_ASSERT_OK(checked);
      const bool is_known_here = lease.pid_namespace == cases[0].first.pid_namespace;
      EXPECT_EQ(*checked, is_known_here);  // others may only have been silent for long
    } else {
      EXPECT_THAT(checked, IsError(ErrorCode::kConflict, words));
    }
  }
  CAIRN_ASSERT_OK_AND_ASSIGN(const bool has_ended, CheckLease(*storage_, "another"));
  EXPECT_TRUE(has_ended);  // it is absent
}

TEST_F(LeaseTest, DeadProcessOfThisHostIsIgnoredAtOnce) {
  Lease lease = ThisProcessLease(ThisWriter("a"), 1);
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  lease.writer.pid = static_cast<uint32_t>(child);
  siginfo_t ended;
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(child), &ended, WEXITED | WNOWAIT), 0);
  PutLease(lease);
  CAIRN_EXPECT_OK(CheckLease(*storage_, "a"));  // nobody has waited for it
  ::waitpid(child, nullptr, 0);
  CAIRN_EXPECT_OK(CheckLease(*storage_, "a"));
}

TEST_F(LeaseTest, ReleaseRemovesOnlyTheOwnLease) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto first, LeaseKeeper::Take(storage_, ThisWriter("a"), 1));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto second, LeaseKeeper::Take(storage_, ThisWriter("b"), 2));
  CAIRN_EXPECT_OK(first->Release());
  EXPECT_EQ(StoredLease("a"), std::nullopt);
  ASSERT_TRUE(StoredLease("b").has_value());
  EXPECT_EQ(StoredLease("b")->writer.session, "b");
  CAIRN_EXPECT_OK(second->Release());
  CAIRN_EXPECT_OK(second->Release());
  EXPECT_EQ(StoredLease("b"), std::nullopt);
  EXPECT_THAT(second->Renew(), IsError(ErrorCode::kFailedPrecondition, "released"));
}

TEST_F(LeaseTest, LeaseOfAHostWhoseNameIsNotUtf8IsReleased) {
  internal::WriterIdentity writer = ThisWriter("a");
  writer.host = "\xff";
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto keeper, LeaseKeeper::Take(storage_, writer, 1));
  ASSERT_TRUE(StoredLease().has_value());
  CAIRN_EXPECT_OK(keeper->Release());
  EXPECT_EQ(StoredLease(), std::nullopt);
}

// Another writer has removed it, or another store is here now.
TEST_F(LeaseTest, IdleWriterDoesNotPutALostLease) {
  const auto storage = std::make_shared<testing::HookedStorage>();
  std::atomic<int> looks = 0;
  std::atomic<int> finds = 0;
  storage->on_size = [&, base = &storage->base()](std::string_view name) {
    if (base->Size(name)) ++finds;
    (void)base->Remove(name);
    ++looks;
    return base->Size(name);
  };
  CAIRN_ASSERT_OK_AND_ASSIGN(
      const auto keeper, LeaseKeeper::Take(storage, ThisWriter("a"), 1, /*renewal_ns=*/1'000'000));
  Await([&] { return looks >= 3; });
  EXPECT_EQ(finds, 1);
}

TEST_F(LeaseTest, RenewalsAndTheEndSurviveALackOfMemory) {
  const auto storage = std::make_shared<testing::HookedStorage>();
  std::atomic<int> looks = 0;
  storage->on_size = [&](std::string_view) -> Result<uint64_t> {
    ++looks;
    throw std::bad_alloc();
  };
  CAIRN_ASSERT_OK_AND_ASSIGN(
      auto keeper, LeaseKeeper::Take(storage, ThisWriter("a"), 1, /*renewal_ns=*/1'000'000));
  Await([&] { return looks >= 3; });
  keeper.reset();  // cannot read the lease either
}

TEST_F(LeaseTest, DestructorReleases) {
  CAIRN_ASSERT_OK_AND_ASSIGN(auto keeper, LeaseKeeper::Take(storage_, ThisWriter("a"), 1));
  keeper.reset();
  CAIRN_EXPECT_OK(CheckLease(*storage_, "a"));
}

TEST_F(LeaseTest, LostLeaseIsPutAgainOnDemand) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto keeper,
                             LeaseKeeper::Take(storage_, ThisWriter("a"), /*epoch=*/1));
  const auto before = StoredLease();
  CAIRN_EXPECT_OK(keeper->Renew());  // it is too recent to be renewed
  EXPECT_EQ(StoredLease(), before);
  CAIRN_ASSERT_OK(storage_->Remove(LeaseName("a")));
  CAIRN_EXPECT_OK(keeper->Renew());
  EXPECT_FALSE(StoredLease());
  CAIRN_EXPECT_OK(keeper->PutIfLost());
  EXPECT_TRUE(StoredLease());
  CAIRN_EXPECT_OK(keeper->Release());
  EXPECT_THAT(keeper->PutIfLost(), IsError(ErrorCode::kFailedPrecondition, "released"));
  EXPECT_FALSE(StoredLease());
}

TEST_F(LeaseTest, IdleWriterRenewsItsLease) {
  CAIRN_ASSERT_OK_AND_ASSIGN(
      const auto keeper, LeaseKeeper::Take(storage_, ThisWriter("a"), 1, /*renewal_ns=*/1'000'000));
  const auto before = StoredLease();
  Await([&] { return StoredLease() != before; });
  ASSERT_TRUE(StoredLease().has_value());
  EXPECT_GT(StoredLease()->renewed_unix_ns, before->renewed_unix_ns);
}

TEST_F(LeaseTest, WriterThatLostItsLeaseDoesNotTakeItBack) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto keeper,
                             LeaseKeeper::Take(storage_, ThisWriter("a"), 1, /*renewal_ns=*/0));
  CAIRN_EXPECT_OK(keeper->Renew());
  // The thread may have read the own lease, and put it again after this.
  Lease other = OfOtherHost(0);
  other.writer.session = "a";
  Result<void> renewed;
  for (int attempt = 0; renewed && attempt < 1000; ++attempt) {
    PutLease(other);
    renewed = keeper->Renew();
  }
  EXPECT_THAT(renewed, IsError(ErrorCode::kConflict, "node7"));
  EXPECT_EQ(StoredLease()->epoch, 3u);
}

TEST_F(LeaseTest, ForkedChildNeitherHangsNorReleases) {
  CAIRN_ASSERT_OK_AND_ASSIGN(auto keeper, LeaseKeeper::Take(storage_, ThisWriter("a"), 1));
  EXPECT_EQ(RunInChild([this, &keeper] {
              if (keeper->Renew() || keeper->Release()) return 1;
              keeper.reset();
              return StoredLease() ? 0 : 2;
            }),
            0);
  EXPECT_TRUE(StoredLease().has_value());
  CAIRN_EXPECT_OK(keeper->Release());
}

}  // namespace
}  // namespace cairn::kv
