// The command lines of `kv-admin push`, `pull` and `mirror`.

#include <string>
#include <utility>
#include <vector>

#include "tools/admin/copy.h"
#include "tools/common/exit_status.h"

namespace cairn::tools {
namespace {

constexpr char kNotes[] =
    "Only segments that TO lacks are transferred. Every page is verified before it is written, "
    "and\n"
    "a step exists in TO completely or not at all. A copy that was interrupted continues where it\n"
    "was when the command is repeated within a day.";

std::vector<Argument> CommonArguments(CopyCommand& command, Argument from) {
  return {std::move(from),
          {.name = "TO",
           .target = &command.to,
           .help = "Store that receives the steps, created if absent",
           .required = true},
          {.name = "--threads",
           .target = &command.threads,
           .help = "Segments that are copied at once (4)",
           .value_name = "N",
           .range = std::pair<uint64_t, uint64_t>(1, 256)},
          {.name = "--max-rate",
           .target = &command.max_rate,
           .help = "Limit of payload per second, such as 100M",
           .value_name = "BYTES"},
          {.name = "--overwrite",
           .target = &command.overwrite,
           .help = "Replace steps of TO that have the same number and other contents"},
          {.name = "--json", .target = &command.json, .help = "Print JSON"}};
}

Argument StepsArgument(CopyCommand& command) {
  return {.name = "FROM[@STEP]",
          .target = &command.from,
          .help = "Store and step to copy; @STEP,STEP,... for several; without it the latest step",
          .required = true};
}

}  // namespace

Verb PushVerb(CopyCommand& command) {
  return {.name = "push",
          .usage = "push FROM[@STEP] TO",
          .summary = "Copies steps to another store, transferring only what it lacks",
          .arguments = CommonArguments(command, StepsArgument(command)),
          .examples = {"kv-admin push /dev/shm/gpt runs/gpt",
                       "kv-admin push runs/gpt@100,200 /mnt/archive/gpt --max-rate 100M"},
          .notes = kNotes,
          .run = [&](Output& out) { return StatusOf(AdminCopy(command, out)); }};
}

Verb PullVerb(CopyCommand& command) {
  Verb verb = PushVerb(command);
  verb.name = "pull";
  verb.usage = "pull FROM[@STEP] TO";
  verb.summary = "Copies steps from another store; the same as push";
  verb.examples = {"kv-admin pull /mnt/archive/gpt@100 runs/gpt"};
  return verb;
}

Verb MirrorVerb(MirrorCommand& command) {
  std::vector<Argument> arguments =
      CommonArguments(command.copy, {.name = "FROM",
                                     .target = &command.copy.from,
                                     .help = "Store whose steps are copied",
                                     .required = true});
  arguments.push_back({.name = "--follow",
                       .target = &command.follow,
                       .help = "Continue with new steps until SIGINT or SIGTERM"});
  arguments.push_back({.name = "--interval",
                       .target = &command.interval_seconds,
                       .help = "Seconds after which --follow searches for new steps, if no change "
                               "of the source was noticed before (10)",
                       .value_name = "S",
                       .range = std::pair<double, double>(0.1, 86'400)});
  arguments.push_back({.name = "--prune",
                       .target = &command.prune,
                       .help = "Delete the steps of TO that FROM does not have. Otherwise they "
                               "remain"});
  arguments.push_back({.name = "--dry-run",
                       .target = &command.dry_run,
                       .help = "Only print which steps would be copied and deleted"});
  return {.name = "mirror",
          .usage = "mirror FROM TO [--follow]",
          .summary = "Copies all steps that another store lacks, once or continuously",
          .arguments = std::move(arguments),
          .examples = {"kv-admin mirror runs/gpt /mnt/archive/gpt",
                       "kv-admin mirror runs/gpt /mnt/archive/gpt --follow --max-rate 200M"},
          .notes = std::string(kNotes) +
                   "\nWith --json, each round of --follow that copies anything prints one line.",
          .run = [&](Output& out) { return StatusOf(AdminMirror(command, out)); }};
}

}  // namespace cairn::tools
