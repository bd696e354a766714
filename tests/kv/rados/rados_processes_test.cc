// Several processes, each with its own connection to the cluster.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/mman.h>

#include <array>
#include <chrono>
#include <list>
#include <span>
#include <string>
#include <vector>

#include "tests/kv/rados/ceph_cluster.h"
#include "tests/support/forked_child.h"
#include "tests/support/result_matchers.h"

namespace cairn::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

TEST(RadosProcessesTest, ExactlyOneOfEightProcessesPutsAnAbsentObject) {
  constexpr int kProcesses = 8;
  constexpr int kRounds = 20;
  struct Shared {
    pthread_barrier_t start;
    std::array<std::array<bool, kRounds>, kProcesses> has_won;
  };
  void* const memory =
      ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  auto* const shared = static_cast<Shared*>(memory);
  pthread_barrierattr_t attributes;
  ::pthread_barrierattr_init(&attributes);
  ::pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  ::pthread_barrier_init(&shared->start, &attributes, kProcesses);
  const std::string address = TestCluster().NewAddress();
  // The children of a process that has used librados have copies of its state.
  EXPECT_THAT(OpenRados(address)->Size("none"), IsError(ErrorCode::kNotFound, "none"));
  std::list<ForkedChild> children;
  for (int process = 0; process < kProcesses; ++process) {
    children.emplace_back([&, process] {
      const auto storage = OpenRados(address);
      const auto text = std::to_string(process);
      bool is_valid = storage->Size("none").error().code == ErrorCode::kNotFound;  // connects
      for (int round = 0; round < kRounds; ++round) {
        ::pthread_barrier_wait(&shared->start);
        const Result<void> put =
            storage->PutIfAbsent("roots/" + std::to_string(round), std::as_bytes(std::span(text)));
        shared->has_won[process][round] = put.has_value();
        if (!put && put.error().code != ErrorCode::kConflict) is_valid = false;
      }
      return is_valid;
    });
  }
  for (ForkedChild& child : children) EXPECT_EQ(child.Wait(), 0);
  const auto storage = OpenRados(address);
  for (int round = 0; round < kRounds; ++round) {
    std::vector<int> winners;
    for (int process = 0; process < kProcesses; ++process) {
      if (shared->has_won[process][round]) winners.push_back(process);
    }
    ASSERT_EQ(winners.size(), 1u) << "round " << round;
    CAIRN_ASSERT_OK_AND_ASSIGN(const std::vector<std::byte> bytes,
                               storage->Read("roots/" + std::to_string(round), 8));
    EXPECT_THAT(bytes, ::testing::ElementsAre(static_cast<std::byte>('0' + winners[0])));
  }
}

TEST(RadosProcessesTest, APutDoesNotWaitForAReaderThatDied) {
  const std::string address = TestCluster().NewAddress();
  const auto writer = OpenRados(address);
  ForkedChild ends_its_watch([&] {
    OpenRados(address)->AwaitChange("roots/", milliseconds(1));
    return true;
  });
  EXPECT_EQ(ends_its_watch.Wait(), 0);
  ForkedChild exits_with_its_watch([&] {
    static const auto storage = OpenRados(address);
    storage->AwaitChange("roots/", milliseconds(1));
    return true;
  });
  EXPECT_EQ(exits_with_its_watch.Wait(), 0);
  const auto begin = steady_clock::now();
  for (int i = 0; i < 10; ++i) CAIRN_ASSERT_OK(writer->Put("roots/" + std::to_string(i), {}));
  EXPECT_LT(steady_clock::now() - begin, seconds(15));
}

}  // namespace
}  // namespace cairn::testing
