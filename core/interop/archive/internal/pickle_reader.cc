// Opcodes with their arguments, translated into operations of the stack machine.

#include "core/interop/archive/internal/pickle_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <string_view>
#include <utility>

#include "core/interop/archive/internal/pickle_machine.h"
#include "schema/little_endian.h"

namespace cairn::core::internal {
namespace {

constexpr uint8_t kNewestProtocol = 5;

class Reader {
 public:
  explicit Reader(std::span<const std::byte> pickle) : pickle_(pickle), machine_(pickle) {}

  Result<PickleTree> Run() {
    while (!machine_.is_stopped()) {
      opcode_at_ = at_;
      Result<void> done = Step();
      if (!done) return Fail(Located(std::move(done).error()));
      if (machine_.value_count() > kMaxPickleNodes) {
        return Fail(ErrorCode::kResourceExhausted,
                    fmt::format("the pickle contains more than {} values", kMaxPickleNodes));
      }
    }
    return machine_.TakeTree();
  }

 private:
  using Operation = Result<void> (Reader::*)();
  using OperationTable = std::array<Operation, 256>;

  Error Located(Error error) const {
    if (error.code == ErrorCode::kDataLoss) {
      error.message =
          fmt::format("the pickle is damaged at byte {}: {}", opcode_at_, error.message);
    }
    return error;
  }

  // ---- The bytes

  Result<std::span<const std::byte>> TakeBytes(uint64_t count) {
    if (count > pickle_.size() - at_) return Fail(ErrorCode::kDataLoss, "it ends here");
    at_ += count;
    return pickle_.subspan(at_ - count, count);
  }

  template <typename Integer>
  Result<Integer> Take() {
    CAIRN_TRY_ASSIGN(const auto bytes, TakeBytes(sizeof(Integer)));
    return schema::GetLittleEndian<Integer>(bytes);
  }

  // Bytes that follow their length.
  template <typename Length>
  Result<std::span<const std::byte>> TakeCounted() {
    CAIRN_TRY_ASSIGN(const auto length, Take<Length>());
    return TakeBytes(length);
  }

  Result<std::string_view> TakeLine() {
    const std::string_view all(reinterpret_cast<const char*>(pickle_.data()), pickle_.size());
    const size_t end = all.find('\n', at_);
    if (end == std::string_view::npos) return Fail(ErrorCode::kDataLoss, "a line without an end");
    const std::string_view line = all.substr(at_, end - at_);
    at_ = end + 1;
    return line;
  }

  // ---- Opcodes with arguments

  template <typename Integer>
  Result<void> Int() {
    CAIRN_TRY_ASSIGN(const auto value, Take<Integer>());
    return machine_.PushInt(value);
  }
  template <typename Length>
  Result<void> Long() {
    CAIRN_TRY_ASSIGN(const auto bytes, TakeCounted<Length>());
    return machine_.PushLong(bytes);
  }
  Result<void> Float() {
    CAIRN_TRY_ASSIGN(const auto bits, Take<uint64_t>());
    return machine_.PushFloat(std::bit_cast<double>(std::byteswap(bits)));
  }
  template <typename Length>
  Result<void> Text() {
    CAIRN_TRY_ASSIGN(const auto bytes, TakeCounted<Length>());
    return machine_.PushText(bytes);
  }
  template <typename Length>
  Result<void> Bytes() {
    CAIRN_TRY_ASSIGN(const auto bytes, TakeCounted<Length>());
    return machine_.PushBytes(bytes);
  }
  Result<void> Global() {
    CAIRN_TRY_ASSIGN(const std::string_view module, TakeLine());
    CAIRN_TRY_ASSIGN(const std::string_view name, TakeLine());
    return machine_.PushGlobal(module, name);
  }
  template <typename Integer>
  Result<void> Put() {
    CAIRN_TRY_ASSIGN(const auto number, Take<Integer>());
    return machine_.Memoize(number);
  }
  template <typename Integer>
  Result<void> Get() {
    CAIRN_TRY_ASSIGN(const auto number, Take<Integer>());
    return machine_.Recall(number);
  }
  // Frames help only readers of streams.
  Result<void> Frame() {
    CAIRN_TRY_ASSIGN(const auto length, Take<uint64_t>());
    if (length <= pickle_.size() - at_) return {};
    return Fail(ErrorCode::kDataLoss, "a frame extends beyond its end");
  }
  Result<void> Protocol() {
    CAIRN_TRY_ASSIGN(const auto protocol, Take<uint8_t>());
    if (protocol <= kNewestProtocol) return {};
    return Fail(ErrorCode::kUnimplemented, fmt::format("pickle protocol {} is unknown", protocol));
  }

  // ---- Opcodes without arguments, and those that are refused

  template <Result<void> (PickleMachine::*kOperation)()>
  Result<void> Do() {
    return (machine_.*kOperation)();
  }

  Result<void> Refuse() {
    return Fail(ErrorCode::kUnimplemented,
                fmt::format("the pickle uses opcode 0x{:02x} at byte {}; only protocols 2 to 5, "
                            "without extensions and buffers, can be read",
                            static_cast<uint8_t>(pickle_[opcode_at_]), opcode_at_));
  }

  Result<void> Step() {
    CAIRN_TRY_ASSIGN(const uint8_t opcode, Take<uint8_t>());
    const Operation operation = kOperations[opcode];
    if (operation != nullptr) return (this->*operation)();
    return Fail(ErrorCode::kDataLoss, fmt::format("0x{:02x} is not an opcode", opcode));
  }

  static constexpr OperationTable MakeOperations();
  static const OperationTable kOperations;

  std::span<const std::byte> pickle_;
  uint64_t at_ = 0;
  uint64_t opcode_at_ = 0;
  PickleMachine machine_;
};

constexpr Reader::OperationTable Reader::MakeOperations() {
  using M = PickleMachine;
  OperationTable table{};
  table['N'] = &Reader::Do<&M::PushNone>;
  table[0x88] = &Reader::Do<&M::PushTrue>;
  table[0x89] = &Reader::Do<&M::PushFalse>;
  table['J'] = &Reader::Int<int32_t>;             // BININT
  table['K'] = &Reader::Int<uint8_t>;             // BININT1
  table['M'] = &Reader::Int<uint16_t>;            // BININT2
  table[0x8a] = &Reader::Long<uint8_t>;           // LONG1
  table[0x8b] = &Reader::Long<uint32_t>;          // LONG4
  table['G'] = &Reader::Float;                    // BINFLOAT
  table['X'] = &Reader::Text<uint32_t>;           // BINUNICODE
  table[0x8c] = &Reader::Text<uint8_t>;           // SHORT_BINUNICODE
  table[0x8d] = &Reader::Text<uint64_t>;          // BINUNICODE8
  table['U'] = &Reader::Text<uint8_t>;            // SHORT_BINSTRING, a Python 2 str, and BINSTRING:
  table['T'] = &Reader::Text<uint32_t>;           // torch.load decodes both as UTF-8
  table['C'] = &Reader::Bytes<uint8_t>;           // SHORT_BINBYTES
  table['B'] = &Reader::Bytes<uint32_t>;          // BINBYTES
  table[0x8e] = &Reader::Bytes<uint64_t>;         // BINBYTES8
  table[')'] = &Reader::Do<&M::PushEmptyTuple>;   // EMPTY_TUPLE
  table[0x85] = &Reader::Do<&M::MakeTuple<1>>;    // TUPLE1
  table[0x86] = &Reader::Do<&M::MakeTuple<2>>;    // TUPLE2
  table[0x87] = &Reader::Do<&M::MakeTuple<3>>;    // TUPLE3
  table['t'] = &Reader::Do<&M::MakeMarkedTuple>;  // TUPLE
  table[']'] = &Reader::Do<&M::PushEmptyList>;    // EMPTY_LIST
  table['a'] = &Reader::Do<&M::AppendOne>;        // APPEND
  table['e'] = &Reader::Do<&M::AppendMarked>;     // APPENDS
  table['}'] = &Reader::Do<&M::PushEmptyDict>;    // EMPTY_DICT
  table['s'] = &Reader::Do<&M::SetOneItem>;       // SETITEM
  table['u'] = &Reader::Do<&M::SetMarkedItems>;   // SETITEMS
  table[0x8f] = &Reader::Do<&M::PushEmptySet>;    // EMPTY_SET
  table[0x90] = &Reader::Do<&M::AddMarked>;       // ADDITEMS
  table[0x91] = &Reader::Do<&M::MakeMarkedSet>;   // FROZENSET
  table['c'] = &Reader::Global;                   // GLOBAL
  table[0x93] = &Reader::Do<&M::MakeGlobal>;      // STACK_GLOBAL
  table['R'] = table[0x81] = &Reader::Do<&M::Call>;          // REDUCE, NEWOBJ
  table[0x92] = &Reader::Do<&M::CallWithKeywords>;           // NEWOBJ_EX
  table['b'] = &Reader::Do<&M::SetState>;                    // BUILD
  table['Q'] = &Reader::Do<&M::MakePersistent>;              // BINPERSID
  table['('] = &Reader::Do<&M::Mark>;                        // MARK
  table['0'] = &Reader::Do<&M::Drop>;                        // POP
  table['1'] = &Reader::Do<&M::DropToMark>;                  // POP_MARK
  table['2'] = &Reader::Do<&M::Duplicate>;                   // DUP
  table['q'] = &Reader::Put<uint8_t>;                        // BINPUT
  table['r'] = &Reader::Put<uint32_t>;                       // LONG_BINPUT
  table[0x94] = &Reader::Do<&M::MemoizeNext>;                // MEMOIZE
  table['h'] = &Reader::Get<uint8_t>;                        // BINGET
  table['j'] = &Reader::Get<uint32_t>;                       // LONG_BINGET
  table[0x80] = &Reader::Protocol;                           // PROTO
  table[0x95] = &Reader::Frame;                              // FRAME
  table['.'] = &Reader::Do<&M::Stop>;                        // STOP
  for (const char old : std::string_view("FILPSVdgilop")) {  // protocols 0 and 1
    table[static_cast<uint8_t>(old)] = &Reader::Refuse;
  }
  for (const uint8_t extension : {0x82, 0x83, 0x84}) table[extension] = &Reader::Refuse;
  for (const uint8_t buffer : {0x96, 0x97, 0x98}) table[buffer] = &Reader::Refuse;
  return table;
}

constexpr Reader::OperationTable Reader::kOperations = Reader::MakeOperations();

}  // namespace

Result<PickleTree> ReadPickle(std::span<const std::byte> pickle) {
  if (pickle.size() > kMaxPickleBytes) {
    return Fail(ErrorCode::kResourceExhausted,
                fmt::format("the pickle has {} bytes; at most {} can be read", pickle.size(),
                            kMaxPickleBytes));
  }
  return Reader(pickle).Run();
}

}  // namespace cairn::core::internal
