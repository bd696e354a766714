// `kv-admin bisect`: runs a command on steps, and finds the first one from which it fails.

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "core/checkpoint_store.h"
#include "core/inspect/descent.h"
#include "core/interop/safetensors/safetensors_export.h"
#include "core/interop/safetensors/safetensors_file.h"
#include "kv/base/mapping.h"
#include "kv/io/file_descriptor.h"
#include "tools/admin/verbs.h"
#include "tools/common/address.h"
#include "tools/common/exit_status.h"
#include "tools/common/json.h"
#include "tools/common/progress.h"
#include "tools/common/quantities.h"
#include "tools/common/text.h"

namespace cairn::tools {
namespace {

constexpr int kSkipStatus = 125;       // as for git bisect
constexpr int kCannotRunStatus = 126;  // and 127: of shells, if a command cannot be run

struct BisectCommand {
  std::string store;
  std::string good;  // a step or a tag
  std::string bad;
  std::vector<std::string> words;  // the command
  std::string keys;                // a pattern; empty: all
  bool json = false;
};

/// A safetensors file with the tensors of one step after another, of which only the pages that
/// differ are read and written. The destructor removes it.
class CheckpointFile {
 public:
  static Result<std::unique_ptr<CheckpointFile>> Create(const core::CheckpointStore& store,
                                                        core::KeyPatterns patterns) {
    std::error_code error;
    const std::filesystem::path parent = std::filesystem::temp_directory_path(error);
    std::string folder = ((error ? "/tmp" : parent) / "cairn-bisect-XXXXXX").string();
    if (::mkdtemp(folder.data()) == nullptr) {
      return Fail(SystemError(errno, "cannot create a folder for the checkpoint", folder));
    }
    return std::unique_ptr<CheckpointFile>(
        new CheckpointFile(store, std::move(patterns), std::move(folder)));
  }
  ~CheckpointFile() {
    std::error_code ignored;  // nothing can be done
    std::filesystem::remove_all(folder_, ignored);
  }
  CheckpointFile(const CheckpointFile&) = delete;
  CheckpointFile& operator=(const CheckpointFile&) = delete;

  std::string path() const { return folder_ + "/checkpoint.safetensors"; }

  /// Puts the tensors of `step` into the file. Returns the bytes that were read from the store.
  Result<uint64_t> MoveTo(const kv::StepInfo& step) {
    CAIRN_TRY_ASSIGN(core::Contents contents, store_.List(step.step, patterns_));
    std::erase_if(contents.tensors, &core::TensorInfo::hidden);
    if (contents.tensors.empty()) {
      return Fail(Error{.code = ErrorCode::kNotFound,
                        .hint = Hint::kListKeys,
                        .message = "no tensor matches",
                        .step = step.step});
    }
    std::vector<std::tuple<std::string, core::DType, core::Shape>> layout;
    for (const core::TensorInfo& tensor : contents.tensors) {
      layout.emplace_back(tensor.fqn, tensor.dtype, tensor.shape);
    }
    uint64_t read_bytes = 0;
    if (step_ && layout == layout_) {
      CAIRN_TRY_ASSIGN(read_bytes, Update(contents));
    } else {
      CAIRN_TRY_ASSIGN(read_bytes, Write(contents));
    }
    step_ = contents.step;
    layout_ = std::move(layout);
    return read_bytes;
  }

 private:
  CheckpointFile(const core::CheckpointStore& store, core::KeyPatterns patterns, std::string folder)
      : store_(store), patterns_(std::move(patterns)), folder_(std::move(folder)) {}

  Result<uint64_t> Write(const core::Contents& contents) {
    step_.reset();
    ProgressLine progress(fmt::format("writing step {}:", contents.step.step));
    CAIRN_TRY_ASSIGN(const auto report, core::ExportSafetensors(store_, contents, path(),
                                                                {.max_shard_bytes = UINT64_MAX,
                                                                 .progress = progress.callback()}));
    return report.bytes;
  }

  Result<uint64_t> Update(const core::Contents& contents) {
    CAIRN_TRY_ASSIGN(const auto file, core::SafetensorsFile::Open(path()));
    const kv::FileDescriptor descriptor(::open(path().c_str(), O_RDWR | O_CLOEXEC));
    const auto length = std::filesystem::file_size(path());
    void* const mapped = descriptor.get() < 0 ? MAP_FAILED
                                              : ::mmap(nullptr, length, PROT_READ | PROT_WRITE,
                                                       MAP_SHARED, descriptor.get(), 0);
    if (mapped == MAP_FAILED) return Fail(SystemError(errno, "cannot map the file", path()));
    auto* const bytes = static_cast<std::byte*>(mapped);
    const kv::Mapping mapping({bytes, length});
    uint64_t end = 0;  // of the tensors, which follow each other
    for (const core::SafetensorsTensor& tensor : file.tensors()) end += tensor.bytes.size();
    std::vector<core::LoadRequest> requests;
    uint64_t at = length - end;
    for (const core::SafetensorsTensor& tensor : file.tensors()) {
      requests.push_back(core::RowMajorRequest(tensor.name, tensor.dtype,
                                               core::WholeBox(tensor.shape), bytes + at));
      at += tensor.bytes.size();
    }
    ProgressLine progress(fmt::format("updating to step {}:", contents.step.step));
    CAIRN_TRY_ASSIGN(const core::UpdateReport report,
                     store_.Update(*step_, contents.step, requests, progress.callback()));
    return report.bytes_read;
  }

  const core::CheckpointStore& store_;
  const core::KeyPatterns patterns_;
  const std::string folder_;
  std::optional<kv::StepInfo> step_;  // whose tensors the file has
  std::vector<std::tuple<std::string, core::DType, core::Shape>> layout_;
};

enum class CommandOutcome { kPasses, kFails, kSkipped };

/// A run of the command on one step.
struct BisectRun {
  uint64_t step = 0;
  CommandOutcome outcome = CommandOutcome::kPasses;
  std::string how;  // "status 1" or "signal 11"
  uint64_t read_bytes = 0;
  double seconds = 0;
};

std::string_view CommandOutcomeName(CommandOutcome outcome) {
  constexpr std::string_view kNames[] = {"passes", "fails", "skipped"};
  return kNames[static_cast<size_t>(outcome)];
}

/// Runs a program; what it prints goes to standard error. Returns its wait status.
Result<int> RunProcess(std::vector<std::string> words) {
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t defaults;
  sigemptyset(&defaults);
  sigaddset(&defaults, SIGPIPE);  // ignored here
  posix_spawnattr_setsigdefault(&attributes, &defaults);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF);
  pid_t process = 0;
  const int failed =
      ::posix_spawnp(&process, pointers[0], &actions, &attributes, pointers.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  if (failed != 0) return Fail(SystemError(failed, "cannot run the command", words[0]));
  int status = 0;
  while (::waitpid(process, &status, 0) < 0) {
    if (errno != EINTR) return Fail(SystemError(errno, "cannot wait for the command", words[0]));
  }
  return status;
}

class Bisection {
 public:
  Bisection(const BisectCommand& command, const Address& store, std::vector<kv::StepInfo> steps,
            std::function<void(const BisectRun&)> on_run)
      : command_(command), store_(store), steps_(std::move(steps)), on_run_(std::move(on_run)) {}

  /// `file` is null if the command does not ask for one. Sets the indices below.
  Result<void> Find(CheckpointFile* file) {
    bad = steps_.size() - 1;
    CAIRN_TRY(MustBe(bad, CommandOutcome::kFails, file));
    CAIRN_TRY(MustBe(good, CommandOutcome::kPasses, file));
    std::vector<bool> is_skipped(steps_.size());
    for (;;) {
      const size_t middle = (good + bad) / 2;
      std::optional<size_t> next;  // the nearest to the middle that can be tried
      for (size_t i = good + 1; i < bad; ++i) {
        const auto distance = [&](size_t at) { return at > middle ? at - middle : middle - at; };
        if (!is_skipped[i] && (!next || distance(i) < distance(*next))) next = i;
      }
      if (!next) return {};
      CAIRN_TRY_ASSIGN(const CommandOutcome outcome, Run(*next, file));
      if (outcome == CommandOutcome::kSkipped) is_skipped[*next] = true;
      if (outcome == CommandOutcome::kFails) bad = *next;
      if (outcome == CommandOutcome::kPasses) good = *next;
    }
  }

  const std::vector<kv::StepInfo>& steps() const { return steps_; }
  size_t good = 0;  // the last one that passes
  size_t bad = 0;   // the first one that fails, or an earlier one that was skipped

 private:
  Result<void> MustBe(size_t i, CommandOutcome expected, CheckpointFile* file) {
    CAIRN_TRY_ASSIGN(const CommandOutcome outcome, Run(i, file));
    if (outcome == expected) return {};
    return Fail(Error{.code = ErrorCode::kInvalidArgument,
                      .message = fmt::format("the command {} on this step, which should be {}",
                                             outcome == CommandOutcome::kSkipped ? "asks to skip"
                                             : outcome == CommandOutcome::kFails ? "fails"
                                                                                 : "passes",
                                             expected == CommandOutcome::kFails ? "bad" : "good"),
                      .step = steps_[i].step});
  }

  Result<CommandOutcome> Run(size_t i, CheckpointFile* file) {
    const kv::StepInfo& step = steps_[i];
    BisectRun run{.step = step.step};
    if (file != nullptr) {
      CAIRN_TRY_ASSIGN(run.read_bytes, file->MoveTo(step));
    }
    const auto begin = std::chrono::steady_clock::now();
    CAIRN_TRY_ASSIGN(const int status, RunProcess(WordsFor(step, file)));
    run.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (CancelRequested()) return Fail(ErrorCode::kCancelled, "stopped on request");
    if (WIFSIGNALED(status)) {
      run.outcome = CommandOutcome::kFails;
      run.how = fmt::format("signal {}", WTERMSIG(status));
    } else {
      const int code = WEXITSTATUS(status);
      if (code == kCannotRunStatus || code == kCannotRunStatus + 1) {
        return Fail(ErrorCode::kInvalidArgument,
                    fmt::format("the command could not be run: it ended with status {}", code));
      }
      run.outcome = code == 0             ? CommandOutcome::kPasses
                    : code == kSkipStatus ? CommandOutcome::kSkipped
                                          : CommandOutcome::kFails;
      run.how = fmt::format("status {}", code);
    }
    on_run_(run);
    return run.outcome;
  }

  std::vector<std::string> WordsFor(const kv::StepInfo& step, const CheckpointFile* file) const {
    std::vector<std::string> words = command_.words;
    for (std::string& word : words) {
      const auto replace = [&](std::string_view name, const std::string& text) {
        for (size_t at = 0; (at = word.find(name, at)) != std::string::npos; at += text.size()) {
          word.replace(at, name.size(), text);
        }
      };
      replace("{step}", fmt::to_string(step.step));
      replace("{store}", store_.store);
      if (file != nullptr) replace("{file}", file->path());
    }
    return words;
  }

  const BisectCommand& command_;
  const Address& store_;
  const std::vector<kv::StepInfo> steps_;
  const std::function<void(const BisectRun&)> on_run_;
};

/// Returns the steps from `good` to `bad`, of which each continued from the one before.
Result<core::LineOfSteps> FindSteps(const core::CheckpointStore& store, uint64_t good,
                                    uint64_t bad) {
  CAIRN_TRY_ASSIGN(const std::vector<kv::StepInfo> steps, store.Steps());
  const auto last = std::ranges::find(steps, bad, &kv::StepInfo::step);
  if (last == steps.end()) CAIRN_TRY(store.List(bad));  // kNotFound
  core::LineOfSteps line = core::FindLine(steps, static_cast<size_t>(last - steps.begin()));
  const auto first = std::ranges::find(line.steps, good, &kv::StepInfo::step);
  if (first == line.steps.end() || first + 1 == line.steps.end()) {
    std::vector<uint64_t> numbers;
    for (const kv::StepInfo& step : line.steps) numbers.push_back(step.step);
    return Fail(Error{
        .code = ErrorCode::kInvalidArgument,
        .message = fmt::format("it is not on the way to step {}, which is {}; "
                               "kv-dump log {} draws all steps",
                               bad, fmt::join(numbers, ", "), ShellWord(store.kv().directory())),
        .step = good});
  }
  line.steps.erase(line.steps.begin(), first);
  return line;
}

Json RunJson(const BisectRun& run) {
  return {{"step", run.step},
          {"outcome", CommandOutcomeName(run.outcome)},
          {"how", run.how},
          {"read_bytes", run.read_bytes},
          {"seconds", run.seconds}};
}

Result<void> Bisect(const BisectCommand& command, Output& out) {
  CAIRN_TRY_ASSIGN(const core::KeyPatterns patterns,
                   core::KeyPatterns::Parse(command.keys.empty() ? std::vector<std::string>()
                                                                 : std::vector{command.keys}));
  const auto names = [&](std::string_view name) {
    return std::ranges::any_of(command.words, [&](const std::string& word) {
      return word.find(name) != std::string::npos;
    });
  };
  if (!names("{file}") && !names("{step}")) {
    return Fail(ErrorCode::kInvalidArgument,
                "the command does not name the checkpoint; write {file} where it expects a "
                "safetensors file, or {store} and {step}");
  }
  CAIRN_TRY_ASSIGN(const Address good, ParseAddress(command.store + "@" + command.good));
  CAIRN_TRY_ASSIGN(const Address bad, ParseAddress(command.store + "@" + command.bad));
  if (!good.step || !bad.step || good.store != bad.store) {
    return Fail(ErrorCode::kInvalidArgument, "GOOD and BAD are numbers or tags of steps");
  }
  CAIRN_TRY_ASSIGN(const auto store, core::CheckpointStore::Open(good.store, kv::OpenMode::kRead));
  CAIRN_TRY_ASSIGN(core::LineOfSteps line, FindSteps(*store, *good.step, *bad.step));
  std::unique_ptr<CheckpointFile> file;
  if (names("{file}")) {
    CAIRN_TRY_ASSIGN(file, CheckpointFile::Create(*store, patterns));
  }
  std::vector<BisectRun> runs;
  Bisection bisection(command, good, std::move(line.steps), [&](const BisectRun& run) {
    runs.push_back(run);
    if (command.json) return;
    out.WriteLine(fmt::format("step {}: {} ({} after {}{})", run.step,
                              CommandOutcomeName(run.outcome), run.how, HumanSeconds(run.seconds),
                              file ? fmt::format("; read {}", HumanBytes(run.read_bytes)) : ""));
    out.Flush();
  });
  CAIRN_TRY(bisection.Find(file.get()));
  const std::vector<kv::StepInfo>& steps = bisection.steps();
  const kv::StepInfo& last_good = steps[bisection.good];
  const kv::StepInfo& first_bad = steps[bisection.bad];
  std::vector<uint64_t> unknown;  // between the two
  for (size_t i = bisection.good + 1; i < bisection.bad; ++i) unknown.push_back(steps[i].step);
  for (const uint64_t absent : line.absent) {
    if (absent > last_good.step && absent < first_bad.step) unknown.push_back(absent);
  }
  if (command.json) {
    Json document = {{"store", JsonText(good.store)},
                     {"last_good", last_good.step},
                     {"first_bad", first_bad.step},
                     {"not_tried", unknown}};
    document["runs"] = Json::array();
    for (const BisectRun& run : runs) document["runs"].push_back(RunJson(run));
    WriteJson(out, document);
    return {};
  }
  out.WriteLine(out.Styled(
      Style::kBold, fmt::format("Step {} is the first that fails; step {} is the last that passes.",
                                first_bad.step, last_good.step)));
  if (!unknown.empty()) {
    out.WriteLine(fmt::format("Between them, {} could not be tried: {}.",
                              Plural(unknown.size(), "step"), fmt::join(unknown, ", ")));
  }
  return {};
}

}  // namespace

Verb BisectVerb() {
  const auto command = std::make_shared<BisectCommand>();
  return {
      .name = "bisect",
      .usage = "bisect STORE GOOD BAD [--keys PATTERN] -- COMMAND...",
      .summary = "Finds the step from which a command fails on the checkpoint",
      .arguments = {StoreArgument(command->store),
                    Required("GOOD", &command->good, "A step, or its tag, on which it passes"),
                    Required("BAD", &command->bad,
                             "A later step, or its tag, on which it fails, and that descends from "
                             "GOOD"),
                    Required("COMMAND", &command->words,
                             "The command and its arguments. {file} becomes the name of a "
                             "safetensors file with the tensors of the step, {store} and {step} "
                             "the address and the number"),
                    Option("--keys", "PATTERN", &command->keys,
                           "Only these tensors in {file}, as for kv-dump keys"),
                    JsonArgument(command->json)},
      .examples = {"kv-admin bisect runs/gpt 1000 9000 -- python eval.py {file}",
                   "kv-admin bisect runs/gpt best 9000 --keys model -- ./check.sh {file}",
                   "kv-admin bisect runs/gpt 10 90 -- python resume.py --store {store} --step "
                   "{step}"},
      .notes =
          "A status of 0 passes, 125 skips the step, any other or a signal fails. The command is\n"
          "run on BAD and GOOD first; what it prints goes to standard error. The file is updated\n"
          "from step to step, so that only pages that differ are read; it is in $TMPDIR and is\n"
          "removed at the end. The command must not change it. The store is only read.",
      .run = [command](Output& out) { return StatusOf(Bisect(*command, out)); }};
}

}  // namespace cairn::tools
