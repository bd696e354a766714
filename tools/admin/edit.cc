#include <fmt/format.h>

#include <optional>
#include <utility>

#include "core/checkpoint_store.h"
#include "core/rewrite/step_edit.h"
#include "kv/base/options.h"
#include "tools/admin/copy.h"
#include "tools/admin/verbs.h"
#include "tools/common/address.h"
#include "tools/common/exit_status.h"
#include "tools/common/progress.h"
#include "tools/common/quantities.h"

namespace cairn::tools {
namespace {

constexpr char kNotes[] =
    "No payload is read or written: the new step refers to the bytes of its sources, which may be\n"
    "deleted afterwards. The store must not be open for writing elsewhere.";

Result<std::pair<std::string, std::string>> ParseName(const std::string& text) {
  const size_t equals = text.find('=');
  if (equals == std::string::npos || text.find('=', equals + 1) != std::string::npos) {
    return Fail(ErrorCode::kInvalidArgument, fmt::format("'{}': write OLD=NEW", text));
  }
  return std::pair(text.substr(0, equals), text.substr(equals + 1));
}

Result<void> AdminEdit(const EditCommand& command, core::StepEdit edit, Output& out) {
  CAIRN_TRY_ASSIGN(const Address address, ParseAddress(command.address));
  edit.overwrite = command.overwrite;
  std::optional<uint64_t> source = address.step;
  {
    // A mistyped address must not create an empty store, as an open for writing would.
    CAIRN_TRY_ASSIGN(const auto reader,
                     core::CheckpointStore::Open(address.store, kv::OpenMode::kRead));
    CAIRN_TRY_ASSIGN(const auto snapshot, reader->kv().Latest());
    if (!source) {
      CAIRN_TRY_ASSIGN(const kv::StepInfo latest, snapshot->FindStep(source));
      source = latest.step;
    }
  }
  CAIRN_TRY_ASSIGN(const auto store,
                   core::CheckpointStore::Open(address.store, kv::OpenMode::kWrite));
  kv::StepInfo made;
  {
    ProgressLine progress("moving records:", ProgressUnit::kCount);
    edit.progress = progress.callback();
    CAIRN_TRY_ASSIGN(made, store->Edit(*source, command.into, edit));
  }
  CAIRN_TRY(store->Close());
  out.WriteLine(fmt::format("step {}: {} and {} with {}, no payload written", made.step,
                            Plural(made.tensor_count, "tensor"), Plural(made.value_count, "value"),
                            HumanBytes(made.logical_bytes)));
  return {};
}

Argument SourceArgument(EditCommand& command) {
  return {.name = "STORE[@STEP]",
          .target = &command.address,
          .help = "STORE or STORE@STEP; the latest step without @STEP",
          .required = true};
}

Argument OverwriteArgument(EditCommand& command) {
  return {.name = "--overwrite",
          .target = &command.overwrite,
          .help = "Replace the new step atomically if it exists"};
}

// The arguments of all verbs except fork, around the arguments of one.
std::vector<Argument> Arguments(EditCommand& command, std::vector<Argument> own) {
  std::vector<Argument> arguments{SourceArgument(command)};
  for (Argument& argument : own) arguments.push_back(std::move(argument));
  arguments.push_back({.name = "--into",
                       .target = &command.into,
                       .help = "Number of the new step",
                       .value_name = "STEP",
                       .required = true});
  arguments.push_back(OverwriteArgument(command));
  return arguments;
}

Result<void> AdminFork(EditCommand command, Output& out) {
  if (command.fork_to.empty()) {
    if (!command.fork_into) {
      return Fail(ErrorCode::kInvalidArgument,
                  "--into is required, unless --to names another store");
    }
    command.into = *command.fork_into;
    return AdminEdit(command, {}, out);
  }
  const CopyCommand copy{.from = command.address,
                         .to = command.fork_to,
                         .into = command.fork_into,
                         .overwrite = command.overwrite};
  return AdminCopy(copy, out);
}

}  // namespace

Verb RenameVerb(EditCommand& command) {
  return {
      .name = "rename",
      .usage = "rename STORE[@STEP] OLD=NEW... --into STEP",
      .summary = "Makes a step with other names of keys",
      .arguments = Arguments(
          command, {{.name = "OLD=NEW",
                     .target = &command.names,
                     .help = "A key, or the beginning of keys before a \".\": model=net renames "
                             "model.wte to net.wte",
                     .required = true}}),
      .examples = {"kv-admin rename runs/gpt@100 model=net --into 101",
                   "kv-admin rename runs/gpt@100 a=b b=a --into 101"},
      .notes = kNotes,
      .run = [&](Output& out) -> Result<int> {
        core::StepEdit edit;
        for (const std::string& text : command.names) {
          CAIRN_TRY_ASSIGN(auto name, ParseName(text));
          edit.rename.push_back(std::move(name));
        }
        return StatusOf(AdminEdit(command, std::move(edit), out));
      }};
}

Verb DropVerb(EditCommand& command) {
  return {.name = "drop",
          .usage = "drop STORE[@STEP] PATTERN... --into STEP",
          .summary = "Makes a step without some of the keys",
          .arguments = Arguments(
              command,
              {{.name = "PATTERN",
                .target = &command.drop,
                .help = "Keys to leave out: NAME selects all keys below it, * matches one element, "
                        "** any number of elements; !PATTERN keeps keys",
                .required = true}}),
          .examples = {"kv-admin drop runs/gpt@100 optimizer --into 101"},
          .notes = kNotes,
          .run = [&](Output& out) {
            return StatusOf(AdminEdit(command, {.drop = command.drop}, out));
          }};
}

Verb GraftVerb(EditCommand& command) {
  return {.name = "graft",
          .usage = "graft STORE[@STEP] --from STEP [PATTERN...] --into STEP",
          .summary = "Makes a step with keys of another step of the same store",
          .arguments = Arguments(
              command,
              {{.name = "PATTERN",
                .target = &command.graft,
                .help = "Keys of the other step to take (all); they replace equal keys"},
               {.name = "--from",
                .target = &command.graft_from,
                .help = "The other step",
                .value_name = "STEP",
                .required = true},
               {.name = "--under",
                .target = &command.graft_under,
                .help = "Put the keys below this one: with \"teacher\", wte becomes teacher.wte",
                .value_name = "KEY"}}),
          .examples = {"kv-admin graft runs/gpt@100 --from 50 model.head --into 101",
                       "kv-admin graft runs/gpt@100 --from 50 --under teacher model --into 101"},
          .notes = kNotes,
          .run = [&](Output& out) {
            core::StepEdit edit{.graft = core::Graft{.step = command.graft_from,
                                                     .patterns = command.graft,
                                                     .under = command.graft_under}};
            return StatusOf(AdminEdit(command, std::move(edit), out));
          }};
}

Verb ForkVerb(EditCommand& command) {
  return {
      .name = "fork",
      .usage = "fork STORE[@STEP] [--to STORE2] [--into STEP]",
      .summary = "Makes a step with the same contents under another number or in another store",
      .arguments = {SourceArgument(command),
                    {.name = "--to",
                     .target = &command.fork_to,
                     .help = "Another store, created if absent, which receives the step; only "
                             "what it lacks is transferred",
                     .value_name = "STORE2"},
                    {.name = "--into",
                     .target = &command.fork_into,
                     .help = "Number of the new step; with --to, by default that of its source",
                     .value_name = "STEP"},
                    OverwriteArgument(command)},
      .examples = {"kv-admin fork runs/gpt@100 --into 1000100",
                   "kv-admin fork runs/gpt@best --to runs/finetune --into 0"},
      .notes =
          "In one store, no payload is read or written. With --to, every page is verified\n"
          "before it is written. The source may be deleted afterwards; tags are not copied. The\n"
          "store that gets the step must not be open for writing elsewhere.",
      .run = [&](Output& out) { return StatusOf(AdminFork(command, out)); }};
}

}  // namespace cairn::tools
