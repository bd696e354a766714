// A mapped segment, and what the kernel may be told about its pages.

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "kv/mapping.h"


namespace cairn::kv {
namespace {

#ifndef MADV_POPULATE_READ
constexpr int MADV_POPULATE_READ = 22;  // Linux 5.14
#endif

// The kernel reads no more ahead for one call than the device's read-ahead or largest request.
constexpr uint64_t kAheadBytes = 128 * 1024;

// The whole pages around a part of a mapping, which itself begins at a page.
std::span<std::byte> PagesAround(std::span<const std::byte> bytes, uint64_t offset_bytes,
                                 uint64_t length_bytes) {
  CAIRN_CHECK(offset_bytes <= bytes.size() && length_bytes <= bytes.size() - offset_bytes);
  static const auto page_bytes = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  const uint64_t begin = offset_bytes / page_bytes * page_bytes;
  return {const_cast<std::byte*>(bytes.data()) + begin, offset_bytes + length_bytes - begin};
}

}  // namespace

Mapping::~Mapping() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

void Mapping::WillNeed(uint64_t offset_bytes, uint64_t length_bytes) const {
  const std::span<std::byte> pages = PagesAround(bytes_, offset_bytes, length_bytes);
  for (uint64_t at = 0; at < pages.size(); at += kAheadBytes) {
    // Only a hint: whoever reads the bytes finds out what is wrong with them.
    (void)::madvise(pages.data() + at, std::min(kAheadBytes, pages.size() - at), MADV_WILLNEED);
  }
}

Result<void> Mapping::Populate(uint64_t offset_bytes, uint64_t length_bytes) const {
  const std::span<std::byte> pages = PagesAround(bytes_, offset_bytes, length_bytes);
  if (pages.empty() || ::madvise(pages.data(), pages.size(), MADV_POPULATE_READ) == 0) return {};
  if (errno != EFAULT && errno != EHWPOISON) return {};
  return Fail(ErrorCode::kDataLoss,
              fmt::format("the mapped file cannot be read: {}", std::strerror(errno)));
}

void Mapping::Release(uint64_t offset_bytes, uint64_t length_bytes) const {
  const std::span<std::byte> pages = PagesAround(bytes_, offset_bytes, length_bytes);
  // Nothing of a read-only mapping can be lost by it, and if it fails the memory is only kept.
  if (!pages.empty()) (void)::madvise(pages.data(), pages.size(), MADV_DONTNEED);
}

}  // namespace cairn::kv
