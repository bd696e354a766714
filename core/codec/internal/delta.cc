#include "core/codec/internal/delta.h"

#include <fmt/format.h>
#include <zstd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>

#include "core/codec/internal/changed_elements.h"
#include "kv/base/div.h"
#include "schema/little_endian.h"

namespace cairn::core::internal {
namespace {

using schema::GetLittleEndian;

std::unexpected<Error> Damaged(std::string what) {
  return Fail(ErrorCode::kDataLoss, fmt::format("the delta of a chunk is damaged: {}", what));
}

uint64_t CountBytes(std::span<const std::byte> bytes, uint8_t value) {
  return static_cast<uint64_t>(std::ranges::count(bytes, std::byte{value}));
}

template <typename T>
void AddTo(std::span<std::byte> bytes, size_t index, T difference) {
  T value;
  std::memcpy(&value, bytes.data() + index * sizeof(T), sizeof(T));
  value = static_cast<T>(value + difference);
  std::memcpy(bytes.data() + index * sizeof(T), &value, sizeof(T));
}

/// Reads the values of one page: first the values of the sparse elements, then of the dense ones.
template <typename T>
class ValueReader {
 public:
  /// Both have what the symbols of the page need, which FindStart checks, and `values` has one byte
  /// more.
  ValueReader(const std::byte* values, const std::byte* wide) : values_(values), wide_(wide) {}
  T Read(std::byte symbol) {
    // Read in any case, because a branch would often be mispredicted.
    const auto large = static_cast<uint8_t>(*values_);
    const bool is_large = symbol == std::byte{kLargeValue};
    values_ += is_large;
    if (is_large & (large == kWideValue)) [[unlikely]]
      return ReadWide();
    return static_cast<T>(static_cast<uint8_t>(symbol) + (is_large ? large : 0));
  }

 private:
  T ReadWide() {
    const T wide = GetLittleEndian<T>(std::span(wide_, sizeof(T)));
    wide_ += sizeof(T);
    return wide;
  }

  const std::byte* values_;
  const std::byte* wide_;
};

std::vector<std::byte> Unpack(std::span<const std::byte> packed, uint64_t count) {
  std::vector<std::byte> symbols(packed.size() * kSymbolsPerByte);
  for (size_t i = 0; i < packed.size(); ++i) {
    for (size_t j = 0; j < kSymbolsPerByte; ++j) {
      symbols[i * kSymbolsPerByte + j] = packed[i] >> (2 * j) & std::byte{3};
    }
  }
  symbols.resize(count);
  return symbols;
}

}  // namespace

Result<Delta> Delta::Parse(std::span<const std::byte> bytes, uint64_t chunk_bytes) {
  if (bytes.size() < kDeltaPageDigestsOffset) return Damaged("it is shorter than its header");
  if (std::memcmp(bytes.data(), kDeltaMagic.data(), kDeltaMagic.size()) != 0) {
    return Damaged("it does not begin with \"CDLT\"");
  }
  const auto version = static_cast<uint8_t>(bytes[4]);
  if (version > kDeltaVersion) {
    return Fail(ErrorCode::kUnimplemented,
                fmt::format("the delta of a chunk has version {}; this build reads up to {}",
                            version, kDeltaVersion));
  }
  Delta delta;
  delta.element_bytes_ = static_cast<uint8_t>(bytes[5]);
  delta.chunk_bytes_ = chunk_bytes;
  const auto stored_chunk_bytes = GetLittleEndian<uint64_t>(bytes, 8);
  if (stored_chunk_bytes != chunk_bytes || chunk_bytes > kMaxDeltaChunkBytes) {
    return Damaged(fmt::format("it is for a chunk of {} bytes, but this chunk has {}",
                               stored_chunk_bytes, chunk_bytes));
  }
  if (version == 0 ||
      DeltaElementBytes(delta.element_bytes_, chunk_bytes) != delta.element_bytes_ ||
      GetLittleEndian<uint16_t>(bytes, 6) != 0) {
    return Damaged("its header is not valid");
  }
  const uint64_t page_count = kv::PageCount(chunk_bytes);
  if (bytes.size() < DeltaStreamsOffset(page_count, delta.element_bytes_)) {
    return Damaged(fmt::format("it is too short for {} pages", page_count));
  }
  delta.page_digests_.resize(page_count);
  for (size_t i = 0; i < page_count; ++i) {
    delta.page_digests_[i] = GetLittleEndian<uint64_t>(bytes, kDeltaPageDigestsOffset + 8 * i);
  }
  CAIRN_TRY(delta.ReadStreams(bytes));
  CAIRN_TRY(delta.JoinPlanes());
  delta.ReadPages();
  CAIRN_TRY(delta.UnpackSymbols());
  CAIRN_TRY(delta.FindPageStarts());
  return delta;
}

Result<void> Delta::ReadStreams(std::span<const std::byte> bytes) {
  const uint32_t stream_count = DeltaStreamCount(element_bytes_);
  const uint64_t directory = DeltaDirectoryOffset(page_count());
  uint64_t begin = DeltaStreamsOffset(page_count(), element_bytes_);
  uint64_t decoded_bytes = 0;
  uint64_t stored_bytes = 0;
  const auto decoded_length = [&](uint32_t i) {
    return GetLittleEndian<uint32_t>(bytes, directory + kStreamEntryBytes * i);
  };
  const auto stored_length = [&](uint32_t i) {
    return GetLittleEndian<uint32_t>(bytes, directory + kStreamEntryBytes * i + 4);
  };
  for (uint32_t i = 0; i < stream_count; ++i) {
    if (stored_length(i) > decoded_length(i)) return Damaged("a stream is stored with more bytes");
    decoded_bytes += decoded_length(i);
    stored_bytes += stored_length(i);
  }
  // The limit of the memory that a hostile directory can request: an encoder uses no more bytes for
  // a page than the page has.
  if (decoded_length(0) != kDeltaPageBytes * page_count() ||
      decoded_bytes - decoded_length(0) > chunk_bytes_) {
    return Damaged("its streams are longer than the chunk");
  }
  if (stored_bytes != bytes.size() - begin) {
    return Damaged(fmt::format("it has {} bytes of streams, but needs {}", bytes.size() - begin,
                               stored_bytes));
  }
  // Kept, because its 160 KiB of memory take longer to get than a delta to decompress.
  static thread_local const std::unique_ptr<ZSTD_DCtx, decltype(&ZSTD_freeDCtx)> context(
      ZSTD_createDCtx(), &ZSTD_freeDCtx);
  if (!context) return Fail(ErrorCode::kResourceExhausted, "no memory for a delta");
  memory_.resize(decoded_bytes + 1);  // ValueReader reads one byte more than it uses
  std::span<std::byte> free = memory_;
  for (uint32_t i = 0; i < stream_count; ++i) {
    const auto source = bytes.subspan(begin, stored_length(i));
    const auto target = free.first(decoded_length(i));
    if (source.size() == target.size()) {
      std::ranges::copy(source, target.begin());
    } else {
      const size_t result = ZSTD_decompressDCtx(context.get(), target.data(), target.size(),
                                                source.data(), source.size());
      if (result != target.size() ||
          ZSTD_getFrameContentSize(source.data(), source.size()) != target.size()) {
        return Damaged(fmt::format("stream {} cannot be decompressed", i));
      }
    }
    streams_.push_back(target);
    free = free.subspan(target.size());
    begin += source.size();
  }
  return {};
}

void Delta::ReadPages() {
  const auto table = Stream(DeltaStream::kPages);
  pages_.resize(page_count());
  for (size_t i = 0; i < page_count(); ++i) {
    const auto column = [&](uint64_t index) {
      return static_cast<uint8_t>(table[index * page_count() + i]);
    };
    DeltaPage& page = pages_[i].counts;
    page.threshold = column(0);
    page.sparse_count = static_cast<uint16_t>(column(1) | column(2) << 8);
    page.dense_count = static_cast<uint16_t>(column(3) | column(4) << 8);
  }
}

/// Requires the page table.
Result<void> Delta::UnpackSymbols() {
  uint64_t sparse_count = 0;
  uint64_t dense_count = 0;
  for (const PageStart& page : pages_) {
    sparse_count += page.counts.sparse_count;
    dense_count += page.counts.dense_count;
  }
  const auto sparse = Stream(DeltaStream::kSparse);
  const auto dense = Stream(DeltaStream::kDense);
  if (sparse.size() != DivCeil(sparse_count, kSymbolsPerByte) ||
      dense.size() != DivCeil(dense_count, kSymbolsPerByte)) {
    return Damaged("its page table does not match its symbols");
  }
  sparse_ = Unpack(sparse, sparse_count);
  dense_ = Unpack(dense, dense_count);
  return {};
}

Result<void> Delta::JoinPlanes() {
  const auto planes = std::span(streams_).subspan(kFixedStreamCount);
  for (const auto& plane : planes) {
    if (plane.size() != planes.front().size()) return Damaged("its planes differ in length");
  }
  wide_.resize(planes.front().size() * element_bytes_);
  for (size_t plane = 0; plane < planes.size(); ++plane) {
    for (size_t i = 0; i < planes[plane].size(); ++i) {
      wide_[i * element_bytes_ + plane] = planes[plane][i];
    }
  }
  return {};
}

Result<void> Delta::FindPageStarts() {
  const auto planes = std::span(streams_).subspan(kFixedStreamCount);
  PageStart next;
  for (size_t i = 0; i < page_count(); ++i) {
    CAIRN_TRY(FindStart(pages_[i], DeltaPageLength(i, chunk_bytes_), next));
  }
  if (next.gaps != Stream(DeltaStream::kGaps).size() ||
      next.values != Stream(DeltaStream::kValues).size() ||
      next.raw != Stream(DeltaStream::kRaw).size() || next.wide != planes.front().size()) {
    return Damaged("its streams do not end with its last page");
  }
  return {};
}

/// Sets where the parts of `page` begin: at `next`, which is advanced past the page.
Result<void> Delta::FindStart(PageStart& page, uint64_t page_bytes, PageStart& next) const {
  const DeltaPage counts = page.counts;
  page = next;
  page.counts = counts;
  const auto take = [&](DeltaStream stream, uint32_t& begin, uint64_t length) {
    const auto bytes = Stream(stream);
    const bool fits = length <= bytes.size() - begin;
    const auto taken = fits ? bytes.subspan(begin, length) : std::span<const std::byte>();
    begin += static_cast<uint32_t>(taken.size());
    return taken;
  };
  if (counts.threshold == kRawPage) {
    if (counts.sparse_count != 0 || counts.dense_count != 0 ||
        take(DeltaStream::kRaw, next.raw, page_bytes).size() != page_bytes) {
      return Damaged("a raw page is not complete");
    }
    return {};
  }
  if (counts.threshold == kPlanesPage) {
    if (counts.sparse_count != 0 || counts.dense_count != 0) {
      return Damaged("a page in planes has other elements");
    }
    next.wide += static_cast<uint32_t>(page_bytes / element_bytes_);  // the caller checks the sum
    return {};
  }
  if (counts.threshold == 0 && counts.dense_count != 0) {
    return Damaged("a page without a threshold has dense elements");
  }
  if (counts.sparse_count > sparse_.size() - next.sparse ||
      counts.dense_count > dense_.size() - next.dense) {
    return Damaged("the symbols of a page are missing");
  }
  const auto sparse = std::span(sparse_).subspan(next.sparse, counts.sparse_count);
  const auto dense = std::span(dense_).subspan(next.dense, counts.dense_count);
  next.sparse += counts.sparse_count;
  next.dense += counts.dense_count;
  // Bytes that skip are followed by as many more bytes, of which some may skip again.
  uint64_t missing = counts.sparse_count;
  while (missing != 0) {
    const auto gaps = take(DeltaStream::kGaps, next.gaps, missing);
    if (gaps.size() != missing) return Damaged("the gaps of a page are missing");
    missing = CountBytes(gaps, kGapSkip);
  }
  page.gap_count = next.gaps - page.gaps;
  const uint64_t value_count = CountBytes(sparse, kLargeValue) + CountBytes(dense, kLargeValue);
  const auto values = take(DeltaStream::kValues, next.values, value_count);
  if (values.size() != value_count) return Damaged("the values of a page are missing");
  next.wide += static_cast<uint32_t>(CountBytes(values, kWideValue));  // the caller checks the sum
  return {};
}

template <typename T>
Result<void> Delta::ApplyElements(const PageStart& page, std::span<std::byte> bytes) const {
  const size_t element_count = bytes.size() / sizeof(T);
  ElementList found;  // dense elements
  if (page.counts.threshold != 0) {
    // Before any element is replaced: the elements of the earlier version determine which are
    // dense.
    FindDenseElements(element_bytes_, bytes, page.counts.threshold, found);
    if (found.count != page.counts.dense_count) {
      return Damaged("it does not belong to this earlier version");
    }
  }
  ValueReader<T> values(Stream(DeltaStream::kValues).data() + page.values,
                        wide_.data() + size_t{page.wide} * sizeof(T));
  const std::byte* symbol = sparse_.data() + page.sparse;
  size_t position = 0;
  for (const std::byte gap : Stream(DeltaStream::kGaps).subspan(page.gaps, page.gap_count)) {
    position += static_cast<uint8_t>(gap);
    if (position >= element_count) return Damaged("a gap ends after its page");
    if (gap == std::byte{kGapSkip}) continue;
    AddTo<T>(bytes, position, UnZigZag(static_cast<T>(values.Read(*symbol++) + 1)));
    ++position;
  }
  symbol = dense_.data() + page.dense;
  for (const size_t i : found.span()) AddTo<T>(bytes, i, UnZigZag(values.Read(*symbol++)));
  return {};
}

Result<void> Delta::Apply(uint64_t page, std::span<std::byte> bytes) const {
  CAIRN_CHECK(page < page_count() && bytes.size() == DeltaPageLength(page, chunk_bytes_));
  const PageStart& start = pages_[page];
  if (IsRaw(page)) {
    std::memcpy(bytes.data(), Stream(DeltaStream::kRaw).data() + start.raw, bytes.size());
    return {};
  }
  if (!IsChanged(page)) return {};
  return WithElementType(element_bytes_, [&](auto zero) -> Result<void> {
    using T = decltype(zero);
    if (start.counts.threshold != kPlanesPage) return ApplyElements<T>(start, bytes);
    const std::byte* const wide = wide_.data() + size_t{start.wide} * sizeof(T);
    for (size_t i = 0; i < bytes.size(); i += sizeof(T)) {
      T rotated;
      std::memcpy(&rotated, wide + i, sizeof(T));
      const T element = RotateDown(rotated);
      std::memcpy(bytes.data() + i, &element, sizeof(T));
    }
    return {};
  });
}

}  // namespace cairn::core::internal
