#pragma once
/// Compares the payload of a segment with its page digests while it passes in pieces.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "kv/base/error.h"
#include "kv/segment/internal/segment_description.h"
#include "kv/table/internal/window_reader.h"

namespace cairn::kv::internal {

/// Ownership: `segment` outlives it. Threads: one.
class PayloadCheck {
 public:
  /// `path` is the path of the segment, for error messages.
  PayloadCheck(const SegmentDescription& segment, std::string path)
      : segment_(segment), path_(std::move(path)) {}

  /// Checks the next bytes. The first ones follow the header; the last ones precede the page
  /// digests. kDataLoss: a page does not match its digest, a gap is not zero, or the footer refers
  /// to page digests that the segment does not have; names the offset.
  Result<void> Add(std::span<const std::byte> bytes);
  /// Returns whether all bytes up to the page digests have been checked.
  bool IsComplete() const { return at_ == segment_.trailer.page_digests_offset_bytes; }

 private:
  Result<void> AddToPage(std::span<const std::byte> bytes, uint64_t page_begin, uint64_t page_end);
  Result<void> ComparePage(uint64_t page_begin, uint64_t digest) const;

  const SegmentDescription& segment_;
  const std::string path_;
  uint64_t at_ = kSegmentHeaderBytes;        // position of the next byte
  size_t extent_ = 0;                        // the first one that does not end before at_
  std::optional<StreamChecksum64> partial_;  // digest of a page that several pieces contain
};

}  // namespace cairn::kv::internal
