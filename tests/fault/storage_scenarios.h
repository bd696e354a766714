#pragma once
/// Complete changes of a store in a storage that injects faults, and what each of them
/// acknowledged.

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "kv/base/options.h"
#include "kv/storage/files/internal/memory_storage.h"
#include "kv/store.h"
#include "tests/fault/operations.h"
#include "tests/support/faulty_storage.h"

namespace cairn::kv::testing {

/// Small steps that still have a chunk of two pages, which an incremental save stores in two
/// segments.
inline constexpr SampleShape kFaultShape{.tensor_count = 3, .largest_bytes = 170'000};

/// Returns a storage with the same objects.
std::shared_ptr<internal::MemoryStorage> CopyOf(Storage& storage);

/// What a scenario has acknowledged so far, and what it has left open.
struct Progress {
  Steps acknowledged;             // the contents of the store after the changes that succeeded
  std::optional<Steps> in_doubt;  // the contents if the change that failed was performed
  std::optional<Error> error;     // of that change, or of the open
  bool other_writer = false;      // another writer has taken over the store during the changes
};

/// Changes of a store, performed by this process. Each begins when the one before it has succeeded.
struct Scenario {
  const char* name = "";
  /// Creates the store before the changes, and returns its steps. No faults.
  std::function<Result<Steps>(const std::shared_ptr<Storage>&)> prepare;
  /// Makes the changes, and updates `progress`, which has the steps of `prepare`. If one fails,
  /// repeats it without a fault, unless the power is cut: a store that is still open either
  /// performs it, or demands to be opened again, or names the other writer. Waits at most
  /// `patience` for ranks.
  std::function<void(const std::shared_ptr<internal::FaultyStorage>&,
                     std::chrono::milliseconds patience, Progress& progress)>
      run;
};

/// Creation, new and incremental steps, overwrites, deletions, multi-rank steps, copies, the
/// removal of what crashed writers left, and a change of the writer.
std::vector<Scenario> SmallScenarios();
/// A save in a store that has had so many commits that roots are removed and steps are moved to
/// pages.
Scenario LongHistory();

}  // namespace cairn::kv::testing
