#pragma once
/// A pause of garbage collection while many objects are created that all stay alive.

#include <Python.h>

namespace cairn::python {

/// Turns Python's cyclic collector off during its lifetime: the collector would visit all objects
/// again after every few hundred new ones. Does nothing if the collector is off already. Requires
/// the GIL in the constructor and the destructor.
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
