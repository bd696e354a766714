#pragma once
/// Access to the state of an open store, for the sources of this folder and tests.

#include "kv/state/internal/store_state.h"

namespace cairn::kv {
class Store;
}

namespace cairn::kv::internal {

class StoreAccess {
 public:
  static StoreState& StateOf(const Store& store);
};

}  // namespace cairn::kv::internal
