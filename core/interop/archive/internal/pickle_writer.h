#pragma once
/// Pickles of protocol 2, written with the few opcodes that torch's weights_only unpickler accepts,
/// and those for objects and repeated values.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "kv/error.h"

namespace cairn::core::internal {

/// Writes values one after another; a reader pushes them onto its stack. A call or a container
/// takes the values that were written since it was begun.
///
/// The caller must keep the stack consistent; `Finish` checks that. Threads: one.
class PickleWriter {
 public:
  PickleWriter() : out_("\x80\x02") {}

  void None() { out_ += 'N'; }
  void Bool(bool value) { out_ += value ? '\x88' : '\x89'; }
  void Int(int64_t value);
  /// Two's complement, little-endian. Returns false, and writes nothing, if `value` has more than
  /// 255 bytes, the most that the opcode can hold.
  bool Long(std::span<const std::byte> value);
  void Float(double value);
  /// Requires fewer than 4 GiB of UTF-8; `Finish` fails if it is not UTF-8.
  void Text(std::string_view utf8);
  /// Writes bytes as Python does in protocol 2: as a call of `_codecs.encode`.
  void Bytes(std::span<const std::byte> value);
  void Complex(double real, double imaginary);
  /// A class or function. Requires names without line feeds.
  void Global(std::string_view module, std::string_view name);

  void Mark() { out_ += '('; }
  /// A tuple of everything since Mark.
  void Tuple() { out_ += 't'; }
  void EmptyTuple() { out_ += ')'; }
  /// Calls the class or function below the tuple on top with the elements of that tuple.
  void Call() { out_ += 'R'; }
  /// Constructs an object like Call, but with `__new__` only, without `__init__`.
  void NewObject() { out_ += '\x81'; }
  /// Makes the value on top the state of the object below it.
  void SetState() { out_ += 'b'; }
  /// An object outside the pickle, which the tuple on top identifies.
  void Persistent() { out_ += 'Q'; }

  void EmptyDict() { out_ += '}'; }
  void EmptyList() { out_ += ']'; }
  /// Adds everything since Mark to the dict (key, value, ...) or list below the mark.
  void SetItems() { out_ += 'u'; }
  void Append() { out_ += 'e'; }

  /// Numbers the value on top; Recall writes the same object again.
  uint32_t Memoize();
  /// Requires a number that Memoize returned.
  void Recall(uint32_t number);

  /// Returns the pickle; nothing more can be written. kInvalidArgument: ReadPickle does not accept
  /// it, because a text is not UTF-8 or the stack is inconsistent. A pickle that is above the
  /// limits of ReadPickle is not checked: other readers have no such limits. Memory: that of
  /// ReadPickle.
  Result<std::string> Finish() &&;

 private:
  std::string out_;
  uint32_t memoized_count_ = 0;
};

}  // namespace cairn::core::internal
