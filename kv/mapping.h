#pragma once
/// Segment files in memory.

#include <cstddef>
#include <cstdint>
#include <span>

#include "kv/error.h"

namespace cairn::kv {

/// A segment file mapped into memory; unmapped by the destructor. The file may be deleted
/// meanwhile. Threads: any.
class Mapping {
 public:
  explicit Mapping(std::span<const std::byte> bytes) : bytes_(bytes) {}
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  std::span<const std::byte> bytes() const { return bytes_; }

  /// Asks the kernel to read this part of the file, and does not wait for it. Requires, as the
  /// next, that the part lies inside bytes().
  void WillNeed(uint64_t offset_bytes, uint64_t length_bytes) const;
  /// Brings this part into memory, so that touching it costs no page fault. kDataLoss: it cannot be
  /// read (a failing disk, a file that was cut), where a touch would end the process. Older kernels
  /// do nothing.
  Result<void> Populate(uint64_t offset_bytes, uint64_t length_bytes) const;
  /// The process lets go of this part's memory; touching it again brings it back from the file.
  void Release(uint64_t offset_bytes, uint64_t length_bytes) const;

 private:
  std::span<const std::byte> bytes_;
};

}  // namespace cairn::kv
