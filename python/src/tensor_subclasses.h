#pragma once
/// Tensor subclasses that consist of inner tensors (`__tensor_flatten__`), which are saved as
/// dicts. cairn/_tensors/subclasses.py describes the dicts.

#include <nanobind/nanobind.h>

#include <string>
#include <string_view>
#include <unordered_map>

#include "python/src/torch_access.h"

namespace cairn::python {

namespace nb = nanobind;

/// The key of the description in the dict of a tensor subclass. Frozen: part of stored steps.
inline constexpr std::string_view kSubclassKey = "__tensor_subclass__";

/// Recognizes and describes tensor subclasses. Threads: any that holds the GIL. Cheap to create.
class TensorSubclasses {
 public:
  /// `torch` must outlive this object.
  explicit TensorSubclasses(const TorchAccess& torch) : torch_(torch) {}

  /// Returns true for tensors of a subclass that is saved as its inner tensors. Cost: Python code
  /// runs once per type.
  bool HasInnerTensors(nb::handle value);
  /// Returns a dict of the inner tensors and the description. Raises Invalid if the tensor cannot
  /// be described.
  nb::object Describe(nb::handle value, const std::string& fqn) const;

 private:
  const TorchAccess& torch_;
  std::unordered_map<PyObject*, bool> has_inner_tensors_;  // by type, which the value keeps alive
};

/// Returns the tensor that the dict `items` describes. `rebuild`: called with the dict and its FQN.
nb::object Rebuild(nb::handle rebuild, nb::handle items, std::string_view fqn_of_description);

}  // namespace cairn::python
