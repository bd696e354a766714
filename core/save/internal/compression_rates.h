#pragma once
/// Whether saves that may choose compress: by the rates at which the saves through one open store
/// have written chunks with compression and without.

#include <array>
#include <cstdint>

#include "kv/base/mutex.h"

namespace cairn::core::internal {

/// Threads: all functions may be called on any thread.
class CompressionRates {
 public:
  /// Less is not measured: its time is mostly that of waits for the disk.
  static constexpr uint64_t kMinBytes = 128 << 20;
  /// The slower way is measured again after this many saves, because disks and tensors change.
  static constexpr uint32_t kInterval = 16;

  /// Returns whether the next save compresses. Without rates, the first save does not, and the
  /// second does. At equal rates, saves compress.
  bool Choose() {
    const MutexLock lock(mutex_);
    if (rates_[0] == 0 || rates_[1] == 0) return rates_[0] != 0;
    const bool is_faster = rates_[1] >= rates_[0];
    return ++count_ % kInterval == 0 ? !is_faster : is_faster;
  }

  /// Takes note of `bytes` of chunks, before compression, that took `seconds`.
  void Add(bool compressed, uint64_t bytes, double seconds) {
    if (bytes < kMinBytes || seconds <= 0) return;
    const MutexLock lock(mutex_);
    rates_[compressed ? 1 : 0] = static_cast<double>(bytes) / seconds;
  }

 private:
  Mutex mutex_;
  std::array<double, 2> rates_ CAIRN_GUARDED_BY(mutex_) = {};  // bytes per second; 0: unknown
  uint32_t count_ CAIRN_GUARDED_BY(mutex_) = 0;                // of choices
};

}  // namespace cairn::core::internal
