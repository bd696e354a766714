#include "core/interop/archive/internal/pickle_machine.h"

#include <bit>
#include <utility>

#include "core/base/utf8.h"

namespace cairn::core::internal {
namespace {

// Nodes that all occurrences of these values share.
constexpr PickleRef kNoneRef = 0;
constexpr PickleRef kFalseRef = 1;
constexpr PickleRef kTrueRef = 2;
constexpr PickleRef kEmptyTupleRef = 3;

constexpr PickleRef kUnset = ~PickleRef{0};

std::unexpected<Error> Damaged(std::string why) {
  return Fail(ErrorCode::kDataLoss, std::move(why));
}

std::string_view AsText(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// True if `top` only repeats the sign of a two's complement number that ends with `below`.
bool IsSignOf(std::byte below, std::byte top) {
  const bool is_negative = (static_cast<uint8_t>(below) & 0x80) != 0;
  return top == (is_negative ? std::byte{0xff} : std::byte{0});
}

}  // namespace

PickleMachine::PickleMachine(std::span<const std::byte> pickle) {
  tree_.pickle_ = pickle;
  tree_.nodes_ = {
      {Kind::kNone, 0, 0}, {Kind::kBool, 0, 0}, {Kind::kBool, 0, 1}, {Kind::kTuple, 0, 0}};
}

uint64_t PickleMachine::value_count() const { return std::max(tree_.nodes_.size(), stack_.size()); }

// ---- The stack

bool PickleMachine::has_value_above_mark() const {
  return stack_.size() > (marks_.empty() ? 0 : marks_.back());
}

Result<void> PickleMachine::Push(PickleRef ref) {
  stack_.push_back(ref);
  return {};
}

Result<void> PickleMachine::PushNode(Kind kind, uint64_t data, uint32_t count) {
  tree_.nodes_.push_back({kind, count, data});
  return Push(static_cast<PickleRef>(tree_.nodes_.size() - 1));
}

Result<PickleRef> PickleMachine::Pop() {
  if (!has_value_above_mark()) return Damaged("it takes a value where there is none");
  const PickleRef top = stack_.back();
  stack_.pop_back();
  return top;
}

Result<PickleRef> PickleMachine::Top() const {
  if (!has_value_above_mark()) return Damaged("it uses a value where there is none");
  return stack_.back();
}

Result<std::vector<PickleRef>> PickleMachine::PopToMark() {
  if (marks_.empty()) return Damaged("it takes a mark where there is none");
  std::vector<PickleRef> values(stack_.begin() + static_cast<ptrdiff_t>(marks_.back()),
                                stack_.end());
  stack_.resize(marks_.back());
  marks_.pop_back();
  return values;
}

Result<void> PickleMachine::Mark() {
  marks_.push_back(stack_.size());
  return {};
}

Result<void> PickleMachine::Drop() {
  if (!has_value_above_mark() && !marks_.empty()) {
    marks_.pop_back();
    return {};
  }
  CAIRN_TRY(Pop());
  return {};
}

Result<void> PickleMachine::DropToMark() {
  CAIRN_TRY(PopToMark());
  return {};
}

Result<void> PickleMachine::Duplicate() {
  CAIRN_TRY_ASSIGN(const PickleRef top, Top());
  return Push(top);
}

// ---- Plain values

Result<void> PickleMachine::PushNone() { return Push(kNoneRef); }
Result<void> PickleMachine::PushTrue() { return Push(kTrueRef); }
Result<void> PickleMachine::PushFalse() { return Push(kFalseRef); }

Result<void> PickleMachine::PushInt(int64_t value) {
  return PushNode(Kind::kInt, static_cast<uint64_t>(value));
}

Result<void> PickleMachine::PushFloat(double value) {
  return PushNode(Kind::kFloat, std::bit_cast<uint64_t>(value));
}

Result<void> PickleMachine::PushSource(Kind kind, std::span<const std::byte> bytes) {
  const auto begin = static_cast<uint64_t>(bytes.data() - tree_.pickle_.data());
  return PushNode(kind, begin, static_cast<uint32_t>(bytes.size()));
}

Result<void> PickleMachine::PushLong(std::span<const std::byte> bytes) {
  while (bytes.size() > 1 && IsSignOf(bytes[bytes.size() - 2], bytes.back())) {
    bytes = bytes.first(bytes.size() - 1);
  }
  if (bytes.size() > 8) return PushSource(Kind::kLong, bytes);
  if (bytes.empty()) return PushInt(0);
  uint64_t value = 0;
  for (size_t i = bytes.size(); i-- > 0;) value = value << 8 | static_cast<uint8_t>(bytes[i]);
  const size_t missing_bits = 64 - 8 * bytes.size();
  return PushInt(static_cast<int64_t>(value << missing_bits) >> missing_bits);
}

Result<void> PickleMachine::PushText(std::span<const std::byte> bytes) {
  if (!IsUtf8(AsText(bytes))) return Damaged("a text is not UTF-8");
  return PushSource(Kind::kText, bytes);
}

Result<void> PickleMachine::PushBytes(std::span<const std::byte> bytes) {
  return PushSource(Kind::kBytes, bytes);
}

// ---- Containers

Result<void> PickleMachine::PushTuple(std::span<const PickleRef> elements) {
  if (elements.empty()) return Push(kEmptyTupleRef);
  const uint64_t begin = tree_.tuple_elements_.size();
  tree_.tuple_elements_.insert(tree_.tuple_elements_.end(), elements.begin(), elements.end());
  return PushNode(Kind::kTuple, begin, static_cast<uint32_t>(elements.size()));
}

Result<void> PickleMachine::PushContainer(Kind kind, std::vector<PickleRef> elements) {
  tree_.containers_.push_back(std::move(elements));
  return PushNode(kind, tree_.containers_.size() - 1);
}

Result<void> PickleMachine::PushEmptyTuple() { return Push(kEmptyTupleRef); }
Result<void> PickleMachine::PushEmptyList() { return PushContainer(Kind::kList); }
Result<void> PickleMachine::PushEmptyDict() { return PushContainer(Kind::kDict); }
Result<void> PickleMachine::PushEmptySet() { return PushContainer(Kind::kSet); }

Result<void> PickleMachine::MakeTuple(size_t count) {
  PickleRef elements[3];
  CAIRN_CHECK(count <= std::size(elements));
  for (size_t i = count; i-- > 0;) {
    CAIRN_TRY_ASSIGN(elements[i], Pop());
  }
  return PushTuple({elements, count});
}

Result<void> PickleMachine::MakeMarkedTuple() {
  CAIRN_TRY_ASSIGN(const std::vector<PickleRef> elements, PopToMark());
  return PushTuple(elements);
}

Result<void> PickleMachine::MakeMarkedSet() {
  CAIRN_TRY_ASSIGN(std::vector<PickleRef> elements, PopToMark());
  return PushContainer(Kind::kSet, std::move(elements));
}

Result<void> PickleMachine::Extend(std::span<const PickleRef> values, Kind wanted) {
  CAIRN_TRY_ASSIGN(const PickleRef top, Top());
  const bool has_pairs = wanted == Kind::kDict;
  if (has_pairs && values.size() % 2 != 0) return Damaged("a key without a value");
  std::vector<PickleRef>* target = nullptr;
  if (tree_.kind(top) == Kind::kObject) {
    PickleTree::Object& object = tree_.objects_[tree_.nodes_[top].data];
    target = has_pairs ? &object.items : &object.elements;
  } else if (tree_.kind(top) == wanted) {
    target = &tree_.containers_[tree_.nodes_[top].data];
  } else {
    return Damaged("it adds something to a value that is not a container of that kind");
  }
  target->insert(target->end(), values.begin(), values.end());
  return {};
}

Result<void> PickleMachine::ExtendMarked(Kind wanted) {
  CAIRN_TRY_ASSIGN(const std::vector<PickleRef> values, PopToMark());
  return Extend(values, wanted);
}

Result<void> PickleMachine::AppendOne() {
  CAIRN_TRY_ASSIGN(const PickleRef value, Pop());
  return Extend({&value, 1}, Kind::kList);
}

Result<void> PickleMachine::AppendMarked() { return ExtendMarked(Kind::kList); }
Result<void> PickleMachine::AddMarked() { return ExtendMarked(Kind::kSet); }

Result<void> PickleMachine::SetOneItem() {
  CAIRN_TRY_ASSIGN(const PickleRef value, Pop());
  CAIRN_TRY_ASSIGN(const PickleRef key, Pop());
  const PickleRef pair[] = {key, value};
  return Extend(pair, Kind::kDict);
}

Result<void> PickleMachine::SetMarkedItems() { return ExtendMarked(Kind::kDict); }

// ---- Classes, functions and objects

Result<void> PickleMachine::PushGlobal(std::string_view module, std::string_view name) {
  // Protocol 2 writes the Python 2 name of this module.
  if (module == "__builtin__") module = "builtins";
  std::string global = std::string(module).append(".").append(name);
  if (!IsUtf8(global)) return Damaged("the name of a class or function is not UTF-8");
  const auto [found, inserted] = global_index_.emplace(global, tree_.globals_.size());
  if (inserted) tree_.globals_.push_back(std::move(global));
  return PushNode(Kind::kGlobal, found->second);
}

Result<void> PickleMachine::MakeGlobal() {
  CAIRN_TRY_ASSIGN(const PickleRef name, Pop());
  CAIRN_TRY_ASSIGN(const PickleRef module, Pop());
  if (tree_.kind(name) != Kind::kText || tree_.kind(module) != Kind::kText) {
    return Damaged("the name of a class or function is not a text");
  }
  return PushGlobal(tree_.text(module), tree_.text(name));
}

Result<void> PickleMachine::Call() {
  CAIRN_TRY_ASSIGN(const PickleRef arguments, Pop());
  CAIRN_TRY_ASSIGN(const PickleRef callee, Pop());
  tree_.objects_.push_back({.callee = callee, .arguments = arguments, .elements = {}, .items = {}});
  return PushNode(Kind::kObject, tree_.objects_.size() - 1);
}

Result<void> PickleMachine::CallWithKeywords() {
  CAIRN_TRY_ASSIGN(const PickleRef keywords, Pop());
  if (tree_.kind(keywords) != Kind::kDict || !tree_.children(keywords).empty()) {
    return Fail(ErrorCode::kUnimplemented,
                "objects that are constructed with keyword arguments cannot be read");
  }
  return Call();
}

Result<void> PickleMachine::SetState() {
  CAIRN_TRY_ASSIGN(const PickleRef state, Pop());
  CAIRN_TRY_ASSIGN(const PickleRef top, Top());
  if (tree_.kind(top) != Kind::kObject) return Damaged("it gives a state to a plain value");
  PickleTree::Object& object = tree_.objects_[tree_.nodes_[top].data];
  if (object.has_state) return Damaged("it gives one object two states");
  object.has_state = true;
  object.state = state;
  return {};
}

Result<void> PickleMachine::MakePersistent() {
  CAIRN_TRY_ASSIGN(const PickleRef id, Pop());
  return PushNode(Kind::kPersistent, id);
}

// ---- The memo

Result<void> PickleMachine::Memoize(uint64_t number) {
  // Writers number the values that they have written, so a number is smaller than the pickle. This
  // bounds the memory that a hostile number can allocate.
  if (number >= tree_.pickle_.size()) return Damaged("a memo number is too large");
  CAIRN_TRY_ASSIGN(const PickleRef top, Top());
  if (number >= memo_.size()) memo_.resize(number + 1, kUnset);
  memo_[number] = top;
  next_memo_number_ = std::max(next_memo_number_, number + 1);
  return {};
}

Result<void> PickleMachine::MemoizeNext() { return Memoize(next_memo_number_); }

Result<void> PickleMachine::Recall(uint64_t number) {
  if (number >= memo_.size() || memo_[number] == kUnset) {
    return Damaged("it refers to a value that it did not memoize");
  }
  return Push(memo_[number]);
}

Result<void> PickleMachine::Stop() {
  CAIRN_TRY_ASSIGN(tree_.root_, Pop());
  if (!stack_.empty() || !marks_.empty()) return Damaged("it ends with values left on the stack");
  is_stopped_ = true;
  return {};
}

PickleTree PickleMachine::TakeTree() {
  CAIRN_CHECK(is_stopped_);
  return std::move(tree_);
}

}  // namespace cairn::core::internal
