#pragma once
/// Reads parts of chunks into strided targets, every byte checked before it counts as read.
///
/// 1. Add() finds the pages of the chunk that the region touches. A chunk that goes whole into one
///    run of memory is read right there and checked by its root digest; else pages go through an
///    arena of bounded size, and those of a chunk read in part are checked by the leaves stored in
///    its segment.
/// 2. When the arena or the list of pieces is full, Flush() reads leaves first, checks them against
///    the root, then reads all pieces in one batch, on all cores, and scatters them as they arrive.

#include <memory>
#include <optional>
#include <vector>

#include "core/internal/lookup.h"
#include "core/internal/progress.h"
#include "core/internal/strided_region.h"

namespace cairn::core::internal {

/// Threads: one at a time may call; the work is shared by several. Memory: kArenaBytes and the
/// records of at most kMaxPieces pieces.
class ChunkReader {
 public:
  static constexpr uint64_t kArenaBytes = 32 << 20;
  static constexpr size_t kMaxPieces = 8192;
  static constexpr uint32_t kMaxThreads = 8;  // that share the reading, at most one a core

  /// All must outlive the reader.
  ChunkReader(const StepView& view, ProgressMeter& progress) : view_(view), progress_(progress) {}

  /// Plans to read what `region` takes of the chunk's payload. Flushes when full.
  Result<void> Add(const std::string& fqn, const ChunkInfo& chunk, StridedRegion region);

  /// Reads all that was added. kDataLoss names key, file and offset of bytes that do not match.
  Result<void> Flush();

  /// Bytes taken from storage so far.
  uint64_t bytes_read() const { return bytes_read_; }

 private:
  struct Job {
    std::string fqn;
    ChunkInfo chunk;
    StridedRegion region;
    bool whole = false;            // all pages are read as one piece: no need of the stored leaves
    std::vector<uint64_t> leaves;  // as stored; filled by Flush
    bool leaves_checked = false;
  };
  struct Piece {
    std::shared_ptr<Job> job;  // shared by the pieces of one chunk, which may fall into two flushes
    uint64_t begin_bytes = 0;  // in the chunk
    std::span<std::byte> memory;
    bool direct = false;  // memory is the target itself
  };

  Result<void> AddPages(const std::shared_ptr<Job>& job, uint64_t begin_bytes, uint64_t end_bytes);
  Result<void> AddPiece(Piece piece);
  Result<void> ReadLeaves(std::span<const std::shared_ptr<Job>> jobs);
  Result<void> ReadPieces();
  /// False if the piece's bytes do not match.
  bool Matches(const Piece& piece) const;
  Error Diagnose(const Piece& piece);

  const StepView& view_;
  ProgressMeter& progress_;
  std::vector<Piece> pieces_;
  std::unique_ptr<std::byte[]> arena_;
  uint64_t arena_used_bytes_ = 0;
  uint64_t bytes_read_ = 0;
};

}  // namespace cairn::core::internal
