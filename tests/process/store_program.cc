// The operations on a store that tests run in child processes.
//
//   store_program operate DIR OPERATION POINT OCCURRENCE   dies at that pass of the fault point
//   store_program open DIR N                               dies at the n-th fault point of an open
//   store_program save-loop DIR SEED                       commits, overwrites and deletes until it
//                                                          is killed
//   store_program churn DIR SECONDS                        the same at full speed, then ends
//   store_program read-loop DIR SECONDS                    opens, loads the latest step, closes
//   store_program hold DIR                                 keeps the store open until input ends
//   store_program open-as UID DIR r|w                      prints "ok" or the error
//
// Exit status 0: done; 1: an error, printed as "error CODE TEXT"; 2: wrong usage.

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <random>

#include "kv/options.h"
#include "kv/step_info.h"
#include "kv/store.h"
#include "tests/fault/operations.h"
#include "tests/support/fault_hook.h"

namespace cairn::kv::testing {
namespace {

/// Writes each line with one call, so that a killed process leaves no partial line.
void Say(const std::string& line) {
  const std::string text = line + "\n";
  if (::write(STDOUT_FILENO, text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    std::_Exit(3);
  }
}

Result<void> Operate(const std::string& directory, const std::string& name,
                     const std::string& point, uint32_t occurrence) {
  const cairn::testing::FaultAction kill = cairn::testing::KillAt(point, occurrence);
  if (name == "create") {
    cairn::testing::ScopedFaults faults(kill);
    CAIRN_TRY(Store::Open(directory, OpenMode::kWrite, SmallBlocks()));
    return {};
  }
  for (const Operation operation : kOperations) {
    if (name != OperationName(operation)) continue;
    CAIRN_TRY_ASSIGN(const auto store, Store::Open(directory, OpenMode::kWrite, SmallBlocks()));
    cairn::testing::ScopedFaults faults(kill);
    return Perform(operation, *store);
  }
  return Fail(ErrorCode::kInvalidArgument, "no such operation");
}

Result<void> OpenAndDieAt(const std::string& directory, uint32_t n) {
  cairn::testing::ScopedFaults faults([n](const cairn::testing::FaultPass&, uint32_t total) {
    if (total == n) ::kill(::getpid(), SIGKILL);
    return 0;
  });
  CAIRN_TRY(Store::Open(directory, OpenMode::kWrite, SmallBlocks()));
  return {};
}

/// What the loops save: small, so that most of the time is spent in the commit protocol.
constexpr SampleShape kLoopShape{.tensor_count = 4, .largest_bytes = 60'000};

/// Makes one random change. Prints "will ..." before it and "did ..." after it.
Result<void> ChangeSomething(Store& store, std::mt19937_64& random, uint64_t& version) {
  CAIRN_TRY_ASSIGN(const auto snapshot, store.Latest());
  const std::vector<StepInfo>& steps = snapshot->steps();
  const uint64_t choice = random() % 10;
  if (steps.size() > 6 || (choice < 2 && steps.size() > 1)) {
    const uint64_t step = steps[random() % steps.size()].step;
    Say(fmt::format("will delete {} 0", step));
    CAIRN_TRY(store.Delete(std::array{step}));
    Say(fmt::format("did delete {} 0", step));
    return {};
  }
  const bool overwrite = choice < 5 && !steps.empty();
  const uint64_t step = overwrite       ? steps[random() % steps.size()].step
                        : steps.empty() ? 1
                                        : steps.back().step + 1;
  ++version;
  Say(fmt::format("will save {} {}", step, version));
  CAIRN_TRY(SaveSample(store, MakeSample(step, version, kLoopShape), overwrite));
  Say(fmt::format("did save {} {}", step, version));
  return {};
}

Result<void> ChangeUntil(const std::string& directory, uint64_t seed, double seconds) {
  CAIRN_TRY_ASSIGN(const auto store, Store::Open(directory, OpenMode::kWrite, SmallBlocks()));
  Say("ready");
  std::mt19937_64 random(seed);
  uint64_t version = random() % 1'000'000 * 1'000;
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (std::chrono::steady_clock::now() < end) {
    CAIRN_TRY(ChangeSomething(*store, random, version));
  }
  return store->Close();
}

/// Loads of a step that is deleted concurrently may return kNotFound; nothing else may fail.
Result<void> ReadUntil(const std::string& directory, double seconds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  uint64_t opens = 0, loads = 0, gone = 0;
  while (std::chrono::steady_clock::now() < end) {
    CAIRN_TRY_ASSIGN(const auto store, Store::Open(directory, OpenMode::kRead, SmallBlocks()));
    ++opens;
    for (int i = 0; i < 2; ++i) {
      CAIRN_TRY_ASSIGN(const auto snapshot, store->Latest());
      if (snapshot->steps().empty()) continue;
      const auto loaded = LoadSample(*snapshot);
      if (!loaded && loaded.error().code != ErrorCode::kNotFound) return Fail(loaded.error());
      if (!loaded) {
        ++gone;
        continue;
      }
      ++loads;
      if (*loaded != MakeSample(loaded->step, loaded->version, kLoopShape)) {
        return Fail(ErrorCode::kInternal, "the step read is not one that was saved");
      }
    }
  }
  Say(fmt::format("opens {} loads {} gone {}", opens, loads, gone));
  return {};
}

Result<void> Hold(const std::string& directory) {
  CAIRN_TRY_ASSIGN(const auto store, Store::Open(directory, OpenMode::kWrite));
  Say("ready");
  char byte;
  while (::read(STDIN_FILENO, &byte, 1) > 0) {
  }
  return store->Close();
}

Result<void> OpenAs(uid_t user, const std::string& directory, bool write) {
  if (::setgid(user) != 0 || ::setuid(user) != 0) {
    return Fail(SystemError(errno, "cannot become another user"));
  }
  CAIRN_TRY(Store::Open(directory, write ? OpenMode::kWrite : OpenMode::kRead));
  Say("ok");
  return {};
}

Result<void> Main(std::span<char*> arguments) {
  const std::vector<std::string> words(arguments.begin() + 1, arguments.end());
  const auto is = [&words](const char* name, size_t count) {
    return words.size() == count && words[0] == name;
  };
  if (is("operate", 5)) return Operate(words[1], words[2], words[3], std::stoul(words[4]));
  if (is("open", 3)) return OpenAndDieAt(words[1], std::stoul(words[2]));
  if (is("save-loop", 3)) return ChangeUntil(words[1], std::stoull(words[2]), 1e9);
  if (is("churn", 3)) return ChangeUntil(words[1], 1, std::stod(words[2]));
  if (is("read-loop", 3)) return ReadUntil(words[1], std::stod(words[2]));
  if (is("hold", 2)) return Hold(words[1]);
  if (is("open-as", 4)) return OpenAs(std::stoul(words[1]), words[2], words[3] == "w");
  std::fprintf(stderr, "store_program: wrong usage\n");
  std::exit(2);
}

}  // namespace
}  // namespace cairn::kv::testing

int main(int argc, char** argv) {
  const auto result = cairn::kv::testing::Main({argv, static_cast<size_t>(argc)});
  if (result) return 0;
  cairn::kv::testing::Say(fmt::format("error {} {}", cairn::ErrorCodeName(result.error().code),
                                      result.error().ToString()));
  return 1;
}
