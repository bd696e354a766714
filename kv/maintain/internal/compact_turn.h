#pragma once
/// At most one change of a store moves payload at a time.

#include <memory>

#include "kv/base/error.h"
#include "kv/state/internal/store_state.h"

namespace cairn::kv::internal {

/// Makes other compactions and repairs fail while it exists. Borrows the state.
class CompactTurn {
 public:
  /// kFailedPrecondition: the store is open for reading only, or another one exists.
  static Result<std::unique_ptr<CompactTurn>> Take(StoreState& state);
  ~CompactTurn() { state_.compacting = false; }
  CompactTurn(const CompactTurn&) = delete;
  CompactTurn& operator=(const CompactTurn&) = delete;

 private:
  explicit CompactTurn(StoreState& state) : state_(state) {}
  StoreState& state_;
};

}  // namespace cairn::kv::internal
