#pragma once
/// The verbs of kv-admin. A command receives what the user wrote, and outlives its verb.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kv/base/error.h"
#include "tools/common/command_line.h"
#include "tools/common/program.h"
#include "tools/common/terminal.h"

namespace cairn::tools {

// --- `kv-admin check-storage`: checks whether a storage has the guarantees that Cairn needs

struct CheckStorageOptions {
  std::string address;
  std::string second_address;  // another mount of the same directory; empty: the same address
  uint64_t rounds = 200;       // rounds of each check; slow ones stop after 30 s
  bool json = false;
};

/// Exercises the storage below a new name, which it removes, and prints one row per check. Returns
/// kExitSuccess, or kExitDiffers if a guarantee is missing. kUnavailable, kNotFound: nothing can be
/// written there. kInvalidArgument: the addresses are not of the same directory. kCancelled: the
/// user has asked to stop.
Result<int> AdminCheckStorage(const CheckStorageOptions& options, Output& out);

// --- `kv-admin compact`: rewrites segments of which steps use only a part

struct CompactCommand {
  std::string store;
  double max_dead_percent = 15;
  std::string max_rate;  // empty: no limit
  bool fold = false;
  bool compress = false;
  bool dry_run = false;
  bool no_grace = false;  // removes the old files at once, although readers may still use them
  bool json = false;
};

/// Compacts the store, or with `dry_run` only computes what would be done, and prints the result.
Result<void> AdminCompact(const CompactCommand& command, Output& out);

/// The command line of the verb.
Verb CompactVerb(CompactCommand& command);

// --- `kv-admin compression`: whether saves to a store compress

struct CompressionCommand {
  std::string store;
  bool on = false;
  bool off = false;
  bool json = false;
};
/// Shows the setting of a store, or changes it.
Result<void> AdminCompression(const CompressionCommand& command, Output& out);
Verb CompressionVerb(CompressionCommand& command);

// --- `kv-admin delete`: deletes whole steps and nothing else

struct DeleteOptions {
  std::string store;
  std::vector<uint64_t> steps;
  bool dry_run = false;
  bool no_grace = false;  // removes the files at once, although readers may still use them
};

/// Deletes the steps, or with `dry_run` only computes what would be freed, and prints the result.
Result<void> AdminDelete(const DeleteOptions& options, Output& out);

// --- `kv-admin rename`, `drop`, `graft` and `fork`: new steps of the records of existing ones

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

// The command receives what the user wrote, and outlives the verb.
Verb RenameVerb(EditCommand& command);
Verb DropVerb(EditCommand& command);
Verb GraftVerb(EditCommand& command);
Verb ForkVerb(EditCommand& command);

// --- `kv-admin merge`: a new step of weighted means of existing steps

struct MergeCommand {
  std::vector<std::string> addresses;  // STORE@STEP, or several steps: STORE@{STEP,...}
  std::string weights;                 // as the user wrote them; empty: equal
  uint64_t into = 0;                   // number of the new step
  bool overwrite = false;
};

/// The command receives what the user wrote, and outlives the verb.
Verb MergeVerb(MergeCommand& command);

// --- `kv-admin rebuild`: recovers a store whose newest root cannot be read

/// Puts new roots that name the steps that can be recovered. kFailedPrecondition: there is nothing
/// to rebuild. kDataLoss: something could not be recovered; the rest was.
Result<void> AdminRebuild(const std::string& store, Output& out);

// --- `kv-admin repair`: replaces damaged payload by good copies

struct RepairCommand {
  std::string store;
  std::vector<std::string> sources;
  bool dry_run = false;
  bool json = false;
};

/// The command receives what the user wrote, and outlives the verb.
Verb RepairVerb(RepairCommand& command);

// --- `kv-admin tag`, `untag`, `policy` and `prune`: names of steps, and which steps remain

struct TagCommand {
  std::string store;  // STORE@STEP
  std::string name;
};
Result<void> AdminTag(const TagCommand& command, Output& out);
Verb TagVerb(TagCommand& command);
/// `store` may have no step; with one, the tag must name this step.
Result<void> AdminUntag(const TagCommand& command, Output& out);
Verb UntagVerb(TagCommand& command);

/// The steps that remain.
struct KeepOptions {
  uint64_t keep_last = 0;
  uint64_t keep_every = 0;
  std::vector<std::string> keep_best;  // as kv::ParseKeepBest parses them
};

struct PolicyCommand {
  std::string store;
  KeepOptions keep;
  bool none = false;  // removes the policy
  bool json = false;
};
/// Shows the policy that is kept in a store, or sets it.
Result<void> AdminPolicy(const PolicyCommand& command, Output& out);
Verb PolicyVerb(PolicyCommand& command);

struct PruneCommand {
  std::string store;
  KeepOptions keep;  // the policy of the store if it is empty
  bool dry_run = false;
  bool no_grace = false;
};
Result<void> AdminPrune(const PruneCommand& command, Output& out);
Verb PruneVerb(PruneCommand& command);

}  // namespace cairn::tools
