// Counts the memory that is allocated: with the hooks of AddressSanitizer or, in other builds, with
// replacements of operator new and delete.

#include "tests/fuzz/fuzz_support.h"

#include <malloc.h>

#include <atomic>
#include <new>

#include "kv/base/digest.h"
#include "schema/little_endian.h"

#if defined(__SANITIZE_ADDRESS__)
#define CAIRN_FUZZ_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define CAIRN_FUZZ_ASAN 1
#endif
#endif

#ifdef CAIRN_FUZZ_ASAN
// GCC has no header for these functions of the runtime (sanitizer/allocator_interface.h of LLVM).
extern "C" {
int __sanitizer_install_malloc_and_free_hooks(void (*on_malloc)(const volatile void*, size_t),
                                              void (*on_free)(const volatile void*));
size_t __sanitizer_get_allocated_size(const volatile void* memory);
}
#endif

namespace cairn::fuzz {
namespace {

std::atomic<int64_t> allocated_bytes = 0;
std::atomic<int64_t> peak_bytes = 0;

void Add(size_t bytes) {
  const int64_t now = allocated_bytes += static_cast<int64_t>(bytes);
  int64_t peak = peak_bytes;
  while (now > peak && !peak_bytes.compare_exchange_weak(peak, now)) {
  }
}
void Subtract(size_t bytes) { allocated_bytes -= static_cast<int64_t>(bytes); }

#ifdef CAIRN_FUZZ_ASAN
void OnMalloc(const volatile void*, size_t bytes) { Add(bytes); }
void OnFree(const volatile void* memory) {
  if (memory != nullptr) Subtract(__sanitizer_get_allocated_size(memory));
}
void Install() {
  static const bool installed = __sanitizer_install_malloc_and_free_hooks(&OnMalloc, &OnFree) > 0;
  CAIRN_FUZZ_CHECK(installed);
}
#else
void Install() {}
#endif

}  // namespace

void CheckFailed(const char* condition, const char* file, int line) {
  std::fprintf(stderr, "%s:%d: the fuzzer's check failed: %s\n", file, line, condition);
  std::abort();
}

std::string_view Input::Line() {
  const size_t end = rest_text().find('\n');
  if (end == std::string_view::npos) return Text(rest_.size());
  return Text(end + 1).substr(0, end);
}

MemoryLimit::MemoryLimit(uint64_t limit_bytes)
    : limit_bytes_(limit_bytes), begin_bytes_((Install(), allocated_bytes.load())) {
  peak_bytes = begin_bytes_;
}

MemoryLimit::~MemoryLimit() {
  const int64_t used_bytes = peak_bytes - begin_bytes_;
  if (used_bytes <= 0 || static_cast<uint64_t>(used_bytes) <= limit_bytes_) return;
  std::fprintf(stderr, "%lld bytes were allocated, at most %llu were expected\n",
               static_cast<long long>(used_bytes), static_cast<unsigned long long>(limit_bytes_));
  std::abort();
}

void RepairChecksum(std::span<std::byte> bytes) {
  if (bytes.size() < sizeof(uint64_t)) return;
  const size_t covered = bytes.size() - sizeof(uint64_t);
  schema::PutLittleEndian(bytes, covered, kv::Checksum64(bytes.first(covered)));
}

void UseError(const Error& error) {
  CAIRN_FUZZ_CHECK(!error.message.empty());
  CAIRN_FUZZ_CHECK(std::string_view(ErrorCodeName(error.code)) != "Unknown");
  CAIRN_FUZZ_CHECK(!error.ToString().empty());
}

#ifndef CAIRN_FUZZ_ASAN
namespace {
void* Allocate(size_t bytes, size_t alignment) {
  void* const memory =
      alignment == 0
          ? std::malloc(bytes)
          : std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (memory == nullptr) throw std::bad_alloc();
  Add(malloc_usable_size(memory));
  return memory;
}
void Release(void* memory) {
  if (memory != nullptr) Subtract(malloc_usable_size(memory));
  std::free(memory);
}
}  // namespace
#endif

}  // namespace cairn::fuzz

#ifndef CAIRN_FUZZ_ASAN
void* operator new(size_t bytes) { return cairn::fuzz::Allocate(bytes, 0); }
void* operator new(size_t bytes, std::align_val_t alignment) {
  return cairn::fuzz::Allocate(bytes, static_cast<size_t>(alignment));
}
void operator delete(void* memory) noexcept { cairn::fuzz::Release(memory); }
void operator delete(void* memory, size_t) noexcept { cairn::fuzz::Release(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { cairn::fuzz::Release(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept {
  cairn::fuzz::Release(memory);
}
#endif

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  cairn::fuzz::Fuzz({data, size});
  return 0;
}
