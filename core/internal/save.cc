// Save: chunks of all tensors in key order, merged with those of the base step.
//
// 1. The plan says what is written: owners, aliases, values, structure.
// 2. The base step's chunk records are scanned in key order beside the plan's own chunks, which are
//    produced in the same order; equal keys with equal sizes are candidates for reuse.
// 3. Chunks gather in windows of bounded bytes. Candidates of a window are digested by all cores,
//    while this one writes the window before and gathers the next; then, in order, each chunk
//    becomes a reference to the base's bytes or is appended.
// 4. Records, values, structure, commit. Until the commit nothing of this is a step.

#include "core/internal/save.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <limits>
#include <utility>

#include "core/chunk_grid.h"
#include "core/internal/progress.h"
#include "core/internal/records.h"
#include "core/strided_copy.h"
#include "kv/key.h"

namespace cairn::core::internal {
namespace {

constexpr uint64_t kWindowBytes = 64 << 20;  // source bytes digested in one go
constexpr size_t kWindowChunks = 2048;

// One chunk of a tensor that is written.
struct WorkItem {
  size_t tensor = 0;  // in the plan
  const TensorView* source = nullptr;
  std::string key;
  Shape sizes;
  uint64_t begin_bytes = 0;  // in the row-major payload of the tensor
  uint64_t length_bytes = 0;
  kv::StepWriter::Placement placement = kv::StepWriter::Placement::kFollow;
  std::optional<ChunkInfo> base;
  std::vector<uint64_t> leaves;  // of candidates
  kv::Digest digest;
  bool bytes_at_hand = true;  // false: the digest is known and must be the base's

  /// The payload, if it lies in one piece; else nothing.
  std::span<const std::byte> memory() const {
    if (!IsContiguous(source->shape, source->strides)) return {};
    return {source->data + begin_bytes, length_bytes};
  }
};

std::span<const std::byte> PageOf(const WorkItem& item, uint64_t page,
                                  std::span<std::byte> scratch) {
  const uint64_t begin = page * kv::kPageBytes;
  const uint64_t count = std::min(kv::kPageBytes, item.length_bytes - begin);
  if (const auto memory = item.memory(); !memory.empty()) return memory.subspan(begin, count);
  GatherBytes(*item.source, item.begin_bytes + begin, scratch.first(count));
  return scratch.first(count);
}

// Produces the plan's chunks in key order.
class ItemSource {
 public:
  explicit ItemSource(const SavePlan& plan) : plan_(plan) { SkipEmpty(); }

  bool done() const { return tensor_ == plan_.tensors.size(); }

  /// The next item; the same until Advance. Requires !done().
  WorkItem& Peek() {
    if (!current_) current_ = Make();
    return *current_;
  }
  WorkItem Take() {
    WorkItem item = std::move(Peek());
    current_.reset();
    ++chunk_;
    SkipEmpty();
    return item;
  }

 private:
  void SkipEmpty() {
    while (!done() && chunk_ == plan_.grids[tensor_].chunk_count()) {
      ++tensor_;
      chunk_ = 0;
    }
  }

  WorkItem Make() const {
    const PlannedTensor& tensor = plan_.tensors[tensor_];
    const ChunkGrid& grid = plan_.grids[tensor_];
    Box box = grid.chunk(chunk_);
    WorkItem item{.tensor = tensor_,
                  .source = &tensor.source,
                  .key = kv::ChunkKey(tensor.info.fqn, box.offsets),
                  .sizes = std::move(box.sizes),
                  .begin_bytes = grid.offset_bytes(chunk_),
                  .length_bytes = grid.length_bytes(chunk_)};
    if (!tensor.unchanged.empty() && tensor.unchanged[chunk_]) {
      item.digest = *tensor.unchanged[chunk_];
      item.bytes_at_hand = false;
    }
    if (chunk_ == 0) {
      item.placement = tensor.info.nbytes >= kLargeTensorBytes
                           ? kv::StepWriter::Placement::kAlign4096
                           : kv::StepWriter::Placement::kAlign64;
    }
    return item;
  }

  const SavePlan& plan_;
  size_t tensor_ = 0;
  uint64_t chunk_ = 0;
  std::optional<WorkItem> current_;
};

// Writes items in windows: digests the candidates together, then reuses or appends. Each tensor's
// record goes before its chunks, so that the footer of their segment can hold both.
class ItemWriter {
 public:
  ItemWriter(const SavePlan& plan, kv::StepWriter& writer, WorkerPool& pool,
             ProgressMeter& progress, uint64_t step, SavedChunks* saved)
      : plan_(plan),
        writer_(writer),
        pool_(pool),
        progress_(progress),
        step_(step),
        saved_(saved),
        scratch_(pool.thread_count(), std::vector<std::byte>(kv::kPageBytes)) {}

  ~ItemWriter() { pool_.Finish(); }  // after an error digests may still be made

  Result<void> Add(WorkItem item) {
    filling_.bytes += item.length_bytes;
    filling_.items.push_back(std::move(item));
    if (filling_.bytes < kWindowBytes && filling_.items.size() < kWindowChunks) return {};
    return Turn();
  }

  /// Writes what is left: the last windows, and records of tensors without chunks.
  Result<void> Finish() {
    CAIRN_TRY(Turn());
    CAIRN_TRY(Turn());
    return AddTensorRecords(plan_.tensors.size());
  }

  uint64_t chunks() const { return chunks_; }
  uint64_t chunks_reused() const { return chunks_reused_; }

 private:
  struct Window {
    std::vector<WorkItem> items;
    uint64_t bytes = 0;
  };

  // The filled window's candidates begin to be digested while the one before it is written.
  Result<void> Turn() {
    pool_.Finish();
    const Window ready = std::exchange(digested_, std::exchange(filling_, {}));
    candidates_.clear();
    for (WorkItem& item : digested_.items) {
      if (item.base && item.bytes_at_hand) candidates_.push_back(&item);
    }
    pool_.Start(candidates_.size(),
                [this](size_t i, size_t worker) { DigestItem(*candidates_[i], scratch_[worker]); });
    for (const WorkItem& item : ready.items) {
      CAIRN_TRY(AddTensorRecords(item.tensor + 1));
      CAIRN_TRY(Write(item));
    }
    return {};
  }

  static void DigestItem(WorkItem& item, std::span<std::byte> scratch) {
    const uint64_t pages = kv::PageCount(item.length_bytes);
    item.leaves.reserve(pages);
    for (uint64_t page = 0; page < pages; ++page) {
      item.leaves.push_back(kv::LeafDigest(PageOf(item, page, scratch)));
    }
    item.digest = kv::RootDigest(item.leaves, item.length_bytes);
  }

  Result<void> AddTensorRecords(size_t end) {
    for (; next_tensor_ < end; ++next_tensor_) {
      const TensorInfo& info = plan_.tensors[next_tensor_].info;
      CAIRN_TRY(writer_.AddRecord(kv::Column::kTensors, kv::FqnKey(info.fqn), EncodeTensor(info)));
    }
    return {};
  }

  Result<void> Write(const WorkItem& item) {
    ++chunks_;
    if (item.base && item.base->digest == item.digest) {
      ++chunks_reused_;
      CAIRN_TRY(writer_.AddChunk(item.key, item.sizes, item.base->extent, item.base->digest,
                                 item.base->since_step, /*reused=*/true));
      Remember(item, item.digest, /*reused=*/true);
      return progress_.Add(item.length_bytes);
    }
    if (!item.bytes_at_hand) {
      return Fail(Error{.code = ErrorCode::kConflict,
                        .message = "the base step was deleted or replaced while this save, which "
                                   "refers to it, was waiting; save again",
                        .key = plan_.tensors[item.tensor].info.fqn,
                        .step = step_});
    }
    CAIRN_TRY_ASSIGN(const kv::StepWriter::Appended appended,
                     writer_.Append(
                         item.length_bytes, item.placement,
                         [&](uint64_t page, std::span<std::byte> scratch) {
                           return PageOf(item, page, scratch);
                         },
                         item.leaves, item.memory()));
    CAIRN_TRY(writer_.AddChunk(item.key, item.sizes, appended.extent, appended.digest, step_,
                               /*reused=*/false));
    Remember(item, appended.digest, /*reused=*/false);
    return progress_.Add(item.length_bytes);
  }

  void Remember(const WorkItem& item, const kv::Digest& digest, bool reused) {
    if (saved_ != nullptr) saved_->tensors[item.tensor].chunks.push_back({digest, reused});
  }

  const SavePlan& plan_;
  kv::StepWriter& writer_;
  WorkerPool& pool_;
  ProgressMeter& progress_;
  uint64_t step_;
  SavedChunks* saved_;                           // may be null
  size_t next_tensor_ = 0;                       // whose record is not yet added
  std::vector<std::vector<std::byte>> scratch_;  // one page a worker
  Window filling_;
  Window digested_;                    // or being digested
  std::vector<WorkItem*> candidates_;  // of digested_
  uint64_t chunks_ = 0;
  uint64_t chunks_reused_ = 0;
};

struct Base {
  std::shared_ptr<const kv::Snapshot> snapshot;
  kv::StepInfo step;
};

Result<std::optional<Base>> FindBase(kv::Store& store, const SaveOptions& options) {
  if (!options.incremental) return std::nullopt;
  CAIRN_TRY_ASSIGN(auto snapshot, store.Latest());
  if (!options.base_step && snapshot->steps().empty()) return std::nullopt;
  CAIRN_TRY_ASSIGN(kv::StepInfo step, snapshot->FindStep(options.base_step));
  return Base{std::move(snapshot), std::move(step)};
}

// Feeds all items to the writer, those with a base chunk of the same key together with it.
Result<void> MergeWithBase(const Base& base, const SavePlan& plan, uint64_t own_chunks,
                           ItemSource& items, ItemWriter& writer) {
  const auto on_base_chunk = [&](std::string_view key,
                                 std::span<const std::byte> record) -> Result<bool> {
    while (!items.done() && items.Peek().key < key) CAIRN_TRY(writer.Add(items.Take()));
    if (items.done()) return false;
    if (items.Peek().key != key) return true;
    WorkItem item = items.Take();
    // A base record that cannot be read costs the saving of one chunk, never the save: the bytes to
    // be stored are at hand. Key and sizes equal and the bytes too, it is the same chunk, whatever
    // dtype the base gave these bytes.
    auto decoded = DecodeChunk(key, record);
    if (decoded && decoded->info.box.sizes == item.sizes &&
        decoded->info.extent.length_bytes == item.length_bytes) {
      item.base = std::move(decoded->info);
    }
    CAIRN_TRY(writer.Add(std::move(item)));
    return true;
  };
  // A seek costs as much as some ten records of a scan.
  constexpr uint64_t kSeekCost = 16;
  if (base.step.chunk_count <= own_chunks * kSeekCost) {
    return base.snapshot->Scan(kv::Column::kChunks, base.step.generation, "", on_base_chunk);
  }
  for (const PlannedTensor& tensor : plan.tensors) {
    if (tensor.info.chunk_count == 0) continue;
    CAIRN_TRY(base.snapshot->Scan(kv::Column::kChunks, base.step.generation,
                                  kv::FqnKey(tensor.info.fqn), on_base_chunk));
  }
  return {};
}

// Makes the grid of every tensor and sets the tensors' chunk counts.
Result<void> MakeGrids(uint64_t chunk_bytes, SavePlan& plan) {
  plan.grids.reserve(plan.tensors.size());
  for (PlannedTensor& tensor : plan.tensors) {
    const bool alias = tensor.info.alias_of.has_value();
    CAIRN_TRY_ASSIGN(
        ChunkGrid grid,
        ChunkGrid::Make(tensor.info.dtype, alias ? Shape{0} : tensor.info.shape, chunk_bytes));
    tensor.info.chunk_count = grid.chunk_count();
    plan.grids.push_back(std::move(grid));
  }
  return {};
}

// The tensors of the plan, without chunks.
std::vector<SavedChunks::Tensor> TensorsToRemember(const SavePlan& plan) {
  std::vector<SavedChunks::Tensor> tensors;
  tensors.reserve(plan.tensors.size());
  for (const PlannedTensor& tensor : plan.tensors) {
    tensors.push_back(
        {.fqn = tensor.info.fqn, .dtype = tensor.info.dtype, .shape = tensor.info.shape});
    tensors.back().chunks.reserve(tensor.info.chunk_count);
  }
  return tensors;
}

}  // namespace

Result<SavePlan> PlanSave(const StateDict& state, const SaveOptions& options) {
  if (options.chunk_bytes > kMaxChunkBytes) {
    return Fail(ErrorCode::kInvalidArgument, fmt::format("chunk_bytes is {}; the most is {}",
                                                         options.chunk_bytes, kMaxChunkBytes));
  }
  CAIRN_TRY_ASSIGN(const std::vector<Leaf> leaves, FlattenTree(state.tree));
  if (leaves.size() != state.slot.size()) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("the state dict has {} leaves in its tree but contents for {}",
                            leaves.size(), state.slot.size()));
  }
  SavePlan plan;
  std::vector<NamedTensor> tensors;
  for (size_t i = 0; i < leaves.size(); ++i) {
    const bool is_tensor = IsTensor(state.tree.nodes[leaves[i].node].kind);
    if (state.slot[i] >= (is_tensor ? state.tensors.size() : state.values.size())) {
      return Fail(Error{.code = ErrorCode::kInvalidArgument,
                        .message = "a leaf of the state dict refers to contents that it lacks",
                        .key = leaves[i].fqn});
    }
    if (is_tensor) {
      tensors.push_back({leaves[i].fqn, state.tensors[state.slot[i]]});
      continue;
    }
    auto record = EncodeValue(state.values[state.slot[i]]);
    if (!record) return Fail(std::move(record).error().WithKey(leaves[i].fqn));
    plan.values.emplace_back(leaves[i].fqn, *std::move(record));
  }
  std::ranges::sort(plan.values, {}, &std::pair<std::string, std::vector<std::byte>>::first);
  plan.tensor_count = tensors.size();
  CAIRN_TRY_ASSIGN(plan.tensors, PlanTensors(tensors));
  for (const PlannedTensor& tensor : plan.tensors) {
    if (!tensor.info.alias_of) plan.logical_bytes += tensor.info.nbytes;
  }
  plan.structure = EncodeTree(state.tree);
  CAIRN_TRY(MakeGrids(options.chunk_bytes, plan));
  return plan;
}

Result<SaveReport> RunSave(kv::Store& store, uint64_t step, const SavePlan& plan,
                           const SaveOptions& options, WorkerPool& pool, SavedChunks* saved) {
  const auto start = std::chrono::steady_clock::now();
  uint64_t own_chunks = 0;
  for (const ChunkGrid& grid : plan.grids) own_chunks += grid.chunk_count();
  CAIRN_TRY_ASSIGN(const std::optional<Base> base, FindBase(store, options));
  CAIRN_TRY_ASSIGN(auto writer, store.Begin(step, {.overwrite = options.overwrite}));
  ProgressMeter progress(options.progress, plan.logical_bytes);
  ItemSource items(plan);
  SavedChunks remembered;
  if (saved != nullptr) remembered.tensors = TensorsToRemember(plan);
  ItemWriter item_writer(plan, *writer, pool, progress, step,
                         saved == nullptr ? nullptr : &remembered);
  if (base) CAIRN_TRY(MergeWithBase(*base, plan, own_chunks, items, item_writer));
  while (!items.done()) CAIRN_TRY(item_writer.Add(items.Take()));
  CAIRN_TRY(item_writer.Finish());
  for (const auto& [fqn, record] : plan.values) {
    CAIRN_TRY(writer->AddRecord(kv::Column::kValues, kv::FqnKey(fqn), record));
  }
  CAIRN_TRY(writer->SetStructure(plan.structure));
  kv::StepWriter::Summary summary{.tensor_count = plan.tensor_count,
                                  .value_count = plan.values.size(),
                                  .logical_bytes = plan.logical_bytes};
  if (base) summary.base_step = base->step.step;
  CAIRN_TRY_ASSIGN(const kv::StepInfo info, writer->Commit(summary));
  if (saved != nullptr) {
    remembered.step = info;
    remembered.chunk_bytes = options.chunk_bytes;
    *saved = std::move(remembered);
  }
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  return SaveReport{.step = step,
                    .logical_bytes = plan.logical_bytes,
                    .written_bytes = info.written_bytes,
                    .chunks = item_writer.chunks(),
                    .chunks_reused = item_writer.chunks_reused(),
                    .seconds = elapsed.count()};
}

}  // namespace cairn::core::internal
