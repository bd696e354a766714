#pragma once
/// Pickles of protocol 2, from the few opcodes that torch's weights_only unpickler takes, and those
/// for objects and repeated values.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace cairn::core::internal {

/// Writes values one after another onto the machine's stack; calls and containers take what was
/// written since they were begun. Threads: one.
class PickleWriter {
 public:
  PickleWriter() : out_("\x80\x02") {}

  void None() { out_ += 'N'; }
  void Bool(bool value) { out_ += value ? '\x88' : '\x89'; }
  void Int(int64_t value);
  /// Two's complement, little-endian. False: too long for the opcode, nothing is written.
  bool Long(std::span<const std::byte> value);
  void Float(double value);
  /// Requires less than 4 GiB.
  void Text(std::string_view utf8);
  /// As Python writes bytes in protocol 2: a call of `_codecs.encode`.
  void Bytes(std::span<const std::byte> value);
  void Complex(double real, double imaginary);
  /// A class or function.
  void Global(std::string_view module, std::string_view name);

  void Mark() { out_ += '('; }
  /// Of all since Mark.
  void Tuple() { out_ += 't'; }
  void EmptyTuple() { out_ += ')'; }
  /// The tuple on top is the arguments of the class or function below it.
  void Call() { out_ += 'R'; }
  /// The same without `__init__`: `__new__` alone.
  void NewObject() { out_ += '\x81'; }
  /// The value on top becomes the state of the object below it.
  void SetState() { out_ += 'b'; }
  /// The tuple on top names something outside the pickle.
  void Persistent() { out_ += 'Q'; }

  void EmptyDict() { out_ += '}'; }
  void EmptyList() { out_ += ']'; }
  /// What was written since Mark goes into the dict (key, value, ...) or list below it.
  void SetItems() { out_ += 'u'; }
  void Append() { out_ += 'e'; }

  /// A number for the value on top, which Repeat writes once more: the very same object.
  uint32_t Record();
  void Repeat(uint32_t number);

  /// The pickle; nothing more can be written.
  std::string Finish() &&;

 private:
  std::string out_;
  uint32_t remembered_ = 0;
};

}  // namespace cairn::core::internal
