#include "kv/table/internal/window_reader.h"

#include <xxhash.h>

#include <algorithm>

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

bool WindowReader::CopyFromWindows(uint64_t offset_bytes, std::span<std::byte> target) {
  const MutexLock lock(mutex_);
  while (!target.empty()) {
    const auto found = by_index_.find(offset_bytes / kWindowBytes);
    if (found == by_index_.end()) return false;
    recent_.splice(recent_.begin(), recent_, found->second);
    const std::vector<std::byte>& window = *found->second->second;
    const uint64_t at = offset_bytes % kWindowBytes;
    if (at >= window.size()) return false;
    const uint64_t length = std::min<uint64_t>(target.size(), window.size() - at);
    std::copy_n(window.begin() + static_cast<ptrdiff_t>(at), length, target.begin());
    offset_bytes += length;
    target = target.subspan(length);
  }
  return true;
}

uint64_t WindowReader::PlanRead(uint64_t first, uint64_t needed) {
  const MutexLock lock(mutex_);
  const bool forward = read_count_ > 0 && first == expected_;
  read_count_ = forward ? std::min(read_count_ * 2, kMaxWindowsPerRead) : 1;
  read_count_ = std::max(read_count_, needed);
  expected_ = first + read_count_;
  return read_count_;
}

void WindowReader::Keep(uint64_t first, std::span<const std::byte> bytes) {
  const MutexLock lock(mutex_);
  for (uint64_t index = first; !bytes.empty(); ++index) {
    const auto part = bytes.first(std::min<uint64_t>(bytes.size(), kWindowBytes));
    bytes = bytes.subspan(part.size());
    if (by_index_.contains(index)) continue;  // another thread has read it
    recent_.emplace_front(index,
                          std::make_shared<const std::vector<std::byte>>(part.begin(), part.end()));
    by_index_[index] = recent_.begin();
  }
  while (recent_.size() > kMaxWindows) {
    by_index_.erase(recent_.back().first);
    recent_.pop_back();
  }
}

Result<void> WindowReader::ReadAt(const ObjectReader& object, uint64_t offset_bytes,
                                  std::span<std::byte> target) {
  if (target.empty() || target.size() > kWindowBytes || offset_bytes >= end_bytes_ ||
      target.size() > end_bytes_ - offset_bytes) {
    return object.ReadAt(offset_bytes, target);
  }
  if (CopyFromWindows(offset_bytes, target)) return {};
  const uint64_t first = offset_bytes / kWindowBytes;
  const uint64_t needed = (offset_bytes + target.size() - 1) / kWindowBytes - first + 1;
  const uint64_t begin_bytes = first * kWindowBytes;
  const uint64_t length_bytes =
      std::min(PlanRead(first, needed) * kWindowBytes, end_bytes_ - begin_bytes);
  std::vector<std::byte> bytes(length_bytes);
  CAIRN_TRY(object.ReadAt(begin_bytes, bytes));
  std::copy_n(bytes.begin() + static_cast<ptrdiff_t>(offset_bytes - begin_bytes), target.size(),
              target.begin());
  Keep(first, bytes);
  return {};
}

}  // namespace cairn::kv::internal
