#pragma once
/// The stack machine that the opcodes of a pickle drive (Lib/pickletools.py of CPython describes
/// it): a stack of values, marks in the stack, and a memo of numbered values.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/interop/archive/internal/pickle_tree.h"

namespace cairn::core::internal {

/// Builds one tree. Operations take their operands from the top of the stack and push their result.
///
/// kDataLoss from any operation: the pickle asks for what cannot be done, for example to take a
/// value from an empty stack; the message states the reason and the caller adds the position. After
/// an error the machine is of no further use.
///
/// Ownership: borrows the pickle's bytes. Threads: one.
class PickleMachine {
 public:
  explicit PickleMachine(std::span<const std::byte> pickle);

  // ---- The stack

  Result<void> Mark();
  /// Removes the value on top, or the mark if there is nothing above it.
  Result<void> Drop();
  Result<void> DropToMark();
  Result<void> Duplicate();

  // ---- Plain values

  Result<void> PushNone();
  Result<void> PushTrue();
  Result<void> PushFalse();
  Result<void> PushInt(int64_t value);
  Result<void> PushFloat(double value);
  /// The three functions below require `bytes` inside the pickle.
  /// Two's complement, little-endian; kInt if it fits.
  Result<void> PushLong(std::span<const std::byte> bytes);
  Result<void> PushText(std::span<const std::byte> bytes);
  Result<void> PushBytes(std::span<const std::byte> bytes);

  // ---- Containers

  Result<void> PushEmptyTuple();
  Result<void> PushEmptyList();
  Result<void> PushEmptyDict();
  Result<void> PushEmptySet();
  /// A tuple of the `kCount` values on top.
  template <size_t kCount>
  Result<void> MakeTuple() {
    return MakeTuple(kCount);
  }
  /// A tuple, or a frozen set, of the values above the mark.
  Result<void> MakeMarkedTuple();
  Result<void> MakeMarkedSet();
  /// Adds one value, or all values above the mark, to the list (set, dict) or object below them.
  Result<void> AppendOne();
  Result<void> AppendMarked();
  Result<void> AddMarked();
  Result<void> SetOneItem();
  Result<void> SetMarkedItems();

  // ---- Classes, functions and objects

  Result<void> PushGlobal(std::string_view module, std::string_view name);
  /// The global whose module and name, two texts, are on top.
  Result<void> MakeGlobal();
  /// A call of the value below with the tuple on top.
  Result<void> Call();
  /// A call with keyword arguments. kUnimplemented: there are some.
  Result<void> CallWithKeywords();
  /// Makes the value on top the state of the object below it.
  Result<void> SetState();
  /// An object outside the pickle, identified by the value on top.
  Result<void> MakePersistent();

  // ---- The memo

  Result<void> Memoize(uint64_t number);
  /// Memoizes under the number after the highest one in use.
  Result<void> MemoizeNext();
  Result<void> Recall(uint64_t number);

  /// Ends the program: the only value left is the root.
  Result<void> Stop();
  bool is_stopped() const { return is_stopped_; }
  /// Requires is_stopped(); the machine is of no further use.
  PickleTree TakeTree();

  /// The number of values that have been made, or that are on the stack if these are more.
  uint64_t value_count() const;

 private:
  using Kind = PickleKind;

  Result<void> Push(PickleRef ref);
  Result<void> PushNode(Kind kind, uint64_t data, uint32_t count = 0);
  Result<void> PushSource(Kind kind, std::span<const std::byte> bytes);
  Result<void> PushTuple(std::span<const PickleRef> elements);
  Result<void> PushContainer(Kind kind, std::vector<PickleRef> elements = {});
  Result<void> MakeTuple(size_t count);
  Result<void> Extend(std::span<const PickleRef> values, Kind wanted);
  Result<void> ExtendMarked(Kind wanted);
  Result<PickleRef> Pop();
  Result<PickleRef> Top() const;
  Result<std::vector<PickleRef>> PopToMark();
  bool has_value_above_mark() const;

  PickleTree tree_;
  bool is_stopped_ = false;
  std::vector<PickleRef> stack_;
  std::vector<size_t> marks_;  // heights of the stack
  std::vector<PickleRef> memo_;
  uint64_t next_memo_number_ = 0;
  std::unordered_map<std::string, size_t> global_index_;
};

}  // namespace cairn::core::internal
