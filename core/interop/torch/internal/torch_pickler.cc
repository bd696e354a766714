// Writes the tree in preorder. A storage is numbered when it first occurs.

#include "core/interop/torch/internal/torch_pickler.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "core/interop/archive/internal/pickle_writer.h"
#include "core/interop/torch/internal/torch_archive.h"
#include "core/step/internal/owners.h"

namespace cairn::core::internal {
namespace {

// Length of the longest int that torch's weights_only unpickler accepts.
constexpr size_t kMaxIntBytes = 0xff;

std::unexpected<Error> Invalid(std::string message, std::string_view key) {
  return Fail(Error{
      .code = ErrorCode::kInvalidArgument, .message = std::move(message), .key = std::string(key)});
}

// Converts a decimal number of any length to two's complement, little-endian.
std::vector<std::byte> ToTwosComplement(std::string_view decimal) {
  const bool is_negative = decimal.starts_with('-');
  std::vector<std::byte> magnitude = {std::byte{0}};
  for (const char digit : decimal.substr(is_negative ? 1 : 0)) {
    unsigned carry = static_cast<unsigned>(digit - '0');
    for (std::byte& byte : magnitude) {
      carry += static_cast<unsigned>(byte) * 10;
      byte = static_cast<std::byte>(carry & 0xff);
      carry >>= 8;
    }
    if (carry > 0) magnitude.push_back(static_cast<std::byte>(carry));
  }
  magnitude.push_back(std::byte{0});  // the sign
  if (!is_negative) return magnitude;
  unsigned carry = 1;
  for (std::byte& byte : magnitude) {
    carry += static_cast<unsigned>(~byte) & 0xff;
    byte = static_cast<std::byte>(carry & 0xff);
    carry >>= 8;
  }
  return magnitude;
}

}  // namespace

// Writes one pickle.
class TorchPickler::ObjectPickler {
 public:
  ObjectPickler(const TorchPickler& state, TorchCounts& counts, uint32_t node)
      : contents_(state.contents_),
        leaves_(state.leaves_),
        dtype_of_(state.dtype_of_),
        counts_(counts),
        node_(node) {
    leaf_ = static_cast<size_t>(std::ranges::lower_bound(leaves_, node, {}, &Leaf::node) -
                                leaves_.begin());
  }

  Result<TorchPickle> Object() {
    CAIRN_TRY(WriteNode());
    CAIRN_TRY_ASSIGN(std::string pickle, std::move(pickle_).Finish());
    return TorchPickle{std::move(pickle), std::move(storages_)};
  }

  // The storage of the tensor contains nothing but its elements.
  Result<TorchPickle> SeparateTensor() {
    is_separate_ = true;
    return Object();
  }

 private:
  // Writes node `node_` and everything below it, and advances `node_` to the next node.
  Result<void> WriteNode() {
    const Node& node = contents_.tree.nodes[node_++];
    if (!IsContainer(node.kind)) return WriteLeaf(node);
    if (depth_ == kMaxTreeDepth) {
      return Fail(
          ErrorCode::kDataLoss,
          fmt::format("the step's structure is nested deeper than {} levels", kMaxTreeDepth));
    }
    ++depth_;
    CAIRN_TRY(WriteContainer(node));
    --depth_;
    return {};
  }

  Result<void> WriteContainer(const Node& node) {
    switch (node.kind) {
      case NodeKind::kDict:
        pickle_.EmptyDict();
        return WriteItems(node);
      case NodeKind::kOrderedDict:
        pickle_.Global("collections", "OrderedDict");
        pickle_.EmptyTuple();
        pickle_.Call();
        return WriteItems(node);
      case NodeKind::kCounter:
        pickle_.Global("collections", "Counter");
        pickle_.Mark();
        pickle_.EmptyDict();
        CAIRN_TRY(WriteItems(node));
        pickle_.Tuple();
        pickle_.Call();
        return {};
      case NodeKind::kList:
        pickle_.EmptyList();
        pickle_.Mark();
        CAIRN_TRY(WriteChildren(node));
        pickle_.Append();
        return {};
      case NodeKind::kTorchSize:
        pickle_.Global("torch", "Size");
        pickle_.Mark();
        CAIRN_TRY(WriteTuple(node));
        pickle_.Tuple();
        pickle_.Call();
        return {};
      default:
        return WriteTuple(node);
    }
  }

  Result<void> WriteTuple(const Node& node) {
    pickle_.Mark();
    CAIRN_TRY(WriteChildren(node));
    pickle_.Tuple();
    return {};
  }
  Result<void> WriteChildren(const Node& node) {
    for (uint32_t i = 0; i < node.child_count; ++i) CAIRN_TRY(WriteNode());
    return {};
  }
  Result<void> WriteItems(const Node& node) {
    pickle_.Mark();
    for (uint32_t i = 0; i < node.child_count; ++i) {
      CAIRN_TRY(WriteKey(contents_.tree.nodes[node_]));
      CAIRN_TRY(WriteNode());
    }
    pickle_.SetItems();
    return {};
  }

  Result<void> WriteKey(const Node& node) {
    switch (node.key_kind) {
      case KeyKind::kInt:
      case KeyKind::kIndex:
        return WriteIntKey(node.key);
      case KeyKind::kBool:
        pickle_.Bool(node.key == "True");
        return {};
      case KeyKind::kNone:
        pickle_.None();
        return {};
      case KeyKind::kFloat: {
        double value = 0;
        const char* const last = node.key.data() + node.key.size();
        const auto [end, error] = std::from_chars(node.key.data(), last, value);
        if (error != std::errc() || end != last) {
          return Invalid("a float key that is not a float", node.key);
        }
        pickle_.Float(value);
        return {};
      }
      default:
        pickle_.Text(node.key);
        return {};
    }
  }
  Result<void> WriteIntKey(const std::string& text) {
    int64_t value = 0;
    const char* const last = text.data() + text.size();
    const auto [end, error] = std::from_chars(text.data(), last, value);
    if (error == std::errc() && end == last) {
      pickle_.Int(value);
      return {};
    }
    const bool is_number =
        text.find_first_not_of("0123456789", text.starts_with('-') ? 1 : 0) == std::string::npos;
    if (!is_number || text.size() > 2 * kMaxIntBytes || !pickle_.Long(ToTwosComplement(text))) {
      return Invalid("an int key that torch.load(weights_only=True) does not accept", text);
    }
    return {};
  }

  Result<void> WriteLeaf(const Node& node) {
    const std::string& fqn = leaves_[leaf_++].fqn;
    if (!IsTensor(node.kind)) return WriteValue(fqn);
    if (node.kind != NodeKind::kTensor) ++counts_.arrays;
    ++counts_.tensors;
    const TensorInfo* const tensor = FindTensor(fqn);
    if (tensor == nullptr) {
      return Fail(Error{
          .code = ErrorCode::kDataLoss, .message = "the step has no such tensor", .key = fqn});
    }
    return WriteTensor(*tensor);
  }

  // Also finds hidden tensors.
  const TensorInfo* FindTensor(std::string_view fqn) const {
    return FindByName(contents_.tensors, fqn);
  }

  // ---- tensors

  // Where the elements of a tensor are.
  struct StorageView {
    size_t storage = 0;
    DType storage_dtype = DType::kUnknown;  // unknown for an untyped storage
    uint64_t storage_bytes = 0;
    uint64_t offset_elements = 0;
    std::vector<uint64_t> strides;
  };

  Result<void> WriteTensor(const TensorInfo& tensor) {
    CAIRN_TRY_ASSIGN(const StorageView view, StorageViewOf(tensor));
    const bool is_typed = view.storage_dtype != DType::kUnknown;
    pickle_.Global("torch._utils", is_typed ? "_rebuild_tensor_v2" : "_rebuild_tensor_v3");
    pickle_.Mark();
    WriteStorage(view);
    pickle_.Int(static_cast<int64_t>(view.offset_elements));
    WriteExtents(tensor.shape);
    WriteExtents(view.strides);
    pickle_.Bool(false);  // requires_grad
    pickle_.Global("collections", "OrderedDict");
    pickle_.EmptyTuple();
    pickle_.Call();
    if (!is_typed) pickle_.Global("torch", schema::DTypeName(tensor.dtype));
    pickle_.Tuple();
    pickle_.Call();
    return {};
  }

  void WriteStorage(const StorageView& view) {
    const bool is_typed = view.storage_dtype != DType::kUnknown;
    pickle_.Mark();
    pickle_.Text("storage");
    if (is_typed) {
      pickle_.Global("torch", *TorchStorageName(view.storage_dtype));
    } else {
      pickle_.Global("torch.storage", "UntypedStorage");
    }
    pickle_.Text(fmt::format("{}", view.storage));
    pickle_.Text("cpu");
    const uint64_t element_bytes = is_typed ? schema::ElementBytes(view.storage_dtype) : 1;
    pickle_.Int(static_cast<int64_t>(view.storage_bytes / element_bytes));
    pickle_.Tuple();
    pickle_.Persistent();
  }

  void WriteExtents(std::span<const uint64_t> extents) {
    pickle_.Mark();
    for (const uint64_t extent : extents) pickle_.Int(static_cast<int64_t>(extent));
    pickle_.Tuple();
  }

  Result<StorageView> StorageViewOf(const TensorInfo& tensor) {
    const uint64_t element_bytes = schema::ElementBytes(tensor.dtype);
    if (element_bytes == 0) return Invalid("this version does not know the dtype", tensor.fqn);
    // torch counts the offset of a view in elements of its dtype. A view whose offset is not a
    // multiple of that gets its own storage.
    const TensorInfo* owner = &tensor;
    if (!is_separate_ && tensor.alias_of && tensor.alias_offset_bytes % element_bytes == 0) {
      owner = FindTensor(*tensor.alias_of);
      if (owner == nullptr) {
        return Fail(Error{.code = ErrorCode::kDataLoss,
                          .message = "the tensor that holds its bytes is missing",
                          .key = tensor.fqn});
      }
      CAIRN_TRY(CheckAlias(tensor, *owner));
    }
    const bool is_alias = owner != &tensor;
    StorageView view{.storage = StorageOf(*owner),
                     .storage_bytes = owner->nbytes,
                     .offset_elements = is_alias ? tensor.alias_offset_bytes / element_bytes : 0,
                     .strides = is_alias ? tensor.alias_strides : RowMajorStrides(tensor.shape)};
    const bool has_own = is_separate_ || (tensor.alias_of && !is_alias);
    const DType dtype = has_own ? tensor.dtype : dtype_of_.find(owner->fqn)->second;
    if (TorchStorageName(dtype) && owner->nbytes % element_bytes == 0) view.storage_dtype = dtype;
    return view;
  }

  size_t StorageOf(const TensorInfo& owner) {
    const auto [found, inserted] = storage_of_.emplace(owner.fqn, storages_.size());
    if (inserted) {
      storages_.push_back(owner);
      counts_.bytes += owner.nbytes;
    }
    return found->second;
  }

  // ---- plain values

  Result<void> WriteValue(const std::string& fqn) {
    const auto found = std::ranges::lower_bound(contents_.values, fqn, {}, &ValueInfo::fqn);
    if (found == contents_.values.end() || found->fqn != fqn) {
      return Fail(
          Error{.code = ErrorCode::kDataLoss, .message = "the step has no such value", .key = fqn});
    }
    ++counts_.values;
    return std::visit([&](const auto& value) { return Write(value, fqn); }, found->value);
  }

  Result<void> Write(std::monostate, const std::string&) { return pickle_.None(), Result<void>(); }
  Result<void> Write(bool value, const std::string&) { return pickle_.Bool(value), Result<void>(); }
  Result<void> Write(int64_t value, const std::string&) {
    return pickle_.Int(value), Result<void>();
  }
  Result<void> Write(double value, const std::string&) {
    return pickle_.Float(value), Result<void>();
  }
  Result<void> Write(const std::complex<double>& value, const std::string&) {
    return pickle_.Complex(value.real(), value.imag()), Result<void>();
  }
  Result<void> Write(const std::string& value, const std::string&) {
    return pickle_.Text(value), Result<void>();
  }
  Result<void> Write(const Bytes& value, const std::string&) {
    return pickle_.Bytes(value.data), Result<void>();
  }
  Result<void> Write(const BigInt& value, const std::string& fqn) {
    if (pickle_.Long(value.twos_complement)) return {};
    return Invalid(fmt::format("torch.load(weights_only=True) accepts ints of up to {} bytes; this "
                               "one has {}. Leave the key out with a pattern",
                               kMaxIntBytes, value.twos_complement.size()),
                   fqn);
  }
  Result<void> Write(const Pickle&, const std::string& fqn) {
    return Invalid(
        "a pickled object, which torch.load(weights_only=True) does not accept; leave the "
        "key out with a pattern",
        fqn);
  }

  const Contents& contents_;
  const std::vector<Leaf>& leaves_;
  const std::map<std::string, DType>& dtype_of_;
  TorchCounts& counts_;
  bool is_separate_ = false;
  size_t node_ = 0;
  uint32_t depth_ = 0;  // number of containers around the node
  size_t leaf_ = 0;
  PickleWriter pickle_;
  std::map<std::string, size_t> storage_of_;  // by FQN of the owner
  std::vector<TensorInfo> storages_;
};

Result<TorchPickler> TorchPickler::Make(const Contents& contents) {
  TorchPickler pickler(contents);
  CAIRN_TRY_ASSIGN(pickler.leaves_, FlattenTree(contents.tree));
  pickler.FindMixedOwners();
  return pickler;
}

void TorchPickler::FindMixedOwners() {
  for (const TensorInfo& tensor : contents_.tensors) {
    const std::string& owner = tensor.alias_of ? *tensor.alias_of : tensor.fqn;
    if (tensor.hidden) continue;
    const auto [found, inserted] = dtype_of_.emplace(owner, tensor.dtype);
    if (!inserted && found->second != tensor.dtype) found->second = DType::kUnknown;
  }
}

Result<TorchPickle> TorchPickler::PickleNode(uint32_t node) {
  CAIRN_CHECK(node < contents_.tree.nodes.size());
  return ObjectPickler(*this, counts_, node).Object();
}

Result<TorchPickle> TorchPickler::PickleTensor(uint32_t node) {
  CAIRN_CHECK(node < contents_.tree.nodes.size() && IsTensor(contents_.tree.nodes[node].kind));
  return ObjectPickler(*this, counts_, node).SeparateTensor();
}

}  // namespace cairn::core::internal
