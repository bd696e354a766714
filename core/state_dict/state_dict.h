#pragma once
/// State dicts: nested maps and lists of tensors and plain values, as a tree in preorder.
///
/// The FQN of a leaf is the texts of its keys joined by ".". The tree keeps what the FQN does not
/// say: container types, key types (the int key 0 and the string key "0" differ), order, empty
/// containers.
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

#include "core/sharding/sharding.h"
#include "core/tensor/tensor.h"
#include "core/state_dict/value.h"

namespace cairn::core {

// As schema::NodeKind and schema::KeyKind (static_asserted in the .cc).
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

constexpr bool IsContainer(NodeKind kind) { return kind <= NodeKind::kTorchSize; }
/// Containers whose children have keys of their own, not positions.
constexpr bool IsMapping(NodeKind kind) { return kind <= NodeKind::kCounter; }
constexpr bool IsTensor(NodeKind kind) {
  return kind == NodeKind::kTensor || kind == NodeKind::kNumpyArray ||
         kind == NodeKind::kNumpyScalar;
}

struct Node {
  NodeKind kind = NodeKind::kDict;
  KeyKind key_kind = KeyKind::kRoot;
  std::string key;           // text of the last path element
  uint32_t child_count = 0;  // direct children; 0 for leaves
  friend bool operator==(const Node&, const Node&) = default;
};

/// Nodes in preorder; node 0 is the root. A bare leaf as root is allowed (FQN "").
struct StateTree {
  std::vector<Node> nodes;
  friend bool operator==(const StateTree&, const StateTree&) = default;
};

/// A leaf of a tree: its node and FQN.
struct Leaf {
  uint32_t node = 0;
  std::string fqn;
};
/// Leaves in tree order. kInvalidArgument: two leaves with one FQN, or an FQN that holds NUL; the
/// message names it. kDataLoss: child counts do not add up.
Result<std::vector<Leaf>> FlattenTree(const StateTree& tree);

/// The tree of only the leaves for which keep[i] holds (i in FlattenTree order), without containers
/// that lost all they held. A list or tuple that lost some elements becomes a dict by index.
StateTree PruneTree(const StateTree& tree, const std::vector<bool>& keep);

/// What a front end keeps beside a step's tree, under its own name; only it knows what is in it.
struct Extension {
  std::string name;
  std::vector<std::byte> data;
};

/// A StructureRecord and back. kDataLoss / kUnimplemented as for every record.
std::vector<std::byte> EncodeTree(const StateTree& tree, std::span<const Extension> extensions = {});
Result<StateTree> DecodeTree(std::span<const std::byte> record);
/// The extension of that name, or nothing.
Result<std::optional<std::vector<std::byte>>> DecodeExtension(std::span<const std::byte> record,
                                                          std::string_view name);

/// A tree with its leaves' contents; tensors are borrowed and must outlive the StateDict's use.
/// Leaf i (in tree order) is in tensors or values according to its node's kind; `slot[i]` is the
/// index.
class StateDict {
 public:
  /// Appends into one container. Valid while the StateDict is alive and until a sibling container
  /// of an enclosing level is begun (preorder).
  class Builder {
   public:
    Builder Map(std::string_view key, NodeKind kind = NodeKind::kDict);
    Builder List(std::string_view key, NodeKind kind = NodeKind::kList);
    void Tensor(std::string_view key, TensorView view, NodeKind kind = NodeKind::kTensor);
    /// A part of a global tensor, of which other ranks hold other parts.
    void Sharded(std::string_view key, TensorView local, Sharding sharding);
    void Value(std::string_view key, core::Value value);
    /// The next child gets a key of this kind instead of kString (lists number their children).
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

  StateTree tree;
  std::vector<TensorView> tensors;
  std::vector<Value> values;
  std::vector<uint32_t> slot;
  /// By index in `tensors`; a tensor that is not here is whole.
  std::map<uint32_t, Sharding> shardings;
};

}  // namespace cairn::core
