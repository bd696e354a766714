#pragma once
/// Encodes messages between ranks: numbers as little-endian u64, texts after their length. This
/// format is not stored, because all ranks run the same build.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "schema/little_endian.h"

namespace cairn::core::internal {

class MessageWriter {
 public:
  void Number(uint64_t value) { schema::AppendLittleEndian(bytes_, value); }
  void Text(std::string_view text) { Bytes(std::as_bytes(std::span(text))); }
  void Bytes(std::span<const std::byte> bytes) {
    Number(bytes.size());
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }
  void Numbers(std::span<const uint64_t> numbers) {
    Number(numbers.size());
    for (const uint64_t number : numbers) Number(number);
  }

  std::vector<std::byte> Take() && { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

/// Once the message is too short for a value, this value and all later ones are 0 or empty, and
/// ok() is false. Ownership: borrows the message.
class MessageReader {
 public:
  explicit MessageReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  uint64_t Number() {
    const auto taken = Take(sizeof(uint64_t));
    return taken.empty() ? 0 : schema::GetLittleEndian<uint64_t>(taken);
  }
  std::span<const std::byte> Bytes() { return Take(Number()); }
  std::string Text() {
    const auto taken = Bytes();
    return {reinterpret_cast<const char*>(taken.data()), taken.size()};
  }
  std::vector<uint64_t> Numbers() {
    const uint64_t count = Number();
    if (count > bytes_.size() / sizeof(uint64_t)) {
      Stop();
      return {};
    }
    std::vector<uint64_t> numbers(count);
    for (uint64_t& number : numbers) number = Number();
    return numbers;
  }

  bool ok() const { return ok_; }
  bool at_end() const { return bytes_.empty(); }

 private:
  void Stop() {
    ok_ = false;
    bytes_ = {};
  }
  std::span<const std::byte> Take(uint64_t count) {
    if (count > bytes_.size()) {
      Stop();
      return {};
    }
    const auto taken = bytes_.first(count);
    bytes_ = bytes_.subspan(count);
    return taken;
  }

  std::span<const std::byte> bytes_;
  bool ok_ = true;
};

}  // namespace cairn::core::internal
