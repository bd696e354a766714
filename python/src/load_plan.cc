// Matching by FQN, requests, and the check that no memory is filled from two places.

#include "python/src/load_plan.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <set>
#include <unordered_set>

#include "core/state_dict/key_name.h"
#include "python/src/convert.h"
#include "python/src/errors.h"

namespace cairn::python {
namespace {

template <typename Fqns>
nb::tuple ToPyTexts(const Fqns& fqns) {
  nb::list texts;
  for (const std::string& fqn : fqns) texts.append(ToPyText(fqn));
  return nb::tuple(texts);
}

[[noreturn]] void ThrowSameName(const std::string& fqn) {
  ThrowInvalid("two leaves of the state are named '" + fqn + "': rename a key", fqn);
}

bool HasSameForm(const TensorMemory& memory, const core::TensorInfo& info) {
  return memory.dtype == info.dtype &&
         std::ranges::equal(memory.shape, info.shape, {},
                            [](int64_t size) { return static_cast<uint64_t>(size); });
}

// A leaf, with the texts of its keys, joined by ".", and a text that states all of its keys.
struct LeafKeys {
  uint32_t node;
  std::string texts, keys;
};

std::vector<LeafKeys> KeysOfLeaves(const core::StateTree& tree) {
  const std::vector<uint32_t> parents = Unwrap(core::internal::ParentsOf(tree));
  std::vector<LeafKeys> leaves;
  std::vector<LeafKeys> path;  // the containers above the node
  for (uint32_t i = 0; i < tree.nodes.size(); ++i) {
    const core::Node& node = tree.nodes[i];
    while (!path.empty() && path.back().node != parents[i]) path.pop_back();
    LeafKeys one{i, {}, {}};
    if (i > 0) {
      if (parents[i] != 0) one.texts = path.back().texts + '.';
      one.texts += node.key;
      // A part of a list is a dict of ints.
      const bool is_position = node.key_kind == core::KeyKind::kIndex;
      const core::KeyKind kind = is_position ? core::KeyKind::kInt : node.key_kind;
      one.keys = path.back().keys + '\0' + static_cast<char>(kind) + node.key;
    }
    (core::IsContainer(node.kind) ? path : leaves).push_back(std::move(one));
  }
  return leaves;
}

}  // namespace

void Requests::Add(nb::str fqn, nb::handle offsets, nb::handle sizes, nb::tuple target) {
  if (target.size() != 4) ThrowInvalid("a target is (dtype, strides, address, device)");
  core::LoadRequest& request = list.emplace_back();
  request.fqn = FromPyText(fqn);
  request.box.sizes = FromPyNumbers(sizes);
  request.box.offsets =
      offsets.is_none() ? std::vector<uint64_t>(request.box.sizes.size()) : FromPyNumbers(offsets);
  request.target.dtype = static_cast<core::DType>(nb::cast<uint8_t>(target[0]));
  request.target.shape = request.box.sizes;
  request.target.strides = FromPyNumbers(target[1]);
  request.target.data = FromPyAddress(target[2]);
  request.target.device = nb::cast<int>(target[3]);
  request.cast = true;
}

nb::list Requests::Targets(uint32_t rank) const {
  nb::list targets;
  const auto add = [&](const std::string& fqn, const core::Box& box, core::DType dtype,
                       const std::vector<uint64_t>& strides, const std::byte* data) {
    targets.append(
        nb::make_tuple(ToPyText(fqn), ToPyNumbers(box.offsets), ToPyNumbers(box.sizes),
                       static_cast<uint8_t>(dtype),
                       ToPyNumbers(strides.empty() ? core::RowMajorStrides(box.sizes) : strides),
                       reinterpret_cast<uintptr_t>(data)));
  };
  for (const core::LoadRequest& request : list) {
    add(request.fqn, request.box, request.target.dtype, request.target.strides,
        request.target.data);
  }
  for (const core::ShardTarget& shard : shards) {
    // A rank that is not on the mesh holds nothing of the tensor.
    if (shard.sharding->mesh != nullptr && !shard.sharding->mesh->CoordinateOf(rank)) continue;
    const core::TensorView local{shard.local.dtype, shard.local.shape, shard.local.strides,
                                 shard.local.data, shard.local.device};
    for (const core::ShardView& part : Unwrap(core::ShardViewsOf(*shard.sharding, local, rank))) {
      add(shard.fqn, part.box, part.view.dtype, part.view.strides, part.view.data);
    }
  }
  return targets;
}

std::vector<int> Requests::Devices() const {
  std::set<int> devices;
  for (const core::LoadRequest& request : list) devices.insert(request.target.device);
  for (const core::ShardTarget& shard : shards) devices.insert(shard.local.device);
  for (const core::Sharding& sharding : shardings) {
    for (const core::ShardView& part : sharding.parts) devices.insert(part.view.device);
  }
  devices.erase(core::kHostDevice);
  return {devices.begin(), devices.end()};
}

void Requests::CheckMemory() const {
  const TorchAccess torch;
  for (const BorrowedTensor& one : borrowed) {
    if (!torch.HasMoved(one)) continue;
    ThrowInvalid(
        "the storage of a tensor was resized while it was loaded: resize no storage "
        "before the load has ended, and load the state again",
        list[one.leaf].fqn);
  }
}

nb::list Requests::WholeFqns() const {
  nb::list fqns;
  for (const core::LoadRequest& request : list) fqns.append(ToPyText(request.fqn));
  return fqns;
}

void Requests::SetHolders(nb::str fqn, const Mesh& mesh) { holders[FromPyText(fqn)] = mesh.mesh; }

core::LoadRequest WholeRequest(const core::TensorInfo& info, std::vector<uint64_t> strides,
                               std::byte* data, int device) {
  return core::LoadRequest{.fqn = info.fqn,
                           .box = core::WholeBox(info.shape),
                           .target = {.dtype = info.dtype,
                                      .shape = info.shape,
                                      .strides = std::move(strides),
                                      .data = data,
                                      .device = device}};
}

std::string WithoutWrappers(std::string_view fqn) {
  static constexpr std::array<std::string_view, 4> kWrappers = {
      "_orig_mod", "module", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"};
  std::string kept;
  for (size_t end = fqn.find('.'); end != fqn.npos; end = fqn.find('.')) {
    if (std::ranges::find(kWrappers, fqn.substr(0, end)) == kWrappers.end()) {
      kept += fqn.substr(0, end + 1);
    }
    fqn.remove_prefix(end + 1);
  }
  return kept.append(fqn);
}

LoadPlan::LoadPlan(const StepContents& contents, nb::handle state, nb::list patterns,
                   nb::list skipped, bool strip_wrappers)
    : contents_(contents),
      walk_(WalkState(state, torch_)),
      node_of_leaf_(contents.leaf_count(), kNone),
      strip_wrappers_(strip_wrappers) {
  const core::KeyPatterns wanted = ParsePatterns(patterns);
  const core::Contents& all = contents_.all();
  if (all.may_lack_equal_texts || core::HasForms(all.tree) || core::HasForms(walk_.tree)) {
    MatchEscapedKeys();
  }
  if (skipped.size() > 0) {
    std::unordered_set<std::string> names;
    for (const nb::handle fqn : skipped) names.insert(FromPyText(fqn));
    for (uint32_t leaf = 0; leaf < node_of_leaf_.size(); ++leaf) {
      if (names.contains(contents_.fqn(leaf))) node_of_leaf_[leaf] = kSkipped;
    }
  }
  const auto is_wanted = [&](const std::string& fqn) {
    return wanted.Matches(strip_wrappers_ ? WithoutWrappers(fqn) : fqn);
  };
  if (strip_wrappers_ && !wanted.matches_everything()) {
    for (uint32_t leaf = 0; leaf < node_of_leaf_.size(); ++leaf) {
      if (!is_wanted(contents_.fqn(leaf))) node_of_leaf_[leaf] = kSkipped;
    }
  }
  for (uint32_t node = 0; node < walk_.py_nodes.size(); ++node) {
    if (core::IsContainer(walk_.tree.nodes[node].kind)) continue;
    // A part of a step may have escapes that the state does not need, and the other way round.
    const uint32_t leaf = leaf_of_node_.empty() ? kNone : leaf_of_node_[node];
    if (wanted.matches_everything() ||
        is_wanted(leaf == kNone ? walk_.Fqn(node) : contents_.fqn(leaf))) {
      Match(node);
    }
  }
  std::unordered_set<std::string_view> names;
  for (const std::string& fqn : missing_) {
    if (!names.insert(fqn).second) ThrowSameName(fqn);
  }
}

void LoadPlan::Match(uint32_t node) {
  std::string fqn = walk_.Fqn(node);
  const uint32_t leaf = FindLeaf(node, fqn);
  if (leaf == kNone) {
    missing_.push_back(std::move(fqn));
    return;
  }
  if (node_of_leaf_[leaf] == kSkipped) return;
  if (node_of_leaf_[leaf] != kNone) ThrowSameName(fqn);
  node_of_leaf_[leaf] = node;
  matches_.emplace_back(node, leaf);
}

// As elsewhere, containers and dotted keys are equivalent, but only where the texts of the keys are
// enough to tell the leaves apart. Where they are not, all keys must be equal.
//
// A key of verbatim form is that of a front end or, after a rebuild, a complete FQN. If the key and
// the FQN name different leaves, neither is taken.
void LoadPlan::MatchEscapedKeys() {
  const core::Contents& all = contents_.all();
  const std::vector<LeafKeys> stored = KeysOfLeaves(all.tree);
  const std::vector<LeafKeys> given = KeysOfLeaves(walk_.tree);
  struct Same {
    std::vector<uint32_t> stored;
    size_t given_count = 0;
  };
  std::unordered_map<std::string_view, Same> by_texts;
  std::unordered_map<std::string_view, uint32_t> verbatim;  // by FQN
  for (uint32_t i = 0; i < stored.size(); ++i) {
    by_texts[stored[i].texts].stored.push_back(i);
    const bool is_verbatim = all.tree.nodes[stored[i].node].form == core::KeyForm::kVerbatim;
    if (is_verbatim) verbatim.emplace(contents_.fqn(i), i);
  }
  for (const LeafKeys& leaf : given) ++by_texts[leaf.texts].given_count;
  leaf_of_node_.assign(walk_.py_nodes.size(), kNone);
  for (const LeafKeys& leaf : given) {
    const Same& same = by_texts[leaf.texts];
    const bool is_only =
        !all.may_lack_equal_texts && same.stored.size() == 1 && same.given_count == 1;
    uint32_t& match = leaf_of_node_[leaf.node];
    for (const uint32_t i : same.stored) {
      if (is_only || stored[i].keys == leaf.keys) match = i;
    }
    const auto named = verbatim.empty() ? verbatim.end() : verbatim.find(walk_.Fqn(leaf.node));
    if (named == verbatim.end() || named->second == match) continue;
    match = match == kNone ? named->second : kNone;
  }
}

uint32_t LoadPlan::FindLeaf(uint32_t node, const std::string& fqn) {
  const uint32_t leaf = FindEqualLeaf(node, fqn);
  return leaf == kNone && strip_wrappers_ ? FindWrappedLeaf(fqn) : leaf;
}

uint32_t LoadPlan::FindWrappedLeaf(const std::string& fqn) {
  if (leaves_without_wrappers_.empty()) {
    for (uint32_t i = 0; i < contents_.leaf_count(); ++i) {
      leaves_without_wrappers_.emplace(WithoutWrappers(contents_.fqn(i)), i);
    }
  }
  const auto [begin, end] = leaves_without_wrappers_.equal_range(WithoutWrappers(fqn));
  if (begin == end) return kNone;
  if (std::next(begin) != end) {
    ThrowInvalid("'" + contents_.fqn(begin->second) + "' and '" +
                     contents_.fqn(std::next(begin)->second) +
                     "' of the step have the same name without wrappers: load with the names of "
                     "the step, or rename one",
                 fqn, contents_.step().step);
  }
  return begin->second;
}

uint32_t LoadPlan::FindEqualLeaf(uint32_t node, const std::string& fqn) {
  if (!leaf_of_node_.empty()) return leaf_of_node_[node];
  // The state nearly always has the same order as the one that was saved.
  const uint32_t next = matches_.empty() ? 0 : matches_.back().second + 1;
  if (next < contents_.leaf_count() && contents_.fqn(next) == fqn) return next;
  if (leaves_by_fqn_.empty()) {
    for (uint32_t i = 0; i < contents_.leaf_count(); ++i) {
      leaves_by_fqn_.emplace(contents_.fqn(i), i);
    }
  }
  const auto found = leaves_by_fqn_.find(fqn);
  return found == leaves_by_fqn_.end() ? kNone : found->second;
}

nb::tuple LoadPlan::Missing() const { return ToPyTexts(missing_); }

nb::tuple LoadPlan::Unexpected() const {
  std::vector<std::string> fqns;
  for (size_t leaf = 0; leaf < node_of_leaf_.size(); ++leaf) {
    if (node_of_leaf_[leaf] == kNone) fqns.push_back(contents_.fqn(leaf));
  }
  return ToPyTexts(fqns);
}

nb::list LoadPlan::RequestContiguous() {
  requests_.list.reserve(matches_.size());
  request_by_address_.reserve(matches_.size());
  nb::list others;
  for (const auto& [node, leaf] : matches_) {
    if (!RequestIfContiguous(node, leaf)) others.append(nb::make_tuple(node, leaf));
  }
  return others;
}

bool LoadPlan::RequestIfContiguous(uint32_t node, uint32_t leaf) {
  if (!core::IsTensor(contents_.kind(leaf))) return false;
  const auto memory = torch_.FindMemory(walk_.py_nodes[node].value);
  const core::TensorInfo& info = contents_.tensor(leaf);
  if (!memory || !memory->is_contiguous() || !HasSameForm(*memory, info)) return false;
  // Elements are converted in host memory.
  if (contents_.is_converted() && memory->device != core::kHostDevice) return false;
  const auto place = static_cast<uint32_t>(requests_.list.size());
  if (Request(leaf, WholeRequest(info, {}, memory->data, memory->device))) {
    requests_.borrowed.push_back({.leaf = place,
                                  .tensor = walk_.py_nodes[node].value,
                                  .storage = memory->storage,
                                  .data = memory->data});
  }
  return true;
}

bool LoadPlan::RequestLeaf(uint32_t leaf, nb::handle strides, nb::handle address, int device,
                           bool has_base) {
  const core::TensorInfo& info = contents_.tensor(leaf);
  std::vector<uint64_t> numbers = FromPyNumbers(strides);
  // A unique representation of row-major, so that equal memory compares equal.
  if (core::IsContiguous(info.shape, numbers)) numbers.clear();
  core::LoadRequest request =
      WholeRequest(info, std::move(numbers), FromPyAddress(address), device);
  request.has_base = has_base;
  return Request(leaf, std::move(request));
}

void LoadPlan::RequestShard(uint32_t leaf, nb::handle shape, nb::handle strides, nb::handle address,
                            int device, nb::handle sharding) {
  const core::TensorInfo& info = contents_.tensor(leaf);
  const core::Sharding& kept = requests_.shardings.emplace_back(ToSharding(sharding, info.dtype));
  std::byte* const data = FromPyAddress(address);
  CheckTied(leaf, kept.parts.empty() ? data : kept.parts.front().view.data);
  requests_.shards.push_back({.fqn = info.fqn,
                              .sharding = &kept,
                              .local = {.dtype = info.dtype,
                                        .shape = FromPyNumbers(shape),
                                        .strides = FromPyNumbers(strides),
                                        .data = data,
                                        .device = device}});
}

// If parts of two tensors are read into the same memory, the tensors must be tied in the step too,
// or equal.
void LoadPlan::CheckTied(uint32_t leaf, const std::byte* address) {
  if (address == nullptr) return;
  const auto [found, is_new] = leaf_by_local_address_.try_emplace(address, leaf);
  if (!is_new) AddIfDouble(leaf, found->second);
}

void LoadPlan::AddIfDouble(uint32_t leaf, uint32_t other) {
  if (!IsSamePlace(contents_.tensor(leaf), contents_.tensor(other))) {
    doubles_.emplace_back(leaf, other);
  }
}

bool LoadPlan::Request(uint32_t leaf, core::LoadRequest request) {
  const core::TensorInfo& info = contents_.tensor(leaf);
  if (info.nbytes > 0) {
    const auto [begin, end] = request_by_address_.equal_range(request.target.data);
    for (auto it = begin; it != end; ++it) {
      const core::TensorTarget& other = requests_.list[it->second].target;
      if (other.dtype != request.target.dtype || other.shape != request.target.shape ||
          other.strides != request.target.strides) {
        continue;
      }
      // Tied tensors: one read is enough, and two different ones could not both be correct.
      AddIfDouble(leaf, leaf_of_request_[it->second]);
      AddTied(leaf, it->second);
      return false;
    }
    request_by_address_.emplace(request.target.data, static_cast<uint32_t>(requests_.list.size()));
  }
  requests_.list.push_back(std::move(request));
  leaf_of_request_.push_back(leaf);
  return true;
}

void LoadPlan::AddTied(uint32_t leaf, uint32_t request) {
  uint32_t& requested = leaf_of_request_[request];
  // The owner is requested, because an update compares only owners with the base step.
  if (contents_.tensor(requested).alias_of && !contents_.tensor(leaf).alias_of) {
    std::swap(requested, leaf);
    requests_.list[request].fqn = contents_.tensor(requested).fqn;
  }
  tied_.emplace_back(leaf, request);
}

nb::list LoadPlan::Tied() const {
  nb::list names;
  for (const auto& [leaf, request] : tied_) {
    names.append(nb::make_tuple(ToPyText(contents_.fqn(leaf)),
                                ToPyText(contents_.fqn(leaf_of_request_[request]))));
  }
  return names;
}

nb::list LoadPlan::Doubles() const {
  nb::list names;
  for (const auto& [leaf, other] : doubles_) {
    names.append(nb::make_tuple(ToPyText(contents_.fqn(leaf)), ToPyText(contents_.fqn(other))));
  }
  return names;
}

nb::dict LoadPlan::Subclasses() const {
  nb::dict by_node;
  for (const auto& [node, value] : walk_.subclasses) by_node[nb::int_(node)] = value;
  return by_node;
}

nb::tuple LoadPlan::ToPyNode(uint32_t node) const {
  if (node >= walk_.py_nodes.size()) throw nb::index_error();
  const Walk::PyNode& py_node = walk_.py_nodes[node];
  return nb::make_tuple(py_node.value, py_node.key, py_node.parent,
                        static_cast<uint8_t>(walk_.tree.nodes[node].kind));
}

}  // namespace cairn::python
