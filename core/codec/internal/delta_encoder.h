#pragma once
/// Encodes what changed in a chunk since an earlier version of it (docs/format/delta.md).
///
///   encoder.Begin(2, chunk_bytes);
///   for each page: encoder.AddPage(base_page, page), or encoder.AddUnchangedPage();
///   auto delta = encoder.Finish(page_digests, max_bytes);   // nothing if it does not pay off

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/codec/internal/changed_elements.h"
#include "core/codec/internal/delta_format.h"

struct ZSTD_CCtx_s;  // from zstd

namespace cairn::core::internal {

/// How the byte planes of complete pages are stored.
struct PlaneCodings {
  enum class Coding : uint8_t { kRaw, kLiterals, kMatches };
  std::array<Coding, 8> planes{};
  uint64_t stored_bytes = 0;  // of the pages from which this was decided
};

/// Encodes chunks one after another.
///
/// Ownership: owns its buffers, which it keeps from chunk to chunk. It keeps no reference to what
/// is passed to AddPage.
/// Threads: one at a time.
class DeltaEncoder {
 public:
  DeltaEncoder();
  ~DeltaEncoder();
  DeltaEncoder(DeltaEncoder&&) noexcept;
  DeltaEncoder& operator=(DeltaEncoder&&) noexcept;

  /// Starts a chunk of `chunk_bytes`, and forgets what was added before. `element_bytes` is the
  /// size of the elements of the tensor: 1, 2, 4, 8 or 16; other sizes, and chunks that are not a
  /// multiple of the element, are encoded as bytes.
  void Begin(uint32_t element_bytes, uint64_t chunk_bytes);

  /// Adds the next page. `base` has its bytes in the earlier version. Requires both to have the
  /// length of this page of the chunk: kPageBytes, or what remains for the last page.
  /// Cost: reads both once, and a few nanoseconds for each element that changed.
  void AddPage(std::span<const std::byte> base, std::span<const std::byte> page);
  /// Adds the next page without an earlier version: its elements as byte planes. A chunk of such
  /// pages is compressed, and can be read without another one.
  void AddCompletePage(std::span<const std::byte> page);
  /// Decides from the complete pages that were added, a sample of a chunk, how its planes should be
  /// stored: as they are, with codes for their bytes only, which is several times as fast as the
  /// rest of zstd, or also with matches, if these save more. Cost: compresses them twice.
  PlaneCodings ChoosePlaneCodings();
  /// Stores the planes of the chunk in this way; without a call, with matches. Call after Begin.
  void SetPlaneCodings(const PlaneCodings& codings) { codings_ = codings.planes; }
  /// Adds the next page, whose bytes are equal in both versions.
  void AddUnchangedPage();

  /// Returns whether the pages added so far indicate that the delta of the chunk will be longer
  /// than `max_bytes`: at least 4 of them changed, and if the others are like them, the limit is
  /// exceeded. The caller may then stop. It may also continue, and Finish decides.
  bool is_too_long(uint64_t max_bytes) const;

  /// Returns the delta, or nothing if it would be longer than `max_bytes` or if the chunk is longer
  /// than 1 GiB. `page_digests` are the digests of the added pages. Requires all pages of the
  /// chunk. The bytes are valid until the next call of Begin or Finish.
  std::optional<std::span<const std::byte>> Finish(std::span<const uint64_t> page_digests,
                                                   uint64_t max_bytes);
  /// Moves the bytes that Finish returned to the beginning of `bytes`, whose memory the encoder
  /// uses from now on. The rest of `bytes` is unspecified.
  void ExchangeBuffer(std::vector<std::byte>& bytes) { delta_.swap(bytes); }

 private:
  using Coding = PlaneCodings::Coding;

  template <typename T>
  void EncodePage(std::span<const std::byte> base, std::span<const std::byte> page);
  void AppendGaps(std::span<const uint16_t> positions, size_t element_count);
  /// Appends `count` values; `difference` returns the difference of the i-th of these elements.
  template <typename T, T kSubtracted, typename Difference>
  void AppendValues(size_t count, const Difference& difference, std::vector<std::byte>& symbols);
  size_t StreamBytes() const;
  template <typename T>
  size_t EstimatePageBytes(std::span<const std::byte> base, std::span<const std::byte> page,
                           std::span<const uint16_t> positions) const;
  template <typename T>
  uint8_t ChooseThreshold(std::span<const std::byte> base, std::span<const std::byte> page);
  void StoreRawPage(std::span<const std::byte> page);
  void FillPageTable();
  void ReservePlanes();
  size_t PlaneStride() const { return chunk_bytes_ / element_bytes_; }
  std::span<const std::byte> Plane(size_t plane) const {
    return {planes_.get() + plane * PlaneStride(), wide_count_};
  }
  /// Compresses `stream` to `target` and returns the length, which is less than the stream's;
  /// nothing if that is impossible.
  std::optional<size_t> CompressStream(Coding coding, std::span<const std::byte> stream,
                                       std::byte* target);
  /// Appends a stream and its directory entry. Returns whether the delta still fits.
  bool AppendStream(uint32_t index, Coding coding, std::span<const std::byte> stream,
                    uint64_t max_bytes);

  struct FreeContext {
    void operator()(ZSTD_CCtx_s* context) const;
  };
  using Context = std::unique_ptr<ZSTD_CCtx_s, FreeContext>;

  uint32_t element_bytes_ = 1;
  uint64_t chunk_bytes_ = 0;
  uint64_t page_count_ = 0;

  // The pages that were added.
  std::vector<DeltaPage> pages_;
  uint64_t changed_pages_ = 0;
  uint8_t threshold_ = 0;
  std::vector<std::byte> gaps_;
  std::vector<std::byte> sparse_;  // symbols, not packed
  std::vector<std::byte> dense_;   // symbols, not packed
  std::vector<std::byte> values_;
  std::vector<std::byte> raw_;
  size_t wide_count_ = 0;            // elements in planes_
  std::array<Coding, 8> codings_{};  // of the planes

  // Scratch.
  std::unique_ptr<PageElements> elements_;
  std::vector<std::byte> page_table_;
  std::vector<std::byte> packed_sparse_;
  std::vector<std::byte> packed_dense_;
  std::vector<std::byte> delta_;  // the first delta_bytes_ are used
  size_t delta_bytes_ = 0;
  /// The bytes of wide values and complete pages: planes with room for the whole chunk. Not
  /// initialized; only grows.
  std::unique_ptr<std::byte[]> planes_;
  size_t planes_bytes_ = 0;
  Context matches_;
  Context literals_;  // finds no matches, only codes the bytes: several times as fast
};

}  // namespace cairn::core::internal
