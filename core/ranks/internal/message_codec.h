#pragma once
/// Encodes messages between ranks: numbers as little-endian u64, texts after their length. This
/// format is not stored, because all ranks run the same build.

#include <bit>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/tensor/tensor.h"

namespace cairn::core::internal {

static_assert(std::endian::native == std::endian::little);

class MessageWriter {
 public:
  void Number(uint64_t value) { Append(&value, sizeof(value)); }
  void Text(std::string_view text) {
    Number(text.size());
    Append(text.data(), text.size());
  }
  void Bytes(std::span<const std::byte> bytes) {
    Text({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  }
  void Numbers(std::span<const uint64_t> numbers) {
    Number(numbers.size());
    Append(numbers.data(), numbers.size_bytes());
  }

  std::vector<std::byte> Take() && { return std::move(bytes_); }

 private:
  void Append(const void* data, size_t count) {
    const auto* begin = static_cast<const std::byte*>(data);
    bytes_.insert(bytes_.end(), begin, begin + count);
  }
  std::vector<std::byte> bytes_;
};

/// Once the message is too short for a value, this value and all later ones are 0 or empty, and
/// ok() is false. Ownership: borrows the message.
class MessageReader {
 public:
  explicit MessageReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  uint64_t Number() {
    uint64_t value = 0;
    const auto taken = Take(sizeof(value));
    if (!taken.empty()) std::memcpy(&value, taken.data(), sizeof(value));
    return value;
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
    const auto taken = Take(count * sizeof(uint64_t));
    if (!taken.empty()) std::memcpy(numbers.data(), taken.data(), taken.size());
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
