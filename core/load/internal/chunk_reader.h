#pragma once
/// Reads parts of chunks into strided targets, and checks every byte that it read.
///
/// 1. Add() finds the pages of the chunk that the region touches. A chunk that goes whole into one
///    run of memory is read right there, extent by extent; else its pages are cut into pieces,
///    which are scattered from where they arrive.
/// 2. ReadAll() takes the pieces in batches, while more are added. For a batch it reads the stored
///    page digests of the chunks that are read in part, checks them against the root, then reads
///    the pieces, on all cores. A chunk that is read whole needs no stored digests: its own make
///    the root.

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "core/base/internal/progress_meter.h"
#include "core/step/contents.h"
#include "core/step/internal/lookup.h"
#include "core/tensor/internal/strided_region.h"

namespace cairn::core::internal {

/// Threads: one adds and at last closes, another reads what was added meanwhile; the reading is
/// shared by several. Memory: the records of at most three times kMaxPieces pieces, and the store's
/// blocks.
class ChunkReader {
 public:
  /// Pieces are read in batches: small ones first, so that the disk is soon busy.
  static constexpr size_t kMinPieces = 512;
  static constexpr size_t kMaxPieces = 8192;
  static constexpr uint32_t kMaxThreads = 8;  // that share the reading, at most one a core

  /// All must outlive the reader.
  ChunkReader(const StepView& view, ProgressMeter& progress) : view_(view), progress_(progress) {}

  /// Plans to read what `region` takes of the chunk's payload. Waits while the reading is behind.
  /// kCancelled: the reading has ended, there is no use in going on.
  Result<void> Add(const std::string& fqn, const ChunkInfo& chunk, StridedRegion region);

  /// Tells that nothing more will be added, because all was or because of an error.
  void Close(Result<void> added);

  /// Reads all that is added, until the close. kDataLoss names key, file and offset of bytes that
  /// do not match; targets hold anything then. Or the error that the close told.
  Result<void> ReadAll();

  /// Bytes taken from storage so far.
  uint64_t bytes_read() const { return bytes_read_; }

 private:
  struct Job {
    Job(const std::string& fqn_in, const ChunkInfo& chunk_in, StridedRegion region_in)
        : fqn(fqn_in), chunk(chunk_in), region(std::move(region_in)) {}

    const std::string fqn;
    const ChunkInfo chunk;
    const StridedRegion region;
    bool whole = false;                       // all pages are read: no need of the stored digests
    std::vector<uint64_t> stored;             // page digests, for a part; read with its batch
    std::vector<uint64_t> computed;           // page digests, for the whole in several pieces
    std::atomic<uint64_t> missing_bytes = 0;  // of the whole
  };
  struct Piece {
    std::shared_ptr<Job> job;  // shared by the pieces of one chunk, which may fall into two batches
    uint64_t begin_bytes = 0;  // in the chunk, on a page
    uint64_t length_bytes = 0;    // inside one extent
    std::byte* target = nullptr;  // null: scattered by the job's region
  };
  struct Mismatch {
    std::shared_ptr<Job> job;
    std::optional<uint64_t> page;  // nothing: the root
  };

  /// Cuts [begin_bytes, end_bytes) at the ends of extents, and to what can be lent if there is no
  /// `target`, which is that of the chunk's first byte.
  Result<void> AddPieces(const std::shared_ptr<Job>& job, uint64_t begin_bytes, uint64_t end_bytes,
                         std::byte* target = nullptr);
  Result<void> AddPiece(Piece piece);
  /// Passes what was added to the reading thread.
  Result<void> HandOver();
  /// Takes what was handed over into pieces_; empty after the close.
  Result<void> TakePieces();
  /// Reads pieces_.
  Result<void> ReadBatch();
  Result<void> ReadPageDigests(std::span<const std::shared_ptr<Job>> jobs);
  Result<void> ReadPieces();
  /// Checks and scatters a piece. Any thread.
  Result<void> Arrived(const Piece& piece, std::span<const std::byte> bytes);
  Result<void> CheckWhole(const Piece& piece, std::span<const std::byte> bytes);
  Result<void> CheckPart(const Piece& piece, std::span<const std::byte> bytes);
  Result<void> Mismatched(Mismatch mismatch);
  Error Diagnose(Mismatch mismatch);
  /// Stored page digests that do not make the chunk's root.
  Error WrongPageDigests(const Job& job) const;

  const StepView& view_;
  ProgressMeter& progress_;
  std::vector<Piece> added_;          // by the thread that adds
  size_t batch_pieces_ = kMinPieces;  // of added_, until they are handed over
  std::vector<Piece> pieces_;         // being read
  std::mutex mutex_;
  std::condition_variable changed_;        // of the next three
  std::vector<Piece> handed_over_;         // guarded by mutex_
  std::optional<Result<void>> added_all_;  // the close; guarded by mutex_
  bool ended_ = false;                     // the reading; guarded by mutex_
  std::optional<Mismatch> mismatch_;       // the first that was found; guarded by mutex_
  uint64_t bytes_read_ = 0;
};

}  // namespace cairn::core::internal
