// Loading in place: matches the leaves of a step with the leaves of a state, and plans the reads.

#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/state_dict/key_name.h"
#include "core/step/contents.h"
#include "python/src/bindings.h"
#include "python/src/convert.h"
#include "python/src/errors.h"
#include "python/src/loading.h"
#include "python/src/placements.h"
#include "python/src/step_contents.h"
#include "python/src/torch_access.h"
#include "python/src/walk.h"

namespace cairn::python {
namespace {

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

// Returns `fqn` without the names that wrappers of modules add to it, wherever they are: torch's
// compile, DistributedDataParallel, FSDP and activation checkpointing.
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

// The match between a state and the contents of a step.
//
// Ownership: keeps the objects of the state alive; borrows the contents. Threads: any that holds
// the GIL.
class LoadPlan {
 public:
  // Ignores leaves of the state that `patterns` (a list of str) do not match. Leaves of the step
  // in `skipped` (FQNs) are matched, but neither requested nor unexpected. Raises Invalid for
  // states that cannot be walked, or in which two leaves have the same FQN.
  //
  // `strip_wrappers`: leaves whose FQNs are equal without the names of wrappers match, too. The
  // patterns select FQNs without these names, and `contents` are complete.
  LoadPlan(const StepContents& contents, nb::handle state, nb::list patterns, nb::list skipped,
           bool strip_wrappers)
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

  // Return the FQNs that only the state has, in its order, and the FQNs that only the step has, in
  // the order of its leaves.
  nb::tuple Missing() const { return nb::tuple(ToPyTexts(missing_)); }
  nb::tuple Unexpected() const {
    std::vector<std::string> fqns;
    for (size_t leaf = 0; leaf < node_of_leaf_.size(); ++leaf) {
      if (node_of_leaf_[leaf] == kNone) fqns.push_back(contents_.fqn(leaf));
    }
    return nb::tuple(ToPyTexts(fqns));
  }
  // Returns (node, leaf) of the leaves that both have.
  const std::vector<std::pair<uint32_t, uint32_t>>& matches() const { return matches_; }

  // Requests all leaves that are read into row-major torch tensors of the same dtype and shape in
  // memory that core can access. Returns (node, leaf) of the other leaves that both sides have,
  // which the Python side plans or refuses.
  nb::list RequestContiguous() {
    requests_.list.reserve(matches_.size());
    request_by_address_.reserve(matches_.size());
    nb::list others;
    for (const auto& [node, leaf] : matches_) {
      if (!RequestIfContiguous(node, leaf)) others.append(nb::make_tuple(node, leaf));
    }
    return others;
  }

  // Requests a tensor leaf into memory of its dtype and shape. Returns false if that memory is
  // already filled (tied tensors). `has_base`: see core::LoadRequest.
  bool RequestLeaf(uint32_t leaf, nb::handle strides, nb::handle address, int device,
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

  // Requests this rank's part of a tensor leaf into a local tensor. `sharding` has the form that
  // ToSharding accepts; its global shape equals the leaf's.
  void RequestShard(uint32_t leaf, nb::handle shape, nb::handle strides, nb::handle address,
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

  const Requests& requests() const { return requests_; }
  // Returns (FQN, FQN of the request that fills its memory) of the leaves that have no request,
  // because they are tied to others.
  nb::list Tied() const {
    nb::list names;
    for (const auto& [leaf, request] : tied_) {
      names.append(nb::make_tuple(ToPyText(contents_.fqn(leaf)),
                                  ToPyText(contents_.fqn(leaf_of_request_[request]))));
    }
    return names;
  }

  // Returns pairs of FQNs that are tied in the state and two tensors in the step, which must be
  // equal there.
  nb::list Doubles() const {
    nb::list names;
    for (const auto& [leaf, other] : doubles_) {
      names.append(nb::make_tuple(ToPyText(contents_.fqn(leaf)), ToPyText(contents_.fqn(other))));
    }
    return names;
  }

  // Returns the tensor subclasses of the state by node. The value of such a node is the dict that
  // replaces the tensor.
  nb::dict Subclasses() const {
    nb::dict by_node;
    for (const auto& [node, value] : walk_.subclasses) by_node[nb::int_(node)] = value;
    return by_node;
  }

  // Returns (value, key in its parent, index of the parent, node kind). The parent of the root is
  // the root itself. Raises IndexError.
  nb::tuple ToPyNode(uint32_t node) const {
    if (node >= walk_.py_nodes.size()) throw nb::index_error();
    const Walk::PyNode& py_node = walk_.py_nodes[node];
    return nb::make_tuple(py_node.value, py_node.key, py_node.parent,
                          static_cast<uint8_t>(walk_.tree.nodes[node].kind));
  }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  static constexpr uint32_t kSkipped = kNone - 1;

  void Match(uint32_t node) {
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

  // Sets leaf_of_node_. As elsewhere, containers and dotted keys are equivalent, but only where the
  // texts of the keys are enough to tell the leaves apart. Where they are not, all keys must be
  // equal.
  //
  // A key of verbatim form is that of a front end or, after a rebuild, a complete FQN. If the key
  // and the FQN name different leaves, neither is taken.
  void MatchEscapedKeys() {
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

  uint32_t FindLeaf(uint32_t node, const std::string& fqn) {
    const uint32_t leaf = FindEqualLeaf(node, fqn);
    return leaf == kNone && strip_wrappers_ ? FindWrappedLeaf(fqn) : leaf;
  }

  uint32_t FindWrappedLeaf(const std::string& fqn) {
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

  uint32_t FindEqualLeaf(uint32_t node, const std::string& fqn) {
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

  bool RequestIfContiguous(uint32_t node, uint32_t leaf) {
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

  // If parts of two tensors are read into the same memory, the tensors must be tied in the step
  // too, or equal.
  void CheckTied(uint32_t leaf, const std::byte* address) {
    if (address == nullptr) return;
    const auto [found, is_new] = leaf_by_local_address_.try_emplace(address, leaf);
    if (!is_new) AddIfDouble(leaf, found->second);
  }

  void AddIfDouble(uint32_t leaf, uint32_t other) {
    if (!IsSamePlace(contents_.tensor(leaf), contents_.tensor(other))) {
      doubles_.emplace_back(leaf, other);
    }
  }

  bool Request(uint32_t leaf, core::LoadRequest request) {
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
      request_by_address_.emplace(request.target.data,
                                  static_cast<uint32_t>(requests_.list.size()));
    }
    requests_.list.push_back(std::move(request));
    leaf_of_request_.push_back(leaf);
    return true;
  }

  void AddTied(uint32_t leaf, uint32_t request) {
    uint32_t& requested = leaf_of_request_[request];
    // The owner is requested, because an update compares only owners with the base step.
    if (contents_.tensor(requested).alias_of && !contents_.tensor(leaf).alias_of) {
      std::swap(requested, leaf);
      requests_.list[request].fqn = contents_.tensor(requested).fqn;
    }
    tied_.emplace_back(leaf, request);
  }

  const StepContents& contents_;
  TorchAccess torch_{TorchAccess::Reach::kDevices};
  Walk walk_;
  std::vector<uint32_t> node_of_leaf_;  // by leaf of the step; kNone: unexpected; kSkipped
  std::vector<std::pair<uint32_t, uint32_t>> matches_;            // (node, leaf), in order of nodes
  std::vector<std::string> missing_;                              // in order of nodes
  std::unordered_map<std::string_view, uint32_t> leaves_by_fqn_;  // filled when first needed
  bool strip_wrappers_;
  // Leaves by FQN without wrappers, filled when first needed.
  std::unordered_multimap<std::string, uint32_t> leaves_without_wrappers_;
  std::vector<uint32_t> leaf_of_node_;  // empty unless the state or the step has escaped keys
  Requests requests_;
  std::vector<uint32_t> leaf_of_request_;
  std::vector<std::pair<uint32_t, uint32_t>> tied_;     // leaf and the request that fills it
  std::vector<std::pair<uint32_t, uint32_t>> doubles_;  // leaves
  std::unordered_multimap<const std::byte*, uint32_t> request_by_address_;
  std::unordered_map<const std::byte*, uint32_t> leaf_by_local_address_;  // for shards
};

}  // namespace

void BindLoadPlan(nb::module_& m) {
  nb::class_<LoadPlan>(m, "LoadPlan")
      .def(nb::init<const StepContents&, nb::handle, nb::list, nb::list, bool>(),
           nb::keep_alive<1, 2>(), nb::arg("contents"), nb::arg("state").none(),
           nb::arg("patterns"), nb::arg("skipped") = nb::list(), nb::arg("strip_wrappers") = false)
      .def("missing", &LoadPlan::Missing)
      .def("unexpected", &LoadPlan::Unexpected)
      .def("matches", &LoadPlan::matches)
      .def("tied", &LoadPlan::Tied)
      .def("doubles", &LoadPlan::Doubles)
      .def("subclasses", &LoadPlan::Subclasses)
      .def("request_contiguous", &LoadPlan::RequestContiguous)
      .def("request", &LoadPlan::RequestLeaf, nb::arg("leaf"), nb::arg("strides"),
           nb::arg("address"), nb::arg("device"), nb::arg("has_base") = true)
      .def("request_shard", &LoadPlan::RequestShard)
      .def("node", &LoadPlan::ToPyNode)
      .def_prop_ro("requests", &LoadPlan::requests);
  m.def(
      "without_wrappers", [](nb::str fqn) { return ToPyText(WithoutWrappers(FromPyText(fqn))); },
      nb::arg("fqn"));
}

}  // namespace cairn::python
