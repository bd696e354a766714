#include "kv/maintain/internal/payload_check.h"

#include <algorithm>

#include "kv/base/digest.h"
#include "kv/base/div.h"

namespace cairn::kv::internal {

Result<void> PayloadCheck::Add(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    while (extent_ < segment_.extents.size() &&
           segment_.extents[extent_].offset_bytes + segment_.extents[extent_].length_bytes <= at_) {
      ++extent_;
    }
    const bool is_last_gap = extent_ == segment_.extents.size();
    const uint64_t begin = is_last_gap ? segment_.trailer.page_digests_offset_bytes
                                       : segment_.extents[extent_].offset_bytes;
    uint64_t end = begin;
    if (at_ < begin) {
      const auto gap = bytes.first(std::min<uint64_t>(bytes.size(), begin - at_));
      CAIRN_TRY(CheckZeros(gap, at_, path_));
      end = at_ + gap.size();
    } else {
      CAIRN_CHECK(!is_last_gap);  // the caller gave bytes after the payload
      const Extent& extent = segment_.extents[extent_];
      const uint64_t page_begin = begin + RoundDown(at_ - begin, kPageBytes);
      const uint64_t page_end = std::min(page_begin + kPageBytes, begin + extent.length_bytes);
      const auto part = bytes.first(std::min<uint64_t>(bytes.size(), page_end - at_));
      CAIRN_TRY(AddToPage(part, page_begin, page_end));
      end = at_ + part.size();
    }
    bytes = bytes.subspan(end - at_);
    at_ = end;
  }
  return {};
}

Result<void> PayloadCheck::AddToPage(std::span<const std::byte> bytes, uint64_t page_begin,
                                     uint64_t page_end) {
  if (at_ == page_begin) {
    if (bytes.size() == page_end - page_begin) return ComparePage(page_begin, PageDigest(bytes));
    partial_.emplace();
  }
  partial_->Update(bytes);
  if (at_ + bytes.size() < page_end) return {};
  const uint64_t digest = partial_->value();
  partial_.reset();
  return ComparePage(page_begin, digest);
}

Result<void> PayloadCheck::ComparePage(uint64_t page_begin, uint64_t digest) const {
  const Extent& extent = segment_.extents[extent_];
  const uint64_t first = segment_.trailer.page_digests_offset_bytes;
  const uint64_t digest_at =
      extent.page_digests_offset_bytes + 8 * ((page_begin - extent.offset_bytes) / kPageBytes);
  const auto fail = [&](const char* message) {
    return Fail(Error{.code = ErrorCode::kDataLoss,
                      .message = message,
                      .file = path_,
                      .offset_bytes = page_begin});
  };
  if (digest_at < first || (digest_at - first) % 8 != 0 ||
      (digest_at - first) / 8 >= segment_.page_digests.size()) {
    return fail("the footer refers to page digests that the segment does not have");
  }
  if (segment_.page_digests[(digest_at - first) / 8] == digest) return {};
  return fail("a page of the segment does not match its digest");
}

}  // namespace cairn::kv::internal
