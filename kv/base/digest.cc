// Page-tree digests over XXH3.

#include "kv/base/digest.h"

#include <fmt/format.h>
#define XXH_STATIC_LINKING_ONLY  // for state on the stack
#include <xxhash.h>
#ifdef CAIRN_XXHASH_DISPATCH
#include <xxh_x86dispatch.h>  // XXH3 with the vector instructions that this processor has
#endif

#include <algorithm>
#include <bit>

#include "kv/base/error.h"

namespace cairn::kv {

// Page digests are hashed as they are in memory, which is their order on disk only if this holds.
static_assert(std::endian::native == std::endian::little);

std::string Digest::ToHex() const { return fmt::format("{:016x}{:016x}", hi, lo); }

uint64_t PageDigest(std::span<const std::byte> page) {
  CAIRN_CHECK(page.size() <= kPageBytes);
  return XXH3_64bits(page.data(), page.size());
}

namespace {

template <typename Visit>
void ForEachPageDigest(std::span<const std::byte> payload, const Visit& visit) {
  for (size_t begin = 0; begin < payload.size(); begin += kPageBytes) {
    visit(PageDigest(payload.subspan(begin, std::min<size_t>(kPageBytes, payload.size() - begin))));
  }
}

// Hashes the page digests, then the length.
class Root {
 public:
  Root() { XXH3_128bits_reset(&state_); }
  void Add(std::span<const uint64_t> page_digests) {
    XXH3_128bits_update(&state_, page_digests.data(), page_digests.size_bytes());
  }
  Digest Finish(uint64_t length_bytes) {
    XXH3_128bits_update(&state_, &length_bytes, sizeof(length_bytes));
    const XXH128_hash_t hash = XXH3_128bits_digest(&state_);
    return Digest{.lo = hash.low64, .hi = hash.high64};
  }

 private:
  XXH3_state_t state_;
};

}  // namespace

void AppendPageDigests(std::span<const std::byte> payload, std::vector<uint64_t>& page_digests) {
  ForEachPageDigest(payload, [&](uint64_t page_digest) { page_digests.push_back(page_digest); });
}

Digest RootDigest(std::span<const uint64_t> page_digests, uint64_t length_bytes) {
  CAIRN_CHECK(page_digests.size() == PageCount(length_bytes));
  Root root;
  root.Add(page_digests);
  return root.Finish(length_bytes);
}

Digest PayloadDigest(std::span<const std::byte> payload) {
  Root root;
  ForEachPageDigest(payload, [&](uint64_t page_digest) { root.Add({&page_digest, 1}); });
  return root.Finish(payload.size());
}

uint64_t Checksum64(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
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
