#include "core/interop/torch/internal/state_assembler.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <complex>
#include <utility>

namespace cairn::core::internal {
namespace {

constexpr size_t kMaxDepth = 1000;  // the limit of the Python package
// The budget: a constant part, and a part per byte of the pickles.
constexpr uint64_t kBaseNodes = 1 << 20;
constexpr uint64_t kBaseTextBytes = 256 << 20;
constexpr uint64_t kTextBytesPerByte = 64;

std::string FloatKey(double value) {
  if (std::isnan(value)) return "nan";
  std::string text = fmt::format("{}", value);
  // Python writes integral floats like this; keys are compared as text.
  if (text.find_first_not_of("-0123456789") == std::string::npos) text += ".0";
  return text;
}

// Returns the decimal digits of a two's complement number, or nothing if the number is longer than
// any reasonable key.
std::optional<std::string> Decimal(std::span<const std::byte> twos_complement) {
  constexpr size_t kMaxKeyBytes = 512;
  if (twos_complement.empty() || twos_complement.size() > kMaxKeyBytes) return std::nullopt;
  std::vector<uint8_t> magnitude;
  for (const std::byte byte : twos_complement) magnitude.push_back(static_cast<uint8_t>(byte));
  const bool is_negative = (magnitude.back() & 0x80) != 0;
  if (is_negative) {
    unsigned carry = 1;
    for (uint8_t& byte : magnitude) {
      carry += static_cast<uint8_t>(~byte);
      byte = static_cast<uint8_t>(carry);
      carry >>= 8;
    }
  }
  std::string digits;
  while (!magnitude.empty()) {
    unsigned remainder = 0;
    for (size_t i = magnitude.size(); i-- > 0;) {
      remainder = remainder << 8 | magnitude[i];
      magnitude[i] = static_cast<uint8_t>(remainder / 10);
      remainder %= 10;
    }
    digits.push_back(static_cast<char>('0' + remainder));
    while (!magnitude.empty() && magnitude.back() == 0) magnitude.pop_back();
  }
  if (is_negative) digits.push_back('-');
  return std::string(digits.rbegin(), digits.rend());
}

Bytes CopyBytes(std::span<const std::byte> bytes) { return {{bytes.begin(), bytes.end()}}; }

// Decodes bytes as Python writes them in protocol 2: _codecs.encode(text, "latin1").
std::optional<Bytes> DecodeLatin1(std::string_view text) {
  Bytes bytes;
  for (size_t i = 0; i < text.size(); ++i) {
    auto code = static_cast<uint8_t>(text[i]);
    if (code >= 0xc4) return std::nullopt;  // above U+00FF
    if (code >= 0x80) {
      code = static_cast<uint8_t>((code & 3) << 6 | (static_cast<uint8_t>(text[++i]) & 0x3f));
    }
    bytes.data.push_back(static_cast<std::byte>(code));
  }
  return bytes;
}

struct Call {
  std::string_view name;
  std::span<const PickleRef> arguments;
  const PickleTree::Object* object = nullptr;
};

// Returns nothing if the callee is not a class or function, or if the arguments are not a tuple.
std::optional<Call> CallOf(const PickleTree& pickle, PickleRef ref) {
  const PickleTree::Object& object = pickle.object(ref);
  if (pickle.kind(object.callee) != PickleKind::kGlobal ||
      pickle.kind(object.arguments) != PickleKind::kTuple) {
    return std::nullopt;
  }
  return Call{pickle.global(object.callee), pickle.children(object.arguments), &object};
}

bool IsKind(const PickleTree& pickle, std::span<const PickleRef> values, size_t i,
            PickleKind kind) {
  return i < values.size() && pickle.kind(values[i]) == kind;
}

// Returns the value of a call for bytes or complex, which protocol 2 writes as calls.
std::optional<Value> ValueOf(const PickleTree& pickle, const Call& call) {
  if (call.object->has_state || !call.object->elements.empty() || !call.object->items.empty()) {
    return std::nullopt;
  }
  if (call.name == "builtins.complex" && call.arguments.size() == 2 &&
      IsKind(pickle, call.arguments, 0, PickleKind::kFloat) &&
      IsKind(pickle, call.arguments, 1, PickleKind::kFloat)) {
    return std::complex<double>(pickle.real(call.arguments[0]), pickle.real(call.arguments[1]));
  }
  if (call.name == "_codecs.encode" && call.arguments.size() == 2 &&
      IsKind(pickle, call.arguments, 0, PickleKind::kText) &&
      IsKind(pickle, call.arguments, 1, PickleKind::kText) &&
      pickle.text(call.arguments[1]) == "latin1") {
    if (auto bytes = DecodeLatin1(pickle.text(call.arguments[0]))) return *std::move(bytes);
  }
  // An empty bytes object in protocol 2.
  if (call.name == "builtins.bytes" && call.arguments.empty()) return Bytes{};
  return std::nullopt;
}

Error Unknown(std::string_view what) {
  return Error{.code = ErrorCode::kUnimplemented,
               .message = fmt::format("{} cannot be kept in a store", what)};
}

// The error for a call that is not supported.
Error UnknownCall(const PickleTree& pickle, PickleRef ref) {
  const PickleRef callee = pickle.object(ref).callee;
  if (pickle.kind(callee) != PickleKind::kGlobal)
    return Unknown("an object of a class without a name");
  return Unknown(fmt::format("an object of '{}'", pickle.global(callee)));
}

Error UnknownPlain(const PickleTree& pickle, PickleRef ref) {
  switch (pickle.kind(ref)) {
    case PickleKind::kGlobal:
      return Unknown(fmt::format("'{}'", pickle.global(ref)));
    case PickleKind::kSet:
      return Unknown("a set");
    case PickleKind::kPersistent:
      return Unknown("a bare storage");
    default:
      return Unknown("a value of this kind");
  }
}

}  // namespace

StateAssembler::StateAssembler(bool skip_unknown)
    : skip_unknown_(skip_unknown), nodes_left_(kBaseNodes), text_bytes_left_(kBaseTextBytes) {
  open_.push_back(state_.root());
}

void StateAssembler::RaiseBudget(uint64_t pickle_bytes) {
  nodes_left_ += pickle_bytes;
  text_bytes_left_ += kTextBytesPerByte * pickle_bytes;
}

std::string StateAssembler::PathOf(const ChildKey& key) const {
  if (open_.size() == 1) return "";
  std::string path;
  for (const std::string& element : path_) path.append(element).push_back('.');
  return path + key.text;
}

Result<void> StateAssembler::Spend(const ChildKey& key, uint64_t text_bytes) {
  const uint64_t bytes = text_bytes + path_bytes_ + key.text.size();
  if (nodes_left_ == 0 || bytes > text_bytes_left_) {
    return Fail(Error{.code = ErrorCode::kResourceExhausted,
                      .message = "the pickle repeats its values so often that the state exceeds "
                                 "the limits",
                      .key = PathOf(key)});
  }
  --nodes_left_;
  text_bytes_left_ -= bytes;
  return {};
}

Result<void> StateAssembler::Begin(const ChildKey& key, NodeKind kind) {
  if (open_.size() > kMaxDepth) {
    return Fail(Error{.code = ErrorCode::kDataLoss,
                      .message = fmt::format("values are nested deeper than {} levels; does one "
                                             "contain itself?",
                                             kMaxDepth),
                      .key = PathOf(key).substr(0, 200)});
  }
  CAIRN_TRY(Spend(key, 0));
  if (open_.size() > 1) {
    path_.push_back(key.text);
    path_bytes_ += key.text.size() + 1;
  }
  open_.push_back(open_.back().WithKeyKind(key.kind).Map(key.text, kind));
  return {};
}

void StateAssembler::End() {
  CAIRN_CHECK(open_.size() > 1);
  open_.pop_back();
  if (path_.empty()) return;
  path_bytes_ -= path_.back().size() + 1;
  path_.pop_back();
}

Result<void> StateAssembler::AddTensor(const ChildKey& key, TensorView view) {
  CAIRN_TRY(Spend(key, 0));
  open_.back().WithKeyKind(key.kind).Tensor(key.text, std::move(view));
  RecordLeaf(true);
  return {};
}

Result<void> StateAssembler::AddSharded(const ChildKey& key, DType dtype, Sharding sharding) {
  CAIRN_TRY(Spend(key, 0));
  const TensorView local{.dtype = dtype, .shape = {}, .strides = {}};
  open_.back().WithKeyKind(key.kind).Sharded(key.text, local, std::move(sharding));
  RecordLeaf(true);
  return {};
}

Result<void> StateAssembler::AddValue(const ChildKey& key, Value value) {
  open_.back().WithKeyKind(key.kind).Value(key.text, std::move(value));
  RecordLeaf(true);
  return {};
}

Result<void> StateAssembler::AddUnknown(const ChildKey& key, Error error) {
  if (error.code != ErrorCode::kUnimplemented || !skip_unknown_) {
    return Fail(std::move(error).WithKey(PathOf(key)));
  }
  CAIRN_TRY(Spend(key, error.message.size()));
  left_out_.push_back({PathOf(key), std::move(error.message)});
  // A placeholder, which is removed when the tree is pruned: later elements of a list keep their
  // index.
  open_.back().WithKeyKind(key.kind).Value(key.text, std::monostate());
  RecordLeaf(false);
  return {};
}

Result<void> StateAssembler::AddObject(const ChildKey& key, const TorchArchive& archive,
                                       PickleRef object) {
  const PickleTree& pickle = archive.pickle();
  switch (pickle.kind(object)) {
    case PickleKind::kDict:
      return AddMapping(key, NodeKind::kDict, archive, pickle.children(object));
    case PickleKind::kList:
      return AddSequence(key, NodeKind::kList, archive, pickle.children(object));
    case PickleKind::kTuple:
      return AddSequence(key, NodeKind::kTuple, archive, pickle.children(object));
    case PickleKind::kObject:
      return AddCall(key, archive, object);
    case PickleKind::kSet:
    case PickleKind::kGlobal:
    case PickleKind::kPersistent:
      return AddUnknown(key, UnknownPlain(pickle, object));
    case PickleKind::kText:
      CAIRN_TRY(Spend(key, pickle.text(object).size()));
      return AddValue(key, std::string(pickle.text(object)));
    case PickleKind::kBytes:
      CAIRN_TRY(Spend(key, pickle.bytes(object).size()));
      return AddValue(key, CopyBytes(pickle.bytes(object)));
    case PickleKind::kLong:
      CAIRN_TRY(Spend(key, pickle.bytes(object).size()));
      return AddValue(key, BigInt{CopyBytes(pickle.bytes(object)).data});
    case PickleKind::kNone:
      CAIRN_TRY(Spend(key, 0));
      return AddValue(key, std::monostate());
    case PickleKind::kBool:
      CAIRN_TRY(Spend(key, 0));
      return AddValue(key, pickle.truth(object));
    case PickleKind::kInt:
      CAIRN_TRY(Spend(key, 0));
      return AddValue(key, pickle.integer(object));
    case PickleKind::kFloat:
      CAIRN_TRY(Spend(key, 0));
      return AddValue(key, pickle.real(object));
  }
  return Fail(ErrorCode::kInternal, "a pickled value of an unknown kind");
}

Result<void> StateAssembler::AddCall(const ChildKey& key, const TorchArchive& archive,
                                     PickleRef object) {
  const PickleTree& pickle = archive.pickle();
  if (archive.IsTensor(object)) return AddPickledTensor(key, archive, object);
  const std::optional<Call> call = CallOf(pickle, object);
  if (!call) return AddUnknown(key, UnknownCall(pickle, object));
  if (std::optional<Value> value = ValueOf(pickle, *call)) {
    const Bytes* const bytes = std::get_if<Bytes>(&*value);
    CAIRN_TRY(Spend(key, bytes == nullptr ? 0 : bytes->data.size()));
    return AddValue(key, *std::move(value));
  }
  if (!call->object->elements.empty()) return AddUnknown(key, UnknownCall(pickle, object));
  const auto& arguments = call->arguments;
  if (call->name == "collections.OrderedDict" && arguments.empty()) {
    // nn.Module.state_dict() attaches `_metadata` here, which the module can recreate.
    if (call->object->has_state) attributes_.push_back({PathOf(key), "OrderedDict"});
    return AddMapping(key, NodeKind::kOrderedDict, archive, call->object->items);
  }
  const bool one_argument =
      arguments.size() == 1 && !call->object->has_state && call->object->items.empty();
  if (call->name == "collections.Counter" && one_argument &&
      IsKind(pickle, arguments, 0, PickleKind::kDict)) {
    return AddMapping(key, NodeKind::kCounter, archive, pickle.children(arguments[0]));
  }
  if (call->name == "torch.Size" && one_argument &&
      IsKind(pickle, arguments, 0, PickleKind::kTuple)) {
    return AddSequence(key, NodeKind::kTorchSize, archive, pickle.children(arguments[0]));
  }
  return AddUnknown(key, UnknownCall(pickle, object));
}

Result<void> StateAssembler::AddPickledTensor(const ChildKey& key, const TorchArchive& archive,
                                              PickleRef object) {
  auto tensor = archive.ReadTensor(object);
  if (!tensor) return AddUnknown(key, std::move(tensor).error());
  if (auto spent = repeated_.Spend(*tensor); !spent) {
    return Fail(Error(spent.error()).WithKey(PathOf(key)));
  }
  if (tensor->has_attributes || archive.pickle().object(object).has_state) {
    attributes_.push_back({PathOf(key), "tensor"});
  }
  return AddTensor(key, std::move(tensor->view));
}

Result<void> StateAssembler::AddMapping(const ChildKey& key, NodeKind kind,
                                        const TorchArchive& archive,
                                        std::span<const PickleRef> items) {
  CAIRN_TRY(Begin(key, kind));
  for (size_t i = 0; i + 1 < items.size(); i += 2) {
    const auto child = KeyOf(archive.pickle(), items[i]);
    if (!child && skip_unknown_) {
      CAIRN_TRY(Spend(key, child.error().message.size()));
      left_out_.push_back({child.error().key, child.error().message});
      continue;
    }
    if (!child) return Fail(child.error());
    CAIRN_TRY(AddObject(*child, archive, items[i + 1]));
  }
  End();
  return {};
}

Result<void> StateAssembler::AddSequence(const ChildKey& key, NodeKind kind,
                                         const TorchArchive& archive,
                                         std::span<const PickleRef> elements) {
  CAIRN_TRY(Begin(key, kind));
  for (size_t i = 0; i < elements.size(); ++i) {
    CAIRN_TRY(AddObject({std::to_string(i), KeyKind::kIndex}, archive, elements[i]));
  }
  End();
  return {};
}

Result<ChildKey> StateAssembler::KeyOf(const PickleTree& pickle, PickleRef ref) const {
  switch (pickle.kind(ref)) {
    case PickleKind::kText:
      return ChildKey{std::string(pickle.text(ref)), KeyKind::kString};
    case PickleKind::kInt:
      return ChildKey{std::to_string(pickle.integer(ref)), KeyKind::kInt};
    case PickleKind::kBool:
      return ChildKey{pickle.truth(ref) ? "True" : "False", KeyKind::kBool};
    case PickleKind::kNone:
      return ChildKey{"None", KeyKind::kNone};
    case PickleKind::kFloat:
      return ChildKey{FloatKey(pickle.real(ref)), KeyKind::kFloat};
    case PickleKind::kLong:
      if (auto digits = Decimal(pickle.bytes(ref))) return ChildKey{*digits, KeyKind::kInt};
      [[fallthrough]];
    default:
      return Fail(
          Error{.code = ErrorCode::kUnimplemented,
                .message = "this dict has a key that is not a str, int, float, bool or None",
                .key = fmt::format("{}", fmt::join(path_, "."))});
  }
}

Result<void> StateAssembler::Finish(ImportedState& result) {
  CAIRN_CHECK(open_.size() == 1);
  // Remove the wrapper, whose only child is the root.
  auto& nodes = state_.tree.nodes;
  if (nodes.size() < 2) return Fail(ErrorCode::kInternal, "a state without a root");
  nodes.erase(nodes.begin());
  nodes.front().key.clear();
  nodes.front().key_kind = KeyKind::kRoot;
  if (!left_out_.empty()) {
    CAIRN_TRY(FlattenTree(state_.tree));
    state_.tree = PruneTree(state_.tree, keep_);
    std::vector<uint32_t> slots;
    for (size_t leaf = 0; leaf < keep_.size(); ++leaf) {
      if (keep_[leaf]) slots.push_back(state_.slot[leaf]);
    }
    state_.slot = std::move(slots);
  }
  result.state = std::move(state_);
  result.left_out = std::move(left_out_);
  result.attributes = std::move(attributes_);
  return {};
}

}  // namespace cairn::core::internal
