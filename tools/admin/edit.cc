// `kv-admin rename`, `drop`, `graft` and `fork`: new steps of the records of existing ones.

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "core/rewrite/step_edit.h"
#include "kv/read/snapshot.h"
#include "tools/admin/verbs.h"
#include "tools/common/address.h"
#include "tools/common/exit_status.h"
#include "tools/common/progress.h"
#include "tools/common/quantities.h"

namespace cairn::tools {
namespace {

constexpr char kEditNotes[] =
    "No payload is read or written: the new step refers to the bytes of its sources, which may be\n"
    "deleted afterwards. The store must not be open for writing elsewhere.";

struct EditCommand {
  std::string address;             // STORE or STORE@STEP
  uint64_t into = 0;               // number of the new step
  std::vector<std::string> names;  // rename: OLD=NEW
  std::vector<std::string> drop;   // patterns
  std::vector<std::string> graft;  // patterns; of the step `graft_from`
  uint64_t graft_from = 0;
  std::string graft_under;
  std::string fork_to;                // another store; empty: the same
  std::optional<uint64_t> fork_into;  // as `into`, which a fork to another store may omit
  bool overwrite = false;
};

Result<std::pair<std::string, std::string>> ParseName(const std::string& text) {
  const size_t equals = text.find('=');
  if (equals == std::string::npos || text.find('=', equals + 1) != std::string::npos) {
    return Fail(ErrorCode::kInvalidArgument, fmt::format("'{}': write OLD=NEW", text));
  }
  return std::pair(text.substr(0, equals), text.substr(equals + 1));
}

Result<void> Edit(const EditCommand& command, core::StepEdit edit, Output& out) {
  CAIRN_TRY_ASSIGN(const Address address, ParseAddress(command.address));
  edit.overwrite = command.overwrite;
  CAIRN_TRY_ASSIGN(const auto store, OpenExisting(address.store));
  CAIRN_TRY_ASSIGN(const auto snapshot, store->kv().Latest());
  CAIRN_TRY_ASSIGN(const kv::StepInfo source, snapshot->FindStep(address.step));
  ProgressLine progress("moving records:", ProgressUnit::kCount);
  edit.progress = progress.callback();
  CAIRN_TRY_ASSIGN(const kv::StepInfo made, store->Edit(source.step, command.into, edit));
  progress.Clear();
  CAIRN_TRY(store->Close());
  out.WriteLine(fmt::format("step {}: {} and {} with {}, no payload written", made.step,
                            Plural(made.tensor_count, "tensor"), Plural(made.value_count, "value"),
                            HumanBytes(made.logical_bytes)));
  return {};
}

/// The arguments of all verbs except fork, around the arguments of one.
std::vector<Argument> Arguments(EditCommand& command, std::vector<Argument> own) {
  return Joined(Joined({StepArgument(command.address)}, std::move(own)),
                {IntoArgument(command.into), OverwriteArgument(command.overwrite)});
}

Result<void> Fork(EditCommand command, Output& out) {
  if (command.fork_to.empty()) {
    if (!command.fork_into) {
      return Fail(ErrorCode::kInvalidArgument,
                  "--into is required, unless --to names another store");
    }
    command.into = *command.fork_into;
    return Edit(command, {}, out);
  }
  const CopyCommand copy{.from = command.address,
                         .to = command.fork_to,
                         .into = command.fork_into,
                         .overwrite = command.overwrite};
  return Copy(copy, out);
}

}  // namespace

Verb RenameVerb() {
  const auto command = std::make_shared<EditCommand>();
  return {
      .name = "rename",
      .usage = "rename STORE[@STEP] OLD=NEW... --into STEP",
      .summary = "Makes a step with other names of keys",
      .arguments = Arguments(
          *command, {Required("OLD=NEW", &command->names,
                              "A key, or the beginning of keys before a \".\": model=net renames "
                              "model.wte to net.wte")}),
      .examples = {"kv-admin rename runs/gpt@100 model=net --into 101",
                   "kv-admin rename runs/gpt@100 a=b b=a --into 101"},
      .notes = kEditNotes,
      .run = [command](Output& out) -> Result<int> {
        core::StepEdit edit;
        for (const std::string& text : command->names) {
          CAIRN_TRY_ASSIGN(auto name, ParseName(text));
          edit.rename.push_back(std::move(name));
        }
        return StatusOf(Edit(*command, std::move(edit), out));
      }};
}

Verb DropVerb() {
  const auto command = std::make_shared<EditCommand>();
  return {.name = "drop",
          .usage = "drop STORE[@STEP] PATTERN... --into STEP",
          .summary = "Makes a step without some of the keys",
          .arguments = Arguments(
              *command,
              {Required("PATTERN", &command->drop,
                        "Keys to leave out: NAME selects all keys below it, * matches one element, "
                        "** any number of elements, [[] a [; !PATTERN keeps keys")}),
          .examples = {"kv-admin drop runs/gpt@100 optimizer --into 101"},
          .notes = kEditNotes,
          .run = [command](Output& out) {
            return StatusOf(Edit(*command, {.drop = command->drop}, out));
          }};
}

Verb GraftVerb() {
  const auto command = std::make_shared<EditCommand>();
  return {.name = "graft",
          .usage = "graft STORE[@STEP] --from STEP [PATTERN...] --into STEP",
          .summary = "Makes a step with keys of another step of the same store",
          .arguments = Arguments(
              *command,
              {Positional("PATTERN", &command->graft,
                          "Keys of the other step to take (all); they replace equal keys"),
               RequiredOption("--from", "STEP", &command->graft_from, "The other step"),
               Option("--under", "KEY", &command->graft_under,
                      "Put the keys below this one: with \"teacher\", wte becomes teacher.wte")}),
          .examples = {"kv-admin graft runs/gpt@100 --from 50 model.head --into 101",
                       "kv-admin graft runs/gpt@100 --from 50 --under teacher model --into 101"},
          .notes = kEditNotes,
          .run = [command](Output& out) {
            core::StepEdit edit{.graft = core::Graft{.step = command->graft_from,
                                                     .patterns = command->graft,
                                                     .under = command->graft_under}};
            return StatusOf(Edit(*command, std::move(edit), out));
          }};
}

Verb ForkVerb() {
  const auto command = std::make_shared<EditCommand>();
  return {
      .name = "fork",
      .usage = "fork STORE[@STEP] [--to STORE2] [--into STEP]",
      .summary = "Makes a step with the same contents under another number or in another store",
      .arguments = {StepArgument(command->address),
                    Option("--to", "STORE2", &command->fork_to,
                           "Another store, created if absent, which receives the step; only "
                           "what it lacks is transferred"),
                    Option("--into", "STEP", &command->fork_into,
                           "Number of the new step; with --to, by default that of its source"),
                    OverwriteArgument(command->overwrite)},
      .examples = {"kv-admin fork runs/gpt@100 --into 1000100",
                   "kv-admin fork runs/gpt@best --to runs/finetune --into 0"},
      .notes =
          "In one store, no payload is read or written. With --to, every page is verified\n"
          "before it is written. The source may be deleted afterwards; tags are not copied. The\n"
          "store that gets the step must not be open for writing elsewhere.",
      .run = [command](Output& out) { return StatusOf(Fork(*command, out)); }};
}

}  // namespace cairn::tools
