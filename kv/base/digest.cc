// Page-tree digests over XXH3.

#include "kv/base/digest.h"

#include <fmt/format.h>
#define XXH_STATIC_LINKING_ONLY  // for state on the stack
#include <xxhash.h>
#ifdef CAIRN_XXHASH_DISPATCH
#include <xxh_x86dispatch.h>  // XXH3 with the vector instructions that this processor has
#endif

#include <algorithm>
#include <array>
#include <bit>

#include "kv/base/error.h"

namespace cairn::kv {

// Page digests are hashed as they are in memory, which is their order on disk only if this holds.
static_assert(std::endian::native == std::endian::little);

std::string Digest::ToHex() const { return fmt::format("{:016x}{:016x}", hi, lo); }

uint64_t PageDigest(std::span<const std::byte> page) {
  CAIRN_CHECK(page.size() <= kMaxPageBytes);
  return XXH3_64bits(page.data(), page.size());
}

void AppendPageDigests(std::span<const std::byte> payload, std::vector<uint64_t>& page_digests,
                       uint64_t page_bytes) {
  for (size_t begin = 0; begin < payload.size(); begin += page_bytes) {
    page_digests.push_back(
        PageDigest(payload.subspan(begin, std::min<size_t>(page_bytes, payload.size() - begin))));
  }
}

Digest RootDigest(std::span<const uint64_t> page_digests, uint64_t length_bytes) {
  CAIRN_CHECK(page_digests.size() >= PageCount(length_bytes, kMaxPageBytes) &&
              page_digests.size() <= PageCount(length_bytes, uint64_t{1} << kMinPageBits));
  XXH128_hash_t hash;
  if (std::array<uint64_t, 5> hashed; page_digests.size() < hashed.size()) {
    *std::ranges::copy(page_digests, hashed.begin()).out = length_bytes;
    hash = XXH3_128bits(hashed.data(), (page_digests.size() + 1) * sizeof(uint64_t));
  } else {
    XXH3_state_t state;
    XXH3_128bits_reset(&state);
    XXH3_128bits_update(&state, page_digests.data(), page_digests.size_bytes());
    XXH3_128bits_update(&state, &length_bytes, sizeof(length_bytes));
    hash = XXH3_128bits_digest(&state);
  }
  return Digest{.lo = hash.low64, .hi = hash.high64};
}

Digest PayloadDigest(std::span<const std::byte> payload, uint64_t page_bytes) {
  if (payload.size() <= page_bytes && !payload.empty()) {
    return RootDigest(std::array{PageDigest(payload)}, payload.size());
  }
  std::vector<uint64_t> page_digests;
  AppendPageDigests(payload, page_digests, page_bytes);
  return RootDigest(page_digests, payload.size());
}

uint64_t Checksum64(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

Digest Checksum128(std::span<const std::byte> bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return {.lo = hash.low64, .hi = hash.high64};
}

void StreamChecksum64::FreeState::operator()(XXH3_state_s* state) const { XXH3_freeState(state); }

StreamChecksum64::StreamChecksum64() : state_(XXH3_createState()) {
  CAIRN_CHECK(state_ != nullptr && XXH3_64bits_reset(state_.get()) == XXH_OK);
}

StreamChecksum64::~StreamChecksum64() = default;

void StreamChecksum64::Update(std::span<const std::byte> bytes) {
  CAIRN_CHECK(XXH3_64bits_update(state_.get(), bytes.data(), bytes.size()) == XXH_OK);
}

uint64_t StreamChecksum64::value() const { return XXH3_64bits_digest(state_.get()); }

}  // namespace cairn::kv
