// Headers, trailers and footers of segments, and complete segments.

#include <algorithm>
#include <array>
#include <memory>

#include "kv/base/digest.h"
#include "kv/segment/internal/segment_format.h"
#include "kv/storage/files/internal/memory_storage.h"
#include "kv/storage/internal/object_reader.h"
#include "tests/fuzz/fuzz_support.h"
#include "tests/kv/encode_footer.h"

namespace cairn::fuzz {
namespace {

using namespace kv::internal;  // NOLINT(google-build-using-namespace): the code under test

constexpr uint64_t kAlignBytes = 4096;
constexpr char kName[] = "segments/00000001-000000000000000100000002.seg";

/// Copies the input to an array of a fixed length, which it may not fill.
template <size_t kBytes>
std::array<std::byte, kBytes> Padded(std::span<const std::byte> bytes) {
  std::array<std::byte, kBytes> padded{};
  std::ranges::copy(bytes.first(std::min(bytes.size(), kBytes)), padded.begin());
  return padded;
}

void FuzzHeader(Input input) {
  const bool is_repaired = input.Byte() % 2 == 1;
  auto bytes = Padded<kSegmentHeaderBytes>(input.rest());
  if (is_repaired) RepairChecksum(bytes);
  const auto header = DecodeSegmentHeader(bytes);
  if (!header) return UseError(header.error());
  std::array<std::byte, kSegmentHeaderBytes> once;
  EncodeSegmentHeader(*header, once);
  std::array<std::byte, kSegmentHeaderBytes> twice;
  EncodeSegmentHeader(DecodeSegmentHeader(once).value(), twice);
  CAIRN_FUZZ_CHECK(once == twice);
}

void FuzzTrailer(Input input) {
  const bool is_repaired = input.Byte() % 2 == 1;
  const uint64_t file_bytes = kSegmentHeaderBytes + kSegmentTrailerBytes + input.Number<uint32_t>();
  auto bytes = Padded<kSegmentTrailerBytes>(input.rest());
  if (is_repaired) RepairChecksum(bytes);
  const auto trailer = DecodeSegmentTrailer(bytes, file_bytes);
  if (!trailer) return UseError(trailer.error());
  CAIRN_FUZZ_CHECK(trailer->footer_offset_bytes() <= file_bytes - kSegmentTrailerBytes);
  CAIRN_FUZZ_CHECK(trailer->footer_bytes <=
                   file_bytes - kSegmentTrailerBytes - trailer->footer_offset_bytes());
  std::array<std::byte, kSegmentTrailerBytes> once;
  EncodeSegmentTrailer(*trailer, once);
  CAIRN_FUZZ_CHECK(DecodeSegmentTrailer(once, file_bytes).has_value());
}

/// Decodes a footer and returns its entries, encoded again.
void FuzzFooter(Input input) {
  const auto segment_id = input.Number<uint64_t>();
  const std::vector<std::byte> footer = input.CopyRest();
  const auto decode = [segment_id](std::span<const std::byte> bytes) {
    return DecodeSegmentFooter(bytes, segment_id);
  };
  const auto attempt = DecodeFooterAttempt(footer);
  Result<std::vector<FooterEntry>> entries;
  {
    // An entry needs at least 24 bytes of the footer and 56 bytes of memory.
    const MemoryLimit limit(footer, 32);
    entries = decode(footer);
  }
  if (!entries) return UseError(entries.error());
  CAIRN_FUZZ_CHECK(attempt.has_value());
  const SegmentHeader header{.segment_id = segment_id};
  CheckRoundTrip(
      decode,
      [&](const std::vector<FooterEntry>& all) { return EncodeFooter(header, *attempt, all); },
      EncodeFooter(header, *attempt, *entries));
}

/// Reads a segment without payload, whose trailer and footer are the input and whose checksums are
/// right.
void FuzzSegment(Input input) {
  SegmentHeader header{.segment_id = input.Number<uint64_t>(), .step = 7, .epoch = 1, .id_tail = 2};
  SegmentTrailer trailer{.segment_id = header.segment_id};
  trailer.payload_end_bytes = kSegmentHeaderBytes + input.Number<uint16_t>();
  trailer.page_digests_offset_bytes =
      (trailer.payload_end_bytes + kAlignBytes - 1) / kAlignBytes * kAlignBytes;
  trailer.page_digest_count = input.Byte();
  const std::vector<std::byte> footer = input.CopyRest();
  trailer.footer_bytes = footer.size();
  trailer.footer_digest = kv::Checksum64(footer);
  const uint64_t footer_end = trailer.footer_offset_bytes() + footer.size();
  std::vector<std::byte> object((footer_end + kSegmentTrailerBytes + kAlignBytes - 1) /
                                kAlignBytes * kAlignBytes);
  trailer.page_digests_checksum = kv::Checksum64(
      std::span(object).subspan(trailer.page_digests_offset_bytes, 8 * trailer.page_digest_count));
  EncodeSegmentHeader(header, std::span(object).first<kSegmentHeaderBytes>());
  std::ranges::copy(footer, object.begin() + static_cast<ptrdiff_t>(footer_end - footer.size()));
  EncodeSegmentTrailer(trailer, std::span(object).last<kSegmentTrailerBytes>());

  const auto storage = std::make_shared<MemoryStorage>("fuzz");
  CAIRN_FUZZ_CHECK(storage->Put(kName, object).has_value());
  const auto file = ObjectReader::Open(storage, kName);
  CAIRN_FUZZ_CHECK(file.has_value());
  const kv::SegmentInfo info{.segment_id = header.segment_id,
                             .id_tail = header.id_tail,
                             .epoch = header.epoch,
                             .file_bytes = object.size(),
                             .footer_digest = trailer.footer_digest,
                             .page_digests_checksum = trailer.page_digests_checksum};
  const auto segment = ReadSegmentDescription(*file, header.store_uuid, info);
  if (!segment) return UseError(segment.error());
  uint64_t at = kSegmentHeaderBytes;
  for (const kv::Extent& extent : segment->extents) {
    CAIRN_FUZZ_CHECK(extent.offset_bytes >= at);
    at = extent.offset_bytes + extent.length_bytes;
    CAIRN_FUZZ_CHECK(at >= extent.offset_bytes && at <= trailer.payload_end_bytes);
  }
}

}  // namespace

void Fuzz(Input input) {
  switch (TakeSelector(input, 4)) {
    case 0:
      return FuzzHeader(input);
    case 1:
      return FuzzTrailer(input);
    case 2:
      return FuzzFooter(input);
    default:
      return FuzzSegment(input);
  }
}

}  // namespace cairn::fuzz
