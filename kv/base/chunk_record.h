#pragma once
// SPDX-License-Identifier: Apache-2.0
/// Verified records of chunks.

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "kv/base/digest.h"
#include "kv/base/error.h"
#include "kv/base/extents.h"

namespace cairn::schema {
struct ChunkRecord;
}

namespace cairn::kv {

/// Statistics of the elements of a chunk, which this layer stores and does not compute.
struct ChunkStatistics {
  /// Smallest and largest value, infinities included; NaN if every value is a NaN.
  double min = std::numeric_limits<double>::quiet_NaN();
  double max = std::numeric_limits<double>::quiet_NaN();
  /// Mean of the finite values; NaN if there are none.
  double mean = std::numeric_limits<double>::quiet_NaN();
  uint64_t zeros = 0;
  uint64_t nans = 0;
  uint64_t infs = 0;  // positive and negative
};

struct ChunkEntry {
  std::vector<uint64_t> sizes;  // in elements
  ChunkExtents extents;
  Digest digest;
  uint64_t since_step = 0;                    // the latest step that wrote any of the bytes
  std::optional<ChunkStatistics> statistics;  // empty: not computed
};

/// Returns the statistics of a verified record.
std::optional<ChunkStatistics> ReadStatistics(const schema::ChunkRecord& record);

/// A ChunkRecord that was verified together with its key. Needs no memory, unless the chunk has
/// several extents or deltas. Ownership: borrows both. Threads: as for a value.
class ChunkView {
 public:
  /// Checks everything that does not need the TensorRecord. Requires a `record` that is aligned to
  /// 8 bytes. kDataLoss: the key or the record is damaged. kUnimplemented: the record has a newer
  /// version, or a kind of digest or a codec that this build does not know.
  /// After an error, nothing else may be called.
  Result<void> Set(std::string_view key, std::span<const std::byte> record);

  // Require Set.

  std::string_view fqn() const { return fqn_; }
  const schema::ChunkRecord& record() const { return *record_; }
  const ChunkExtents& extents() const { return extents_; }
  /// Length of the chunk, without its deltas.
  uint64_t length_bytes() const { return length_bytes_; }
  size_t dimensions() const { return offsets_.size() / sizeof(uint64_t); }
  /// Requires one number per dimension. In elements.
  void CopyOffsets(std::span<uint64_t> offsets) const;
  void CopySizes(std::span<uint64_t> sizes) const;

 private:
  std::string_view fqn_;
  std::string_view offsets_;  // big-endian
  const schema::ChunkRecord* record_ = nullptr;
  ChunkExtents extents_;
  uint64_t length_bytes_ = 0;
};

}  // namespace cairn::kv
