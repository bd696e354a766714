#pragma once
/// Writing one step.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kv/block_filler.h"
#include "kv/block_pool.h"
#include "kv/digest.h"
#include "kv/error.h"
#include "kv/extents.h"
#include "kv/key.h"
#include "kv/step_info.h"

namespace cairn::kv {

/// One rank's contribution to one attempt at a step. Destroying it without Commit abandons the
/// attempt and removes what it wrote. Threads: one at a time.
class StepWriter {
 public:
  ~StepWriter();

  /// Begins a chunk of `length_bytes`. `align` puts it on 4 KiB (start of a large shard); else it
  /// follows the chunk before, on 64 bytes if `pack` starts a tensor, or directly behind it.
  enum class Placement { kFollow, kAlign64, kAlign4096 };
  /// Copies `payload` into the segment through the block pool. With `leaves` empty the page digests
  /// are computed while the bytes are hot; else they are taken as given (PageCount(length) of
  /// them). `payload` is asked for one page at a time: `next_page(page_index, scratch)` returns the
  /// page's bytes, either in the caller's memory or gathered into `scratch` (kPageBytes).
  ///
  /// If the whole payload lies in one piece of memory that stays as it is until Commit returns or
  /// the writer is destroyed, `memory` may be that piece: it is written from there, without a copy,
  /// if its address is aligned as direct I/O on the device asks.
  struct Appended {
    Extent extent;
    Digest digest;
  };
  using PageSource =
      std::function<std::span<const std::byte>(uint64_t page_index, std::span<std::byte> scratch)>;
  Result<Appended> Append(uint64_t length_bytes, Placement placement, const PageSource& pages,
                          std::span<const uint64_t> page_digests = {},
                          std::span<const std::byte> memory = {});
  /// Lets `filler` bring payload from here on, and payload go through `blocks` instead of the
  /// store's own; both must outlive the writer. Seals a segment that has been begun. At most once.
  Result<void> UseFiller(BlockFiller& filler, std::shared_ptr<BlockPool> blocks);
  /// How the filler brings a payload, or a part of it.
  struct Fill {
    /// Begins to bring bytes from `begin_bytes` on to `target`.
    std::function<Result<void>(uint64_t begin_bytes, std::span<std::byte> target)> start;
    /// Begins to write bytes to a file that the filler has opened, at `offset_bytes`; length and
    /// offset are multiples of 4 KiB. False: these bytes take the other way. May be null.
    std::function<Result<bool>(uint64_t begin_bytes, uint64_t length_bytes, int fd,
                               uint64_t offset_bytes)>
        write;
  };
  /// The same as Append for a payload that the filler brings. Its page digests are known. Requires
  /// UseFiller.
  Result<Appended> AppendFilled(uint64_t length_bytes, Placement placement,
                                std::span<const uint64_t> page_digests, const Fill& fill);

  /// Pages [begin_page, end_page) of a chunk.
  struct PageRange {
    uint64_t begin_page = 0;
    uint64_t end_page = 0;
    friend bool operator==(const PageRange&, const PageRange&) = default;
  };
  /// Appends just these pages of a chunk of `length_bytes`, all to one segment, each run on 4 KiB;
  /// the result has an extent for each. `pages`, `leaves` (here always given) and `memory` are
  /// those of the whole chunk, as in Append. Requires runs that are not empty, ascend and lie in
  /// the chunk.
  Result<std::vector<Extent>> AppendRuns(uint64_t length_bytes, std::span<const PageRange> runs,
                                         const PageSource& pages, std::span<const uint64_t> page_digests,
                                         std::span<const std::byte> memory = {});
  /// The same for a payload that the filler brings; `fill` takes places in the chunk.
  Result<std::vector<Extent>> AppendRunsFilled(uint64_t length_bytes, std::span<const PageRange> runs,
                                               std::span<const uint64_t> page_digests, const Fill& fill);

  /// Returns once nothing that was appended is read any more from where it lay: `memory` of earlier
  /// appends is the caller's again, and all blocks are free.
  Result<void> Drain();

  /// Adds a record; `key` is without generation and added only once. Columns: kTensors, kValues.
  /// Where there are several ranks, tensors that are added before Gather are for the segments'
  /// footers alone; those for the index are added by rank 0, behind it.
  Result<void> AddRecord(Column column, std::string_view key, std::span<const std::byte> record);
  /// Adds a ChunkRecord (sizes in elements). `reused`: the extents are those of the base. Else they
  /// are from Append, or from AppendRuns with parts of the base's between them, and this comes
  /// before the next of either.
  Result<void> AddChunk(std::string_view key, std::span<const uint64_t> sizes,
                        const Extents& extents, const Digest& digest, uint64_t since_step,
                        bool reused);
  /// Records that ranks have alike, such as the values that all of them hold. Kept once an attempt,
  /// however many ranks add the same. Only Gather sees them; they do not go into the index.
  struct SharedRecord {
    Column column = Column::kValues;
    std::string key;
    std::vector<std::byte> value;
  };
  Result<void> AddShared(std::span<const SharedRecord> records);

  /// Rank 0 of several: waits for the manifests of all others and takes them over into its own.
  /// `on_record` sees their chunks and shared records: of equal ones only those of the lowest rank,
  /// and none that rank 0 has added itself before. Errors: that of a rank that failed, naming it;
  /// kUnavailable: ranks that are missing at the deadline. Memory: one manifest block.
  using RankRecordCallback = std::function<Result<void>(uint32_t rank, Column, std::string_view key,
                                                        std::span<const std::byte> value)>;
  Result<void> Gather(const RankRecordCallback& on_record);

  /// The StructureRecord of the step, once. Rank 0.
  Result<void> SetStructure(std::span<const std::byte> record);

  struct Summary {
    std::optional<uint64_t> base_step;
    uint64_t tensor_count = 0;
    uint64_t value_count = 0;
    uint64_t logical_bytes = 0;
  };
  /// Steps 1 to 4 above. On error the step does not exist, unless the message says that it does.
  /// Rank 0 of several calls Gather before it. The counts of the result are those of all ranks.
  Result<StepInfo> Commit(const Summary& summary);

  /// In place of Commit, on the other ranks: makes this rank's part durable. From here on rank 0
  /// may commit it.
  Result<void> Prepare(const Summary& summary);
  /// After Prepare: waits until rank 0 has committed the step or given it up. The counts of the
  /// result are this rank's. Errors: that of the rank that failed; kUnavailable: no word from rank
  /// 0 at the deadline, or another job has taken over the store. The step may exist all the same
  /// then, if the message says so.
  Result<StepInfo> AwaitDecision();

  /// Bytes this attempt has put into segments so far (payload, without padding).
  uint64_t written_bytes() const;

  class Impl;
  explicit StepWriter(std::unique_ptr<Impl> impl);

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace cairn::kv
