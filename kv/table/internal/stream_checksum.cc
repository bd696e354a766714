#include "kv/table/internal/stream_checksum.h"

#include <xxhash.h>
#ifdef CAIRN_XXHASH_DISPATCH
#include <xxh_x86dispatch.h>  // XXH3 with the vector instructions that this processor has
#endif

#include "kv/base/error.h"

namespace cairn::kv::internal {

void StreamChecksum64::FreeState::operator()(XXH3_state_s* state) const { XXH3_freeState(state); }

StreamChecksum64::StreamChecksum64() : state_(XXH3_createState()) {
  CAIRN_CHECK(state_ != nullptr && XXH3_64bits_reset(state_.get()) == XXH_OK);
}

StreamChecksum64::~StreamChecksum64() = default;

void StreamChecksum64::Update(std::span<const std::byte> bytes) {
  CAIRN_CHECK(XXH3_64bits_update(state_.get(), bytes.data(), bytes.size()) == XXH_OK);
}

uint64_t StreamChecksum64::value() const { return XXH3_64bits_digest(state_.get()); }

}  // namespace cairn::kv::internal
