// A tensor is hashed in blocks, which are ranges of its row-major bytes. A block of XXH3 is hashed
// as a chunk of Cairn is, so that its digest is
// 1. that of a chunk which has the same bytes, as most chunks do; otherwise
// 2. the root of page digests, if the pages of chunks are those of the block; otherwise
// 3. computed from payload.

#include "core/inspect/fingerprint.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <deque>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "core/inspect/internal/list.h"
#include "core/load/internal/load.h"
#include "core/step/contents.h"
#include "core/step/internal/lookup.h"
#include "core/step/internal/stored_page_digests.h"
#include "core/tensor/chunk_grid.h"
#include "kv/base/digest.h"
#include "kv/base/div.h"
#include "kv/base/mutex.h"
#include "kv/io/worker_pool.h"
#include "schema/dtype.h"

namespace cairn::core {
namespace internal {
namespace {

// Frozen: other programs compute fingerprints, too.
constexpr uint64_t kFingerprintBlockBytes = 4 << 20;
constexpr char kFirstLine[] = "cairn fingerprint 1";

constexpr uint64_t kReadAtOnceBytes = 32 << 20;
constexpr size_t kBlocksAtOnce = 4096;
constexpr size_t kTensorsAtOnce = 2500;  // by one thread

using DigestBytes = std::vector<std::byte>;  // the first byte is the first in the hexadecimal form

DigestBytes BytesOf(const kv::Digest& digest) {
  DigestBytes bytes;
  bytes.reserve(16);
  for (const uint64_t half : {digest.hi, digest.lo}) {
    for (int shift = 56; shift >= 0; shift -= 8) {
      bytes.push_back(static_cast<std::byte>(half >> shift));
    }
  }
  return bytes;
}

constexpr size_t kShaBlockBytes = 64;

constexpr std::array<uint32_t, 64> kRounds = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

using ShaState = std::array<uint32_t, 8>;

uint32_t ReadWord(std::span<const std::byte> bytes) {
  uint32_t word = 0;
  for (const std::byte byte : bytes.first(4)) word = word << 8 | std::to_integer<uint32_t>(byte);
  return word;
}

void AddBlock(std::span<const std::byte> block, ShaState& state) {
  std::array<uint32_t, 64> w;
  for (size_t i = 0; i < 16; ++i) w[i] = ReadWord(block.subspan(4 * i));
  for (size_t i = 16; i < 64; ++i) {
    const uint32_t a = w[i - 15], b = w[i - 2];
    w[i] = w[i - 16] + (std::rotr(a, 7) ^ std::rotr(a, 18) ^ a >> 3) + w[i - 7] +
           (std::rotr(b, 17) ^ std::rotr(b, 19) ^ b >> 10);
  }
  auto [a, b, c, d, e, f, g, h] = state;
  for (size_t i = 0; i < 64; ++i) {
    const uint32_t t1 = h + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) +
                        ((e & f) ^ (~e & g)) + kRounds[i] + w[i];
    const uint32_t t2 =
        (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
  }
  const ShaState added = {a, b, c, d, e, f, g, h};
  for (size_t i = 0; i < state.size(); ++i) state[i] += added[i];
}

/// SHA-256 (FIPS 180-4).
DigestBytes Sha256(std::span<const std::byte> bytes) {
  ShaState state = {
      0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19,
  };
  uint64_t bits = bytes.size() * 8;
  for (; bytes.size() >= kShaBlockBytes; bytes = bytes.subspan(kShaBlockBytes))
    AddBlock(bytes, state);
  // The rest, a bit of 1, zeros, and the length.
  std::array<std::byte, 2 * kShaBlockBytes> end = {};
  std::ranges::copy(bytes, end.begin());
  end[bytes.size()] = std::byte{0x80};
  const size_t end_bytes = bytes.size() + 9 <= kShaBlockBytes ? kShaBlockBytes : 2 * kShaBlockBytes;
  for (size_t i = 1; i <= 8; ++i, bits >>= 8) end[end_bytes - i] = static_cast<std::byte>(bits);
  for (size_t at = 0; at < end_bytes; at += kShaBlockBytes)
    AddBlock(std::span(end).subspan(at), state);
  DigestBytes digest(32);
  for (size_t i = 0; i < digest.size(); ++i) {
    digest[i] = static_cast<std::byte>(state[i / 4] >> (24 - 8 * (i % 4)));
  }
  return digest;
}

DigestBytes HashOf(std::span<const std::byte> bytes, bool sha256) {
  return sha256 ? Sha256(bytes) : BytesOf(kv::Checksum128(bytes));
}

std::string HexOf(std::span<const std::byte> bytes) {
  return fmt::format("{:02x}", fmt::join(bytes, ""));
}

/// Only unreserved characters of RFC 3986 remain; other bytes become "%0A".
std::string EncodedName(std::string_view name) {
  std::string text;
  for (const char c : name) {
    const bool remains = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                         (c >= '0' && c <= '9') || c == '-' || c == '.' || c == '_' || c == '~';
    if (remains) {
      text += c;
    } else {
      text += fmt::format("%{:02X}", static_cast<uint8_t>(c));
    }
  }
  return text;
}

/// A chunk that is a range of the row-major bytes of its tensor.
struct ChunkRange {
  uint64_t begin_bytes = 0;
  uint64_t end_bytes = 0;
  ChunkInfo chunk;

  /// Whether its pages are as long as those of blocks.
  bool has_block_pages() const {
    const uint64_t page_bytes = chunk.extents.page_bytes();
    return page_bytes == kv::kPageBytes ||
           end_bytes - begin_bytes <= std::min(page_bytes, kv::kPageBytes);
  }
};

/// A block whose digest is not known yet.
struct UnknownBlock {
  const TensorInfo* tensor = nullptr;
  DigestBytes* digests = nullptr;  // those of all blocks of the tensor
  size_t index = 0;
  Box box;
  uint64_t begin_bytes = 0;
  uint64_t length_bytes = 0;
  std::vector<const ChunkRange*> chunks;  // in order, of which it has the pages; empty: none
  bool is_known = false;

  void Set(std::span<const std::byte> digest) {
    std::ranges::copy(digest, digests->begin() + static_cast<ptrdiff_t>(index * digest.size()));
    is_known = true;
  }
};

class BlockHasher {
 public:
  /// Holds `reading` while it reads payload, which takes all cores, and changes `result`.
  BlockHasher(const StepView& view, const FingerprintOptions& options, Mutex& reading,
              Fingerprint& result)
      : view_(view), options_(options), reading_(reading), result_(result) {}

  /// Appends the digests of all blocks of `tensor`; some are set only by Flush.
  Result<void> Add(const TensorInfo& tensor, DigestBytes& digests, std::vector<ChunkRange> chunks) {
    std::ranges::sort(chunks, {}, &ChunkRange::begin_bytes);
    CAIRN_TRY_ASSIGN(const ChunkGrid grid,
                     ChunkGrid::Make(tensor.dtype, tensor.shape, kFingerprintBlockBytes));
    kept_.push_back(std::move(chunks));
    const std::vector<ChunkRange>& ranges = kept_.back();
    size_t next = 0;  // the first chunk that ends after the block begins
    for (uint64_t i = 0; i < grid.chunk_count(); ++i) {
      const uint64_t begin = grid.offset_bytes(i), length = grid.length_bytes(i);
      while (next < ranges.size() && ranges[next].end_bytes <= begin) ++next;
      const bool is_chunk =
          !options_.sha256 && next < ranges.size() && ranges[next].begin_bytes == begin &&
          ranges[next].end_bytes == begin + length && ranges[next].has_block_pages();
      const DigestBytes digest =
          is_chunk ? BytesOf(ranges[next].chunk.digest) : DigestBytes(options_.sha256 ? 32 : 16);
      digests.insert(digests.end(), digest.begin(), digest.end());
      if (is_chunk) continue;
      UnknownBlock block{&tensor, &digests, i, grid.chunk(i), begin, length, {}};
      if (!options_.sha256) {
        block.chunks = PagesOf(std::span(ranges).subspan(next), begin, begin + length);
      }
      CAIRN_TRY(Defer(std::move(block)));
    }
    if (unknown_.empty()) kept_.clear();
    return {};
  }

  /// Computes the digests of all blocks that were deferred.
  Result<void> Flush() {
    CAIRN_TRY(FindByPages());
    CAIRN_TRY(FindByReading());
    unknown_.clear();
    unknown_bytes_ = 0;
    while (kept_.size() > 1) kept_.pop_front();  // the last one is that of the current tensor
    return {};
  }

 private:
  Result<void> Defer(UnknownBlock block) {
    if (unknown_bytes_ + block.length_bytes > kReadAtOnceBytes ||
        unknown_.size() == kBlocksAtOnce) {
      CAIRN_TRY(Flush());
    }
    unknown_bytes_ += block.length_bytes;
    unknown_.push_back(std::move(block));
    return {};
  }

  /// Returns the chunks that have exactly the pages of the block [begin, end); none if they do not.
  static std::vector<const ChunkRange*> PagesOf(std::span<const ChunkRange> chunks, uint64_t begin,
                                                uint64_t end) {
    std::vector<const ChunkRange*> found;
    uint64_t at = begin;
    for (const ChunkRange& chunk : chunks) {
      if (at == end) break;
      const uint64_t stop = std::min(end, chunk.end_bytes);
      const bool has_pages =
          chunk.begin_bytes <= at && chunk.has_block_pages() &&
          (at - chunk.begin_bytes) % kv::kPageBytes == 0 &&
          ((stop - at) % kv::kPageBytes == 0 || (stop == end && stop == chunk.end_bytes));
      // Memory for the page digests of longer ones is not reserved on the word of a record.
      if (!has_pages || chunk.end_bytes - chunk.begin_bytes > kv::kMaxBytesWithDeltas) return {};
      found.push_back(&chunk);
      at = stop;
    }
    if (at != end) found.clear();
    return found;
  }

  Result<void> FindByPages() {
    std::vector<const ChunkInfo*> chunks;
    for (const UnknownBlock& block : unknown_) {
      for (const ChunkRange* const range : block.chunks) chunks.push_back(&range->chunk);
    }
    const auto page_digests = ReadStoredPageDigests(*view_.snapshot, chunks);
    auto next = page_digests.begin();
    for (UnknownBlock& block : unknown_) {
      if (block.chunks.empty()) continue;
      std::vector<uint64_t> pages;
      uint64_t at = block.begin_bytes;
      bool is_complete = true;
      for (const ChunkRange* const range : block.chunks) {
        const std::vector<uint64_t>& all = *next++;
        const uint64_t stop = std::min(block.begin_bytes + block.length_bytes, range->end_bytes);
        const uint64_t first = (at - range->begin_bytes) / kv::kPageBytes;
        is_complete &= !all.empty();
        if (!all.empty()) {
          const auto begin = all.begin() + static_cast<ptrdiff_t>(first);
          pages.insert(pages.end(), begin,
                       begin + static_cast<ptrdiff_t>(kv::PageCount(stop - at)));
        }
        at = stop;
      }
      if (!is_complete) continue;  // the read of the payload returns the error
      block.Set(BytesOf(kv::RootDigest(pages, block.length_bytes)));
    }
    return {};
  }

  Result<void> FindByReading() {
    std::vector<UnknownBlock*> blocks;
    for (UnknownBlock& block : unknown_) {
      if (!block.is_known) blocks.push_back(&block);
    }
    if (blocks.empty()) return {};
    const MutexLock lock(reading_);
    if (options_.progress && !options_.progress(result_.read_bytes, result_.bytes)) {
      return Fail(ErrorCode::kCancelled, "stopped on request");
    }
    std::vector<std::vector<std::byte>> bytes(blocks.size());
    std::vector<LoadRequest> requests;
    for (size_t i = 0; i < blocks.size(); ++i) {
      const UnknownBlock& block = *blocks[i];
      const TensorInfo& tensor = *block.tensor;
      CAIRN_TRY(CheckRepeats({&tensor, 1}));
      bytes[i].resize(block.length_bytes);
      requests.push_back(RowMajorRequest(tensor.fqn, tensor.dtype, block.box, bytes[i].data()));
      result_.read_bytes += block.length_bytes;
    }
    CAIRN_TRY(RunLoad(view_, requests, {}));
    kv::ParallelFor(blocks.size(), [&](size_t i, size_t) {
      blocks[i]->Set(options_.sha256 ? HashOf(bytes[i], true)
                                     : BytesOf(kv::PayloadDigest(bytes[i])));
    });
    return {};
  }

  const StepView& view_;
  const FingerprintOptions& options_;
  Mutex& reading_;
  Fingerprint& result_;
  std::deque<std::vector<ChunkRange>> kept_;  // to which `unknown_` refers
  std::vector<UnknownBlock> unknown_;
  uint64_t unknown_bytes_ = 0;
};

/// Sets the digests of the blocks of all tensors, which are in key order.
Result<void> HashBlocks(const StepView& view, std::span<const TensorInfo> tensors,
                        std::vector<DigestBytes>& digests, BlockHasher& hasher) {
  std::vector<TensorInfo> found;
  std::span<const TensorInfo> owners = tensors;
  const auto is_alias = [](const TensorInfo& tensor) { return tensor.alias_of.has_value(); };
  if (std::ranges::any_of(tensors, is_alias)) {
    CAIRN_TRY_ASSIGN(found, FindOwners(view, tensors));
    owners = found;
  }
  std::vector<std::vector<size_t>> users(owners.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    const TensorInfo& tensor = tensors[i];
    const TensorInfo& owner =
        found.empty() ? tensor : ByName(owners, tensor.alias_of.value_or(tensor.fqn));
    if (tensor.alias_of) CAIRN_TRY(CheckAlias(tensor, owner));
    if (!tensor.alias_of || IsWholeOwner(tensor, owner)) {
      users[static_cast<size_t>(&owner - owners.data())].push_back(i);
    } else {
      CAIRN_TRY(hasher.Add(tensor, digests[i], {}));
    }
  }
  size_t current = 0;
  std::vector<ChunkRange> chunks;  // those of `current`
  const auto finish = [&]() -> Result<void> {
    for (const size_t user : users[current]) {
      CAIRN_TRY(hasher.Add(tensors[user], digests[user], chunks));
    }
    chunks.clear();
    ++current;
    return {};
  };
  CAIRN_TRY(ForEachChunkOf(view, owners, [&](size_t i, ChunkInfo&& chunk) -> Result<void> {
    while (current < i) CAIRN_TRY(finish());
    const auto begin = ContiguousOffsetBytes(owners[i].dtype, owners[i].shape, chunk.box);
    if (begin) chunks.push_back({*begin, *begin + chunk.length_bytes(), std::move(chunk)});
    return {};
  }));
  while (current < owners.size()) CAIRN_TRY(finish());
  return hasher.Flush();
}

/// Returns the lines of tensors, whose names begin after `prefix_bytes` of their FQNs.
Result<std::string> LinesOf(const StepView& view, std::span<const TensorInfo> tensors,
                            size_t prefix_bytes, bool sha256, BlockHasher& hasher) {
  std::vector<DigestBytes> digests(tensors.size());
  CAIRN_TRY(HashBlocks(view, tensors, digests, hasher));
  std::string lines;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const TensorInfo& tensor = tensors[i];
    lines += fmt::format("{} {} [{}] {}\n", HexOf(HashOf(digests[i], sha256)),
                         schema::DTypeName(tensor.dtype), fmt::join(tensor.shape, ","),
                         EncodedName(std::string_view(tensor.fqn).substr(prefix_bytes)));
  }
  return lines;
}

Result<Fingerprint> FingerprintOf(const StepView& view, const FingerprintOptions& options) {
  Fingerprint result;
  const std::string prefix = options.under.empty() ? "" : options.under + ".";
  std::vector<TensorInfo> tensors;
  CAIRN_TRY(RunForEachKey(
      view, options.patterns,
      [&](const TensorInfo& tensor) -> Result<void> {
        if (tensor.hidden || !tensor.fqn.starts_with(prefix)) return {};
        tensors.push_back(tensor);
        result.bytes += tensor.nbytes;
        return {};
      },
      [&](const ValueInfo& value) -> Result<void> {
        result.values += value.fqn.starts_with(prefix);
        return {};
      }));
  result.tensors = tensors.size();
  if (tensors.empty()) {
    return Fail(Error{.code = ErrorCode::kNotFound,
                      .hint = Hint::kListKeys,
                      .message = "no tensor matches",
                      .step = view.step.step});
  }
  std::vector<std::string> lines(DivCeil(tensors.size(), kTensorsAtOnce));
  Mutex reading;
  CAIRN_TRY(kv::RunOnThreads(
      lines.size(), "the records of tensors",
      [&](size_t i) -> Result<void> {
        const auto some = std::span(tensors).subspan(i * kTensorsAtOnce);
        BlockHasher hasher(view, options, reading, result);
        CAIRN_TRY_ASSIGN(lines[i], LinesOf(view, some.first(std::min(some.size(), kTensorsAtOnce)),
                                           prefix.size(), options.sha256, hasher));
        return {};
      },
      kv::WorkerThreads()));
  const std::string kind = options.sha256 ? "sha256" : "xxh3";
  result.listing = fmt::format("{} {}\n{}", kFirstLine, kind, fmt::join(lines, ""));
  const auto listing = std::as_bytes(std::span(result.listing));
  result.text = fmt::format("{}:{}", kind, HexOf(HashOf(listing, options.sha256)));
  return result;
}

}  // namespace
}  // namespace internal

Result<Fingerprint> ComputeFingerprint(const kv::Store& store, const kv::StepInfo& step,
                                       const FingerprintOptions& options) {
  return internal::WithStep(store, step, [&](const internal::StepView& view) {
    return internal::FingerprintOf(view, options);
  });
}

}  // namespace cairn::core
