// Deltas and compressed chunks.

#include <algorithm>
#include <array>

#include "core/codec/internal/delta.h"
#include "core/codec/internal/delta_encoder.h"
#include "core/step/internal/compress.h"
#include "kv/base/digest.h"
#include "tests/fuzz/fuzz_support.h"

namespace cairn::fuzz {
namespace {

using namespace core::internal;  // NOLINT(google-build-using-namespace): the code under test

constexpr std::array<uint32_t, 5> kElementBytes = {1, 2, 4, 8, 16};

/// Bytes in which about a third of the elements of each size are dense.
std::vector<std::byte> BaseBytes(uint64_t length_bytes) {
  std::vector<std::byte> base(length_bytes);
  uint64_t state = 1;
  for (std::byte& byte : base) {
    state = state * 6'364'136'223'846'793'005u + 1'442'695'040'888'963'407u;
    byte = static_cast<std::byte>(state >> 57 & (state >> 40 & 1 ? 0x7f : 0x3));
  }
  return base;
}

/// Decodes hostile bytes as the delta of a chunk of a length that the input states.
void FuzzDelta(Input input) {
  const uint64_t chunk_bytes = input.Number<uint32_t>() % (200 << 10);
  const std::vector<std::byte> bytes = input.CopyRest();
  Result<Delta> delta = Fail(ErrorCode::kInternal, "not decoded");
  {
    // The limit of Delta is three times the length of the chunk. Stored digests and zstd's context
    // are added.
    const MemoryLimit limit((1 << 20) + 4 * chunk_bytes + 4 * bytes.size());
    delta = Delta::Parse(bytes, chunk_bytes);
  }
  if (!delta) return UseError(delta.error());
  CAIRN_FUZZ_CHECK(delta->page_count() == kv::PageCount(chunk_bytes));
  const std::vector<std::byte> base = BaseBytes(chunk_bytes);
  for (uint64_t page = 0; page < delta->page_count(); ++page) {
    const uint64_t begin = page * kv::kPageBytes;
    const auto of_base = std::span(base).subspan(begin, DeltaPageLength(page, chunk_bytes));
    std::vector<std::byte> bytes_of_page(of_base.begin(), of_base.end());
    const Result<void> applied = delta->Apply(page, bytes_of_page);
    if (!applied) UseError(applied.error());
    if (!delta->IsChanged(page)) CAIRN_FUZZ_CHECK(std::ranges::equal(bytes_of_page, of_base));
  }
}

std::vector<uint64_t> PageDigests(std::span<const std::byte> chunk) {
  std::vector<uint64_t> digests;
  for (uint64_t at = 0; at < chunk.size(); at += kv::kPageBytes) {
    digests.push_back(
        kv::Checksum64(chunk.subspan(at, std::min(kv::kPageBytes, chunk.size() - at))));
  }
  return digests;
}

void CheckApplied(std::span<const std::byte> encoded, std::span<const std::byte> base,
                  std::span<const std::byte> wanted) {
  const auto delta = Delta::Parse(encoded, wanted.size());
  CAIRN_FUZZ_CHECK(delta.has_value());
  CAIRN_FUZZ_CHECK(std::ranges::equal(delta->page_digests(), PageDigests(wanted)));
  std::vector<std::byte> chunk(base.begin(), base.end());
  for (uint64_t page = 0; page < delta->page_count(); ++page) {
    const auto bytes =
        std::span(chunk).subspan(page * kv::kPageBytes, DeltaPageLength(page, wanted.size()));
    CAIRN_FUZZ_CHECK(delta->Apply(page, bytes).has_value());
  }
  CAIRN_FUZZ_CHECK(std::ranges::equal(chunk, wanted));
}

/// The first half of the input is the earlier version, the second half the later one.
void FuzzEncoder(Input input) {
  const uint32_t element_bytes = kElementBytes[input.Byte() % kElementBytes.size()];
  const size_t half = input.rest().size() / 2;
  if (half == 0) return;
  const auto base = input.Bytes(half);
  const auto chunk = input.Bytes(half);
  DeltaEncoder encoder;
  encoder.Begin(element_bytes, half);
  for (uint64_t page = 0; page < kv::PageCount(half); ++page) {
    const uint64_t begin = page * kv::kPageBytes;
    const uint64_t length = DeltaPageLength(page, half);
    encoder.AddPage(base.subspan(begin, length), chunk.subspan(begin, length));
  }
  const auto encoded = encoder.Finish(PageDigests(chunk), 1 << 20);
  if (encoded) CheckApplied(*encoded, base, chunk);
}

void FuzzCompress(Input input) {
  const uint32_t element_bytes = kElementBytes[input.Byte() % kElementBytes.size()];
  // Repeated, because short chunks are not compressed.
  std::vector<std::byte> chunk;
  while (!input.rest().empty() && chunk.size() < 2 * kMinCompressibleBytes) {
    chunk.insert(chunk.end(), input.rest().begin(), input.rest().end());
  }
  if (chunk.empty()) return;
  const auto encoded = CompressBytes(chunk, element_bytes, PageDigests(chunk));
  if (encoded) CheckApplied(*encoded, std::vector<std::byte>(chunk.size()), chunk);
}

}  // namespace

void Fuzz(Input input) {
  switch (TakeSelector(input, 4)) {
    case 0:
    case 1:
      return FuzzDelta(input);
    case 2:
      return FuzzEncoder(input);
    default:
      return FuzzCompress(input);
  }
}

}  // namespace cairn::fuzz
