// A recursion over the container types whose type a load restores.

#include "python/src/walk.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "core/state_dict/key_name.h"
#include "python/src/convert.h"
#include "python/src/errors.h"
#include "python/src/gil.h"

namespace cairn::python {
namespace {

using core::KeyKind;
using core::NodeKind;

// Recognizes and describes tensor subclasses. `torch` must outlive it.
class TensorSubclasses {
 public:
  explicit TensorSubclasses(const TorchAccess& torch) : torch_(torch) {}

  // Returns true for tensors of a subclass that is saved as its inner tensors. Cost: Python code
  // runs once per type.
  bool HasInnerTensors(nb::handle value) {
    if (!torch_.IsTensorSubclass(value)) return false;
    const nb::handle type = value.type();
    const auto known = has_inner_tensors_.find(type.ptr());
    if (known != has_inner_tensors_.end()) return known->second;
    const bool has =
        RunPython([&] { return nb::cast<bool>(Module().attr("has_inner_tensors")(type)); });
    has_inner_tensors_.emplace(type.ptr(), has);
    return has;
  }
  // Returns a dict of the inner tensors and the description. Raises Invalid if the tensor cannot be
  // described.
  nb::object Describe(nb::handle value, const std::string& fqn) const {
    return RunPython(
        [&]() -> nb::object { return Module().attr("describe")(value, ToPyText(fqn)); });
  }

 private:
  // Imported when the first subclass is found.
  static nb::object Module() { return nb::module_::import_("cairn._tensors.subclasses"); }

  const TorchAccess& torch_;
  std::unordered_map<PyObject*, bool> has_inner_tensors_;  // by type, which the value keeps alive
};

// The keys, or positions, and values of a container.
using Children = std::vector<std::pair<nb::object, nb::object>>;

// Returns a copy: Python code of a key or leaf may change the container.
Children ChildrenOf(const nb::object& container, NodeKind kind) {
  Children children;
  if (!core::IsMapping(kind)) {
    const auto elements = nb::borrow<nb::tuple>(Checked(PySequence_Tuple(container.ptr())));
    for (const nb::handle element : elements) {
      children.emplace_back(nb::int_(children.size()), nb::borrow(element));
    }
  } else if (kind == NodeKind::kDict) {
    const nb::ft_object_guard guard(container);
    PyObject *key = nullptr, *value = nullptr;
    children.reserve(static_cast<size_t>(PyDict_Size(container.ptr())));
    for (Py_ssize_t at = 0; PyDict_Next(container.ptr(), &at, &key, &value) != 0;) {
      children.emplace_back(nb::borrow(key), nb::borrow(value));
    }
  } else {  // in an order that PyDict_Next need not have
    const auto items = nb::borrow<nb::list>(Checked(PyMapping_Items(container.ptr())));
    for (const nb::handle item : items) children.emplace_back(item[0], item[1]);
  }
  return children;
}

// May return false for keys of unusual types.
bool IsSameKey(const nb::object& a, const nb::object& b) {
  if (a.is(b)) return true;
  const bool is_usual = PyUnicode_CheckExact(a.ptr()) || PyLong_CheckExact(a.ptr());
  return is_usual && a.type().is(b.type()) &&
         PyObject_RichCompareBool(a.ptr(), b.ptr(), Py_EQ) == 1;
}

class Walker {
 public:
  Walker(const TorchAccess& torch, nb::object key_of)
      : torch_(torch),
        subclasses_(torch),
        ordered_dict_type_(nb::module_::import_("collections").attr("OrderedDict")),
        counter_type_(nb::module_::import_("collections").attr("Counter")),
        key_of_(key_of.is_valid() ? std::move(key_of)
                                  : nb::module_::import_("cairn._base.tree").attr("key_of")) {}

  Walk Run(nb::handle state) {
    Add(state, nb::none(), 0, KeyKind::kRoot, "");
    Descend(0, 0);
    core::EscapeEqualNames(walk_.tree);
    return std::move(walk_);
  }

  // See VisitIfSame. Begins at the given node, and advances `node` to the one after its last child.
  bool Visit(nb::handle value, const core::StateTree& tree, const std::vector<nb::object>& keys,
             const LeafVisitor& visit, uint32_t& node) const {
    const core::Node& known = tree.nodes[node++];
    if (!core::IsContainer(known.kind)) return visit(node - 1, value);
    if (KindOf(value) != known.kind) return false;
    const Children children = ChildrenOf(nb::borrow(value), known.kind);
    return children.size() == known.child_count && std::ranges::all_of(children, [&](auto& child) {
             const bool has_key =
                 !core::IsMapping(known.kind) || IsSameKey(child.first, keys[node]);
             return has_key && Visit(child.second, tree, keys, visit, node);
           });
  }

 private:
  uint32_t Add(nb::handle value, nb::object key, uint32_t parent, KeyKind kind, std::string text) {
    walk_.tree.nodes.push_back(
        core::Node{.kind = KindOf(value), .key_kind = kind, .key = std::move(text)});
    walk_.py_nodes.push_back(Walk::PyNode{nb::borrow(value), std::move(key), parent});
    const auto node = static_cast<uint32_t>(walk_.py_nodes.size() - 1);
    if (walk_.tree.nodes[node].kind == NodeKind::kValue && subclasses_.HasInnerTensors(value)) {
      walk_.py_nodes[node].value = subclasses_.Describe(value, walk_.Fqn(node));
      walk_.tree.nodes[node].kind = NodeKind::kDict;
      walk_.subclasses.emplace_back(node, nb::borrow(value));
    }
    return node;
  }

  bool IsDescribedSubclass(uint32_t node) const {
    return !walk_.subclasses.empty() && walk_.subclasses.back().first == node;
  }

  // Returns kValue for everything that is not a container.
  NodeKind KindOf(nb::handle value) const {
    PyObject* object = value.ptr();
    if (PyDict_CheckExact(object)) return NodeKind::kDict;
    if (value.type().is(ordered_dict_type_)) return NodeKind::kOrderedDict;
    if (PyList_CheckExact(object)) return NodeKind::kList;
    if (PyTuple_CheckExact(object)) return NodeKind::kTuple;
    if (value.type().is(counter_type_)) return NodeKind::kCounter;
    return torch_.IsSize(value) ? NodeKind::kTorchSize : NodeKind::kValue;
  }

  void Descend(uint32_t node, uint32_t depth) {
    const NodeKind kind = walk_.tree.nodes[node].kind;
    if (!core::IsContainer(kind)) return;
    if (depth == core::kMaxTreeLevels) ThrowTooDeep(node);
    const bool is_subclass = IsDescribedSubclass(node);
    Children children = ChildrenOf(walk_.py_nodes[node].value, kind);
    walk_.tree.nodes[node].child_count = static_cast<uint32_t>(children.size());
    for (auto& [key, value] : children) {
      auto [key_kind, text] = KeyOf(key, kind, node);
      if (text == kSubclassKey && !is_subclass) ThrowReserved(node);
      Descend(Add(value, std::move(key), node, key_kind, std::move(text)), depth + 1);
    }
  }

  std::pair<KeyKind, std::string> KeyOf(nb::handle key, NodeKind kind, uint32_t container) const {
    if (!core::IsMapping(kind)) return {KeyKind::kIndex, std::to_string(nb::cast<size_t>(key))};
    if (PyUnicode_CheckExact(key.ptr())) return {KeyKind::kString, FromPyText(key)};
    const auto kind_and_text = nb::cast<nb::tuple>(
        RunPython([&] { return key_of_(key, ToPyText(walk_.Fqn(container))); }));
    return {static_cast<KeyKind>(nb::cast<uint8_t>(kind_and_text[0])),
            FromPyText(kind_and_text[1])};
  }

  [[noreturn]] void ThrowTooDeep(uint32_t node) const {
    ThrowInvalid("the state is nested deeper than " + std::to_string(core::kMaxTreeLevels) +
                     " levels: does it contain itself?",
                 walk_.Fqn(node));
  }

  [[noreturn]] void ThrowReserved(uint32_t node) const {
    ThrowInvalid("a dict of the state has the key '" + std::string(kSubclassKey) +
                     "', which is reserved for tensor subclasses: rename it",
                 walk_.Fqn(node));
  }

  const TorchAccess& torch_;
  TensorSubclasses subclasses_;
  nb::object ordered_dict_type_;
  nb::object counter_type_;
  nb::object key_of_;
  Walk walk_;
};

}  // namespace

std::string Walk::Fqn(uint32_t node) const {
  if (node == 0) return "";
  const uint32_t parent = py_nodes[node].parent;
  std::string fqn = parent == 0 ? "" : Fqn(parent) + ".";
  core::AppendName(tree.nodes[node], fqn);
  return fqn;
}

Walk WalkState(nb::handle state, const TorchAccess& torch, nb::object key_of) {
  return Walker(torch, std::move(key_of)).Run(state);
}

bool VisitIfSame(nb::handle state, const core::StateTree& tree, const std::vector<nb::object>& keys,
                 const TorchAccess& torch, const LeafVisitor& visit) {
  uint32_t node = 0;
  return Walker(torch, {}).Visit(state, tree, keys, visit, node);
}

}  // namespace cairn::python
