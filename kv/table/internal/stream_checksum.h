#pragma once
/// Checksum64 of bytes that arrive in pieces.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

struct XXH3_state_s;

namespace cairn::kv::internal {

/// Threads: one.
class StreamChecksum64 {
 public:
  StreamChecksum64();
  ~StreamChecksum64();

  void Update(std::span<const std::byte> bytes);
  /// Returns Checksum64 (the XXH3-64) of all bytes so far.
  uint64_t value() const;

 private:
  struct FreeState {
    void operator()(XXH3_state_s* state) const;
  };
  std::unique_ptr<XXH3_state_s, FreeState> state_;
};

}  // namespace cairn::kv::internal
