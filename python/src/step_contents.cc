// Records by leaf, places of tensors, and the construction of a nested state.

#include "python/src/step_contents.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string_view>

#include "core/state_dict/key_name.h"
#include "python/src/errors.h"
#include "python/src/gil.h"
#include "python/src/walk.h"

namespace cairn::python {
namespace {

using core::KeyKind;
using core::NodeKind;

// Raises Corrupt: no save writes such a tree.
[[noreturn]] void ThrowDamagedTree(std::string_view message, const std::string& key) {
  Throw(Error{.code = ErrorCode::kDataLoss,
              .message = fmt::format("the step's structure is damaged: {}", message),
              .key = key});
}

// Takes ownership of the number that the text of a key was converted to; null if it is none.
nb::object CheckedNumber(PyObject* number, const std::string& text) {
  if (number != nullptr) return nb::steal(number);
  PyErr_Clear();
  ThrowDamagedTree("a key is not the number that it should be", text);
}

// Returns the key of a mapping from its text.
nb::object ToPyKey(const core::Node& node) {
  switch (node.key_kind) {
    case KeyKind::kIndex:
    case KeyKind::kInt:
      return CheckedNumber(PyLong_FromString(node.key.c_str(), nullptr, 10), node.key);
    case KeyKind::kBool:
      return nb::bool_(node.key == "True");
    case KeyKind::kFloat:
      return CheckedNumber(PyFloat_FromString(ToPyText(node.key).ptr()), node.key);
    case KeyKind::kNone:
      return nb::none();
    case KeyKind::kRoot:
    case KeyKind::kString:
      return ToPyText(node.key);
  }
  return ToPyText(node.key);
}

nb::object ToTorchSize(const nb::list& elements, const std::string& key) {
  const nb::object torch = nb::module_::import_("cairn._base.dtypes").attr("require_torch")();
  try {
    return torch.attr("Size")(elements);
  } catch (nb::python_error&) {
    ThrowDamagedTree("a torch.Size contains something else than sizes", key);
  }
}

std::vector<uint64_t> PlaceStrides(const core::TensorInfo& info) {
  auto strides = info.alias_of ? info.alias_strides : core::RowMajorStrides(info.shape);
  // The stride of a dimension with one element has no meaning.
  for (size_t d = 0; d < strides.size(); ++d) {
    if (info.shape[d] <= 1) strides[d] = 0;
  }
  return strides;
}

// Returns the tensor that the dict `items` describes, by a call of `rebuild` with it and its FQN.
nb::object Rebuild(nb::handle rebuild, nb::handle items, std::string_view fqn_of_description) {
  fqn_of_description.remove_suffix(kSubclassKey.size());
  if (fqn_of_description.ends_with('.')) fqn_of_description.remove_suffix(1);
  return RunPython([&] { return rebuild(items, ToPyText(fqn_of_description)); });
}

// Finds records, which are in key order, by name. Leaves are mostly in the same order.
template <typename Info>
class Finder {
 public:
  explicit Finder(const std::vector<Info>& infos) : infos_(infos) {}

  /// Returns the index of the record, or nothing.
  std::optional<uint32_t> Find(std::string_view fqn) {
    if (next_ >= infos_.size() || infos_[next_].fqn != fqn) {
      next_ = static_cast<size_t>(std::ranges::lower_bound(infos_, fqn, {}, &Info::fqn) -
                                  infos_.begin());
      if (next_ == infos_.size() || infos_[next_].fqn != fqn) return std::nullopt;
    }
    // A hidden owner is not a leaf, even if it has the name of one.
    if constexpr (requires(Info info) { info.hidden; }) {
      if (infos_[next_].hidden) return std::nullopt;
    }
    return static_cast<uint32_t>(next_++);
  }

 private:
  const std::vector<Info>& infos_;
  size_t next_ = 0;  // after the record that was found last
};

// Returns the contents that `state` describes, and the hidden owners that `shared` refers to.
core::Contents ConvertedContents(const core::Contents& stored, const core::StateDict& state,
                                 const nb::dict& shared) {
  core::Contents made{.step = stored.step,
                      .tree = state.tree,
                      .tensors = {},
                      .values = {},
                      .may_lack_equal_texts = stored.may_lack_equal_texts};
  const std::vector<core::Leaf> leaves = Unwrap(state.Leaves());
  const auto is_leaf = [](const core::Node& node) { return !core::IsContainer(node.kind); };
  if (std::ranges::count_if(stored.tree.nodes, is_leaf) > std::ssize(leaves)) {
    made.may_lack_equal_texts |= core::HasForms(stored.tree);
  }
  for (size_t i = 0; i < leaves.size(); ++i) {
    const std::string& fqn = leaves[i].fqn;
    if (!core::IsTensor(made.tree.nodes[leaves[i].node].kind)) {
      made.values.push_back({fqn, state.values[state.slot[i]]});
      continue;
    }
    const core::TensorView& view = state.tensors[state.slot[i]];
    core::TensorInfo& info = made.tensors.emplace_back();
    info.fqn = fqn;
    info.dtype = view.dtype;
    info.shape = view.shape;
    info.nbytes = schema::ElementBytes(view.dtype);
    for (const uint64_t size : view.shape) info.nbytes *= size;
  }
  std::ranges::sort(made.tensors, {}, &core::TensorInfo::fqn);
  std::ranges::sort(made.values, {}, &core::ValueInfo::fqn);
  std::set<std::string> hidden;
  for (const auto& [fqn, place] : shared) {
    const auto info = std::ranges::lower_bound(made.tensors, FromPyText(nb::cast<nb::str>(fqn)), {},
                                               &core::TensorInfo::fqn);
    const auto parts = nb::cast<nb::tuple>(place);
    info->alias_of = FromPyText(nb::cast<nb::str>(parts[0]));
    info->alias_offset_bytes = nb::cast<uint64_t>(parts[1]);
    info->alias_strides = FromPyNumbers(parts[2]);
    if (!std::ranges::binary_search(made.tensors, *info->alias_of, {}, &core::TensorInfo::fqn)) {
      hidden.insert(*info->alias_of);
    }
  }
  for (const core::TensorInfo& info : stored.tensors) {
    if (hidden.contains(info.fqn)) made.tensors.push_back(info);
  }
  std::ranges::sort(made.tensors, {}, &core::TensorInfo::fqn);
  return made;
}

}  // namespace

StepContents::StepContents(core::Contents contents, nb::object store)
    : contents_(std::move(contents)), store_(std::move(store)) {
  Finder tensors(contents_.tensors);
  Finder values(contents_.values);
  const std::vector<core::Leaf> leaves = Unwrap(core::FlattenTree(contents_.tree));
  leaves_.reserve(leaves.size());
  for (const auto& [node, fqn] : leaves) {
    const bool is_tensor = core::IsTensor(contents_.tree.nodes[node].kind);
    const auto slot = is_tensor ? tensors.Find(fqn) : values.Find(fqn);
    if (!slot) {
      Throw(Error{.code = ErrorCode::kDataLoss,
                  .message = "the step's structure has a leaf without a record",
                  .key = fqn,
                  .step = contents_.step.step});
    }
    leaves_.push_back({node, *slot});
  }
}

StepContents::StepContents(const StepContents& stored, const Batch& state, nb::dict shared,
                           nb::dict long_values, nb::object conversion)
    : StepContents(ConvertedContents(stored.all(), state.state, shared), stored.store_) {
  long_values_ = std::move(long_values);
  conversion_ = std::move(conversion);
}

nb::tuple StepContents::ToPyLeaf(size_t leaf) const {
  if (leaf >= leaves_.size()) throw nb::index_error();
  nb::object content;
  if (core::IsTensor(kind(leaf))) {
    content = nb::cast(tensor(leaf));
  } else if (const core::ValueInfo& value = contents_.values[leaves_[leaf].slot];
             std::holds_alternative<core::ChunkedValue>(value.value)) {
    content = is_converted() ? nb::object(long_values_[ToPyText(value.fqn)])
                             : nb::cast(LongValue{.store = store_, .step = step(), .info = value});
  } else {
    content = ToPyValue(value.value);
  }
  return nb::make_tuple(ToPyText(fqn(leaf)), static_cast<uint8_t>(kind(leaf)), content);
}

nb::list StepContents::LeavesOf(const std::vector<size_t>& tensors) const {
  constexpr size_t kNoLeaf = ~size_t{0};  // the hidden owner of aliases
  std::vector<size_t> leaves(contents_.tensors.size(), kNoLeaf);
  for (size_t leaf = 0; leaf < leaves_.size(); ++leaf) {
    if (core::IsTensor(kind(leaf))) leaves[leaves_[leaf].slot] = leaf;
  }
  nb::list result;
  for (const size_t tensor : tensors) {
    if (leaves[tensor] != kNoLeaf) result.append(leaves[tensor]);
  }
  return result;
}

nb::object StepContents::FindTensor(nb::str fqn) const {
  const std::string name = FromPyText(fqn);
  const auto found = std::ranges::lower_bound(contents_.tensors, name, {}, &core::TensorInfo::fqn);
  if (found == contents_.tensors.end() || found->fqn != name) return nb::none();
  return nb::cast(*found);
}

nb::dict StepContents::ToPyStatistics(
    const std::vector<std::optional<core::StoredStatistics>>& statistics) const {
  nb::dict by_fqn;
  for (size_t i = 0; i < statistics.size(); ++i) {
    const auto& of_tensor = statistics[i];
    if (!of_tensor) continue;
    by_fqn[ToPyText(contents_.tensors[i].fqn)] = nb::cast(*of_tensor);
  }
  return by_fqn;
}

nb::object StepContents::Build(nb::list leaves, nb::handle rebuild) const {
  const CollectionPause pause;
  if (leaves.size() != leaves_.size()) ThrowInvalid("a state needs one value per leaf");
  // From the last node to the first, so that the children of a container are complete.
  std::vector<std::pair<uint32_t, nb::object>> built;
  size_t next_leaf = leaves_.size();
  for (auto node = static_cast<uint32_t>(contents_.tree.nodes.size()); node-- > 0;) {
    const bool is_container = core::IsContainer(contents_.tree.nodes[node].kind);
    built.emplace_back(node,
                       is_container ? MakeContainer(node, built, rebuild) : leaves[--next_leaf]);
  }
  return built.front().second;
}

bool StepContents::has_subclasses() const {
  return std::ranges::any_of(leaves_,
                             [this](const Leaf& leaf) { return DescribesSubclass(leaf.node); });
}

bool StepContents::DescribesSubclass(uint32_t node) const {
  const core::Node& described = contents_.tree.nodes[node];
  return described.kind == NodeKind::kValue && described.key == kSubclassKey;
}

nb::object StepContents::MakeContainer(uint32_t node,
                                       std::vector<std::pair<uint32_t, nb::object>>& built,
                                       nb::handle rebuild) const {
  const NodeKind kind = contents_.tree.nodes[node].kind;
  const uint32_t child_count = contents_.tree.nodes[node].child_count;
  nb::dict items;
  nb::list elements;
  std::optional<uint32_t> description;  // the child that describes a tensor subclass
  for (uint32_t i = 0; i < child_count; ++i) {
    auto& [child, value] = built.back();
    if (DescribesSubclass(child)) description = child;
    if (core::IsMapping(kind)) {
      items[ToPyKey(contents_.tree.nodes[child])] = value;
    } else {
      elements.append(value);
    }
    built.pop_back();
  }
  if (core::IsMapping(kind) && items.size() != child_count) {
    ThrowDamagedTree("two keys of a mapping are equal", contents_.tree.nodes[node].key);
  }
  switch (kind) {
    case NodeKind::kDict:
      return description ? Rebuild(rebuild, items, FqnOfLeafAt(*description)) : items;
    case NodeKind::kOrderedDict:
      return nb::module_::import_("collections").attr("OrderedDict")(items);
    case NodeKind::kCounter:
      return nb::module_::import_("collections").attr("Counter")(items);
    case NodeKind::kTorchSize:
      return ToTorchSize(elements, contents_.tree.nodes[node].key);
    case NodeKind::kTuple:
      return nb::tuple(elements);
    default:
      return elements;
  }
}

const std::string& StepContents::FqnOfLeafAt(uint32_t node) const {
  const auto leaf = std::ranges::lower_bound(leaves_, node, {}, &Leaf::node);
  return fqn(static_cast<size_t>(leaf - leaves_.begin()));
}

bool IsSamePlace(const core::TensorInfo& a, const core::TensorInfo& b) {
  return OwnerOf(a) == OwnerOf(b) && a.alias_offset_bytes == b.alias_offset_bytes &&
         a.dtype == b.dtype && a.shape == b.shape && PlaceStrides(a) == PlaceStrides(b);
}

nb::tuple ToPyPlace(const core::TensorInfo& info) {
  return nb::make_tuple(ToPyText(OwnerOf(info)), info.alias_offset_bytes,
                        static_cast<uint8_t>(info.dtype), ToPyNumbers(info.shape),
                        ToPyNumbers(PlaceStrides(info)));
}

const std::string& OwnerOf(const core::TensorInfo& info) {
  return info.alias_of ? *info.alias_of : info.fqn;
}

}  // namespace cairn::python
