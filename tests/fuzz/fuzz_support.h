#pragma once
/// What the fuzzers share: how they take their input apart, and what they check.
///
/// Each fuzzer defines Fuzz. In a build with libFuzzer it is called with
/// mutations of the corpus; in every other build replay_main.cc calls it with the corpus and with
/// random mutations. The first byte of an input selects the decoder, so that one fuzzer covers a
/// family.
///
/// A decoder must not crash, throw, or allocate more than MemoryLimit allows. What it accepts must
/// be encoded and decoded to the same value.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kv/base/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace cairn::fuzz {

/// Ends the process with a message if the condition is false, in every build.
#define CAIRN_FUZZ_CHECK(condition) \
  ((condition) ? void(0) : ::cairn::fuzz::CheckFailed(#condition, __FILE__, __LINE__))
[[noreturn]] void CheckFailed(const char* condition, const char* file, int line);

/// An input, from whose front values are taken. If it is too short for a value, the value is 0 or
/// shorter. Ownership: borrows the bytes.
class Input {
 public:
  Input(const uint8_t* data, size_t size) : rest_(std::as_bytes(std::span(data, size))) {}

  uint8_t Byte() { return Number<uint8_t>(); }
  /// Takes a little-endian number.
  template <typename T>
  T Number() {
    T value = 0;
    const auto taken = Bytes(sizeof(T));
    if (!taken.empty()) std::memcpy(&value, taken.data(), taken.size());
    return value;
  }
  std::span<const std::byte> Bytes(size_t count) {
    const auto taken = rest_.first(std::min(count, rest_.size()));
    rest_ = rest_.subspan(taken.size());
    return taken;
  }
  std::string_view Text(size_t count) { return AsText(Bytes(count)); }
  /// Takes the text up to the next line feed, and the line feed.
  std::string_view Line();

  std::span<const std::byte> rest() const { return rest_; }
  std::string_view rest_text() const { return AsText(rest_); }
  /// Copies the rest to memory that is aligned as records require, and whose end is the end of the
  /// allocation, so that AddressSanitizer notices a read beyond it.
  std::vector<std::byte> CopyRest() const { return {rest_.begin(), rest_.end()}; }

 private:
  static std::string_view AsText(std::span<const std::byte> bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  std::span<const std::byte> rest_;
};

/// The fuzzer. Requires that it neither ends the process nor throws.
void Fuzz(Input input);

/// Checks that the memory that is allocated while the object exists does not exceed a limit.
/// Memory of C libraries counts only in builds with AddressSanitizer. Threads: one at a time.
class MemoryLimit {
 public:
  explicit MemoryLimit(uint64_t limit_bytes);
  /// Allows `per_byte` bytes per byte of the input, and 1 MiB.
  MemoryLimit(std::span<const std::byte> input, uint64_t per_byte)
      : MemoryLimit((uint64_t{1} << 20) + input.size() * per_byte) {}
  ~MemoryLimit();
  MemoryLimit(const MemoryLimit&) = delete;
  MemoryLimit& operator=(const MemoryLimit&) = delete;

 private:
  const uint64_t limit_bytes_;
  const int64_t begin_bytes_;
};

/// Returns whether the result is this value.
template <typename T>
bool Is(const Result<T>& result, const T& value) {
  return result.has_value() && *result == value;
}

/// Checks that what `decode` accepts is the same after `encode` and `decode`: both encodings of it
/// are equal.
template <typename Decode, typename Encode>
void CheckRoundTrip(const Decode& decode, const Encode& encode, std::span<const std::byte> bytes) {
  const auto decoded = decode(bytes);
  if (!decoded) return;
  const auto once = encode(*decoded);
  const auto again = decode(std::as_bytes(std::span(once)));
  CAIRN_FUZZ_CHECK(again.has_value());
  CAIRN_FUZZ_CHECK(encode(*again) == once);
}

/// Makes the checksum at the end of the bytes right, if they are long enough to have one.
void RepairChecksum(std::span<std::byte> bytes);

/// Uses every part of an error.
void UseError(const Error& error);

/// Returns the selector of an input for a decoder that has number `index` among `count`.
inline uint8_t TakeSelector(Input& input, uint8_t count) {
  return static_cast<uint8_t>(input.Byte() % count);
}

}  // namespace cairn::fuzz
