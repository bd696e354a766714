#pragma once
/// Records one after another in memory, without an allocation or a pointer for each.
///
///   u32 key bytes, u32 value bytes, key, value; the key and the value are padded to 8 bytes

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

#include "kv/base/div.h"
#include "kv/base/key.h"

namespace cairn::kv::internal {

/// A record that a callback receives. Callbacks take it by reference: passed as three values, the
/// last one is stored on the stack in two halves and loaded as one, which stalls the processor for
/// 70 ns. Ownership: borrows.
struct RecordView {
  Column column = Column::kSteps;
  std::string_view key;
  std::span<const std::byte> value;
};

/// A record at an address that is aligned to 8 bytes, so that its value is, too. Ownership: borrows
/// the memory.
class StoredRecord {
 public:
  explicit StoredRecord(const std::byte* at) : at_(at) {
    std::memcpy(&key_bytes_, at, sizeof(key_bytes_));
    std::memcpy(&value_bytes_, at + sizeof(key_bytes_), sizeof(value_bytes_));
  }

  static size_t Size(size_t key_bytes, size_t value_bytes) {
    return kHeaderBytes + RoundUp(key_bytes, 8) + RoundUp(value_bytes, 8);
  }
  /// Requires Size() bytes at `at`. The padding is not set.
  static void Write(std::byte* at, std::string_view key, std::span<const std::byte> value) {
    const auto key_bytes = static_cast<uint32_t>(key.size());
    const auto value_bytes = static_cast<uint32_t>(value.size());
    std::memcpy(at, &key_bytes, sizeof(key_bytes));
    std::memcpy(at + sizeof(key_bytes), &value_bytes, sizeof(value_bytes));
    if (!key.empty()) std::memcpy(at + kHeaderBytes, key.data(), key.size());
    if (value.empty()) return;
    std::memcpy(at + kHeaderBytes + RoundUp(key.size(), 8), value.data(), value.size());
  }

  std::string_view key() const {
    return {reinterpret_cast<const char*>(at_ + kHeaderBytes), key_bytes_};
  }
  std::span<const std::byte> value() const {
    return {at_ + kHeaderBytes + RoundUp(size_t{key_bytes_}, 8), value_bytes_};
  }
  const std::byte* data() const { return at_; }
  size_t size_bytes() const { return Size(key_bytes_, value_bytes_); }

 private:
  static constexpr size_t kHeaderBytes = 2 * sizeof(uint32_t);

  const std::byte* at_;
  uint32_t key_bytes_;
  uint32_t value_bytes_;
};

}  // namespace cairn::kv::internal
