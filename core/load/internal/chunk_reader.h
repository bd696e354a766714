#pragma once
/// Reads parts of chunks to strided targets, and verifies every byte before it is used.
///
/// 1. Add() finds the pages of a chunk that a region touches. A complete chunk whose target is
///    contiguous is read directly to the target, extent by extent. The pages of any other chunk are
///    divided into parts, which are read to lent buffers and scattered from there.
/// 2. ReadAll() reads the parts in batches, while more are added. For each batch it first reads the
///    stored page digests of the chunks that are read in part, and checks them against the digest
///    of the chunk; then it reads and verifies the parts on all cores. A chunk that is read
///    completely needs no stored page digests: the chunk's digest follows from the computed
///    digests.
///
/// If a chunk has deltas, its parts are read from the earlier version. ReadAll() divides a batch
/// into groups of such chunks. It reads the deltas of a group while it reads the parts of the group
/// before it. The thread that receives a part applies the deltas before it verifies the part.

#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/base/internal/progress_meter.h"
#include "core/step/contents.h"
#include "core/step/internal/delta_chain.h"
#include "core/step/internal/lookup.h"
#include "core/tensor/internal/strided_region.h"
#include "kv/base/mutex.h"

namespace cairn::core::internal {

/// Threads: one calls Add and finally Close; another calls ReadAll concurrently, which reads with
/// several threads. Without a limit, one thread may do both. Memory: the records of at most
/// 3 * kMaxParts parts (without a limit: of all), the deltas of two groups, and the store's blocks.
class ChunkReader {
 public:
  /// Parts per batch. The first batches are small, so that reading begins early.
  static constexpr size_t kMinParts = 512;
  static constexpr size_t kMaxParts = 4096;

  enum class Limit {
    kBatches,  // Add waits for ReadAll
    kNone,     // everything is added before ReadAll, on the same thread; only for few bytes
  };

  /// `view` and `progress` must outlive the reader.
  ChunkReader(const StepView& view, ProgressMeter& progress, Limit limit = Limit::kBatches);

  /// Adds what `region` takes of the chunk's payload. Waits while a full batch has not been taken
  /// by ReadAll, unless there is no limit. kCancelled: ReadAll has returned, and nothing more needs
  /// to be added. `fqn`, the name of the tensor, must outlive the reader.
  Result<void> Add(const std::string& fqn, ChunkInfo chunk, StridedRegion region);

  /// Adds all of the chunk's payload, which is contiguous in `target`. Waits, and fails, as Add
  /// does. `fqn` must outlive the reader. Needs no memory but a part if the chunk has one extent,
  /// as small tensors have, and no deltas.
  Result<void> AddWhole(const std::string& fqn, const ChunkInfo& chunk, std::byte* target);

  /// Adds the pages of the chunk for which `wanted` is true. `target` is the target of the chunk's
  /// first byte. `stored` has the chunk's page digests; the caller has checked that they match the
  /// chunk's digest. Waits, and fails, as Add does. `fqn` must outlive the reader.
  Result<void> AddPages(const std::string& fqn, ChunkInfo chunk, std::vector<uint64_t> stored,
                        const std::vector<bool>& wanted, std::byte* target);

  /// Ends the adding. `added` is the error that ended it early, if any; ReadAll returns it. Call
  /// once.
  void Close(Result<void> added);

  /// Reads everything that is added until Close. After an error the contents of the targets are
  /// unspecified. kDataLoss: bytes do not match their digests; names key, file and offset.
  /// kCancelled: `progress` asked to stop. Otherwise the error of a read, or the one that was
  /// passed to Close.
  Result<void> ReadAll();

  /// Bytes read from storage so far.
  uint64_t bytes_read() const { return bytes_read_; }

 private:
  /// The reads of one chunk in several parts, of a part of a chunk, or of one with deltas.
  struct Job {
    Job(const std::string& fqn_in, ChunkInfo chunk_in) : fqn(fqn_in), chunk(std::move(chunk_in)) {}

    const std::string& fqn;  // the caller's
    const ChunkInfo chunk;
    std::optional<StridedRegion> region;  // empty: the target is contiguous
    bool is_complete = false;      // all pages are read, so that the stored digests are not needed
    std::vector<uint64_t> stored;  // page digests, unless complete; read with the first batch
    DeltaChain deltas;             // deltas of the chunk; read with the first group that has a part
    std::vector<uint64_t> computed;           // page digests, if complete and in several parts
    std::atomic<uint64_t> missing_bytes = 0;  // not read yet, if complete
  };
  struct ReadPart {
    std::shared_ptr<Job> job;  // shared by the parts of the chunk, which may be in two batches;
                               // null: this is all of a chunk with one extent and no deltas
    const std::string* fqn = nullptr;
    kv::Extent extent;            // where the part is stored
    uint64_t begin_bytes = 0;     // in the chunk; the beginning of a page
    std::byte* target = nullptr;  // null: read to a lent buffer and scattered by the job's region
    kv::Digest digest;            // of the chunk, if there is no job
  };
  struct Mismatch {
    ReadPart part;
    std::optional<uint64_t> page;  // empty: the page is not known, only the chunk
  };

  /// Adds the pages of the chunk for which `wanted` is true.
  Result<void> AddWanted(const std::shared_ptr<Job>& job, const std::vector<bool>& wanted,
                         std::byte* target = nullptr);
  /// Divides [begin_bytes, end_bytes) of the chunk at the ends of extents, and into parts that fit
  /// a lent buffer if `target`, the target of the chunk's first byte, is null.
  Result<void> AddParts(const std::shared_ptr<Job>& job, uint64_t begin_bytes, uint64_t end_bytes,
                        std::byte* target = nullptr);
  Result<void> AddPart(ReadPart part);
  /// Passes the parts that were added to ReadAll.
  Result<void> SubmitBatch();
  /// Takes what was submitted as batch_; empty after Close.
  Result<void> TakeBatch();
  /// Reads and verifies batch_.
  Result<void> ReadBatch();
  Result<void> ReadPageDigests(std::span<const std::shared_ptr<Job>> jobs);
  /// Returns the next group of parts and removes it from `rest`. All parts of a job are in it.
  std::span<ReadPart> TakeGroup(std::span<ReadPart>& rest);
  /// Reads the deltas that the parts need, if those are not read yet. Returns the bytes.
  Result<uint64_t> ReadDeltasOf(std::span<const ReadPart> parts, DeltaMemory& memory) const;
  Result<void> ReadParts(std::span<const ReadPart> parts);
  /// Applies deltas to a part, verifies and scatters it. Threads: any.
  Result<void> OnRead(const ReadPart& part, std::span<const std::byte> stored);
  /// Returns the bytes of the part after the deltas. They are in the target, in `stored`, or in
  /// memory of this thread that is valid until its next call.
  Result<std::span<const std::byte>> Decode(const ReadPart& part,
                                            std::span<const std::byte> stored);
  Result<void> Verify(const ReadPart& part, std::span<const std::byte> bytes);
  /// Keeps the first mismatch and returns an error, which ends the reading.
  Result<void> RecordMismatch(Mismatch mismatch);
  /// Returns the job of a part that has none, to find what is wrong with what was read.
  std::shared_ptr<Job> JobOf(const ReadPart& part) const;
  /// Returns the error that names the page, file and offset.
  Error Diagnose(Mismatch mismatch);
  /// Returns the error for stored page digests that do not match the chunk's digest.
  Error WrongPageDigests(const Job& job) const;

  const StepView& view_;
  ProgressMeter& progress_;
  const Limit limit_;
  std::vector<ReadPart> added_;     // used by Add and Close only
  size_t batch_parts_ = kMinParts;  // number of added_ parts that are submitted together
  std::vector<ReadPart> batch_;     // used by ReadAll only: is being read
  uint64_t bytes_read_ = 0;         // used by ReadAll only
  uint64_t group_bytes_;            // used by ReadAll only: cost of the deltas of the next group
  std::array<DeltaMemory, 2> delta_memory_;  // of the group that is read, and the one before
  size_t delta_groups_ = 0;
  Mutex mutex_;
  CondVar changed_;  // submitted_, closed_ or is_done_
  std::vector<ReadPart> submitted_ CAIRN_GUARDED_BY(mutex_);
  std::optional<Result<void>> closed_ CAIRN_GUARDED_BY(mutex_);  // the argument of Close
  bool is_done_ CAIRN_GUARDED_BY(mutex_) = false;                // ReadAll has returned
  std::optional<Mismatch> mismatch_ CAIRN_GUARDED_BY(mutex_);    // the first that was found
};

}  // namespace cairn::core::internal
