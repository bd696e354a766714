#pragma once
/// Decodes what changed in a chunk since an earlier version of it (docs/format/delta.md).
///
///   CAIRN_TRY_ASSIGN(const Delta delta, Delta::Parse(bytes, chunk_bytes));
///   if (delta.IsChanged(page)) CAIRN_TRY(delta.Apply(page, bytes_of_the_page));

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/codec/internal/delta_format.h"
#include "kv/base/error.h"

namespace cairn::core::internal {

/// A delta that was read from a store. Its bytes are not trusted: whatever they are, no call reads
/// or writes outside of its memory. Whether the decoded bytes are what was saved is for the caller
/// to check, with the page digests.
///
/// Ownership: borrows the bytes that Parse received, and owns what it has decompressed: at most
/// about twice the length of the chunk.
/// Threads: const members may be called from several threads at once.
class Delta {
 public:
  Delta(Delta&&) noexcept = default;
  Delta& operator=(Delta&&) noexcept = default;

  /// Checks and decompresses a delta of a chunk of `chunk_bytes`. `bytes` must outlive the result.
  /// kDataLoss: the bytes are not a delta of such a chunk. kUnimplemented: a newer version.
  static Result<Delta> Parse(std::span<const std::byte> bytes, uint64_t chunk_bytes);

  /// The digest of each page of this version, as stored.
  std::span<const uint64_t> page_digests() const { return page_digests_; }
  uint64_t page_count() const { return page_digests_.size(); }

  /// Returns whether the page may differ from the earlier version; if not, Apply does nothing.
  /// Requires `page < page_count()`.
  bool IsChanged(uint64_t page) const {
    const DeltaPage& what = pages_[page].counts;
    return what.threshold != 0 || what.sparse_count != 0;
  }
  /// Returns whether the delta contains all bytes of the page as they are. Requires `page <
  /// page_count()`.
  bool IsRaw(uint64_t page) const { return pages_[page].counts.threshold == kRawPage; }

  /// Replaces the bytes of page `page` of the earlier version by the bytes of this version.
  /// Requires `page < page_count()` and that `bytes` has the length of the page. kDataLoss: the
  /// delta is inconsistent, or was not made for the earlier version; `bytes` is then unspecified.
  Result<void> Apply(uint64_t page, std::span<std::byte> bytes) const;

 private:
  /// A page, and where what belongs to it begins in each stream.
  struct PageStart {
    DeltaPage counts;
    uint32_t gaps = 0;
    uint32_t gap_count = 0;
    uint32_t sparse = 0;
    uint32_t dense = 0;
    uint32_t values = 0;
    uint32_t raw = 0;
    uint32_t wide = 0;
  };

  Delta() = default;
  Result<void> ReadStreams(std::span<const std::byte> bytes);
  void ReadPages();
  Result<void> FindPageStarts();
  Result<void> FindStart(PageStart& page, uint64_t page_bytes, PageStart& next) const;
  std::span<const std::span<const std::byte>> Planes() const {
    return std::span(streams_).subspan(kFixedStreamCount);
  }
  Result<void> UnpackSymbols();
  std::span<const std::byte> Stream(DeltaStream stream) const {
    return streams_[static_cast<size_t>(stream)];
  }

  template <typename T>
  Result<void> ApplyElements(const PageStart& page, std::span<std::byte> bytes) const;

  uint32_t element_bytes_ = 1;
  uint64_t chunk_bytes_ = 0;
  std::vector<uint64_t> page_digests_;
  std::vector<PageStart> pages_;
  std::unique_ptr<std::byte[]> memory_;              // the streams that are not borrowed
  std::vector<std::span<const std::byte>> streams_;  // in memory_, or borrowed
  std::vector<std::byte> sparse_;                    // symbols, one per byte
  std::vector<std::byte> dense_;                     // symbols, one per byte
};

}  // namespace cairn::core::internal
