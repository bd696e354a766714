#pragma once
// SPDX-License-Identifier: Apache-2.0
/// Segment files in memory, and memory at aligned addresses.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "kv/base/error.h"

namespace cairn::kv {

/// Ownership: owns a segment file's mapping into memory, which the destructor unmaps. The file may
/// be deleted in the meantime. Threads: all members are safe.
class Mapping {
 public:
  explicit Mapping(std::span<const std::byte> bytes) : bytes_(bytes) {}
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  std::span<const std::byte> bytes() const { return bytes_; }

  // All of these require that the range is inside bytes().

  /// Asks the kernel to read this range of the file, and does not wait for it.
  void WillNeed(uint64_t offset_bytes, uint64_t length_bytes) const;
  /// Asks the kernel to read this range in units of 2 MiB when it is accessed, and to map such a
  /// unit with one page fault. For ranges of which every byte will be accessed. Returns false if
  /// the kernel cannot do so.
  bool UseLargePages(uint64_t offset_bytes, uint64_t length_bytes) const;
  /// Reads this range into memory, so that an access causes no page fault. kDataLoss: it cannot be
  /// read (a failing disk, a truncated file), and an access would end the process. Does nothing
  /// before Linux 5.14.
  Result<void> Populate(uint64_t offset_bytes, uint64_t length_bytes) const;

 private:
  std::span<const std::byte> bytes_;
};

/// The huge pages of a kernel whose pages have 4 KiB. Those of other kernels (on aarch64, 32 MiB
/// with pages of 16 KiB, and 512 MiB with 64 KiB) are larger: there this is only an alignment, and
/// most requests for huge pages have no effect, because they cover less than one.
inline constexpr uint64_t kHugePageBytes = uint64_t{2} << 20;

/// Maps `length_bytes` of private memory, which is zero, at a multiple of `alignment`, a power of
/// two, and of the page size. Returns null if there is none. The caller unmaps it with munmap.
std::byte* MapAligned(uint64_t length_bytes, uint64_t alignment);

/// A buffer that is aligned for FlatBuffers and reused. Threads: one.
class AlignedBytes {
 public:
  /// Copies `bytes`. The result is valid until the next call.
  std::span<const std::byte> Assign(std::string_view bytes) {
    words_.resize(bytes.size() / sizeof(uint64_t) + 1);
    if (!bytes.empty()) std::memcpy(words_.data(), bytes.data(), bytes.size());
    return std::as_bytes(std::span(words_)).first(bytes.size());
  }
  std::span<const std::byte> Assign(std::span<const std::byte> bytes) {
    return Assign(std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  }

 private:
  std::vector<uint64_t> words_;
};

}  // namespace cairn::kv
