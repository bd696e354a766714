#pragma once
/// Small reads of an object in a storage where each request takes long.

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "kv/base/error.h"
#include "kv/base/mutex.h"
#include "kv/base/thread_annotations.h"
#include "kv/storage/internal/object_reader.h"

struct XXH3_state_s;

namespace cairn::kv::internal {

/// Threads: one.
class StreamChecksum64 {
 public:
  StreamChecksum64();
  ~StreamChecksum64();

  void Update(std::span<const std::byte> bytes);
  /// Returns Checksum64 (the XXH3-64) of all bytes so far.
  uint64_t value() const;

 private:
  struct FreeState {
    void operator()(XXH3_state_s* state) const;
  };
  std::unique_ptr<XXH3_state_s, FreeState> state_;
};

/// Reads windows of 256 KiB and keeps the last 16, so lookups of neighbouring keys make one
/// request. When reads move forward through the object, each request is twice as long as the one
/// before it, up to 2 MiB. Larger reads are not kept. Threads: many may call ReadAt at once.
class WindowReader {
 public:
  /// Windows end at `end_bytes` at the latest.
  explicit WindowReader(uint64_t end_bytes) : end_bytes_(end_bytes) {}

  /// Fills `target` with bytes of `object`, which is the same in all calls.
  Result<void> ReadAt(const ObjectReader& object, uint64_t offset_bytes,
                      std::span<std::byte> target);

  static constexpr uint64_t kWindowBytes = 256 << 10;

 private:
  using Window = std::shared_ptr<const std::vector<std::byte>>;
  using Entry = std::pair<uint64_t, Window>;

  /// Returns whether all bytes of `target` are in windows, and copies them.
  bool CopyFromWindows(uint64_t offset_bytes, std::span<std::byte> target);
  /// Returns how many windows to read from `first` on; at least `needed`.
  uint64_t PlanRead(uint64_t first, uint64_t needed);
  void Keep(uint64_t first, std::span<const std::byte> bytes);

  static constexpr size_t kMaxWindows = 16;
  static constexpr uint64_t kMaxWindowsPerRead = 8;
  const uint64_t end_bytes_;
  Mutex mutex_;
  std::list<Entry> recent_ CAIRN_GUARDED_BY(mutex_);  // newest first
  std::map<uint64_t, std::list<Entry>::iterator> by_index_ CAIRN_GUARDED_BY(mutex_);
  uint64_t expected_ CAIRN_GUARDED_BY(mutex_) = 0;    // the window after the last read
  uint64_t read_count_ CAIRN_GUARDED_BY(mutex_) = 0;  // windows of the last read
};

}  // namespace cairn::kv::internal
