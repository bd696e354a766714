#pragma once
/// A store in a directory: committed steps, their records and payload, and the way to add and
/// delete steps atomically. Knows keys, records and byte ranges; tensors are the business of core/.
///
/// On disk (docs/format/ has each file byte by byte):
///   CAIRN                          format version and uuid
///   LOCK                           held by the one writer
///   index/                         RocksDB: the columns of kv/key.h
///   segments/<step>-<rank>-<id>.seg
///   pending/<attempt>/<rank>.manifest   a step that is being written, with what ranks tell each
///                                       other (kv/internal/commit/attempt_files.h)
///   commits/<generation>-<rank>.manifest  the records of a committed step, kept while it lives
///
/// Commit, in this order, each step durable before the next:
///   1. segments sealed: footer, fdatasync, directory fsync
///   2. manifest written to pending/, fsync, directory fsync
///   3. one atomic index write (steps, records, usage): the step exists from here on
///   4. manifest renamed to commits/, both directories fsynced; only now is the save acknowledged
/// Delete: manifest renamed to commits/*.deleting; index write; dead segments unlinked; the renamed
/// manifest unlinked. An overwrite is a commit whose index write also deletes the old generation.
///
/// Several ranks: each does 1 and makes a manifest in pending/ durable; rank 0, which alone has the
/// index, waits for all of them, joins them into its own manifest and goes on with 2. The others
/// learn the outcome from a file beside the manifests. Nothing is exchanged but files.
///
/// Whatever an open finds tells how far a crash got: a pending manifest whose step is not in the
/// index never happened (swept); one that is in the index lacks only step 4 (done now); a manifest
/// in commits/ that the index lacks means that the index lost committed data (docs/adr/0002): a
/// writer puts the step back from its manifest, a reader gets kDataLoss.

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kv/block_pool.h"
#include "kv/digest.h"
#include "kv/error.h"
#include "kv/extents.h"
#include "kv/key.h"

namespace cairn::kv {

enum class OpenMode {
  kRead,   // never changes anything
  kWrite,  // one writer at a time; makes the store if absent
  kJoin,   // a rank of a job whose rank 0 has the store open for writing: adds segments and a
           // manifest to steps that rank 0 commits, and never touches the index
};

/// How payload moves. Defaults suit a local disk.
struct IoOptions {
  bool direct = true;              // O_DIRECT where the file system allows it
  bool uring = true;               // io_uring where the kernel allows it, else threads
  uint64_t block_bytes = 4 << 20;  // one request, as large as a chunk
  uint32_t queue_depth = 8;        // blocks in flight; pool = depth * block
};

struct StoreOptions {
  /// Nothing: the defaults above, as the environment variables CAIRN_IO_BLOCK_BYTES,
  /// CAIRN_IO_DEPTH, CAIRN_IO_ENGINE (uring or threads) and CAIRN_IO_DIRECT (0 or 1) change them.
  /// `kv-bench tune` finds what suits a disk.
  std::optional<IoOptions> io;
  /// A reader that finds the index damaged reports it here instead of failing (kv-dump).
  bool tolerate_lost_steps = false;
  /// How long an open may wait for a writer that is just replacing index files.
  std::chrono::milliseconds deadline{10'000};
  /// kJoin: what Store::Invite of the job's rank 0 said.
  std::string session;
};

/// A committed step.
struct StepInfo {
  uint64_t step = 0;
  uint64_t generation = 0;
  int64_t created_unix_ns = 0;
  uint32_t world_size = 1;
  std::string attempt;
  std::optional<uint64_t> base_step;
  uint64_t tensor_count = 0;
  uint64_t value_count = 0;
  uint64_t chunk_count = 0;
  uint64_t reused_chunk_count = 0;
  uint64_t logical_bytes = 0;
  uint64_t written_bytes = 0;
  Digest structure;
};

/// A sealed segment as the index knows it.
struct SegmentInfo {
  uint64_t segment_id = 0;
  std::string name;  // below segments/
  uint64_t step = 0;
  uint32_t rank = 0;
  uint64_t file_bytes = 0;
  uint64_t payload_bytes = 0;
  uint64_t chunk_count = 0;
  uint64_t footer_digest = 0;
  uint64_t leaves_digest = 0;
};

/// Live bytes of one segment in one step's generation.
struct Usage {
  uint64_t segment_id = 0;
  uint64_t generation = 0;
  uint64_t live_bytes = 0;
};

/// Called with a key (without its generation) and a record, 8-byte aligned; both are valid during
/// the call only. Return false to stop the scan.
using ScanCallback = std::function<Result<bool>(std::string_view key, std::span<const std::byte>)>;

/// Called with the index of a range and its bytes.
using RangeCallback = std::function<Result<void>(size_t, std::span<const std::byte>)>;

/// One range of a segment to be read into `target`; or, if that is empty, `lent_bytes` to be shown
/// to the callback where they happen to lie, for the time of the call.
struct ReadRange {
  static constexpr uint64_t kMaxLentBytes = 2 << 20;

  uint64_t segment_id = 0;
  uint64_t offset_bytes = 0;
  std::span<std::byte> target;
  uint64_t lent_bytes = 0;  // at most kMaxLentBytes

  uint64_t length_bytes() const { return target.empty() ? lent_bytes : target.size(); }
};

/// One problem that Verify found.
struct Damage {
  Error error;
};

/// A segment file mapped into memory; unmapped by the destructor. The file may be deleted
/// meanwhile. Threads: any.
class Mapping {
 public:
  explicit Mapping(std::span<const std::byte> bytes) : bytes_(bytes) {}
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  std::span<const std::byte> bytes() const { return bytes_; }

  /// Asks the kernel to read this part of the file, and does not wait for it. Requires, as the
  /// next, that the part lies inside bytes().
  void WillNeed(uint64_t offset_bytes, uint64_t length_bytes) const;
  /// Brings this part into memory, so that touching it costs no page fault. kDataLoss: it cannot be
  /// read (a failing disk, a file that was cut), where a touch would end the process. Older kernels
  /// do nothing.
  Result<void> Populate(uint64_t offset_bytes, uint64_t length_bytes) const;
  /// The process lets go of this part's memory; touching it again brings it back from the file.
  void Release(uint64_t offset_bytes, uint64_t length_bytes) const;

 private:
  std::span<const std::byte> bytes_;
};

/// Brings payload that is not in host memory into the writer's blocks, behind its back.
/// Threads: one at a time.
class BlockFiller {
 public:
  virtual ~BlockFiller() = default;
  /// `target`, which lies between parts that are being brought, becomes zero.
  virtual Result<void> Zero(std::span<std::byte> target) = 0;
  /// A mark behind all that was started.
  virtual Result<uint64_t> Seal() = 0;
  /// True once all before the mark is in place.
  virtual Result<bool> Arrived(uint64_t mark) = 0;
  /// Waits for it.
  virtual Result<void> Await(uint64_t mark) = 0;
  /// After an error: drops what has not begun and waits until nothing is brought any more.
  virtual void Stop() = 0;

  /// True if payload can go to `fd`, a file that was just made for direct I/O, without a block
  /// (StepWriter::Fill::write); then CloseFile follows.
  virtual Result<bool> OpenFile(int fd, const std::string& path) {
    (void)fd, (void)path;
    return false;
  }
  /// Waits for all writes to the file that have begun. Errors: the first of theirs. These two may
  /// run on another thread than what writes to a next file meanwhile.
  virtual Result<void> AwaitFile(int fd) {
    (void)fd;
    return {};
  }
  /// Drops what has not begun, waits for the rest, and lets go of the file.
  virtual void CloseFile(int fd) { (void)fd; }
};

/// A segment, for direct I/O by who reads it without the store.
struct DirectFile {
  int fd = -1;
  std::string path;
  std::shared_ptr<const void> open;  // shared with the store's readers; keeps `fd` open
};

class Snapshot;
class StepWriter;

/// Threads: all const members may run from many threads at once, also beside one StepWriter.
/// Begin, Delete and Close are serialised by the store.
class Store {
 public:
  /// kNotFound: no store there (kRead). kConflict: another writer has it. kUnimplemented: newer
  /// format. kFailedPrecondition: nobody has invited to the session here (kJoin). kDataLoss: CAIRN
  /// or the index is damaged. kUnavailable: permission, I/O, deadline. kInvalidArgument: unusable
  /// I/O options, given or from the environment.
  static Result<std::unique_ptr<Store>> Open(const std::string& directory, OpenMode mode,
                                             StoreOptions options = {});
  ~Store();
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  /// Makes the index anew from the manifests in commits/, for an index that does not open any more.
  /// The old one is kept beside it; no segment is removed. kConflict: a writer has the store.
  /// Otherwise errors as Open.
  struct RebuildReport {
    uint64_t steps = 0;       // that the new index has
    std::vector<Error> lost;  // manifests whose step could not be put back
    std::string old_index;    // where the old index now lies
  };
  static Result<RebuildReport> RebuildIndex(const std::string& directory,
                                            StoreOptions options = {});
  /// True if the index opens, every byte of its tables is right and no committed step is missing:
  /// then there is nothing to rebuild, and a manifest that is damaged would only be missed.
  static bool IndexIsWhole(const std::string& directory, const StoreOptions& options = {});

  const std::string& directory() const;
  /// As given, and `io` always set.
  const StoreOptions& options() const;
  bool writable() const;
  /// Names this opening of the store for writing, 16 hex digits drawn at random; or the one that
  /// was joined. Empty for readers.
  const std::string& session() const;
  /// Of the store, 32 hex digits, drawn when it was made.
  std::string uuid() const;
  /// Rank 0 of several: the session, which from here on others may join. It leaves a mark in the
  /// directory, so that a rank that sees another directory is found out.
  Result<std::string> Invite();
  /// What the open found and mended, or (tolerate_lost_steps) what it could not; for people.
  const std::vector<Error>& recovery_notes() const;

  /// Committed state as of now. A reader sees commits that came after its open.
  /// Cost: a stat when nothing changed; a read-only index open (milliseconds) when it did.
  Result<std::shared_ptr<const Snapshot>> Latest() const;

  /// Names the next attempt at a step: session, step and a counter of this step's attempts. All
  /// ranks of a job take one for every save, even for one that then fails before it begins; so that
  /// they agree on it without a word. Threads: any.
  std::string NextAttempt(uint64_t step);

  /// Starts writing `step`. kConflict: it exists and `overwrite` is false (rank 0 looks).
  /// kFailedPrecondition: read-only store, or another StepWriter of this store is alive.
  struct BeginOptions {
    bool overwrite = false;
    uint32_t rank = 0;
    uint32_t world_size = 1;
    std::string attempt;  // empty: the next one
    /// Until when rank 0 waits for the others' parts, and must have begun to commit.
    std::chrono::steady_clock::time_point deadline = std::chrono::steady_clock::time_point::max();
    /// Until when the others wait for rank 0's word.
    std::chrono::steady_clock::time_point outcome_deadline =
        std::chrono::steady_clock::time_point::max();
  };
  Result<std::unique_ptr<StepWriter>> Begin(uint64_t step, const BeginOptions& options);

  /// Several ranks: makes the attempt fail on all of them, with `error` as rank `rank`'s. Where the
  /// step is committed, or may be, the others get the error and keep their files.
  Result<void> FailAttempt(const std::string& attempt, uint32_t rank, const Error& error);

  /// Deletes whole steps in one index write; segments that nothing references any more are
  /// unlinked. kNotFound: one of them does not exist (nothing is deleted then).
  struct DeleteReport {
    uint64_t steps = 0;
    uint64_t segments = 0;
    uint64_t freed_bytes = 0;
  };
  Result<DeleteReport> Delete(std::span<const uint64_t> steps, bool dry_run = false);

  /// Releases the lock. Fails if a StepWriter is alive. The destructor does the same and drops
  /// errors.
  Result<void> Close();

  class Impl;

 private:
  explicit Store(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// A consistent view of the committed steps. Immutable; safe from many threads; may outlive the
/// Store. Payload of a step that is deleted meanwhile may become unreadable: reads then say
/// kNotFound.
class Snapshot {
 public:
  ~Snapshot();
  /// Ascending by step.
  const std::vector<StepInfo>& steps() const;
  /// The step, or the latest. kNotFound names the steps that exist.
  Result<StepInfo> FindStep(std::optional<uint64_t> step) const;

  /// Records of one generation whose key begins with `prefix`, in key order. Verified by the
  /// caller.
  Result<void> Scan(Column column, uint64_t generation, std::string_view prefix,
                    const ScanCallback& callback) const;
  /// The record bytes (aligned for FlatBuffers), or nothing.
  Result<std::optional<std::vector<std::byte>>> Get(Column column, uint64_t generation,
                                                    std::string_view key) const;
  Result<std::optional<std::vector<std::byte>>> GetStructure(const Digest& digest) const;

  Result<SegmentInfo> FindSegment(uint64_t segment_id) const;
  Result<std::vector<SegmentInfo>> Segments() const;
  Result<std::vector<Usage>> SegmentUsage() const;

  /// Reads many ranges with deep queues and bounded memory (the pool of IoOptions), O_DIRECT unless
  /// the page cache has the bytes; neighbouring ranges become one request. `arrived(i, bytes)` is
  /// called once the bytes of ranges[i] are there, all of them, so that the caller can verify them
  /// while hot; an error from it ends the read. No digest is checked here. With `threads` above 1
  /// the work is shared by at most so many threads, this one among them, and `arrived` may be
  /// called from several at once. kDataLoss: a segment is missing or too short. Returns the bytes
  /// taken from storage.
  Result<uint64_t> Read(std::span<const ReadRange> ranges, uint32_t threads,
                        const RangeCallback& arrived) const;

  /// Maps a whole segment, lazily paged in and shared with the page cache. Writes through it stay
  /// in this process. Offsets are those of an Extent.
  Result<std::shared_ptr<const Mapping>> Map(uint64_t segment_id) const;

  /// Offsets in it are those of an Extent. Nothing where the file system, or the store's options,
  /// allow no direct I/O. Errors as Read.
  Result<std::optional<DirectFile>> OpenDirect(uint64_t segment_id) const;

  /// Checks what needs no knowledge of tensors: every index file byte, every record of the kv
  /// columns, manifests against the index, segment headers, footers, trailers and gaps. `damage` is
  /// called for each problem. Payload digests are core's part (chunk records say what the bytes
  /// must be).
  Result<void> VerifyFiles(const std::function<void(Damage)>& damage) const;

  class Impl;
  explicit Snapshot(std::unique_ptr<Impl> impl);

 private:
  std::unique_ptr<Impl> impl_;
};

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
                          std::span<const uint64_t> leaves = {},
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
                                std::span<const uint64_t> leaves, const Fill& fill);

  /// Pages [begin_page, end_page) of a chunk.
  struct PageRun {
    uint64_t begin_page = 0;
    uint64_t end_page = 0;
    friend bool operator==(const PageRun&, const PageRun&) = default;
  };
  /// Appends just these pages of a chunk of `length_bytes`, all to one segment, each run on 4 KiB;
  /// the result has an extent for each. `pages`, `leaves` (here always given) and `memory` are
  /// those of the whole chunk, as in Append. Requires runs that are not empty, ascend and lie in
  /// the chunk.
  Result<std::vector<Extent>> AppendRuns(uint64_t length_bytes, std::span<const PageRun> runs,
                                         const PageSource& pages, std::span<const uint64_t> leaves,
                                         std::span<const std::byte> memory = {});
  /// The same for a payload that the filler brings; `fill` takes places in the chunk.
  Result<std::vector<Extent>> AppendRunsFilled(uint64_t length_bytes, std::span<const PageRun> runs,
                                               std::span<const uint64_t> leaves, const Fill& fill);

  /// Returns once nothing that was appended is read any more from where it lay: `memory` of earlier
  /// appends is the caller's again, and all blocks are free.
  Result<void> Settle();

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
  Result<void> HandIn(const Summary& summary);
  /// After HandIn: waits until rank 0 has committed the step or given it up. The counts of the
  /// result are this rank's. Errors: that of the rank that failed; kUnavailable: no word from rank
  /// 0 at the deadline, or another job has taken over the store. The step may exist all the same
  /// then, if the message says so.
  Result<StepInfo> AwaitOutcome();

  /// Bytes this attempt has put into segments so far (payload, without padding).
  uint64_t written_bytes() const;

  class Impl;
  explicit StepWriter(std::unique_ptr<Impl> impl);

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace cairn::kv
