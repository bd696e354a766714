#pragma once
/// The verbs of kv-admin, and what several of them share. A verb owns the variables of its
/// arguments.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/checkpoint_store.h"
#include "kv/base/error.h"
#include "kv/base/options.h"
#include "tools/common/command_line.h"

namespace cairn::tools {

// Checkpoints of other programs.
Verb ImportVerb();
Verb ExportVerb();
// Which steps exist.
Verb DeleteVerb();
Verb TagVerb();
Verb UntagVerb();
Verb PolicyVerb();
Verb PruneVerb();
// How payload is stored.
Verb CompactVerb();
Verb CompressionVerb();
// Which step changed what a command needs.
Verb BisectVerb();
// What is known about values.
Verb StatisticsVerb();
// Damaged stores.
Verb RebuildVerb();
Verb RepairVerb();
// New steps of the records, and of the means, of existing ones.
Verb RenameVerb();
Verb DropVerb();
Verb GraftVerb();
Verb ForkVerb();
Verb MergeVerb();
// Copies of steps in other stores.
Verb PushVerb();
Verb PullVerb();
Verb MirrorVerb();
// Storages without a store.
Verb CheckStorageVerb();

// --- Arguments

Argument StoreArgument(std::string& store);
/// STORE[@STEP].
Argument StepArgument(std::string& address);
/// --into, the required number of a new step.
Argument IntoArgument(uint64_t& step);
/// --overwrite, for a new step.
Argument OverwriteArgument(bool& overwrite);
Argument JsonArgument(bool& json);
/// --max-rate; see ParseRate.
Argument RateArgument(std::string& rate);

/// Returns `first`, followed by `more`.
std::vector<Argument> Joined(std::vector<Argument> first, std::vector<Argument> more);

/// Returns the bytes per second that --max-rate sets; 0: no limit. kInvalidArgument: it is not a
/// positive number of bytes.
Result<uint64_t> ParseRate(const std::string& rate);

// --- Stores

/// Returns the address of a store that `text` names without a step. kInvalidArgument: it has a
/// step; the message states `why` not.
Result<std::string> ParseStore(const std::string& text, std::string_view why);

/// Opens a store for writing. kNotFound: there is none; a mistyped address must not create an empty
/// store, as Open would.
Result<std::unique_ptr<core::CheckpointStore>> OpenExisting(const std::string& store,
                                                            const kv::StoreOptions& options = {});

// --- Copies

struct CopyCommand {
  std::string from;
  std::string to;
  uint64_t threads = 4;
  std::optional<uint64_t> into;  // fork: the number of the copy
  std::string max_rate;
  bool overwrite = false;
  bool json = false;
};
/// Copies the steps that `from` names to another store, as push and fork do, and prints one line
/// per step. kNotFound: one of them was deleted during the copy. Other errors: see kv::CopySteps.
Result<void> Copy(const CopyCommand& command, Output& out);

// --- Space

/// What a command frees.
struct FreedSpace {
  uint64_t freed_bytes = 0;    // what is free now
  uint64_t waiting_bytes = 0;  // what a later change removes after the grace period
  std::string checked = {};    // with --now: which readers are known; otherwise empty
};
/// The option --now.
Argument NowArgument(bool& now);
/// Opens a store for a command that frees space: with `dry_run` for reading, so that nothing
/// changes. kFailedPrecondition: with `now`, another process of this host, which this user may
/// examine, has the directory of the store open. kNotFound: there is no store.
Result<std::unique_ptr<core::CheckpointStore>> OpenToFree(const std::string& store, bool now,
                                                          bool dry_run);
/// Ends such a command, whose change is committed, and closes the store. With `now`, and if the
/// store is open for writing, removes what waits, unless a process has opened the store since
/// OpenToFree. A process that opens it after the commit does not use these files.
Result<FreedSpace> FreeSpace(core::CheckpointStore& store, bool now, FreedSpace space);
/// States which space is free now, and which after the grace period, and what was checked.
std::string FreedText(const FreedSpace& space);

}  // namespace cairn::tools
