// Flattening: a walk, then leaf by leaf into tensors and values.

#include "python/src/flatten.h"

#include "python/src/collection_pause.h"
#include "python/src/convert.h"
#include "python/src/torch_access.h"
#include "python/src/walk.h"

namespace cairn::python {
namespace {

core::TensorView ViewOf(const HostMemory& memory) {
  core::TensorView view;
  view.dtype = memory.dtype;
  view.shape.assign(memory.shape.begin(), memory.shape.end());
  // No strides mean row-major: one allocation less for nearly all tensors.
  if (!memory.is_contiguous()) view.strides.assign(memory.strides.begin(), memory.strides.end());
  view.data = memory.data;
  return view;
}

class Flattener {
 public:
  explicit Flattener(nb::handle take) : take_(take) {}

  Batch Run(nb::handle state) {
    Walk walk = WalkState(state, torch_);
    for (uint32_t i = 0; i < walk.places.size(); ++i) {
      core::Node& node = walk.tree.nodes[i];
      if (!core::IsContainer(node.kind)) node.kind = AddLeaf(walk, i);
    }
    batch_.state.tree = std::move(walk.tree);
    return std::move(batch_);
  }

 private:
  core::NodeKind AddLeaf(const Walk& walk, uint32_t node) {
    const nb::object& value = walk.places[node].value;
    if (const auto memory = torch_.FindMemory(value)) {
      return AddTensor(core::NodeKind::kTensor, ViewOf(*memory), value);
    }
    if (IsPlainValue(value)) return AddValue(value);
    nb::object taken = take_(value, ToPyText(walk.Fqn(node)));
    if (!nb::isinstance<nb::tuple>(taken)) return AddValue(taken);
    const auto source = nb::borrow<nb::tuple>(taken);
    core::TensorView view;
    view.dtype = static_cast<core::DType>(nb::cast<uint8_t>(source[1]));
    view.shape = FromPyNumbers(source[2]);
    view.strides = FromPyNumbers(source[3]);
    view.data = FromPyAddress(source[4]);
    return AddTensor(static_cast<core::NodeKind>(nb::cast<uint8_t>(source[0])), std::move(view),
                     source[5]);
  }

  core::NodeKind AddTensor(core::NodeKind kind, core::TensorView view, nb::object owner) {
    batch_.state.slot.push_back(static_cast<uint32_t>(batch_.state.tensors.size()));
    batch_.state.tensors.push_back(std::move(view));
    batch_.owners.push_back(std::move(owner));
    return kind;
  }

  core::NodeKind AddValue(nb::handle value) {
    batch_.state.slot.push_back(static_cast<uint32_t>(batch_.state.values.size()));
    batch_.state.values.push_back(FromPyValue(value));
    return core::NodeKind::kValue;
  }

  nb::handle take_;
  TorchAccess torch_;
  Batch batch_;
};

}  // namespace

Batch Flatten(nb::handle state, nb::handle take) {
  const CollectionPause pause;
  return Flattener(take).Run(state);
}

}  // namespace cairn::python
