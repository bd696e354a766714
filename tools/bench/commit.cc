// kv-bench commit: what rank 0 of a large job does for a step, compared with RocksDB writing the
// table of that step alone.

#include <fmt/format.h>
#include <rocksdb/iterator.h>
#include <rocksdb/options.h>
#include <rocksdb/sst_file_reader.h>
#include <rocksdb/sst_file_writer.h>
#include <rocksdb/table.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "core/checkpoint_store.h"
#include "core/upkeep/step_part.h"
#include "kv/base/mutex.h"
#include "kv/io/worker_pool.h"
#include "tools/bench/measure.h"
#include "tools/bench/verbs.h"
#include "tools/common/progress.h"
#include "tools/common/quantities.h"

namespace cairn::tools {
namespace {

namespace fs = std::filesystem;

constexpr size_t kWriters = 8;        // threads that write parts and mostly wait for syncs
constexpr uint64_t kRowElements = 8;  // one row per rank, one chunk per row
constexpr double kWriterBar = 1.3;    // multiple of SstFileWriter's time alone
constexpr uint64_t kMemoryBarBytes = 256 << 20;
constexpr size_t kBatchRecords = 10'000;

/// The communicator of rank 0 in a job whose other ranks are simulated: they agree to everything.
class SimulatedJob : public core::Communicator {
 public:
  explicit SimulatedJob(uint64_t ranks) : ranks_(static_cast<int>(ranks)) {}
  int rank() const override { return 0; }
  int world_size() const override { return ranks_; }
  std::chrono::milliseconds timeout() const override { return std::chrono::seconds(60); }
  Result<void> Barrier() override { return {}; }
  Result<void> Broadcast(core::ByteTarget, int) override { return {}; }
  Result<void> Exchange(Operation operation, std::span<const core::ByteView> sent,
                        std::span<const core::ByteTarget> received) override {
    if (operation != Operation::kGather && operation != Operation::kAllGather) return Unsupported();
    for (const core::ByteTarget target : received) std::ranges::copy(sent[0], target.begin());
    return {};
  }
  Result<std::unique_ptr<core::Communicator>> Split(uint32_t, uint32_t) override {
    return Fail(Unsupported().error());
  }
  void Interrupt() override {}
  Result<void> CheckPeers() override { return {}; }

 private:
  static Result<void> Unsupported() {
    return Fail(ErrorCode::kUnimplemented, "simulated ranks do not support this collective");
  }
  const int ranks_;
};

/// Tensors with one row per rank, which is one chunk, up to a number of chunks.
class SimulatedState {
 public:
  SimulatedState(uint64_t ranks, uint64_t chunks) {
    for (uint64_t left = chunks; left > 0; left -= rows_.back()) {
      rows_.push_back(std::min(left, ranks));
    }
  }

  /// Puts the rows of a rank into `memory`, which the result refers to. No two rows are equal, so
  /// that the digests in the records compress as little as in a real model.
  core::StateDict Of(uint32_t rank, std::vector<uint64_t>& memory) const {
    memory.resize(rows_.size());
    core::StateDict state;
    auto model = state.root().Map("model");
    for (size_t i = 0; i < rows_.size(); ++i) {
      memory[i] = uint64_t{rank} << 32 | i;
      core::Sharding sharding = {
          .global_shape = {rows_[i], kRowElements}, .mesh = nullptr, .placements = {}, .parts = {}};
      if (rank < rows_[i]) {
        const auto* const row = reinterpret_cast<const std::byte*>(&memory[i]);
        sharding.parts.push_back({.box = {{rank, 0}, {1, kRowElements}},
                                  .view = {core::DType::kUInt8, {1, kRowElements}, {}, row}});
      }
      model.Sharded(fmt::format("layers.{:06}.weight", i), {.dtype = core::DType::kUInt8},
                    std::move(sharding));
    }
    return state;
  }

 private:
  std::vector<uint64_t> rows_;  // one entry per tensor
};

/// Writes the segments and parts of ranks 1 and up durably.
Result<void> WriteParts(const core::CheckpointStore& store, uint64_t ranks,
                        const SimulatedState& state, const core::SaveOptions& options) {
  ProgressLine line("writing the parts of the ranks");
  const core::Progress progress = line.callback();
  Mutex mutex;  // for the line
  std::atomic<uint32_t> next = 1;
  std::atomic<bool> failed = false;
  const auto write = [&]() -> Result<void> {
    kv::StoreOptions join;
    CAIRN_TRY_ASSIGN(join.session, store.kv().OpenSession());
    CAIRN_TRY_ASSIGN(
        const auto joined,
        core::CheckpointStore::Open(store.kv().directory(), kv::OpenMode::kJoinSession, join));
    const core::StepTicket ticket{.step = 1,
                                  .world_size = static_cast<uint32_t>(ranks),
                                  .session = join.session,
                                  .attempt = joined->kv().NextAttempt(1)};
    std::vector<uint64_t> memory;
    for (uint32_t rank = next++; rank < ranks && !failed; rank = next++) {
      CAIRN_TRY_ASSIGN(const auto part, core::StepPart::Begin(*joined, ticket, rank, options));
      CAIRN_TRY(part->Add(state.Of(rank, memory)));
      CAIRN_TRY(part->Prepare());
      const MutexLock lock(mutex);
      if (!progress(rank, ranks)) return Fail(ErrorCode::kCancelled, "cancelled");
    }
    return {};
  };
  return kv::RunOnThreads(kWriters, "the writers of parts", [&](size_t) {
    const Result<void> written = write();
    if (!written) failed = true;
    return written;
  });
}

/// The settings of a store's tables (docs/format/table.md).
rocksdb::Options TableOptions() {
  rocksdb::Options options;
  options.compression = rocksdb::kZSTD;
  options.compression_opts.level = -1;
  rocksdb::BlockBasedTableOptions table;
  table.checksum = rocksdb::kXXH3;
  table.format_version = 5;
  table.block_size = 16 << 10;
  table.block_size_deviation = 0;
  table.index_type = rocksdb::BlockBasedTableOptions::kTwoLevelIndexSearch;
  table.metadata_block_size = 16 << 10;
  table.enable_index_compression = false;
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  return options;
}

Result<void> Check(const rocksdb::Status& status, const std::string& path) {
  if (status.ok()) return {};
  return Fail(Error{.code = ErrorCode::kUnavailable, .message = status.ToString(), .file = path});
}

/// Returns the path of the largest table of the store. kNotFound: it has none.
Result<std::string> FindLargestTable(const std::string& store) {
  std::error_code error;
  std::pair<uintmax_t, std::string> largest;
  for (const auto& entry : fs::directory_iterator(fs::path(store) / "tables", error)) {
    const uintmax_t size_bytes = entry.file_size(error);
    if (!error) largest = std::max(largest, {size_bytes, entry.path().string()});
  }
  if (!largest.second.empty()) return largest.second;
  return Fail(Error{.code = ErrorCode::kNotFound, .message = "no tables found", .file = store});
}

/// Writes the records of a table to a new table at `target` with SstFileWriter, compressed as in a
/// store, and syncs it: the limit of a commit. Returns the seconds, without the time for reading
/// the records. The table is removed. Memory: a few MiB.
Result<double> WriteTableAlone(const std::string& source, const std::string& target) {
  rocksdb::SstFileReader reader(TableOptions());
  CAIRN_TRY(Check(reader.Open(source), source));
  const std::unique_ptr<rocksdb::Iterator> records(reader.NewIterator({}));
  records->SeekToFirst();
  double seconds = 0;
  auto begin = std::chrono::steady_clock::now();
  rocksdb::SstFileWriter writer({}, TableOptions(), nullptr, /*invalidate_page_cache=*/false);
  CAIRN_TRY(Check(writer.Open(target), target));
  seconds += SecondsSince(begin);
  std::vector<std::pair<std::string, std::string>> batch;
  while (records->Valid()) {
    batch.clear();
    for (; records->Valid() && batch.size() < kBatchRecords; records->Next()) {
      batch.emplace_back(records->key().ToString(), records->value().ToString());
    }
    begin = std::chrono::steady_clock::now();
    for (const auto& [key, value] : batch) CAIRN_TRY(Check(writer.Put(key, value), target));
    seconds += SecondsSince(begin);
  }
  CAIRN_TRY(Check(records->status(), source));
  begin = std::chrono::steady_clock::now();
  CAIRN_TRY(Check(writer.Finish(), target));  // syncs the file
  seconds += SecondsSince(begin);
  std::error_code ignored;
  fs::remove(target, ignored);
  return seconds;
}

Result<void> CommitOnce(const BenchOptions& options, uint64_t run, BenchReport& report) {
  const ScratchDirectory scratch(options.directory, "commit");
  SimulatedJob job(options.ranks);
  CAIRN_TRY_ASSIGN(const auto store,
                   core::CheckpointStore::OpenShared(scratch.path(), kv::OpenMode::kWrite, job));
  const SimulatedState state(options.ranks, options.chunks);
  const core::SaveOptions save{.incremental = false};
  const auto begin = std::chrono::steady_clock::now();
  CAIRN_TRY(WriteParts(*store, options.ranks, state, save));
  const double parts_seconds = SecondsSince(begin);
  std::vector<uint64_t> memory;
  const core::StateDict own = state.Of(0, memory);
  const Meter meter;
  CAIRN_TRY(store->Save(1, own, save));
  BenchRow row{.what = "commit", .run = run};
  row.measured = meter.Stop();
  CAIRN_TRY_ASSIGN(const auto steps, store->Steps());
  if (steps.size() != 1 || steps.front().chunk_count != options.chunks) {
    return Fail(ErrorCode::kInternal,
                "the committed step does not have the chunks that were written");
  }
  row.extra = {
      {"ranks", options.ranks}, {"chunks", options.chunks}, {"parts_seconds", parts_seconds}};
  row.note = fmt::format("{} parts, {} chunks (writing them took {})", GroupedCount(options.ranks),
                         GroupedCount(options.chunks), HumanSeconds(parts_seconds));
  CAIRN_TRY(store->Close());
  report.Add(row);
  if (row.measured.peak_is_of_run) {
    report.AddBar({.what = "resident memory of the commit",
                   .reference = HumanBytes(kMemoryBarBytes),
                   .figure = static_cast<double>(row.measured.peak_resident_bytes),
                   .limit = static_cast<double>(kMemoryBarBytes),
                   .unit = "bytes",
                   .bar = 1});
  }
  CAIRN_TRY_ASSIGN(const std::string table, FindLargestTable(scratch.path()));
  BenchRow limit{.what = "SstFileWriter", .run = run, .in_this_process = false};
  CAIRN_TRY_ASSIGN(limit.measured.seconds, WriteTableAlone(table, scratch.path() + ".sst"));
  limit.note = "writes the same records to a table, with fsync";
  report.Add(limit);
  return {};
}

}  // namespace

Result<void> BenchCommit(const BenchOptions& options, BenchReport& report) {
  for (uint64_t run = 1; run <= options.repeat; ++run) {
    CAIRN_TRY(CommitOnce(options, run, report));
  }
  report.AddTimeBar("commit", "SstFileWriter", kWriterBar);
  return {};
}

}  // namespace cairn::tools
