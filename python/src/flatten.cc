// A walk, and then the conversion of each leaf to a tensor or a value.

#include "python/src/flatten.h"

#include <nanobind/stl/vector.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_set>
#include <utility>

#include "core/state_dict/value.h"
#include "python/src/bindings.h"
#include "python/src/convert.h"
#include "python/src/errors.h"
#include "python/src/gil.h"
#include "python/src/placements.h"
#include "python/src/walk.h"

namespace cairn::python {
namespace {

core::TensorView ViewOf(const TensorMemory& memory) {
  core::TensorView view;
  view.dtype = memory.dtype;
  view.shape.assign(memory.shape.begin(), memory.shape.end());
  // No strides mean row-major, which saves an allocation for nearly all tensors.
  if (!memory.is_contiguous()) view.strides.assign(memory.strides.begin(), memory.strides.end());
  view.data = memory.data;
  view.device = memory.device;
  return view;
}

// Calls `visit(device)` for each range of memory that a tensor of the state consists of.
template <typename Visit>
void ForEachDevice(const core::StateDict& state, uint32_t tensor, const Visit& visit) {
  visit(state.tensors[tensor].device);
  const auto found = state.shardings.find(tensor);
  if (found == state.shardings.end()) return;
  for (const core::ShardView& part : found->second.parts) visit(part.view.device);
}

// Flattens a state. Leaves that `patterns` (a list of str) do not match are left out. For leaves
// that are neither plain values nor torch tensors that TorchAccess finds within `reach`, calls
// `take(value, fqn)`. It returns either (node kind, dtype code, shape, strides in elements,
// address, device, owner, sharding), where the sharding is None or has the form that ToSharding
// accepts, or an object that FromPyValue accepts. Raises Invalid, and what `take` raises.
// `key_of`: see WalkState.
class Flattener {
 public:
  Flattener(nb::handle take, core::KeyPatterns patterns, TorchAccess::Reach reach,
            nb::object key_of)
      : take_(take), patterns_(std::move(patterns)), torch_(reach), key_of_(std::move(key_of)) {}

  Batch Run(nb::handle state) {
    Walk walk = WalkState(state, torch_, std::move(key_of_));
    std::vector<bool> kept;  // by leaf
    for (uint32_t i = 0; i < walk.py_nodes.size(); ++i) {
      core::Node& node = walk.tree.nodes[i];
      if (core::IsContainer(node.kind)) continue;
      kept.push_back(patterns_.matches_everything() || patterns_.Matches(walk.Fqn(i)));
      if (kept.back()) node.kind = AddLeaf(walk, i);
    }
    const bool is_part = std::ranges::find(kept, false) != kept.end();
    batch_.state.tree = is_part ? core::PruneTree(walk.tree, kept) : std::move(walk.tree);
    if (is_plain_ && !is_part && walk.subclasses.empty()) {
      for (Walk::PyNode& node : walk.py_nodes) batch_.keys.push_back(std::move(node.key));
    }
    return std::move(batch_);
  }

 private:
  core::NodeKind AddLeaf(const Walk& walk, uint32_t node) {
    const nb::object& value = walk.py_nodes[node].value;
    if (const auto memory = torch_.FindMemory(value)) {
      Borrow(value, memory->storage, memory->data);
      is_plain_ &= memory->device == core::kHostDevice;
      return AddTensor(core::NodeKind::kTensor, ViewOf(*memory), memory->storage);
    }
    if (IsPlainValue(value)) return AddValue(value);
    is_plain_ = false;
    nb::object taken = RunPython([&] { return take_(value, ToPyText(walk.Fqn(node))); });
    if (!nb::isinstance<nb::tuple>(taken)) return AddValue(taken);
    const auto source = nb::borrow<nb::tuple>(taken);
    core::TensorView view;
    view.dtype = static_cast<core::DType>(nb::cast<uint8_t>(source[1]));
    view.shape = FromPyNumbers(source[2]);
    view.strides = FromPyNumbers(source[3]);
    view.data = FromPyAddress(source[4]);
    view.device = nb::cast<int>(source[5]);
    if (const nb::object sharding = source[7]; !sharding.is_none()) {
      batch_.state.shardings.emplace(static_cast<uint32_t>(batch_.state.tensors.size()),
                                     ToSharding(sharding, view.dtype));
    }
    nb::object owner = source[6];
    BorrowFrom(owner);
    return AddTensor(static_cast<core::NodeKind>(nb::cast<uint8_t>(source[0])), std::move(view),
                     std::move(owner));
  }

  // For the leaf that is added next.
  void Borrow(nb::handle tensor, nb::object storage, const std::byte* data) {
    batch_.borrowed.push_back({.leaf = static_cast<uint32_t>(batch_.state.slot.size()),
                               .tensor = nb::borrow(tensor),
                               .storage = std::move(storage),
                               .data = data});
  }

  // An owner that the Python side made is a tensor, a list of tensors (parts), or something else.
  void BorrowFrom(nb::handle owner) {
    if (nb::isinstance<nb::list>(owner)) {
      for (const nb::handle part : nb::borrow<nb::list>(owner)) BorrowFrom(part);
    } else if (const std::byte* data = torch_.FindData(owner)) {
      Borrow(owner, owner.attr("untyped_storage")(), data);
    }
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
  const core::KeyPatterns patterns_;
  TorchAccess torch_;
  nb::object key_of_;
  bool is_plain_ = true;  // all leaves are plain values, or tensors in memory of this host
  Batch batch_;
};

template <typename Numbers>
nb::tuple ToPyTuple(const Numbers& numbers) {
  nb::list list;
  for (const auto number : numbers) list.append(number);
  return nb::tuple(list);
}

// Numbers the meshes of a batch in the order of their first use.
class MeshTable {
 public:
  int64_t IndexOf(const core::DeviceMesh& mesh) {
    const auto [found, is_new] = indices_.try_emplace(&mesh, meshes_.size());
    if (is_new) {
      nb::list sizes;
      for (const core::DeviceMesh::Dim& dim : mesh.dims()) sizes.append(dim.size);
      meshes_.append(nb::make_tuple(nb::tuple(sizes), ToPyTuple(mesh.ranks())));
    }
    return static_cast<int64_t>(found->second);
  }
  const nb::list& meshes() const { return meshes_; }

 private:
  std::map<const core::DeviceMesh*, size_t> indices_;
  nb::list meshes_;
};

nb::tuple ToPyPlacements(const std::vector<core::Placement>& placements) {
  nb::list list;
  for (const core::Placement& placement : placements) {
    list.append(nb::make_tuple(static_cast<uint8_t>(placement.kind), placement.dim,
                               placement.split_factor));
  }
  return nb::tuple(list);
}

// Returns how the leaves are distributed over ranks, as (meshes, leaves). A mesh is (sizes, ranks).
// A leaf is (FQN, form, global shape, placements), in tree order. The form is the index of its
// mesh, -1 for a complete tensor, and -2 for explicit boxes. With `values`, the leaves include
// plain values, of the form -3.
nb::tuple Layout(const Batch& batch, bool values) {
  constexpr int64_t kWhole = -1;
  constexpr int64_t kParts = -2;
  constexpr int64_t kValue = -3;
  const core::StateDict& state = batch.state;
  MeshTable meshes;
  nb::list entries;
  ForEachLeaf(state, [&](const std::string& fqn, bool is_tensor, uint32_t slot) {
    int64_t form = is_tensor ? kWhole : kValue;
    if (!is_tensor && !values) return;
    nb::tuple shape;
    nb::tuple placements;
    const auto found = is_tensor ? state.shardings.find(slot) : state.shardings.end();
    if (found != state.shardings.end()) {
      const core::Sharding& sharding = found->second;
      form = sharding.mesh == nullptr ? kParts : meshes.IndexOf(*sharding.mesh);
      shape = ToPyNumbers(sharding.global_shape);
      placements = ToPyPlacements(sharding.placements);
    } else if (is_tensor) {
      shape = ToPyNumbers(state.tensors[slot].shape);
    }
    entries.append(nb::make_tuple(ToPyText(fqn), form, shape, placements));
  });
  return nb::make_tuple(meshes.meshes(), entries);
}

// Returns (FQN, kind, bytes) of each long value.
nb::list LongValues(const Batch& batch) {
  const core::StateDict& state = batch.state;
  nb::list values;
  if (std::ranges::none_of(state.values, core::IsLong)) return values;
  ForEachLeaf(state, [&](const std::string& fqn, bool is_tensor, uint32_t slot) {
    if (is_tensor || !core::IsLong(state.values[slot])) return;
    const core::Value& value = state.values[slot];
    values.append(nb::make_tuple(ToPyText(fqn), value.index(), core::BytesOf(value).size()));
  });
  return values;
}

// Leaves the bytes of these long values, a list of FQNs, to rank 0, which has equally long ones of
// the same kind. Requires a rank above 0.
void LeaveToFirst(Batch& batch, nb::list fqns) {
  std::set<std::string> left;
  for (const nb::handle fqn : fqns) left.insert(FromPyText(nb::borrow<nb::str>(fqn)));
  if (left.empty()) return;
  ForEachLeaf(batch.state, [&](const std::string& fqn, bool is_tensor, uint32_t slot) {
    if (is_tensor || !left.contains(fqn)) return;
    core::Value& value = batch.state.values[slot];
    value = Unwrap(core::WithoutBytes(value));
  });
}

// Makes the keys of the top-level dict the beginnings of FQNs as they are, for callers that have
// joined keys themselves.
void TakeKeysAsFqns(Batch& batch) {
  std::vector<core::Node>& nodes = batch.state.tree.nodes;
  const std::vector<uint32_t> parents = Unwrap(core::internal::ParentsOf(batch.state.tree));
  for (size_t i = 1; i < nodes.size(); ++i) {
    if (parents[i] == 0 && core::NameOf(nodes[i]) != nodes[i].key) {
      nodes[i].form = core::KeyForm::kVerbatim;
    }
  }
}

// Replaces the sharding of a tensor. `sharding` has the form that ToSharding accepts. Raises
// Invalid if there is no such tensor.
void SetSharding(Batch& batch, nb::str fqn, nb::handle sharding) {
  const std::string name = FromPyText(fqn);
  std::optional<uint32_t> tensor;
  ForEachLeaf(batch.state, [&](const std::string& each, bool is_tensor, uint32_t slot) {
    if (is_tensor && each == name) tensor = slot;
  });
  if (!tensor) ThrowInvalid("no such tensor", name);
  batch.state.shardings[*tensor] = ToSharding(sharding, batch.state.tensors[*tensor].dtype);
}

// Returns (FQN, bytes, address on this rank) of each leaf. The bytes are those of the complete
// tensor, or of a long value; other values have none, and no value has an address.
nb::list Sizes(const Batch& batch) {
  const core::StateDict& state = batch.state;
  nb::list sizes;
  ForEachLeaf(state, [&](const std::string& fqn, bool is_tensor, uint32_t slot) {
    uint64_t bytes = 0;
    uintptr_t address = 0;
    if (!is_tensor) {
      if (core::IsLong(state.values[slot])) bytes = core::BytesOf(state.values[slot]).size();
    } else {
      const core::TensorView& view = state.tensors[slot];
      const auto found = state.shardings.find(slot);
      const bool is_sharded = found != state.shardings.end();
      const core::Shape& shape = is_sharded ? found->second.global_shape : view.shape;
      bytes = Unwrap(core::TensorBytes(view.dtype, shape));
      address = reinterpret_cast<uintptr_t>(view.data);
    }
    sizes.append(nb::make_tuple(ToPyText(fqn), bytes, address));
  });
  return sizes;
}

// Returns the devices that contain parts of the state, in ascending order; empty if all is in host
// memory.
std::vector<int> Devices(const Batch& batch) {
  std::set<int> devices;
  for (uint32_t i = 0; i < batch.state.tensors.size(); ++i) {
    ForEachDevice(batch.state, i, [&](int device) { devices.insert(device); });
  }
  devices.erase(core::kHostDevice);
  return {devices.begin(), devices.end()};
}

// Returns the owners of tensors in device memory, for callers that use it after the batch is
// destroyed.
nb::list DeviceOwners(const Batch& batch) {
  nb::list found;
  for (uint32_t i = 0; i < batch.state.tensors.size(); ++i) {
    bool on_device = false;
    ForEachDevice(batch.state, i, [&](int device) { on_device |= device != core::kHostDevice; });
    if (on_device) found.append(batch.owners[i]);
  }
  return found;
}

}  // namespace

bool Batch::TakeAgain(nb::handle another) {
  if (keys.empty()) return false;
  is_held = false;
  const TorchAccess torch;
  uint32_t leaf = 0;
  return VisitIfSame(another, state.tree, keys, torch, [&](uint32_t node, nb::handle value) {
    const uint32_t slot = state.slot[leaf];
    if (core::IsTensor(state.tree.nodes[node].kind)) {
      const core::TensorView& view = state.tensors[slot];
      if (!torch.HasView(value, view)) return false;
      borrowed.push_back(
          {.leaf = leaf, .tensor = nb::borrow(value), .storage = {}, .data = view.data});
    } else if (IsPlainValue(value)) {
      state.values[slot] = FromPyValue(value);
    } else {
      return false;
    }
    ++leaf;
    return true;
  });
}

Result<void> Batch::Hold(std::span<const std::byte* const> addresses) {
  const GilAcquire gil;
  if (!gil) return Fail(ErrorCode::kCancelled, "Python is ending");
  const std::unordered_set<const std::byte*> wanted(addresses.begin(), addresses.end());
  const TorchAccess torch;
  for (BorrowedTensor& one : borrowed) {
    if (one.storage.is_valid() || !wanted.contains(one.data)) continue;
    auto memory = torch.FindMemory(one.tensor);
    if (!memory || ViewOf(*memory) != state.tensors[state.slot[one.leaf]]) {
      is_outdated = true;
      return Fail(ErrorCode::kUnavailable, "a tensor has other memory than before");
    }
    one.storage = std::move(memory->storage);
  }
  return {};
}

bool Batch::Release() {
  owners.clear();
  borrowed.clear();
  return !keys.empty();
}

std::function<Result<void>()> Batch::MemoryCheck(const core::StateTree& tree) const {
  return [this, &tree]() -> Result<void> {
    const GilAcquire gil;
    if (!gil) return Fail(ErrorCode::kCancelled, "Python is ending");
    const TorchAccess torch;
    const auto moved = std::ranges::find_if(borrowed, [&](const BorrowedTensor& one) {
      return one.storage.is_valid() && torch.HasMoved(one);
    });
    if (moved == borrowed.end()) return {};
    CAIRN_TRY_ASSIGN(auto leaves, core::FlattenTree(tree));
    return Fail(Error{.code = ErrorCode::kInvalidArgument,
                      .message = "the storage of a tensor was resized while it was saved: resize "
                                 "no storage before the save has read it",
                      .key = std::move(leaves[moved->leaf].fqn)});
  };
}

void BindBatch(nb::module_& m) {
  nb::class_<Batch> batch(m, "Batch");
  batch.def("__len__", [](const Batch& self) { return self.state.slot.size(); })
      .def("layout", &Layout, nb::arg("values") = false)
      .def("sizes", &Sizes)
      .def("long_values", &LongValues)
      .def("leave_to_first", &LeaveToFirst, nb::arg("fqns"))
      .def("set_sharding", &SetSharding)
      .def("take_keys_as_fqns", &TakeKeysAsFqns)
      .def("devices", &Devices)
      .def("device_owners", &DeviceOwners)
      .def("take_again", &Batch::TakeAgain)
      .def("release", &Batch::Release);
  BindRankSamples(batch);
  m.def(
      "flatten",
      [](nb::handle state, nb::handle take, nb::list patterns, bool devices, nb::object key_of) {
        const CollectionPause pause;
        const auto reach = devices ? TorchAccess::Reach::kDevices : TorchAccess::Reach::kHost;
        if (key_of.is_none()) key_of = nb::object();
        return Flattener(take, ParsePatterns(patterns), reach, std::move(key_of)).Run(state);
      },
      nb::arg("state").none(), nb::arg("take"), nb::arg("patterns"), nb::arg("devices") = false,
      nb::arg("key_of") = nb::none());
}

}  // namespace cairn::python
