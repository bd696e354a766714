// The pickle machine: a stack of values, marks in it, a memo; an opcode a step.

#include "core/interop/archive/internal/pickle_reader.h"

#include <fmt/format.h>

#include <bit>
#include <unordered_map>

#include "core/interop/archive/internal/little_endian.h"

namespace cairn::core::internal {
namespace {

// Shared nodes of values that have but one form.
constexpr PickleRef kNoneRef = 0;
constexpr PickleRef kFalseRef = 1;
constexpr PickleRef kTrueRef = 2;
constexpr PickleRef kEmptyTupleRef = 3;

// UTF-8 as Python's "surrogatepass" decodes it: no overlong forms, nothing above U+10FFFF.
bool IsText(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const auto first = static_cast<uint8_t>(text[i]);
    const size_t length = first < 0x80 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
    if (first >= 0xf5 || (first >= 0x80 && first < 0xc2) || length > text.size() - i) return false;
    for (size_t k = 1; k < length; ++k) {
      if ((static_cast<uint8_t>(text[i + k]) & 0xc0) != 0x80) return false;
    }
    const uint8_t second = length > 1 ? static_cast<uint8_t>(text[i + 1]) : 0;
    if ((first == 0xe0 && second < 0xa0) || (first == 0xf0 && second < 0x90) ||
        (first == 0xf4 && second >= 0x90)) {
      return false;
    }
    i += length;
  }
  return true;
}

// True if `top` only repeats the sign that a two's complement ending in `below` has.
bool IsSignOf(std::byte below, std::byte top) {
  const bool is_negative = (static_cast<uint8_t>(below) & 0x80) != 0;
  return top == (is_negative ? std::byte{0xff} : std::byte{0});
}

// Names of Python 2 that protocol 2 writes for what has another name today.
std::string CurrentName(std::string_view module, std::string_view name) {
  if (module == "__builtin__") module = "builtins";
  return fmt::format("{}.{}", module, name);
}

}  // namespace

double PickleTree::real(PickleRef ref) const { return std::bit_cast<double>(nodes_[ref].data); }

std::span<const std::byte> PickleTree::bytes(PickleRef ref) const {
  return pickle_.subspan(nodes_[ref].data, nodes_[ref].count);
}

std::string_view PickleTree::text(PickleRef ref) const {
  const auto data = bytes(ref);
  return {reinterpret_cast<const char*>(data.data()), data.size()};
}

std::span<const PickleRef> PickleTree::children(PickleRef ref) const {
  const Node& node = nodes_[ref];
  if (node.kind == PickleKind::kTuple) {
    return std::span(tuple_elements_).subspan(node.data, node.count);
  }
  return containers_[node.data];
}

// Ownership: fills one tree, which Run gives away.
class PickleParser {
 public:
  explicit PickleParser(std::span<const std::byte> pickle) {
    tree_.pickle_ = pickle;
    tree_.nodes_ = {{PickleKind::kNone, 0, 0},
                    {PickleKind::kBool, 0, 0},
                    {PickleKind::kBool, 0, 1},
                    {PickleKind::kTuple, 0, 0}};
  }

  Result<PickleTree> Run() {
    while (!stopped_) {
      opcode_at_ = at_;
      CAIRN_TRY_ASSIGN(const uint8_t opcode, Take<uint8_t>());
      CAIRN_TRY(Step(opcode));
      if (tree_.nodes_.size() > kMaxPickleNodes || stack_.size() > kMaxPickleNodes) {
        return Fail(ErrorCode::kResourceExhausted,
                    fmt::format("the pickle holds more than {} values", kMaxPickleNodes));
      }
    }
    return std::move(tree_);
  }

 private:
  using Kind = PickleKind;

  std::unexpected<Error> Damaged(std::string_view why) const {
    return Fail(ErrorCode::kDataLoss,
                fmt::format("the pickle is damaged at its byte {}: {}", opcode_at_, why));
  }

  // ---- the bytes

  Result<std::span<const std::byte>> TakeBytes(uint64_t count) {
    if (count > tree_.pickle_.size() - at_) return Damaged("it ends here");
    at_ += count;
    return tree_.pickle_.subspan(at_ - count, count);
  }

  template <typename Integer>
  Result<Integer> Take() {
    CAIRN_TRY_ASSIGN(const auto bytes, TakeBytes(sizeof(Integer)));
    return ReadLittle<Integer>(bytes);
  }

  Result<std::string_view> TakeLine() {
    const std::string_view all(reinterpret_cast<const char*>(tree_.pickle_.data()),
                               tree_.pickle_.size());
    const size_t end = all.find('\n', at_);
    if (end == std::string_view::npos) return Damaged("a line without an end");
    const std::string_view line = all.substr(at_, end - at_);
    at_ = end + 1;
    return line;
  }

  // ---- the stack

  Result<void> Push(PickleRef ref) {
    stack_.push_back(ref);
    return {};
  }
  Result<void> PushNode(Kind kind, uint64_t data, uint32_t count = 0) {
    tree_.nodes_.push_back({kind, count, data});
    return Push(static_cast<PickleRef>(tree_.nodes_.size() - 1));
  }
  size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }

  Result<PickleRef> Pop() {
    if (stack_.size() == floor()) return Damaged("it takes a value where there is none");
    const PickleRef top = stack_.back();
    stack_.pop_back();
    return top;
  }
  Result<PickleRef> Top() const {
    if (stack_.size() == floor()) return Damaged("it uses a value where there is none");
    return stack_.back();
  }
  // All above the last mark, and the mark.
  Result<std::vector<PickleRef>> PopMark() {
    if (marks_.empty()) return Damaged("it takes a mark where there is none");
    std::vector<PickleRef> values(stack_.begin() + static_cast<ptrdiff_t>(marks_.back()),
                                  stack_.end());
    stack_.resize(marks_.back());
    marks_.pop_back();
    return values;
  }

  // ---- values

  template <typename Length>
  Result<void> PushData(Kind kind) {
    CAIRN_TRY_ASSIGN(const auto length, Take<Length>());
    const uint64_t begin = at_;
    CAIRN_TRY_ASSIGN(const auto bytes, TakeBytes(length));
    if (kind == Kind::kText &&
        !IsText({reinterpret_cast<const char*>(bytes.data()), bytes.size()})) {
      return Damaged("a text is no UTF-8");
    }
    return PushNode(kind, begin, static_cast<uint32_t>(bytes.size()));
  }

  template <typename Length>
  Result<void> PushLong() {
    CAIRN_TRY_ASSIGN(const auto length, Take<Length>());
    const uint64_t begin = at_;
    CAIRN_TRY_ASSIGN(auto bytes, TakeBytes(length));
    while (bytes.size() > 1 && IsSignOf(bytes[bytes.size() - 2], bytes.back())) {
      bytes = bytes.first(bytes.size() - 1);  // says nothing that the byte below does not
    }
    if (bytes.size() > 8) return PushNode(Kind::kLong, begin, static_cast<uint32_t>(bytes.size()));
    uint64_t value = 0;
    for (size_t i = bytes.size(); i-- > 0;) value = value << 8 | static_cast<uint8_t>(bytes[i]);
    const size_t missing = 64 - 8 * bytes.size();
    if (missing == 64) return PushNode(Kind::kInt, 0);
    const int64_t extended = static_cast<int64_t>(value << missing) >> missing;
    return PushNode(Kind::kInt, static_cast<uint64_t>(extended));
  }

  template <typename Integer>
  Result<void> PushInt() {
    CAIRN_TRY_ASSIGN(const auto value, Take<Integer>());
    return PushNode(Kind::kInt, static_cast<uint64_t>(static_cast<int64_t>(value)));
  }

  Result<void> PushFloat() {
    CAIRN_TRY_ASSIGN(const auto bits, Take<uint64_t>());
    return PushNode(Kind::kFloat, std::byteswap(bits));
  }

  Result<void> PushTuple(std::span<const PickleRef> elements) {
    if (elements.empty()) return Push(kEmptyTupleRef);
    const uint64_t begin = tree_.tuple_elements_.size();
    tree_.tuple_elements_.insert(tree_.tuple_elements_.end(), elements.begin(), elements.end());
    return PushNode(Kind::kTuple, begin, static_cast<uint32_t>(elements.size()));
  }
  Result<void> PushTupleOf(size_t count) {
    PickleRef elements[3];
    for (size_t i = count; i-- > 0;) {
      CAIRN_TRY_ASSIGN(elements[i], Pop());
    }
    return PushTuple({elements, count});
  }

  Result<void> PushContainer(Kind kind, std::vector<PickleRef> elements = {}) {
    tree_.containers_.push_back(std::move(elements));
    return PushNode(kind, tree_.containers_.size() - 1);
  }

  Result<void> PushGlobal(std::string_view module, std::string_view name) {
    std::string global = CurrentName(module, name);
    if (!IsText(global)) return Damaged("a name is no UTF-8");
    const auto [found, inserted] = global_index_.emplace(global, tree_.globals_.size());
    if (inserted) tree_.globals_.push_back(std::move(global));
    return PushNode(Kind::kGlobal, found->second);
  }
  Result<void> PushGlobalOfLines() {
    CAIRN_TRY_ASSIGN(const std::string_view module, TakeLine());
    CAIRN_TRY_ASSIGN(const std::string_view name, TakeLine());
    return PushGlobal(module, name);
  }
  Result<void> PushGlobalOfStack() {
    CAIRN_TRY_ASSIGN(const PickleRef name, Pop());
    CAIRN_TRY_ASSIGN(const PickleRef module, Pop());
    if (tree_.kind(name) != Kind::kText || tree_.kind(module) != Kind::kText) {
      return Damaged("a class is named by something that is no text");
    }
    return PushGlobal(tree_.text(module), tree_.text(name));
  }

  // ---- objects

  Result<void> PushObject() {
    CAIRN_TRY_ASSIGN(const PickleRef arguments, Pop());
    CAIRN_TRY_ASSIGN(const PickleRef callee, Pop());
    tree_.objects_.push_back(
        {.callee = callee, .arguments = arguments, .elements = {}, .items = {}});
    return PushNode(Kind::kObject, tree_.objects_.size() - 1);
  }

  Result<void> Build() {
    CAIRN_TRY_ASSIGN(const PickleRef state, Pop());
    CAIRN_TRY_ASSIGN(const PickleRef top, Top());
    if (tree_.kind(top) != Kind::kObject) return Damaged("it gives a state to a plain value");
    PickleTree::Object& object = tree_.objects_[tree_.nodes_[top].data];
    if (object.has_state) return Damaged("it gives one object two states");
    object.has_state = true;
    object.state = state;
    return {};
  }

  Result<void> Extend(std::span<const PickleRef> values, Kind wanted) {
    CAIRN_TRY_ASSIGN(const PickleRef top, Top());
    const bool pairs = wanted == Kind::kDict;
    if (pairs && values.size() % 2 != 0) return Damaged("a key without a value");
    std::vector<PickleRef>* target = nullptr;
    if (tree_.kind(top) == Kind::kObject) {
      PickleTree::Object& object = tree_.objects_[tree_.nodes_[top].data];
      target = pairs ? &object.items : &object.elements;
    } else if (tree_.kind(top) == wanted) {
      target = &tree_.containers_[tree_.nodes_[top].data];
    } else {
      return Damaged("it puts something into a value that holds nothing");
    }
    target->insert(target->end(), values.begin(), values.end());
    return {};
  }
  Result<void> ExtendMarked(Kind wanted) {
    CAIRN_TRY_ASSIGN(const std::vector<PickleRef> values, PopMark());
    return Extend(values, wanted);
  }
  Result<void> SetItem() {
    CAIRN_TRY_ASSIGN(const PickleRef value, Pop());
    CAIRN_TRY_ASSIGN(const PickleRef key, Pop());
    const PickleRef pair[] = {key, value};
    return Extend(pair, Kind::kDict);
  }
  Result<void> Append() {
    CAIRN_TRY_ASSIGN(const PickleRef value, Pop());
    return Extend({&value, 1}, Kind::kList);
  }

  // ---- the memo

  Result<void> Memoize(uint64_t index) {
    // A writer numbers what it has written, so no index reaches the number of bytes.
    if (index >= tree_.pickle_.size()) return Damaged("a memo number beyond any that can be");
    CAIRN_TRY_ASSIGN(const PickleRef top, Top());
    if (index >= memo_.size()) memo_.resize(index + 1, kUnset);
    memo_[index] = top;
    if (index >= memo_used_) memo_used_ = index + 1;
    return {};
  }
  template <typename Integer>
  Result<void> Put() {
    CAIRN_TRY_ASSIGN(const auto index, Take<Integer>());
    return Memoize(index);
  }
  template <typename Integer>
  Result<void> Get() {
    CAIRN_TRY_ASSIGN(const auto index, Take<Integer>());
    if (index >= memo_.size() || memo_[index] == kUnset) {
      return Damaged("it refers to something that was not there before");
    }
    return Push(memo_[index]);
  }

  Result<void> Frame() {
    // Frames only help those who read piece by piece.
    CAIRN_TRY_ASSIGN(const auto length, Take<uint64_t>());
    if (length > tree_.pickle_.size() - at_) return Damaged("a frame leads out of it");
    return {};
  }

  Result<void> Begin() {
    CAIRN_TRY_ASSIGN(const auto protocol, Take<uint8_t>());
    if (protocol <= 5) return {};
    return Fail(ErrorCode::kUnimplemented, fmt::format("pickle protocol {} is unknown", protocol));
  }

  Result<void> Stop() {
    CAIRN_TRY_ASSIGN(tree_.root_, Pop());
    if (!stack_.empty() || !marks_.empty()) return Damaged("it ends with values left over");
    stopped_ = true;
    return {};
  }

  Result<void> PushPersistent() {
    CAIRN_TRY_ASSIGN(const PickleRef id, Pop());
    return PushNode(Kind::kPersistent, id);
  }
  Result<void> NewWithKeywords() {
    CAIRN_TRY_ASSIGN(const PickleRef keywords, Pop());
    if (tree_.kind(keywords) != Kind::kDict || !tree_.children(keywords).empty()) {
      return Fail(ErrorCode::kUnimplemented, "objects made with keyword arguments cannot be read");
    }
    return PushObject();
  }
  Result<void> PopOne() {
    // An empty stack above a mark: the mark goes.
    if (stack_.size() == floor() && !marks_.empty()) {
      marks_.pop_back();
      return {};
    }
    CAIRN_TRY(Pop());
    return {};
  }
  Result<void> Duplicate() {
    CAIRN_TRY_ASSIGN(const PickleRef top, Top());
    return Push(top);
  }
  Result<void> TupleOfMarked() {
    CAIRN_TRY_ASSIGN(const std::vector<PickleRef> elements, PopMark());
    return PushTuple(elements);
  }
  Result<void> FrozenSet() {
    CAIRN_TRY_ASSIGN(std::vector<PickleRef> elements, PopMark());
    return PushContainer(Kind::kSet, std::move(elements));
  }

  Result<void> Step(uint8_t opcode);

  static constexpr PickleRef kUnset = ~PickleRef{0};

  PickleTree tree_;
  uint64_t at_ = 0;
  uint64_t opcode_at_ = 0;
  bool stopped_ = false;
  std::vector<PickleRef> stack_;
  std::vector<size_t> marks_;  // sizes of the stack
  std::vector<PickleRef> memo_;
  uint64_t memo_used_ = 0;  // what MEMOIZE numbers next
  std::unordered_map<std::string, size_t> global_index_;
};

Result<void> PickleParser::Step(uint8_t opcode) {
  switch (opcode) {
    case 0x80:  // PROTO
      return Begin();
    case 0x95:
      return Frame();
    case '.':
      return Stop();
    case '(':
      marks_.push_back(stack_.size());
      return {};
    case '0':
      return PopOne();
    case '1':  // POP_MARK
      CAIRN_TRY(PopMark());
      return {};
    case '2':
      return Duplicate();
    case 'N':
      return Push(kNoneRef);
    case 0x88:
      return Push(kTrueRef);
    case 0x89:
      return Push(kFalseRef);
    case 'J':
      return PushInt<int32_t>();
    case 'K':
      return PushInt<uint8_t>();
    case 'M':
      return PushInt<uint16_t>();
    case 0x8a:
      return PushLong<uint8_t>();
    case 0x8b:
      return PushLong<uint32_t>();
    case 'G':
      return PushFloat();
    case 0x8c:
      return PushData<uint8_t>(Kind::kText);
    case 'X':
      return PushData<uint32_t>(Kind::kText);
    case 0x8d:
      return PushData<uint64_t>(Kind::kText);
    case 'U':  // SHORT_BINSTRING: a str of Python 2, which torch.load decodes as UTF-8
      return PushData<uint8_t>(Kind::kText);
    case 'T':
      return PushData<uint32_t>(Kind::kText);
    case 'C':
      return PushData<uint8_t>(Kind::kBytes);
    case 'B':
      return PushData<uint32_t>(Kind::kBytes);
    case 0x8e:
      return PushData<uint64_t>(Kind::kBytes);
    case ')':
      return Push(kEmptyTupleRef);
    case ']':
      return PushContainer(Kind::kList);
    case '}':
      return PushContainer(Kind::kDict);
    case 0x8f:
      return PushContainer(Kind::kSet);
    case 0x85:
      return PushTupleOf(1);
    case 0x86:
      return PushTupleOf(2);
    case 0x87:
      return PushTupleOf(3);
    case 't':
      return TupleOfMarked();
    case 'a':
      return Append();
    case 'e':
      return ExtendMarked(Kind::kList);
    case 's':
      return SetItem();
    case 'u':
      return ExtendMarked(Kind::kDict);
    case 0x90:  // ADDITEMS
      return ExtendMarked(Kind::kSet);
    case 0x91:
      return FrozenSet();
    case 'c':
      return PushGlobalOfLines();
    case 0x93:
      return PushGlobalOfStack();
    case 'R':   // REDUCE
    case 0x81:  // NEWOBJ
      return PushObject();
    case 0x92:
      return NewWithKeywords();
    case 'b':
      return Build();
    case 'Q':
      return PushPersistent();
    case 'h':
      return Get<uint8_t>();
    case 'j':
      return Get<uint32_t>();
    case 'q':
      return Put<uint8_t>();
    case 'r':
      return Put<uint32_t>();
    case 0x94:  // MEMOIZE
      return Memoize(memo_used_);
    case 'F':
    case 'I':
    case 'L':
    case 'P':
    case 'S':
    case 'V':
    case 'd':
    case 'g':
    case 'i':
    case 'l':
    case 'o':
    case 'p':
    case 0x82:
    case 0x83:
    case 0x84:
    case 0x96:
    case 0x97:
    case 0x98:
      return Fail(ErrorCode::kUnimplemented,
                  fmt::format("the pickle uses opcode 0x{:02x} at its byte {}; only protocols 2 to "
                              "5, without extensions and buffers, can be read",
                              opcode, opcode_at_));
    default:
      return Damaged(fmt::format("0x{:02x} is no opcode", opcode));
  }
}

Result<PickleTree> PickleTree::Parse(std::span<const std::byte> pickle) {
  if (pickle.size() > kMaxPickleBytes) {
    return Fail(ErrorCode::kResourceExhausted,
                fmt::format("a pickle of {} bytes; at most {} can be read", pickle.size(),
                            kMaxPickleBytes));
  }
  return PickleParser(pickle).Run();
}

}  // namespace cairn::core::internal
