#pragma once
/// Pickles of protocol 2, from the few opcodes that torch's weights_only unpickler takes.

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
  /// The tuple on top names something outside the pickle.
  void Persistent() { out_ += 'Q'; }

  void EmptyDict() { out_ += '}'; }
  void EmptyList() { out_ += ']'; }
  /// What was written since Mark goes into the dict (key, value, ...) or list below it.
  void SetItems() { out_ += 'u'; }
  void Append() { out_ += 'e'; }

  /// The pickle; nothing more can be written.
  std::string Finish() &&;

 private:
  std::string out_;
};

}  // namespace cairn::core::internal
