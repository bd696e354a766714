// The operations on a store that tests run in child processes.
//
//   store_program die files|objects STORE OPERATION N      see DieAt
//   store_program save-loop DIR SEED                       commits, overwrites and deletes until it
//                                                          is killed
//   store_program churn DIR COUNT GRACE_MS                 after a line of input, makes so many of
//                                                          these changes
//   store_program read-loop DIR                            opens, loads the latest step, closes,
//                                                          until input ends
//   store_program hold DIR                                 keeps the store open until input ends
//   store_program open-as UID DIR r|w                      prints "ok" or the error
//   store_program race DIR NUMBER refuse|take-over         see RaceFor
//   store_program pause DIR POINT OCCURRENCE               stops itself at that pass of the fault
//                                                          point of a commit, prints its result and
//                                                          that of a delete
//   store_program fork DIR OTHER                           see ForkWithOpenWriter
//
// Exit status 0: done; 1: an error, printed as "error CODE TEXT"; 2: wrong usage.

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <optional>
#include <random>

#include "kv/base/options.h"
#include "kv/read/snapshot.h"
#include "kv/step_writer.h"
#include "kv/storage/open/open_storage.h"
#include "kv/store.h"
#include "tests/fault/operations.h"
#include "tests/kv/byte_payload.h"
#include "tests/support/fault_hook.h"
#include "tests/support/killing_storage.h"

namespace cairn::kv::testing {
namespace {

/// Writes each line with one call, so that a killed process leaves no partial line.
void Say(const std::string& line) {
  const std::string text = line + "\n";
  if (::write(STDOUT_FILENO, text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    std::_Exit(3);
  }
}

/// Dies before the n-th change of the storage, or at the n-th point at which files change: of the
/// open if `name` is not that of an operation, otherwise of the operation.
Result<void> DieAt(bool at_files, const std::string& address, const std::string& name, uint32_t n) {
  std::shared_ptr<cairn::testing::KillingStorage> storage;
  if (!at_files) {
    CAIRN_TRY_ASSIGN(auto base, OpenStorage(address));
    storage = std::make_shared<cairn::testing::KillingStorage>(std::move(base));
  }
  uint32_t left = 0;
  const cairn::testing::ScopedFaults faults(
      [&left](const cairn::testing::FaultPass& pass, uint32_t) {
        // Reads change nothing.
        const bool reads = pass.point.ends_with(".open") || pass.point.ends_with(".read");
        if (!reads && left > 0 && --left == 0) ::kill(::getpid(), SIGKILL);
        return 0;
      });
  const auto begin_count = [&] { at_files ? void(left = n) : storage->DieBefore(n); };
  const std::optional<Operation> operation = OperationNamed(name);
  if (!operation) begin_count();
  CAIRN_TRY_ASSIGN(const auto store, at_files
                                         ? Store::Open(address, OpenMode::kWrite, SmallBlocks())
                                         : Store::Open(storage, OpenMode::kWrite, SmallBlocks()));
  if (!operation) return {};
  begin_count();
  return Perform(*operation, *store);
}

/// Makes one random change. Prints "will ..." before it and "did ..." after it.
Result<void> ChangeSomething(Store& store, std::mt19937_64& random, uint64_t& version) {
  CAIRN_TRY_ASSIGN(const auto snapshot, store.Latest());
  const std::vector<uint64_t>& steps = snapshot->step_numbers();
  const uint64_t choice = random() % 10;
  if (steps.size() > 6 || (choice < 2 && steps.size() > 1)) {
    const uint64_t step = steps[random() % steps.size()];
    Say(fmt::format("will delete {} 0", step));
    CAIRN_TRY(store.Delete(std::array{step}));
    Say(fmt::format("did delete {} 0", step));
    return {};
  }
  const bool overwrite = choice < 5 && !steps.empty();
  const uint64_t step = overwrite       ? steps[random() % steps.size()]
                        : steps.empty() ? 1
                                        : steps.back() + 1;
  ++version;
  Say(fmt::format("will save {} {}", step, version));
  CAIRN_TRY(SaveSample(store, MakeSample(step, version, kLoopShape), overwrite));
  Say(fmt::format("did save {} {}", step, version));
  return {};
}

Result<void> Change(const std::string& directory, uint64_t seed, uint64_t count,
                    const StoreOptions& options) {
  CAIRN_TRY_ASSIGN(const auto store, Store::Open(directory, OpenMode::kWrite, options));
  Say("ready");
  std::mt19937_64 random(seed);
  uint64_t version = random() % 1'000'000 * 1'000;
  for (uint64_t i = 0; i < count; ++i) CAIRN_TRY(ChangeSomething(*store, random, version));
  return store->Close();
}

Result<void> Churn(const std::string& directory, uint64_t count, std::chrono::milliseconds grace) {
  (void)std::getchar();
  StoreOptions options = SmallBlocks();
  options.grace = grace;
  return Change(directory, /*seed=*/1, count, options);
}

bool InputHasEnded() {
  pollfd input{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
  return ::poll(&input, 1, /*timeout=*/0) > 0;
}

/// Loads of a step that is deleted concurrently may return kNotFound; nothing else may fail.
Result<void> ReadUntilInputEnds(const std::string& directory) {
  uint64_t opens = 0, loads = 0, gone = 0;
  while (!InputHasEnded()) {
    CAIRN_TRY_ASSIGN(const auto store, Store::Open(directory, OpenMode::kRead, SmallBlocks()));
    if (opens++ == 0) Say("ready");
    for (int i = 0; i < 2; ++i) {
      CAIRN_TRY_ASSIGN(const auto snapshot, store->Latest());
      if (snapshot->step_numbers().empty()) continue;
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

std::optional<std::string> ReadInputLine() {
  std::string line;
  char byte;
  while (::read(STDIN_FILENO, &byte, 1) == 1) {
    if (byte == '\n') return line;
    line += byte;
  }
  return std::nullopt;
}

/// For each line of input with a step, tries to open the store and to save the step with `number`
/// as its version. Prints "won", or "lost CODE TEXT" if it did not get the store, or "fenced CODE
/// TEXT" if another writer took it over. Keeps the store open until the line "close".
Result<void> RaceFor(const std::string& directory, uint64_t number, bool take_over) {
  StoreOptions options = SmallBlocks();
  options.take_over = take_over;
  std::unique_ptr<Store> store;
  const auto say = [](const char* word, const Error& error) {
    Say(fmt::format("{} {} {}", word, ErrorCodeName(error.code), error.ToString()));
  };
  while (const auto line = ReadInputLine()) {
    if (*line == "close") {
      store.reset();
      Say("closed");
      continue;
    }
    auto opened = Store::Open(directory, OpenMode::kWrite, options);
    if (!opened) {
      say("lost", opened.error());
      continue;
    }
    store = *std::move(opened);
    const uint64_t step = std::stoull(*line);
    const auto saved = SaveSample(*store, MakeSample(step, number, kLoopShape));
    saved ? Say("won") : say("fenced", saved.error());
  }
  return {};
}

/// Pauses at each of `points`.
Result<void> CommitWithPause(const std::string& directory, const std::vector<std::string>& points,
                             uint32_t occurrence) {
  StoreOptions options = SmallBlocks();
  options.take_over = true;
  CAIRN_TRY_ASSIGN(const auto store, Store::Open(directory, OpenMode::kWrite, options));
  const auto say = [](const char* what, const auto& result) {
    Say(result ? fmt::format("{} ok", what)
               : fmt::format("{} {} {}", what, ErrorCodeName(result.error().code),
                             result.error().ToString()));
  };
  {
    cairn::testing::ScopedFaults faults([&](const cairn::testing::FaultPass& pass, uint32_t) {
      if (pass.occurrence == occurrence && std::ranges::find(points, pass.point) != points.end()) {
        ::raise(SIGSTOP);
      }
      return 0;
    });
    say("commit", Perform(Operation::kCommit, *store));
  }
  say("delete", store->Delete(std::array<uint64_t, 1>{2}));
  return store->Close();
}

/// Expects `result` to fail because this is a forked child.
template <typename T>
Result<void> ExpectForked(const char* what, const Result<T>& result) {
  if (!result && result.error().code == ErrorCode::kFailedPrecondition &&
      result.error().message.find("forked") != std::string::npos) {
    return {};
  }
  return Fail(ErrorCode::kInternal, fmt::format("{} in a forked child: {}", what,
                                                result ? "succeeded" : result.error().ToString()));
}

/// What the forked child of a process with an open writer does.
Result<void> ActAsForkedChild(std::unique_ptr<Store> inherited, std::unique_ptr<StepWriter> writer,
                              const std::string& other) {
  // Its own work on another store.
  {
    CAIRN_TRY_ASSIGN(const auto store, Store::Open(other, OpenMode::kWrite, SmallBlocks()));
    CAIRN_TRY(SaveSample(*store, MakeSample(1)));
    CAIRN_TRY_ASSIGN(const Steps steps, LoadAllFrom(*store));
    if (!steps.contains(1) || steps.at(1) != MakeSample(1)) {
      return Fail(ErrorCode::kInternal, "the child does not read what it has saved");
    }
    CAIRN_TRY(store->Close());
  }
  // Reads of the inherited store work, and changes fail.
  CAIRN_TRY_ASSIGN(const Steps steps, LoadAllFrom(*inherited));
  if (steps.size() != 1) return Fail(ErrorCode::kInternal, "the child reads other steps");
  CAIRN_TRY(ExpectForked(
      "Append", writer->Append(CopiedPayload(RandomBytes(7, 9000)), SegmentAlignment::k64, {})));
  CAIRN_TRY(ExpectForked("Commit", writer->Commit({})));
  writer.reset();
  CAIRN_TRY(ExpectForked("Begin", inherited->Begin(9, {})));
  CAIRN_TRY(ExpectForked("Delete", inherited->Delete(std::array<uint64_t, 1>{1})));
  CAIRN_TRY(ExpectForked("Close", inherited->Close()));
  inherited.reset();
  return {};
}

/// Opens a store, saves a step, begins another one, and forks. The child tests what it can do with
/// `other` and with what it inherited; then the parent completes its step. Prints "ok".
Result<void> ForkWithOpenWriter(const std::string& directory, const std::string& other) {
  CAIRN_TRY_ASSIGN(auto store, Store::Open(directory, OpenMode::kWrite, SmallBlocks()));
  CAIRN_TRY(SaveSample(*store, MakeSample(1)));
  CAIRN_TRY_ASSIGN(auto writer, store->Begin(7, {}));
  CAIRN_TRY(writer->Append(CopiedPayload(RandomBytes(7, 90'000)), SegmentAlignment::k64, {}));
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(60);  // a child that hangs fails
    const auto done = ActAsForkedChild(std::move(store), std::move(writer), other);
    if (!done) Say("child: " + done.error().ToString());
    std::exit(done ? 0 : 1);
  }
  int status = 0;
  if (::waitpid(child, &status, 0) != child || status != 0) {
    return Fail(ErrorCode::kInternal, fmt::format("the child ended with status {}", status));
  }
  writer.reset();  // removes its segment
  CAIRN_TRY(SaveSample(*store, MakeSample(2)));
  CAIRN_TRY(store->Close());
  Say("ok");
  return {};
}

Result<void> Main(std::span<char*> arguments) {
  const std::vector<std::string> words(arguments.begin() + 1, arguments.end());
  const auto is = [&words](const char* name, size_t count) {
    return words.size() == count && words[0] == name;
  };
  if (is("die", 5)) return DieAt(words[1] == "files", words[2], words[3], std::stoul(words[4]));
  if (is("save-loop", 3)) {
    StoreOptions options = SmallBlocks();
    options.grace = std::chrono::milliseconds(0);
    return Change(words[1], std::stoull(words[2]), ~uint64_t{0}, options);
  }
  if (is("churn", 4)) {
    return Churn(words[1], std::stoull(words[2]), std::chrono::milliseconds(std::stoul(words[3])));
  }
  if (is("read-loop", 2)) return ReadUntilInputEnds(words[1]);
  if (is("hold", 2)) return Hold(words[1]);
  if (is("open-as", 4)) return OpenAs(std::stoul(words[1]), words[2], words[3] == "w");
  if (is("race", 4)) return RaceFor(words[1], std::stoull(words[2]), words[3] == "take-over");
  if (words.size() >= 4 && words[0] == "pause") {
    return CommitWithPause(words[1], {words.begin() + 3, words.end()}, std::stoul(words[2]));
  }
  if (is("fork", 3)) return ForkWithOpenWriter(words[1], words[2]);
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
