#include "cuda/internal/copy_batch.h"

namespace cairn::cuda::internal {
namespace {

constexpr uint64_t kAlignment = 64;
// Host memory between two multiples of this is one allocation, where copies may be joined.
constexpr uint64_t kJoinedBytes = 2 << 20;

// A range has the alignment of its host memory modulo 64, so no copy takes more than this.
uint64_t TakenBytes(const BufferedCopy& copy) { return copy.length_bytes + 2 * kAlignment; }

uint64_t JobsOf(const BufferedCopy& copy) {
  return copy.kind == BufferedCopy::Kind::kStrided ? 0 : JobCount(copy.length_bytes);
}

// Returns how many bytes after the end of a range `copy` begins, or nothing if it cannot be a part
// of the range.
std::optional<uint64_t> GapTo(Direction direction, const HostRange& range,
                              const BufferedCopy& copy) {
  const std::byte* const end = range.host + range.length_bytes;
  if (copy.host < end) return std::nullopt;
  if (reinterpret_cast<uintptr_t>(copy.host) / kJoinedBytes !=
      reinterpret_cast<uintptr_t>(end - 1) / kJoinedBytes) {
    return std::nullopt;
  }
  const auto gap_bytes = static_cast<uint64_t>(copy.host - end);
  // On the way in, the bytes of a gap are copied too and ignored.
  if (gap_bytes > 0 && (direction == Direction::kOut || gap_bytes >= kAlignment)) {
    return std::nullopt;
  }
  return gap_bytes;
}

}  // namespace

bool CopyBatch::HasRoomFor(const BufferedCopy& copy) const {
  return buffer_bytes_ + TakenBytes(copy) <= kBufferBytes && job_count_ + JobsOf(copy) <= kMaxJobs;
}

void CopyBatch::Add(const BufferedCopy& copy) {
  copies_.push_back(copy);
  buffer_bytes_ += TakenBytes(copy);
  job_count_ += JobsOf(copy);
}

void CopyBatch::AddStrided(BufferedCopy copy, const StridedShape& shape) {
  copy.shape = shapes_.size();
  shapes_.push_back(shape);
  Add(copy);
}

// The header of a segment shifts all chunks relative to the blocks: without this, each block of a
// large tensor would begin with a small copy.
uint64_t CopyBatch::TakeBefore(const std::byte* device, const std::byte* host) {
  if (copies_.empty() || reinterpret_cast<uintptr_t>(host) % kJoinedBytes == 0) return 0;
  const BufferedCopy last = copies_.back();
  if (last.kind != BufferedCopy::Kind::kContiguous ||
      reinterpret_cast<const std::byte*>(last.device) + last.length_bytes != device ||
      last.host + last.length_bytes != host) {
    return 0;
  }
  buffer_bytes_ -= TakenBytes(last);
  job_count_ -= JobsOf(last);
  copies_.pop_back();
  return last.length_bytes;
}

BatchLayout CopyBatch::LayOut(Direction direction, bool join) const {
  BatchLayout layout;
  layout.offsets_bytes.reserve(copies_.size());
  uint64_t end_bytes = 0;
  for (const BufferedCopy& copy : copies_) {
    std::optional<uint64_t> gap_bytes;
    if (join && !layout.host_ranges.empty()) {
      gap_bytes = GapTo(direction, layout.host_ranges.back(), copy);
    }
    if (gap_bytes) {
      end_bytes += *gap_bytes;
      layout.host_ranges.back().length_bytes += *gap_bytes;
    } else {
      // Equal to the host's address modulo 64, so that what is aligned there is aligned here.
      end_bytes = (end_bytes + kAlignment - 1) / kAlignment * kAlignment +
                  reinterpret_cast<uintptr_t>(copy.host) % kAlignment;
      layout.host_ranges.push_back(
          {.offset_bytes = end_bytes, .length_bytes = 0, .host = copy.host});
    }
    layout.offsets_bytes.push_back(end_bytes);
    layout.host_ranges.back().length_bytes += copy.length_bytes;
    end_bytes += copy.length_bytes;
  }
  return layout;
}

}  // namespace cairn::cuda::internal
