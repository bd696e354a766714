// A mapped segment, and advice to the kernel about its pages.

#include "kv/base/mapping.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "kv/base/div.h"

namespace cairn::kv {
namespace {

#ifndef MADV_POPULATE_READ
constexpr int MADV_POPULATE_READ = 22;  // Linux 5.14
#endif

// For one call the kernel reads at most the device's read-ahead or its largest request.
constexpr uint64_t kAheadBytes = 128 * 1024;

// Returns the pages that contain a range of a mapping, which itself begins at a page.
std::span<std::byte> PagesAround(std::span<const std::byte> bytes, uint64_t offset_bytes,
                                 uint64_t length_bytes) {
  CAIRN_CHECK(offset_bytes <= bytes.size() && length_bytes <= bytes.size() - offset_bytes);
  static const auto page_bytes = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  const uint64_t begin = RoundDown(offset_bytes, page_bytes);
  return {const_cast<std::byte*>(bytes.data()) + begin, offset_bytes + length_bytes - begin};
}

}  // namespace

Mapping::~Mapping() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

void Mapping::WillNeed(uint64_t offset_bytes, uint64_t length_bytes) const {
  const std::span<std::byte> pages = PagesAround(bytes_, offset_bytes, length_bytes);
  for (uint64_t at = 0; at < pages.size(); at += kAheadBytes) {
    // Only a hint: an access of the bytes reports what is wrong with them.
    (void)::madvise(pages.data() + at, std::min(kAheadBytes, pages.size() - at), MADV_WILLNEED);
  }
}

bool Mapping::UseLargePages(uint64_t offset_bytes, uint64_t length_bytes) const {
  const std::span<std::byte> pages = PagesAround(bytes_, offset_bytes, length_bytes);
  // Only units that are completely inside the range: an access reads nothing else.
  const uint64_t first = pages.data() - bytes_.data();
  const uint64_t begin = RoundUp(first, kHugePageBytes);
  const uint64_t end = RoundDown(first + pages.size(), kHugePageBytes);
  if (begin >= end) return true;
  auto* const address = const_cast<std::byte*>(bytes_.data()) + begin;
  return ::madvise(address, end - begin, MADV_HUGEPAGE) == 0;
}

Result<void> Mapping::Populate(uint64_t offset_bytes, uint64_t length_bytes) const {
  const std::span<std::byte> pages = PagesAround(bytes_, offset_bytes, length_bytes);
  if (pages.empty() || ::madvise(pages.data(), pages.size(), MADV_POPULATE_READ) == 0) return {};
  if (errno != EFAULT && errno != EHWPOISON) return {};
  return Fail(ErrorCode::kDataLoss,
              fmt::format("the mapped file cannot be read: {}", std::strerror(errno)));
}

std::byte* MapAligned(uint64_t length_bytes, uint64_t alignment) {
  static const auto page_bytes = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  const uint64_t kept_bytes = RoundUp(length_bytes, page_bytes);
  // Extra room, so that there is such a multiple.
  const uint64_t room_bytes = alignment > page_bytes ? alignment : 0;
  uint64_t mapped_bytes = 0;
  if (kept_bytes < length_bytes || __builtin_add_overflow(kept_bytes, room_bytes, &mapped_bytes)) {
    return nullptr;
  }
  void* const mapping =
      ::mmap(nullptr, mapped_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) return nullptr;
  const auto address = reinterpret_cast<uintptr_t>(mapping);
  const uint64_t before_bytes = room_bytes == 0 ? 0 : RoundUp(address, alignment) - address;
  auto* const memory = static_cast<std::byte*>(mapping) + before_bytes;
  // If unmapping fails, only address space is wasted, not memory.
  if (before_bytes > 0) (void)::munmap(mapping, before_bytes);
  if (before_bytes < room_bytes) {
    (void)::munmap(memory + kept_bytes, room_bytes - before_bytes);
  }
  return memory;
}

}  // namespace cairn::kv
