#pragma once
// SPDX-License-Identifier: Apache-2.0
/// State dicts: nested maps and lists of tensors and values, as a tree in preorder.
///
/// The FQN of a leaf is the names of its keys, joined by "." (key_name.h). The tree contains what
/// the FQN does not: types of containers and of keys (the int key 0 and the string key "0" differ),
/// the order, empty containers, and which "." separate keys.
///
///   StateDict state;
///   auto model = state.root().Map("model");
///   model.Tensor("wte.weight", view);
///   state.root().Value("step", int64_t{100});

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/state_dict/value.h"
#include "core/tensor/sharding.h"
#include "core/tensor/tensor.h"

namespace cairn::schema {
struct StructureRecord;
}  // namespace cairn::schema

namespace cairn::core {

// The values of schema::NodeKind, KeyKind and KeyForm; the source asserts that they are equal.
enum class NodeKind : uint8_t {
  kDict,
  kOrderedDict,
  kCounter,
  kList,
  kTuple,
  kTorchSize,
  kTensor,
  kNumpyArray,
  kNumpyScalar,
  kValue
};
enum class KeyKind : uint8_t { kRoot, kIndex, kString, kInt, kBool, kNone, kFloat };
enum class KeyForm : uint8_t { kPlain, kEscaped, kVerbatim };

constexpr bool IsContainer(NodeKind kind) { return kind <= NodeKind::kTorchSize; }
/// True for containers whose children have keys instead of positions.
constexpr bool IsMapping(NodeKind kind) { return kind <= NodeKind::kCounter; }
constexpr bool IsTensor(NodeKind kind) {
  return kind == NodeKind::kTensor || kind == NodeKind::kNumpyArray ||
         kind == NodeKind::kNumpyScalar;
}
/// With its article: "a dict", "an OrderedDict".
const char* KindName(NodeKind kind);

struct Node {
  NodeKind kind = NodeKind::kDict;
  KeyKind key_kind = KeyKind::kRoot;
  std::string key;           // text of the last path element
  uint32_t child_count = 0;  // direct children; leaves have none
  KeyForm form = KeyForm::kPlain;
  friend bool operator==(const Node&, const Node&) = default;
};

/// The longest FQN. Limits the memory that a hostile structure record can require.
inline constexpr size_t kMaxFqnBytes = 64 * 1024;
/// The largest number of containers on the path from the root to a leaf, including the root.
inline constexpr size_t kMaxTreeLevels = 1000;

/// Appends the name of the key of a node.
void AppendName(const Node& node, std::string& fqn);
std::string NameOf(const Node& node);

/// Nodes in preorder; node 0 is the root. The root may be a leaf, with the FQN "".
struct StateTree {
  std::vector<Node> nodes;
  friend bool operator==(const StateTree&, const StateTree&) = default;
};

/// A leaf of a tree: its node and FQN.
struct Leaf {
  uint32_t node = 0;
  std::string fqn;
};
/// Returns the leaves in tree order. kInvalidArgument, naming the FQN: two leaves have the same
/// FQN (EscapeEqualNames gives them different ones), an FQN contains NUL or is too long, or the
/// tree has too many levels. kDataLoss: the child counts do not add up.
Result<std::vector<Leaf>> FlattenTree(const StateTree& tree);

/// Returns the tree of the leaves for which keep[i] is true (i in FlattenTree order), without the
/// containers that have lost all leaves. A list or tuple that has lost elements becomes a dict by
/// index. Requires a tree that FlattenTree accepts.
StateTree PruneTree(const StateTree& tree, const std::vector<bool>& keep);

/// Data that a front end stores with the tree of a step, under its name; opaque to core.
struct Extension {
  std::string name;
  std::vector<std::byte> data;
};

/// Encodes a tree as a StructureRecord. Requires a tree that FlattenTree accepts.
std::vector<std::byte> EncodeTree(const StateTree& tree,
                                  std::span<const Extension> extensions = {});
/// Decodes the tree of a StructureRecord, whose child counts FlattenTree checks. kDataLoss:
/// `record` is not a StructureRecord. kUnimplemented: a newer version wrote it.
Result<StateTree> DecodeTree(std::span<const std::byte> record);
/// Returns the extension with the given name, or nothing if there is none. kDataLoss: `record` is
/// not a StructureRecord. kUnimplemented: a newer version wrote it.
Result<std::optional<std::vector<std::byte>>> DecodeExtension(std::span<const std::byte> record,
                                                              std::string_view name);

/// A tree with the contents of its leaves. Ownership: borrows the memory of the tensors, which must
/// outlive the use of the StateDict.
///
/// Invariant, which `Leaves` checks: leaf i (in tree order) is tensors[slot[i]] or values[slot[i]],
/// depending on the kind of its node. A Builder maintains it.
class StateDict {
 public:
  /// Appends to one container. Valid as long as the StateDict exists and until another child is
  /// added to a container that encloses this one, because nodes are in preorder.
  class Builder {
   public:
    Builder Map(std::string_view key, NodeKind kind = NodeKind::kDict);
    Builder List(std::string_view key, NodeKind kind = NodeKind::kList);
    void Tensor(std::string_view key, TensorView view, NodeKind kind = NodeKind::kTensor);
    /// Appends the local part of a tensor that is sharded over several ranks.
    void Sharded(std::string_view key, TensorView local, Sharding sharding);
    void Value(std::string_view key, core::Value value);
    /// Gives the next child a key of this kind instead of kString. Lists number their children.
    Builder& WithKeyKind(KeyKind kind);

   private:
    friend class StateDict;
    Builder(StateDict* state, uint32_t node) : state_(state), node_(node) {}
    uint32_t Append(std::string_view key, NodeKind kind);
    StateDict* state_;
    uint32_t node_;
    KeyKind key_kind_ = KeyKind::kString;
  };

  StateDict();
  Builder root() { return Builder(this, 0); }

  /// Returns the leaves in tree order. kInvalidArgument, naming the FQN where there is one: the
  /// invariant does not hold, two leaves have the same FQN, or an FQN contains NUL or is too long.
  /// kDataLoss: the child counts do not add up.
  Result<std::vector<Leaf>> Leaves() const;

  StateTree tree;
  std::vector<TensorView> tensors;
  std::vector<Value> values;
  std::vector<uint32_t> slot;
  /// By index in `tensors`; tensors without an entry are not sharded.
  std::map<uint32_t, Sharding> shardings;
};

/// A state dict whose tensors are written. A TensorView allows only reads. The code that creates a
/// StateTarget guarantees that the memory of every view and part of `state` is writable, and that
/// elements of one tensor do not overlap.
///
/// Ownership: borrows `state`, which outlives it. Threads: as for `state`.
class StateTarget {
 public:
  explicit StateTarget(StateDict& state) : state_(&state) {}

  StateDict& state() const { return *state_; }
  /// Returns `view` as a target. Requires a view or part of `state`, or a view inside one.
  TensorTarget Writable(const TensorView& view) const {
    return {view.dtype, view.shape, view.strides, const_cast<std::byte*>(view.data), view.device};
  }

 private:
  StateDict* state_;
};

namespace internal {

/// Returns the index of each node's parent; 0 for the root. kDataLoss: the child counts do not add
/// up.
Result<std::vector<uint32_t>> ParentsOf(const StateTree& tree);

/// Verifies a StructureRecord and returns it; it borrows `bytes`. Its vectors are present and
/// have the same length, all kinds are known, and all keys together are not longer than `bytes`;
/// child counts are not checked. kDataLoss: `bytes` are not such a record. kUnimplemented: a newer
/// version wrote it. Cost: two walks over the record.
Result<const schema::StructureRecord*> CheckedStructure(std::span<const std::byte> bytes);
/// Returns a node of a verified record.
Node NodeAt(const schema::StructureRecord& record, uint32_t node);

}  // namespace internal
}  // namespace cairn::core
