#include "core/state_dict/state_dict.h"

#include <fmt/format.h>

#include <algorithm>

#include "cairn_schema/structure_generated.h"
#include "kv/base/record_check.h"

namespace cairn::core {
namespace {

// Frozen on disk: both enums must have the same values.
static_assert(static_cast<int>(NodeKind::kDict) == static_cast<int>(schema::NodeKind::Dict));
static_assert(static_cast<int>(NodeKind::kCounter) == static_cast<int>(schema::NodeKind::Counter));
static_assert(static_cast<int>(NodeKind::kTorchSize) ==
              static_cast<int>(schema::NodeKind::TorchSize));
static_assert(static_cast<int>(NodeKind::kTensor) == static_cast<int>(schema::NodeKind::Tensor));
static_assert(static_cast<int>(NodeKind::kNumpyScalar) ==
              static_cast<int>(schema::NodeKind::NumpyScalar));
static_assert(static_cast<int>(NodeKind::kValue) == static_cast<int>(schema::NodeKind::Value));
static_assert(static_cast<int>(NodeKind::kValue) == static_cast<int>(schema::NodeKind::MAX));
static_assert(static_cast<int>(KeyKind::kRoot) == static_cast<int>(schema::KeyKind::Root));
static_assert(static_cast<int>(KeyKind::kFloat) == static_cast<int>(schema::KeyKind::MAX));
static_assert(static_cast<int>(KeyForm::kVerbatim) == static_cast<int>(schema::KeyForm::Verbatim));
static_assert(static_cast<int>(KeyForm::kVerbatim) == static_cast<int>(schema::KeyForm::MAX));

// "I" for an int key, for example; 0 for strings, which have no mark.
char MarkOf(KeyKind kind) {
  switch (kind) {
    case KeyKind::kIndex:
    case KeyKind::kInt:
      return 'I';
    case KeyKind::kBool:
      return 'B';
    case KeyKind::kNone:
      return 'N';
    case KeyKind::kFloat:
      return 'F';
    case KeyKind::kRoot:
    case KeyKind::kString:
      break;
  }
  return 0;
}

}  // namespace

Result<std::vector<uint32_t>> internal::ParentsOf(const StateTree& tree) {
  struct Open {
    uint32_t node;
    uint32_t left;  // children that have not been visited
  };
  if (tree.nodes.empty()) return Fail(ErrorCode::kDataLoss, "a state dict's structure has no root");
  std::vector<uint32_t> parents(tree.nodes.size());
  std::vector<Open> path;
  for (uint32_t i = 0; i < tree.nodes.size(); ++i) {
    while (!path.empty() && path.back().left == 0) path.pop_back();
    if (path.empty() != (i == 0)) {
      return Fail(ErrorCode::kDataLoss, "a state dict's structure has nodes outside its root");
    }
    if (i > 0) {
      --path.back().left;
      parents[i] = path.back().node;
    }
    const Node& node = tree.nodes[i];
    if (!IsContainer(node.kind) && node.child_count != 0) {
      return Fail(ErrorCode::kDataLoss, "a leaf of a state dict's structure has children");
    }
    if (node.child_count > 0) path.push_back({i, node.child_count});
  }
  for (const Open& open : path) {
    if (open.left != 0)
      return Fail(ErrorCode::kDataLoss, "a state dict's structure ends too early");
  }
  return parents;
}

void AppendName(const Node& node, std::string& fqn) {
  const bool is_escaped = node.form == KeyForm::kEscaped;
  if (node.form == KeyForm::kVerbatim || (!is_escaped && !node.key.contains('\\'))) {
    fqn += node.key;
    return;
  }
  if (const char mark = MarkOf(node.key_kind); is_escaped && mark != 0) fqn.append({'\\', mark});
  for (const char c : node.key) {
    if (c == '\\' || (c == '.' && is_escaped)) fqn += '\\';
    fqn += c;
  }
}

std::string NameOf(const Node& node) {
  std::string name;
  AppendName(node, name);
  return name;
}

const char* KindName(NodeKind kind) {
  switch (kind) {
    case NodeKind::kDict:
      return "a dict";
    case NodeKind::kOrderedDict:
      return "an OrderedDict";
    case NodeKind::kCounter:
      return "a Counter";
    case NodeKind::kList:
      return "a list";
    case NodeKind::kTuple:
      return "a tuple";
    case NodeKind::kTorchSize:
      return "a torch.Size";
    case NodeKind::kTensor:
      return "a tensor";
    case NodeKind::kNumpyArray:
      return "a numpy array";
    case NodeKind::kNumpyScalar:
      return "a numpy scalar";
    case NodeKind::kValue:
      return "a plain value";
  }
  return "unknown";
}

StateTree PruneTree(const StateTree& tree, const std::vector<bool>& keep) {
  const auto parents = internal::ParentsOf(tree);
  CAIRN_CHECK(parents.has_value());  // FlattenTree accepted the tree: `keep` comes from it
  const std::vector<uint32_t>& parent = *parents;
  std::vector<uint32_t> leaves(tree.nodes.size());  // below each node, or 1 for a leaf
  std::vector<uint32_t> kept(tree.nodes.size());    // the kept part of `leaves`
  size_t leaf = 0;
  for (size_t i = 0; i < tree.nodes.size(); ++i) {
    if (IsContainer(tree.nodes[i].kind)) continue;
    leaves[i] = 1;
    kept[i] = leaf < keep.size() && keep[leaf] ? 1 : 0;
    ++leaf;
  }
  for (size_t i = tree.nodes.size(); i-- > 1;) {
    leaves[parent[i]] += leaves[i];
    kept[parent[i]] += kept[i];
  }
  if (kept[0] == leaves[0]) return tree;
  if (!IsContainer(tree.nodes[0].kind)) return StateTree{.nodes = {Node{}}};
  // A container without leaves is kept if the nearest enclosing one that has leaves keeps them all.
  std::vector<bool> stays(tree.nodes.size());
  stays[0] = true;
  for (uint32_t i = 1; i < tree.nodes.size(); ++i) {
    uint32_t holder = i;
    while (leaves[holder] == 0) holder = parent[holder];
    stays[i] = leaves[i] > 0 ? kept[i] > 0 : kept[holder] == leaves[holder];
  }
  StateTree pruned;
  std::vector<uint32_t> moved(tree.nodes.size());
  for (uint32_t i = 0; i < tree.nodes.size(); ++i) {
    if (!stays[i]) continue;
    moved[i] = static_cast<uint32_t>(pruned.nodes.size());
    pruned.nodes.push_back(tree.nodes[i]);
    pruned.nodes.back().child_count = 0;
    if (i > 0) ++pruned.nodes[moved[parent[i]]].child_count;
  }
  for (uint32_t i = 0; i < tree.nodes.size(); ++i) {
    if (!stays[i]) continue;
    const Node& before = tree.nodes[i];
    Node& after = pruned.nodes[moved[i]];
    const bool sequence = IsContainer(before.kind) && !IsMapping(before.kind);
    if (sequence && after.child_count != before.child_count) after.kind = NodeKind::kDict;
    if (i > 0 && before.key_kind == KeyKind::kIndex &&
        pruned.nodes[moved[parent[i]]].kind == NodeKind::kDict) {
      after.key_kind = KeyKind::kInt;
    }
  }
  return pruned;
}

Result<const schema::StructureRecord*> internal::CheckedStructure(
    std::span<const std::byte> bytes) {
  CAIRN_TRY_ASSIGN(const schema::StructureRecord* record,
                   kv::CheckedRecord<schema::StructureRecord>(
                       bytes, schema::StructureRecordIdentifier(), "StructureRecord"));
  const auto* kinds = record->kinds();
  const auto* key_kinds = record->key_kinds();
  const auto* keys = record->keys();
  const auto* counts = record->child_counts();
  if (kinds == nullptr || key_kinds == nullptr || keys == nullptr || counts == nullptr ||
      kinds->size() != key_kinds->size() || kinds->size() != keys->size() ||
      kinds->size() != counts->size()) {
    return Fail(ErrorCode::kDataLoss, "StructureRecord is damaged: its vectors differ in length");
  }
  const auto* forms = record->forms();
  if (forms != nullptr && forms->size() != kinds->size()) {
    return Fail(ErrorCode::kDataLoss, "StructureRecord is damaged: its vectors differ in length");
  }
  uint64_t key_bytes = 0;
  for (uint32_t i = 0; i < kinds->size(); ++i) {
    if (kinds->Get(i) > schema::NodeKind::MAX || key_kinds->Get(i) > schema::KeyKind::MAX ||
        (forms != nullptr && forms->Get(i) > schema::KeyForm::MAX)) {
      return Fail(ErrorCode::kUnimplemented,
                  "a state dict contains a kind of node or key that is unknown to this version; "
                  "upgrade to read it");
    }
    if (i > 0 && key_kinds->Get(i) == schema::KeyKind::Root) {
      return Fail(ErrorCode::kDataLoss,
                  "StructureRecord is damaged: a key has the kind of the root");
    }
    // Nodes of a hostile record may refer to the same key, which would be copied for each.
    key_bytes += keys->Get(i)->size();
    if (key_bytes > bytes.size()) {
      return Fail(ErrorCode::kDataLoss, "StructureRecord is damaged: its keys are longer than it");
    }
  }
  return record;
}

Node internal::NodeAt(const schema::StructureRecord& record, uint32_t node) {
  const auto* const forms = record.forms();
  return {.kind = static_cast<NodeKind>(record.kinds()->Get(node)),
          .key_kind = static_cast<KeyKind>(record.key_kinds()->Get(node)),
          .key = record.keys()->Get(node)->str(),
          .child_count = record.child_counts()->Get(node),
          .form = forms == nullptr ? KeyForm::kPlain : static_cast<KeyForm>(forms->Get(node))};
}

std::vector<std::byte> EncodeTree(const StateTree& tree, std::span<const Extension> extensions) {
  flatbuffers::FlatBufferBuilder builder(tree.nodes.size() * 32 + 256);
  std::vector<uint8_t> kinds, key_kinds, forms;
  std::vector<flatbuffers::Offset<flatbuffers::String>> keys;
  std::vector<uint32_t> child_counts;
  keys.reserve(tree.nodes.size());
  child_counts.reserve(tree.nodes.size());
  for (const Node& node : tree.nodes) {
    kinds.push_back(static_cast<uint8_t>(node.kind));
    key_kinds.push_back(static_cast<uint8_t>(node.key_kind));
    forms.push_back(static_cast<uint8_t>(node.form));
    keys.push_back(builder.CreateString(node.key));
    child_counts.push_back(node.child_count);
  }
  const auto kinds_at =
      builder.CreateVectorScalarCast<schema::NodeKind>(kinds.data(), kinds.size());
  const auto key_kinds_at =
      builder.CreateVectorScalarCast<schema::KeyKind>(key_kinds.data(), key_kinds.size());
  const auto keys_at = builder.CreateVector(keys);
  const auto counts_at = builder.CreateVector(child_counts);
  flatbuffers::Offset<flatbuffers::Vector<schema::KeyForm>> forms_at;
  if (std::ranges::any_of(forms, [](uint8_t form) { return form != 0; })) {
    forms_at = builder.CreateVectorScalarCast<schema::KeyForm>(forms.data(), forms.size());
  }
  flatbuffers::Offset<flatbuffers::Vector<flatbuffers::Offset<schema::Extension>>> extensions_at;
  if (!extensions.empty()) {
    std::vector<flatbuffers::Offset<schema::Extension>> offsets;
    for (const Extension& extension : extensions) {
      const auto name = builder.CreateString(extension.name);
      const auto data = builder.CreateVector(
          reinterpret_cast<const uint8_t*>(extension.data.data()), extension.data.size());
      offsets.push_back(schema::CreateExtension(builder, name, data));
    }
    extensions_at = builder.CreateVector(offsets);
  }
  builder.Finish(
      schema::CreateStructureRecord(builder, schema::kRecordVersion, kinds_at, key_kinds_at,
                                    keys_at, counts_at, extensions_at, forms_at),
      schema::StructureRecordIdentifier());
  const auto* data = reinterpret_cast<const std::byte*>(builder.GetBufferPointer());
  std::vector<std::byte> bytes(data, data + builder.GetSize());
  CAIRN_DCHECK(DecodeTree(bytes) == tree);
  return bytes;
}

Result<std::optional<std::vector<std::byte>>> DecodeExtension(std::span<const std::byte> bytes,
                                                              std::string_view name) {
  CAIRN_TRY_ASSIGN(const schema::StructureRecord* record,
                   kv::CheckedRecord<schema::StructureRecord>(
                       bytes, schema::StructureRecordIdentifier(), "StructureRecord"));
  if (record->extensions() == nullptr) return std::nullopt;
  for (const schema::Extension* extension : *record->extensions()) {
    if (extension->name() == nullptr || extension->name()->string_view() != name) continue;
    if (extension->data() == nullptr) return std::vector<std::byte>();
    const auto data =
        std::as_bytes(std::span(extension->data()->data(), extension->data()->size()));
    return std::vector<std::byte>(data.begin(), data.end());
  }
  return std::nullopt;
}

Result<StateTree> DecodeTree(std::span<const std::byte> bytes) {
  CAIRN_TRY_ASSIGN(const schema::StructureRecord* record, internal::CheckedStructure(bytes));
  const uint32_t count = record->kinds()->size();
  StateTree tree;
  tree.nodes.reserve(count);
  for (uint32_t i = 0; i < count; ++i) {
    tree.nodes.push_back(internal::NodeAt(*record, i));
  }
  return tree;
}

StateDict::StateDict() { tree.nodes.push_back(Node{}); }

StateDict::Builder& StateDict::Builder::WithKeyKind(KeyKind kind) {
  key_kind_ = kind;
  return *this;
}

uint32_t StateDict::Builder::Append(std::string_view key, NodeKind kind) {
  Node& parent = state_->tree.nodes[node_];
  CAIRN_CHECK(IsContainer(parent.kind));
  const bool dict = IsMapping(parent.kind);
  Node node{.kind = kind,
            .key_kind = dict ? key_kind_ : KeyKind::kIndex,
            .key = dict ? std::string(key) : fmt::format("{}", parent.child_count)};
  key_kind_ = KeyKind::kString;
  ++parent.child_count;
  state_->tree.nodes.push_back(std::move(node));
  return static_cast<uint32_t>(state_->tree.nodes.size() - 1);
}

StateDict::Builder StateDict::Builder::Map(std::string_view key, NodeKind kind) {
  return Builder(state_, Append(key, kind));
}

StateDict::Builder StateDict::Builder::List(std::string_view key, NodeKind kind) {
  return Builder(state_, Append(key, kind));
}

void StateDict::Builder::Tensor(std::string_view key, TensorView view, NodeKind kind) {
  Append(key, kind);
  state_->slot.push_back(static_cast<uint32_t>(state_->tensors.size()));
  state_->tensors.push_back(std::move(view));
}

void StateDict::Builder::Sharded(std::string_view key, TensorView local, Sharding sharding) {
  state_->shardings.emplace(static_cast<uint32_t>(state_->tensors.size()), std::move(sharding));
  Tensor(key, std::move(local));
}

void StateDict::Builder::Value(std::string_view key, core::Value value) {
  Append(key, NodeKind::kValue);
  state_->slot.push_back(static_cast<uint32_t>(state_->values.size()));
  state_->values.push_back(std::move(value));
}

}  // namespace cairn::core
