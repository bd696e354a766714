// Calls of cairn/_tensors/subclasses.py, which is imported when the first subclass is found.

#include "python/src/tensor_subclasses.h"

#include "python/src/convert.h"
#include "python/src/gil.h"

namespace cairn::python {
namespace {

nb::object Module() { return nb::module_::import_("cairn._tensors.subclasses"); }

}  // namespace

bool TensorSubclasses::HasInnerTensors(nb::handle value) {
  if (!torch_.IsTensorSubclass(value)) return false;
  const nb::handle type = value.type();
  const auto known = has_inner_tensors_.find(type.ptr());
  if (known != has_inner_tensors_.end()) return known->second;
  const bool has =
      RunPython([&] { return nb::cast<bool>(Module().attr("has_inner_tensors")(type)); });
  has_inner_tensors_.emplace(type.ptr(), has);
  return has;
}

nb::object TensorSubclasses::Describe(nb::handle value, const std::string& fqn) const {
  return RunPython([&]() -> nb::object { return Module().attr("describe")(value, ToPyText(fqn)); });
}

nb::object Rebuild(nb::handle rebuild, nb::handle items, std::string_view fqn_of_description) {
  fqn_of_description.remove_suffix(kSubclassKey.size());
  if (fqn_of_description.ends_with('.')) fqn_of_description.remove_suffix(1);
  return RunPython([&] { return rebuild(items, ToPyText(fqn_of_description)); });
}

}  // namespace cairn::python
