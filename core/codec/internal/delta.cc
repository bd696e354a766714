#include "core/codec/internal/delta.h"

#include <fmt/format.h>
#include <zstd.h>

#include <algorithm>
#include <array>
#include <cstring>

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

using PlaneSpans = std::span<const std::span<const std::byte>>;

/// Returns the value with the index `i` in the planes, which are of equal length.
template <typename T>
T WideValue(PlaneSpans planes, size_t i) {
  T value = 0;
  for (size_t plane = 0; plane < sizeof(T); ++plane) {
    value |= static_cast<T>(static_cast<T>(planes[plane][i]) << (8 * plane));
  }
  return value;
}

/// Sets `page` to the elements that begin at `begin` in the planes, rotated back. The compiler
/// vectorizes the loop.
template <typename T>
void JoinPlanes(PlaneSpans planes, size_t begin, std::span<std::byte> page) {
  std::array<const std::byte*, sizeof(T)> in;
  for (size_t plane = 0; plane < sizeof(T); ++plane) in[plane] = planes[plane].data() + begin;
  std::byte* const __restrict out = page.data();
  for (size_t i = 0; i < page.size() / sizeof(T); ++i) {
    T element = 0;
    for (size_t plane = 0; plane < sizeof(T); ++plane) {
      element |= static_cast<T>(static_cast<T>(in[plane][i]) << (8 * plane));
    }
    element = RotateDown(element);
    std::memcpy(out + i * sizeof(T), &element, sizeof(T));
  }
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
  ValueReader(const std::byte* values, PlaneSpans planes, size_t wide)
      : values_(values), planes_(planes), wide_(wide) {}
  T Read(std::byte symbol) {
    // Read in any case, because a branch would often be mispredicted.
    const auto large = static_cast<uint8_t>(*values_);
    const bool is_large = symbol == std::byte{kLargeValue};
    values_ += is_large;
    if (is_large & (large == kWideValue)) [[unlikely]]
      return WideValue<T>(planes_, wide_++);
    return static_cast<T>(static_cast<uint8_t>(symbol) + (is_large ? large : 0));
  }

 private:
  const std::byte* values_;
  PlaneSpans planes_;
  size_t wide_;  // index of the next one
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
  const auto is_borrowed = [&](uint32_t i) {
    // ValueReader reads one byte more than it uses, so shorter streams are always copied.
    return i >= static_cast<uint32_t>(DeltaStream::kRaw) && stored_length(i) == decoded_length(i);
  };
  uint64_t owned_bytes = 1;
  for (uint32_t i = 0; i < stream_count; ++i) owned_bytes += is_borrowed(i) ? 0 : decoded_length(i);
  memory_ = std::make_unique_for_overwrite<std::byte[]>(owned_bytes);
  std::span<std::byte> free(memory_.get(), owned_bytes);
  for (uint32_t i = 0; i < stream_count; ++i) {
    const auto source = bytes.subspan(begin, stored_length(i));
    begin += source.size();
    if (is_borrowed(i)) {
      streams_.push_back(source);
      continue;
    }
    const auto target = free.first(decoded_length(i));
    free = free.subspan(target.size());
    streams_.push_back(target);
    if (source.size() == target.size()) {
      std::ranges::copy(source, target.begin());
      continue;
    }
    const size_t result = ZSTD_decompressDCtx(context.get(), target.data(), target.size(),
                                              source.data(), source.size());
    if (result != target.size() ||
        ZSTD_getFrameContentSize(source.data(), source.size()) != target.size()) {
      return Damaged(fmt::format("stream {} cannot be decompressed", i));
    }
  }
  free[0] = std::byte{0};
  for (const auto& plane : Planes()) {
    if (plane.size() != Planes().front().size()) return Damaged("its planes differ in length");
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

Result<void> Delta::FindPageStarts() {
  PageStart next;
  for (size_t i = 0; i < page_count(); ++i) {
    CAIRN_TRY(FindStart(pages_[i], DeltaPageLength(i, chunk_bytes_), next));
  }
  if (next.gaps != Stream(DeltaStream::kGaps).size() ||
      next.values != Stream(DeltaStream::kValues).size() ||
      next.raw != Stream(DeltaStream::kRaw).size() || next.wide != Planes().front().size()) {
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
  ValueReader<T> values(Stream(DeltaStream::kValues).data() + page.values, Planes(), page.wide);
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
    JoinPlanes<T>(Planes(), start.wide, bytes);
    return {};
  });
}

}  // namespace cairn::core::internal
