#pragma once
/// The operations that the sweeps of tests/fault/sweep_test.cc repeat with a fault at every call,
/// on complete stores of tensors.

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <ostream>
#include <string>
#include <vector>

#include "core/checkpoint_store.h"
#include "kv/base/error.h"
#include "kv/base/options.h"

namespace cairn::testing {

/// The contents of a store: a digest of all keys, dtypes, shapes, bytes and values, by step. Empty
/// if there is no store.
using StoreContents = std::map<uint64_t, uint64_t>;

/// Small blocks, transfers that pass through the C library, and no grace period.
kv::StoreOptions SweptOptions();

/// Loads every byte. kNotFound is not an error: there is no store.
Result<StoreContents> ReadStore(const std::string& path);
Result<StoreContents> ReadStore(const core::CheckpointStore& store);

/// Checks that a reader and then a writer find one of `allowed`, that the writer finds no damage,
/// and that nothing is left behind after its open. Returns the contents. Takes the store over: if a
/// process was killed in the test, this process, which lives, still appears to have it open.
StoreContents CheckStore(const std::string& path, const std::vector<StoreContents>& allowed);

/// Whether the error states that it is unknown what became of the operation.
bool MayBeCommitted(const Error& error);

/// What an operation that was performed has reported. `closed` is that of the store after it.
struct Outcome {
  Result<void> performed;
  Result<void> closed;
};

struct SweptOperation {
  std::string name;
  std::string store = "store";  // which it changes, below the directory
  /// Creates what the operation works on below the directory.
  std::function<Result<void>(const std::string& directory)> prepare;
  /// Opens the store, changes and closes it. Waits at most `patience` for other ranks.
  std::function<Outcome(const std::string& directory, std::chrono::milliseconds patience)> perform;
  /// How many commits it makes whose states may be seen. 0: the steps stay as they are. 1: the old
  /// or the new state.
  uint64_t commits = 1;
  /// Every which of its calls fails, and after every which of its changes it is cut off, unless all
  /// are tested.
  uint64_t call_stride = 23;
  uint64_t cut_stride = 4;

  friend void PrintTo(const SweptOperation& operation, std::ostream* out) {
    *out << operation.name;
  }
};

/// The open of a store with leftovers, saves (complete, incremental, with deltas, compressed,
/// overwriting, by two ranks, the first one, one that removes a root), delete, prune, compact,
/// merge, mirror, pull and import.
std::vector<SweptOperation> SweptOperations();

/// Performs an operation again and again on copies of what it works on.
struct RepeatedOperation {
  const SweptOperation& operation;
  const std::string directory;
  std::vector<StoreContents> states = {};  // before it, and after each of its commits

  /// Creates what the operation works on, performs it in "work", and sets `states`.
  Result<void> Prepare();
  /// Makes `name` a directory, below `directory`, in which the operation was not performed.
  void StartAnew(const std::string& name = "work") const;
  Outcome Perform(std::chrono::milliseconds patience, const std::string& name = "work") const {
    return operation.perform(directory + "/" + name, patience);
  }
  /// Returns the path of the store that the operation changes.
  std::string StoreIn(const std::string& name = "work") const {
    return directory + "/" + name + "/" + operation.store;
  }
};

}  // namespace cairn::testing
