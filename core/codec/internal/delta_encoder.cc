#include "core/codec/internal/delta_encoder.h"

#define ZSTD_STATIC_LINKING_ONLY  // ZSTD_c_literalCompressionMode
#include <zstd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>

#include "kv/base/div.h"
#include "kv/base/error.h"
#include "schema/little_endian.h"

namespace cairn::core::internal {
namespace {

/// A page of a changed tensor is examined for a threshold once per this number of changed pages.
constexpr uint64_t kPagesPerThreshold = 16;
/// Streams that are shorter are not compressed.
constexpr size_t kMinCompressedBytes = 48;
/// A plane of complete pages is compressed if this saves at least this part of it.
constexpr size_t kMinSavedPart = 16;
/// Matches are searched in a plane of complete pages if this saves at least this part.
constexpr size_t kMinSavedPartOfMatches = 32;

template <typename T>
T Load(std::span<const std::byte> bytes, size_t index) {
  T value;
  std::memcpy(&value, bytes.data() + index * sizeof(T), sizeof(T));
  return value;
}

/// The top bits that IsDense compares.
template <typename T>
uint8_t TopBits(T element) {
  return static_cast<uint8_t>(static_cast<T>(element << 1) >> (8 * sizeof(T) - 8));
}

/// Packs symbols; the unused bits of the last byte are 0.
void PackSymbols(std::span<const std::byte> symbols, std::vector<std::byte>& packed) {
  packed.resize(DivCeil(symbols.size(), kSymbolsPerByte));
  const size_t whole = symbols.size() / kSymbolsPerByte;
  for (size_t i = 0; i < whole; ++i) {
    const std::byte* four = symbols.data() + i * kSymbolsPerByte;
    packed[i] = four[0] | four[1] << 2 | four[2] << 4 | four[3] << 6;
  }
  if (whole == packed.size()) return;
  packed[whole] = std::byte{0};
  for (size_t i = whole * kSymbolsPerByte; i < symbols.size(); ++i) {
    packed[whole] |= symbols[i] << (2 * (i % kSymbolsPerByte));
  }
}

/// Rotates each element of `page`, and writes byte i of all of them to `planes` + i * `stride`. The
/// compiler vectorizes these loops.
template <typename T>
void SplitPlanes(std::span<const std::byte> page, std::byte* planes, size_t stride) {
  const std::byte* const __restrict in = page.data();
  const size_t count = page.size() / sizeof(T);
  // As many planes in one pass over the page as compilers vectorize.
  constexpr size_t kTogether = sizeof(T) == 8 ? 1 : sizeof(T);
  for (size_t plane = 0; plane < sizeof(T); plane += kTogether) {
    std::byte* const __restrict a = planes + plane * stride;
    std::byte* const __restrict b = a + (kTogether > 1 ? stride : 0);
    std::byte* const __restrict c = a + (kTogether > 2 ? 2 * stride : 0);
    std::byte* const __restrict d = a + (kTogether > 2 ? 3 * stride : 0);
    for (size_t i = 0; i < count; ++i) {
      T element;
      std::memcpy(&element, in + i * sizeof(T), sizeof(T));
      element = static_cast<T>(RotateUp(element) >> (8 * plane));
      a[i] = static_cast<std::byte>(element);
      if constexpr (kTogether > 1) b[i] = static_cast<std::byte>(element >> 8);
      if constexpr (kTogether > 2) c[i] = static_cast<std::byte>(element >> 16);
      if constexpr (kTogether > 2) d[i] = static_cast<std::byte>(element >> 24);
    }
  }
}

ZSTD_CCtx_s* NewContext(int level) {
  ZSTD_CCtx_s* const context = ZSTD_createCCtx();
  if (!context) throw std::bad_alloc();
  CAIRN_CHECK(!ZSTD_isError(ZSTD_CCtx_setParameter(context, ZSTD_c_compressionLevel, level)));
  return context;
}

}  // namespace

void DeltaEncoder::FreeContext::operator()(ZSTD_CCtx_s* context) const { ZSTD_freeCCtx(context); }

DeltaEncoder::DeltaEncoder()
    : elements_(std::make_unique<PageElements>()), matches_(NewContext(1)) {
  // This level skips almost all positions. Without literal compression, which is experimental in
  // zstd, the stream gets longer, and ChoosePlaneCodings then prefers matches.
  literals_.reset(NewContext(ZSTD_minCLevel()));
  (void)ZSTD_CCtx_setParameter(literals_.get(), ZSTD_c_literalCompressionMode, ZSTD_ps_enable);
}
DeltaEncoder::~DeltaEncoder() = default;
DeltaEncoder::DeltaEncoder(DeltaEncoder&&) noexcept = default;
DeltaEncoder& DeltaEncoder::operator=(DeltaEncoder&&) noexcept = default;

void DeltaEncoder::Begin(uint32_t element_bytes, uint64_t chunk_bytes) {
  element_bytes_ = DeltaElementBytes(element_bytes, chunk_bytes);
  chunk_bytes_ = chunk_bytes;
  page_count_ = kv::PageCount(chunk_bytes);
  pages_.clear();
  changed_pages_ = 0;
  threshold_ = 0;
  for (auto* stream : {&gaps_, &sparse_, &dense_, &values_, &raw_}) stream->clear();
  wide_count_ = 0;
  codings_.fill(Coding::kMatches);
}

void DeltaEncoder::ReservePlanes() {
  if (planes_bytes_ >= chunk_bytes_) return;
  planes_.reset();
  planes_bytes_ = 0;
  planes_ = std::make_unique_for_overwrite<std::byte[]>(chunk_bytes_);
  planes_bytes_ = chunk_bytes_;
}

PlaneCodings DeltaEncoder::ChoosePlaneCodings() {
  delta_.resize(std::max(delta_.size(), wide_count_));
  PlaneCodings codings;
  for (size_t i = 0; i < element_bytes_; ++i) {
    const auto stored = [&](Coding coding) {
      return CompressStream(coding, Plane(i), delta_.data()).value_or(wide_count_);
    };
    Coding& coding = codings.planes[i] = Coding::kLiterals;
    size_t bytes = stored(coding);
    const size_t with_matches = stored(Coding::kMatches);
    if (with_matches + bytes / kMinSavedPartOfMatches < bytes) {
      coding = Coding::kMatches;
      bytes = with_matches;
    }
    if (bytes + wide_count_ / kMinSavedPart > wide_count_) {
      coding = Coding::kRaw;
      bytes = wide_count_;
    }
    codings.stored_bytes += bytes;
  }
  return codings;
}

void DeltaEncoder::AddUnchangedPage() {
  CAIRN_CHECK(pages_.size() < page_count_);
  pages_.push_back({});
}

void DeltaEncoder::AddCompletePage(std::span<const std::byte> page) {
  CAIRN_CHECK(pages_.size() < page_count_ &&
              page.size() == DeltaPageLength(pages_.size(), chunk_bytes_));
  ReservePlanes();
  WithElementType(element_bytes_, [&](auto zero) {
    SplitPlanes<decltype(zero)>(page, planes_.get() + wide_count_, PlaneStride());
  });
  wide_count_ += page.size() / element_bytes_;
  ++changed_pages_;
  pages_.push_back({.threshold = kPlanesPage});
}

void DeltaEncoder::AddPage(std::span<const std::byte> base, std::span<const std::byte> page) {
  CAIRN_CHECK(pages_.size() < page_count_ && base.size() == page.size() &&
              page.size() == DeltaPageLength(pages_.size(), chunk_bytes_));
  WithElementType(element_bytes_, [&](auto zero) { EncodePage<decltype(zero)>(base, page); });
}

template <typename T>
void DeltaEncoder::EncodePage(std::span<const std::byte> base, std::span<const std::byte> page) {
  const size_t element_count = page.size() / sizeof(T);
  if (changed_pages_ % kPagesPerThreshold == 0) threshold_ = ChooseThreshold<T>(base, page);

  FindElements(element_bytes_, base, page, threshold_, *elements_);
  const auto sparse = elements_->sparse.span();
  const auto dense = elements_->dense.span();
  if (sparse.empty() &&
      (dense.empty() || std::memcmp(base.data(), page.data(), page.size()) == 0)) {
    pages_.push_back({});
    return;
  }
  ++changed_pages_;
  if (std::max(sparse.size(), dense.size()) > UINT16_MAX) return StoreRawPage(page);

  if (EstimatePageBytes<T>(base, page, sparse) + EstimatePageBytes<T>(base, page, dense) >
      page.size()) {
    return StoreRawPage(page);
  }
  const std::array streams = {&gaps_, &sparse_, &dense_, &values_};
  const size_t wide_count_before = wide_count_;
  std::array<size_t, streams.size()> lengths;
  std::ranges::transform(streams, lengths.begin(), [](const auto* s) { return s->size(); });
  const size_t bytes_before = StreamBytes();
  AppendGaps(sparse, element_count);
  const auto difference_at = [&](std::span<const uint16_t> positions) {
    return [=](size_t i) -> T { return Load<T>(page, positions[i]) - Load<T>(base, positions[i]); };
  };
  AppendValues<T, 1>(sparse.size(), difference_at(sparse), sparse_);
  AppendValues<T, 0>(dense.size(), difference_at(dense), dense_);
  if (StreamBytes() - bytes_before > page.size()) {
    for (size_t i = 0; i < streams.size(); ++i) streams[i]->resize(lengths[i]);
    wide_count_ = wide_count_before;
    return StoreRawPage(page);
  }
  pages_.push_back({.threshold = threshold_,
                    .sparse_count = static_cast<uint16_t>(sparse.size()),
                    .dense_count = static_cast<uint16_t>(dense.size())});
}

/// Estimates the bytes of the elements at `positions` in all streams, from a few of them, so that
/// pages of which nearly everything changed cost little time. It is 0 if there are few elements.
template <typename T>
size_t DeltaEncoder::EstimatePageBytes(std::span<const std::byte> base,
                                       std::span<const std::byte> page,
                                       std::span<const uint16_t> positions) const {
  constexpr size_t kSamples = 64;
  if (positions.size() <= page.size() / sizeof(T) / 8) return 0;
  const size_t step = std::max<size_t>(1, positions.size() / kSamples);
  size_t sample_count = 0;
  size_t wide_count = 0;
  for (size_t i = 0; i < positions.size(); i += step) {
    const T difference = Load<T>(page, positions[i]) - Load<T>(base, positions[i]);
    ++sample_count;
    wide_count += ZigZag(difference) >= kLargeValue + kWideValue;
  }
  // A gap, and for wide values the byte that announces the value and the value.
  return positions.size() + positions.size() * (1 + sizeof(T)) * wide_count / sample_count;
}

/// The length of the streams of pages that are not raw, before they are compressed.
size_t DeltaEncoder::StreamBytes() const {
  return gaps_.size() + DivCeil(sparse_.size(), kSymbolsPerByte) +
         DivCeil(dense_.size(), kSymbolsPerByte) + values_.size() + wide_count_ * element_bytes_;
}

void DeltaEncoder::AppendGaps(std::span<const uint16_t> positions, size_t element_count) {
  const size_t begin = gaps_.size();
  gaps_.resize(begin + positions.size() + element_count / kGapSkip + 1);
  std::byte* out = gaps_.data() + begin;
  uint32_t next = 0;  // the element after the last one that changed
  for (const uint32_t position : positions) {
    uint32_t gap = position - next;
    // At most one skip, as most gaps have, without a branch, which would often be mispredicted.
    *out = std::byte{kGapSkip};
    const bool is_skip = gap >= kGapSkip;
    out += is_skip;
    gap -= is_skip ? kGapSkip : 0;
    for (; gap >= kGapSkip; gap -= kGapSkip) *out++ = std::byte{kGapSkip};
    *out++ = static_cast<std::byte>(gap);
    next = position + 1;
  }
  gaps_.resize(static_cast<size_t>(out - gaps_.data()));
}

template <typename T, T kSubtracted, typename Difference>
void DeltaEncoder::AppendValues(size_t count, const Difference& difference,
                                std::vector<std::byte>& symbols) {
  const size_t symbols_begin = symbols.size();
  const size_t values_begin = values_.size();
  symbols.resize(symbols_begin + count);
  values_.resize(values_begin + count);
  std::byte* symbol_out = symbols.data() + symbols_begin;
  std::byte* value_out = values_.data() + values_begin;
  for (size_t i = 0; i < count; ++i) {
    const auto value = static_cast<T>(ZigZag(difference(i)) - kSubtracted);
    *symbol_out++ = static_cast<std::byte>(std::min<T>(value, kLargeValue));
    // Written in any case and then replaced, because a branch would often be mispredicted.
    *value_out = static_cast<std::byte>(value - kLargeValue);
    value_out += value >= kLargeValue;
    if (value >= kLargeValue + kWideValue) [[unlikely]] {
      value_out[-1] = std::byte{kWideValue};
      ReservePlanes();
      for (size_t plane = 0; plane < sizeof(T); ++plane) {
        planes_[plane * PlaneStride() + wide_count_] = static_cast<std::byte>(value >> (8 * plane));
      }
      ++wide_count_;
    }
  }
  values_.resize(static_cast<size_t>(value_out - values_.data()));
}

/// Chooses the threshold that would make this page shortest: a dense element costs about one bit
/// whether it changed or not; a sparse element that changed costs the bits of a gap.
template <typename T>
uint8_t DeltaEncoder::ChooseThreshold(std::span<const std::byte> base,
                                      std::span<const std::byte> page) {
  const size_t element_count = page.size() / sizeof(T);
  FindElements(element_bytes_, base, page, 0, *elements_);
  const auto positions = elements_->sparse.span();
  if (positions.size() < 32) return 0;
  std::array<uint32_t, 256> changed{};
  for (const size_t i : positions) ++changed[TopBits(Load<T>(base, i))];
  constexpr size_t kSampleStep = 7;  // odd, so that the columns of a matrix are sampled evenly
  std::array<uint32_t, 256> sampled{};
  for (size_t i = 0; i < element_count; i += kSampleStep) ++sampled[TopBits(Load<T>(base, i))];

  const double gap_bits =
      1.44 + std::log2(static_cast<double>(element_count) / static_cast<double>(positions.size()));
  double saved_bits = 0;
  double most_saved_bits = 0;
  uint8_t threshold = 0;
  for (uint32_t top = 0; top < kMaxThreshold; ++top) {
    saved_bits += gap_bits * changed[top] - 1.0 * static_cast<double>(kSampleStep * sampled[top]);
    if (saved_bits > most_saved_bits) {
      most_saved_bits = saved_bits;
      threshold = static_cast<uint8_t>(top + 1);
    }
  }
  return threshold;
}

void DeltaEncoder::StoreRawPage(std::span<const std::byte> page) {
  raw_.insert(raw_.end(), page.begin(), page.end());
  pages_.push_back({.threshold = kRawPage});
}

bool DeltaEncoder::is_too_long(uint64_t max_bytes) const {
  if (chunk_bytes_ > kMaxDeltaChunkBytes || raw_.size() > max_bytes) return true;
  constexpr uint64_t kMinPages = 4;
  if (changed_pages_ < kMinPages) return false;
  return (raw_.size() + StreamBytes()) / pages_.size() > max_bytes / page_count_;
}

void DeltaEncoder::FillPageTable() {
  page_table_.resize(kDeltaPageBytes * page_count_);
  for (size_t i = 0; i < page_count_; ++i) {
    const DeltaPage& page = pages_[i];
    page_table_[i] = std::byte{page.threshold};
    page_table_[page_count_ + i] = static_cast<std::byte>(page.sparse_count);
    page_table_[2 * page_count_ + i] = static_cast<std::byte>(page.sparse_count >> 8);
    page_table_[3 * page_count_ + i] = static_cast<std::byte>(page.dense_count);
    page_table_[4 * page_count_ + i] = static_cast<std::byte>(page.dense_count >> 8);
  }
}

std::optional<size_t> DeltaEncoder::CompressStream(Coding coding, std::span<const std::byte> stream,
                                                   std::byte* target) {
  if (coding == Coding::kRaw || stream.size() < kMinCompressedBytes) return std::nullopt;
  ZSTD_CCtx_s* const context = (coding == Coding::kMatches ? matches_ : literals_).get();
  const size_t result =
      ZSTD_compress2(context, target, stream.size() - 1, stream.data(), stream.size());
  return ZSTD_isError(result) ? std::nullopt : std::optional(result);
}

bool DeltaEncoder::AppendStream(uint32_t index, Coding coding, std::span<const std::byte> stream,
                                uint64_t max_bytes) {
  std::byte* const target = delta_.data() + delta_bytes_;
  const size_t stored_bytes = CompressStream(coding, stream, target).value_or(stream.size());
  if (stored_bytes == stream.size() && !stream.empty()) {
    std::memcpy(target, stream.data(), stream.size());
  }
  const size_t entry = DeltaDirectoryOffset(page_count_) + kStreamEntryBytes * index;
  schema::PutLittleEndian(std::span(delta_), entry, static_cast<uint32_t>(stream.size()));
  schema::PutLittleEndian(std::span(delta_), entry + 4, static_cast<uint32_t>(stored_bytes));
  delta_bytes_ += stored_bytes;
  return delta_bytes_ <= max_bytes;
}

std::optional<std::span<const std::byte>> DeltaEncoder::Finish(
    std::span<const uint64_t> page_digests, uint64_t max_bytes) {
  CAIRN_CHECK(pages_.size() == page_count_ && page_digests.size() == page_count_);
  const uint64_t header_bytes = DeltaStreamsOffset(page_count_, element_bytes_);
  if (chunk_bytes_ > kMaxDeltaChunkBytes || header_bytes + raw_.size() > max_bytes) {
    return std::nullopt;
  }
  FillPageTable();
  PackSymbols(sparse_, packed_sparse_);
  PackSymbols(dense_, packed_dense_);
  const std::array fixed = {&page_table_, &gaps_, &packed_sparse_, &packed_dense_, &values_, &raw_};
  size_t most_bytes = header_bytes + wide_count_ * element_bytes_;
  for (const auto* stream : fixed) most_bytes += stream->size();
  if (delta_.size() < most_bytes) delta_.resize(most_bytes);
  delta_bytes_ = header_bytes;

  const std::span<std::byte> out(delta_);
  std::ranges::fill(out.first(kDeltaPageDigestsOffset), std::byte{0});
  std::memcpy(out.data(), kDeltaMagic.data(), kDeltaMagic.size());
  out[4] = std::byte{kDeltaVersion};
  out[5] = static_cast<std::byte>(element_bytes_);
  schema::PutLittleEndian(out, 8, chunk_bytes_);
  for (size_t i = 0; i < page_count_; ++i) {
    schema::PutLittleEndian(out, kDeltaPageDigestsOffset + 8 * i, page_digests[i]);
  }
  uint32_t index = 0;
  for (const auto* stream : fixed) {
    const Coding coding = stream == &raw_ ? Coding::kRaw : Coding::kMatches;
    if (!AppendStream(index++, coding, *stream, max_bytes)) return std::nullopt;
  }
  for (size_t plane = 0; plane < element_bytes_; ++plane) {
    if (!AppendStream(index++, codings_[plane], Plane(plane), max_bytes)) return std::nullopt;
  }
  return out.first(delta_bytes_);
}

}  // namespace cairn::core::internal
