// One rank of a job that saves to, or loads from, a store that all ranks share.
//
//   mesh_program save STORE RENDEZVOUS RUN RANK WORLD OTHER_WORLD SEED STEPS
//   mesh_program load STORE RENDEZVOUS RUN RANK WORLD OTHER_WORLD SEED STEPS
//   mesh_program loop STORE RENDEZVOUS RUN RANK WORLD FIRST_STEP SEED DEADLINE_MS CONNECT_MS
//
//   save, load   STEPS random cases, the same on all ranks and in both modes for the same SEED;
//                OTHER_WORLD is the world size of the other mode. Prints "ok" on success
//   loop         prints "ready", then saves one step after another until it is killed or a save
//                fails. Prints "will STEP" before each save, and "did STEP" or "failed CODE MS
//                MESSAGE" after it

#include "tests/process/mesh_program.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <iostream>
#include <string>
#include <vector>

#include "core/checkpoint_store.h"
#include "core/ranks/gloo_communicator.h"

namespace cairn::core::testing {
namespace {

using cairn::testing::SeededRandom;

void Say(const std::string& line) { std::cout << line << std::endl; }

struct Job {
  std::unique_ptr<Communicator> communicator;
  std::unique_ptr<CheckpointStore> store;
};

Result<Job> Open(const std::vector<std::string>& words, kv::OpenMode mode,
                 std::chrono::milliseconds connect_timeout = std::chrono::seconds(300)) {
  Job job;
  CAIRN_TRY_ASSIGN(job.communicator, ConnectGloo({.rank = std::stoi(words[4]),
                                                  .world_size = std::stoi(words[5]),
                                                  .rendezvous = words[2],
                                                  .run_id = words[3],
                                                  .interface = "127.0.0.1",
                                                  .connect_timeout = connect_timeout,
                                                  .timeout = std::chrono::seconds(300)}));
  CAIRN_TRY_ASSIGN(job.store, CheckpointStore::OpenShared(words[1], mode, *job.communicator));
  return job;
}

Result<void> RunCases(const std::vector<std::string>& words) {
  const bool saves = words[0] == "save";
  CAIRN_TRY_ASSIGN(const Job job, Open(words, saves ? kv::OpenMode::kWrite : kv::OpenMode::kRead));
  const auto world = static_cast<uint32_t>(std::stoul(words[5]));
  const auto other = static_cast<uint32_t>(std::stoul(words[6]));
  SeededRandom random(std::stoull(words[7]));
  for (uint64_t step = 0; step < std::stoull(words[8]); ++step) {
    const MeshCase one(saves ? world : other, saves ? other : world, random);
    if (saves) {
      SaveOn(*job.store, step, one.globals, one.saved, one.save_options);
    } else {
      LoadOn(*job.store, step, one.globals, one.loaded, one.load_options, one.gap);
    }
  }
  return job.store->Close();
}

Result<void> Loop(const std::vector<std::string>& words) {
  const std::chrono::milliseconds connect_timeout(std::stoll(words[9]));
  CAIRN_TRY_ASSIGN(const Job job, Open(words, kv::OpenMode::kWrite, connect_timeout));
  Say("ready");
  const auto world = static_cast<uint32_t>(std::stoul(words[5]));
  const std::chrono::milliseconds deadline(std::stoll(words[8]));
  for (uint64_t step = std::stoull(words[6]);; ++step) {
    const LoopStep contents(step, std::stoull(words[7]), world);
    RankState state(contents.globals, contents.layouts, job.store->rank());
    state.FillFrom(contents.globals, job.store->rank());
    Say(fmt::format("will {}", step));
    const auto begin = std::chrono::steady_clock::now();
    const auto report =
        job.store->Save(step, state.state, {.chunk_bytes = 1000, .deadline = deadline});
    if (!report) {
      const auto elapsed = std::chrono::steady_clock::now() - begin;
      Say(fmt::format("failed {} {} {}", ErrorCodeName(report.error().code),
                      std::chrono::duration_cast<std::chrono::milliseconds>(elapsed).count(),
                      report.error().ToString()));
      return {};
    }
    Say(fmt::format("did {}", step));
  }
}

int Main(const std::vector<std::string>& words) {
  if (words.size() != (words.empty() || words[0] != "loop" ? 9 : 10)) {
    std::cerr << "mesh_program: see the top of its source\n";
    return 2;
  }
  const Result<void> done = words[0] == "loop" ? Loop(words) : RunCases(words);
  if (!done) {
    std::cerr << "rank " << words[4] << ": " << done.error().ToString() << '\n';
    return 1;
  }
  if (::testing::UnitTest::GetInstance()->ad_hoc_test_result().Failed()) return 1;
  Say("ok");
  return 0;
}

}  // namespace
}  // namespace cairn::core::testing

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  return cairn::core::testing::Main(std::vector<std::string>(argv + 1, argv + argc));
}
