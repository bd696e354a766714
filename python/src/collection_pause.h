#pragma once
/// No garbage collection while many objects are made that will all live.

#include <Python.h>

namespace cairn::python {

/// Keeps Python's cyclic collector from running while it lives: it would look at all objects again
/// each time some hundreds were made. Requires the GIL at both ends. Does nothing if the collector
/// is off.
class CollectionPause {
 public:
  CollectionPause() : was_on_(PyGC_Disable() != 0) {}
  ~CollectionPause() {
    if (was_on_) PyGC_Enable();
  }
  CollectionPause(const CollectionPause&) = delete;
  CollectionPause& operator=(const CollectionPause&) = delete;

 private:
  const bool was_on_;
};

}  // namespace cairn::python
