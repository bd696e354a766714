#pragma once
/// Copies of steps between stores, by the verbs push, pull, mirror and fork of kv-admin.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kv/base/copy_options.h"
#include "kv/base/error.h"
#include "kv/store.h"
#include "tools/common/command_line.h"
#include "tools/common/json.h"
#include "tools/common/terminal.h"

namespace cairn::tools {

struct CopyCommand {
  std::string from;
  std::string to;
  uint64_t threads = 4;
  std::optional<uint64_t> into;  // fork: the number of the copy
  std::string max_rate;
  bool overwrite = false;
  bool json = false;
};

/// `from` and the other arguments of push, pull and mirror.
std::vector<Argument> CopyArguments(CopyCommand& command, Argument from);
/// What the help of these verbs states about copies.
extern const char kCopyNotes[];

/// Copies the steps that `from` names and prints one line per step. kNotFound: one of them was
/// deleted during the copy. Other errors: see kv::CopySteps.
Result<void> Copy(const CopyCommand& command, Output& out);

/// Opens a store for writing, and creates it if it is absent. kInvalidArgument: a step follows its
/// name.
Result<std::unique_ptr<kv::Store>> OpenCopyTarget(const std::string& to);

/// The report of one copy, and its duration.
struct TimedCopy {
  kv::CopyReport report;
  double seconds = 0;
  uint64_t copied_bytes() const;
};
/// Copies with a progress line. Errors: see kv::CopySteps.
Result<TimedCopy> CopyWithProgress(kv::Store& from, kv::Store& to, const CopyCommand& command,
                                   const std::shared_ptr<kv::Throttle>& throttle,
                                   std::vector<uint64_t> steps);
/// Prints one line per step, except for steps that were already there if `only_new`.
void PrintCopy(const TimedCopy& copy, bool only_new, Output& out);
Json CopyJson(const kv::Store& from, const kv::Store& to, const TimedCopy& copy);

}  // namespace cairn::tools
