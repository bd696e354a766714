// Updates tensors in place from the bytes of one step to the bytes of another.
//
// 1. The chunk records of both steps determine which chunks differ. A tensor that the base step
//    lacks, or that it stores with another dtype, shape or grid of chunks, is read completely.
// 2. The memory of all other tensors is digested and compared with the base step, before anything
//    is written. The digests of its pages are kept for the chunks that differ.
// 3. In these chunks, pages whose stored digests differ from the memory are read. Every page is
//    verified.
//
// Memory that is not one contiguous tensor in host memory (strided or sharded targets, devices,
// aliases) is not compared: it is read completely if its tensor differs, and otherwise left alone.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/base/internal/progress_meter.h"
#include "core/load/internal/chunk_reader.h"
#include "core/load/internal/load.h"
#include "core/load/internal/read_plan.h"
#include "core/state_dict/key_name.h"
#include "core/step/internal/delta_chain.h"
#include "core/step/internal/lookup.h"
#include "core/step/internal/stored_page_digests.h"
#include "core/step/internal/tensor_records.h"
#include "core/tensor/internal/memory_span.h"
#include "kv/base/digest.h"
#include "kv/base/key.h"
#include "kv/io/worker_pool.h"

namespace cairn::core::internal {
namespace {

// Progress is reported after this many bytes of a comparison.
constexpr uint64_t kRoundBytes = 256 << 20;
constexpr uint64_t kReadAheadChunks = 4096;  // chunks whose page digests are read together

/// A chunk of the new step, and its known properties in the base step.
struct UpdatedChunk {
  ChunkInfo chunk;
  kv::Digest base_digest;
  uint64_t base_page_bytes = 0;
  /// The number of leading deltas that lead to the bytes of the base step, if the others can be
  /// applied to these.
  std::optional<size_t> base_deltas;

  bool is_changed() const { return chunk.digest != base_digest; }
};

/// A tensor that holds the bytes of requests.
struct Owner {
  bool is_comparable = false;        // the base step has the same tensor, in the same chunks
  std::vector<UpdatedChunk> chunks;  // chunks of the new step, in key order

  bool is_changed() const {
    return !is_comparable || std::ranges::any_of(chunks, &UpdatedChunk::is_changed);
  }
};

/// Memory that contains one chunk of the base step.
struct ChunkMemory {
  const std::string* fqn = nullptr;
  const UpdatedChunk* updated = nullptr;
  std::span<std::byte> bytes;
  std::vector<uint64_t> page_digests;  // digests of the memory, if the chunk has changed
  bool is_mixed = false;               // has bytes of both steps, from an earlier attempt
};

/// Returns the record of a tensor, or nothing if the step has no such tensor.
Result<std::optional<TensorInfo>> FindIfPresent(const StepView& view, const std::string& fqn) {
  CAIRN_TRY_ASSIGN(const auto record,
                   view.snapshot->Get(kv::Column::kTensors, view.step, kv::FqnKey(fqn)));
  if (!record) return std::nullopt;
  CAIRN_TRY_ASSIGN(TensorInfo info, DecodeTensor(fqn, *record));
  return info;
}

bool IsSameAlias(const TensorInfo& a, const TensorInfo& b) {
  return a.alias_of == b.alias_of && a.alias_offset_bytes == b.alias_offset_bytes &&
         a.alias_strides == b.alias_strides && a.dtype == b.dtype && a.shape == b.shape;
}

/// Returns how many leading deltas of a chunk it has in common with `base`, if `base` has no others
/// and the same extents.
std::optional<size_t> FindCommonDeltas(const ChunkInfo& chunk, const ChunkInfo& base) {
  if (chunk.deltas.size() <= base.deltas.size() || chunk.extents != base.extents ||
      !std::ranges::equal(std::span(chunk.deltas).first(base.deltas.size()), base.deltas)) {
    return std::nullopt;
  }
  return base.deltas.size();
}

bool IsComplete(const LoadRequest& request, const TensorInfo& tensor) {
  return request.box == WholeBox(tensor.shape);
}

class Update {
 public:
  Update(const StepView& base, const StepView& view, std::span<const LoadRequest> requests,
         bool& is_compared)
      : base_(base), view_(view), requests_(requests), is_compared_(is_compared) {}

  Result<UpdateReport> Run(const Progress& progress, std::span<const DeviceStream> streams) {
    CAIRN_TRY_ASSIGN(const ReadPlan checked, ReadPlan::Make(view_, requests_));
    CAIRN_TRY(FindChanges());
    for (const LoadRequest& request : requests_) Divide(request);
    ProgressMeter meter(progress, checked.total_bytes());
    CAIRN_TRY(Compare(meter));
    CAIRN_TRY(ReadChangedPages());
    if (!complete_.empty()) {
      CAIRN_TRY_ASSIGN(const LoadReport report, RunLoad(view_, complete_, {}, streams));
      report_.bytes_read += report.bytes_read;
    }
    CAIRN_TRY(meter.Add(checked.total_bytes()));
    std::ranges::sort(report_.changed);
    report_.changed.erase(std::ranges::unique(report_.changed).begin(), report_.changed.end());
    return std::move(report_);
  }

 private:
  /// Finds the tensors that hold the bytes of the requests, and their differences.
  Result<void> FindChanges() {
    std::vector<std::string_view> fqns;
    for (const LoadRequest& request : requests_) fqns.push_back(request.fqn);
    CAIRN_TRY_ASSIGN(requested_, FindNamed(view_, std::move(fqns)));
    CAIRN_TRY_ASSIGN(owner_infos_, FindOwners(view_, requested_));
    CAIRN_TRY_ASSIGN(const auto unshared, view_.snapshot->FindUnsharedFqns(base_.step, view_.step));
    owners_.resize(owner_infos_.size());
    CAIRN_TRY(ForEachChunkOf(view_, owner_infos_, [&](size_t i, ChunkInfo chunk) -> Result<void> {
      const kv::Digest digest = chunk.digest;
      const uint64_t page_bytes = chunk.extents.page_bytes();
      owners_[i].chunks.push_back(
          {.chunk = std::move(chunk), .base_digest = digest, .base_page_bytes = page_bytes});
      return {};
    }));
    std::set<std::string> unclear;  // texts of FQNs that may be other leaves in the base step
    if (base_.step.structure != view_.step.structure) {
      CAIRN_TRY_ASSIGN(unclear, FindEscapedTexts(base_));
      CAIRN_TRY_ASSIGN(std::set<std::string> more, FindEscapedTexts(view_));
      unclear.merge(more);
    }
    for (size_t i = 0; i < owners_.size(); ++i) {
      const std::string& fqn = owner_infos_[i].fqn;
      if (!unclear.empty() && unclear.contains(JoinedTexts(fqn))) continue;
      const bool is_shared = unshared && !std::ranges::binary_search(*unshared, fqn);
      owners_[i].is_comparable = true;
      if (!is_shared) CAIRN_TRY(CompareRecords(owner_infos_[i], owners_[i]));
    }
    for (const TensorInfo& info : requested_) {
      if (!info.alias_of) continue;
      CAIRN_TRY_ASSIGN(const auto before, FindIfPresent(base_, info.fqn));
      if (!before || !IsSameAlias(*before, info)) retied_.insert(info.fqn);
    }
    return {};
  }

  /// Sets the digests of the base step.
  Result<void> CompareRecords(const TensorInfo& info, Owner& owner) {
    CAIRN_TRY_ASSIGN(const auto before, FindIfPresent(base_, info.fqn));
    owner.is_comparable =
        before && !before->alias_of && before->dtype == info.dtype && before->shape == info.shape;
    if (!owner.is_comparable) return {};
    size_t next = 0;
    CAIRN_TRY(ForEachChunk(base_, *before, [&](const ChunkInfo& chunk) -> Result<void> {
      const bool is_same = next < owner.chunks.size() && owner.chunks[next].chunk.box == chunk.box;
      if (is_same) {
        UpdatedChunk& updated = owner.chunks[next];
        updated.base_digest = chunk.digest;
        updated.base_page_bytes = chunk.extents.page_bytes();
        updated.base_deltas = FindCommonDeltas(updated.chunk, chunk);
      }
      owner.is_comparable = owner.is_comparable && is_same;
      ++next;
      return {};
    }));
    owner.is_comparable = owner.is_comparable && next == owner.chunks.size();
    return {};
  }

  /// Decides how the request is updated.
  void Divide(const LoadRequest& request) {
    const TensorInfo& tensor = ByName(requested_, request.fqn);
    const TensorInfo& info = ByName(owner_infos_, tensor.alias_of.value_or(tensor.fqn));
    const Owner& owner = owners_[static_cast<size_t>(&info - owner_infos_.data())];
    const bool is_changed = owner.is_changed() || retied_.contains(request.fqn);
    if (is_changed) report_.changed.push_back(request.fqn);
    if (!request.has_base) return complete_.push_back(request);
    if (owner.is_comparable && !tensor.alias_of && AddMemory(request, info, owner)) return;
    if (is_changed) complete_.push_back(request);
  }

  /// Adds the memory of each chunk; false if chunks are not contiguous in it.
  bool AddMemory(const LoadRequest& request, const TensorInfo& info, const Owner& owner) {
    const TensorTarget& target = request.target;
    if (target.device != kHostDevice || !IsComplete(request, info) ||
        !IsContiguous(target.shape, target.strides)) {
      return false;
    }
    const size_t before = memory_.size();
    for (const UpdatedChunk& updated : owner.chunks) {
      const auto offset = ContiguousOffsetBytes(info.dtype, info.shape, updated.chunk.box);
      if (!offset) {
        memory_.resize(before);
        return false;
      }
      memory_.push_back({.fqn = &request.fqn,
                         .updated = &updated,
                         .bytes = {target.data + *offset, updated.chunk.length_bytes()},
                         .page_digests = {}});
    }
    return true;
  }

  /// Digests the memory and compares it with the base step.
  Result<void> Compare(ProgressMeter& meter) {
    if (memory_.empty()) return {};
    std::atomic<size_t> first_wrong = memory_.size();
    for (size_t begin = 0; begin < memory_.size();) {
      size_t end = begin;
      uint64_t bytes = 0;
      while (end < memory_.size() && bytes < kRoundBytes) bytes += memory_[end++].bytes.size();
      kv::ParallelFor(end - begin, [&](size_t i, size_t) {
        ChunkMemory& memory = memory_[begin + i];
        if (first_wrong != memory_.size() || IsBase(memory)) return;
        if (is_compared_) {
          memory.is_mixed = true;
        } else {
          first_wrong = begin + i;
        }
      });
      begin = end;
      report_.compared_bytes += bytes;
      if (first_wrong < memory_.size()) return Fail(NotTheBase(memory_[first_wrong]));
      CAIRN_TRY(meter.Add(bytes));
    }
    is_compared_ = true;
    return {};
  }

  static bool IsBase(ChunkMemory& memory) {
    const UpdatedChunk& updated = *memory.updated;
    std::vector<uint64_t> page_digests;
    page_digests.reserve(kv::PageCount(memory.bytes.size(), updated.base_page_bytes));
    kv::AppendPageDigests(memory.bytes, page_digests, updated.base_page_bytes);
    const kv::Digest digest = kv::RootDigest(page_digests, memory.bytes.size());
    if (const uint64_t page_bytes = updated.chunk.extents.page_bytes();
        updated.is_changed() && page_bytes != updated.base_page_bytes) {
      page_digests.clear();
      kv::AppendPageDigests(memory.bytes, page_digests, page_bytes);
    }
    if (updated.is_changed()) memory.page_digests = std::move(page_digests);
    return digest == updated.base_digest;
  }

  Error NotTheBase(const ChunkMemory& memory) const {
    return Error{
        .code = ErrorCode::kInvalidArgument,
        .message = fmt::format("the tensor does not contain the bytes of step {} at {}; "
                               "nothing was changed; load it completely",
                               base_.step.step, FormatNumbers(memory.updated->chunk.box.offsets)),
        .key = *memory.fqn,
        .step = base_.step.step};
  }

  Result<void> ReadChangedPages() {
    std::erase_if(memory_, [](const ChunkMemory& one) { return !one.updated->is_changed(); });
    CAIRN_TRY(ApplyDeltas());
    for (size_t begin = 0; begin < memory_.size(); begin += kReadAheadChunks) {
      const size_t count = std::min<size_t>(kReadAheadChunks, memory_.size() - begin);
      CAIRN_TRY(ReadPagesOf(std::span(memory_).subspan(begin, count)));
    }
    return {};
  }

  /// Returns the chunks that share memory with another one, as tied weights do that the store has
  /// as separate tensors. A delta must not be applied to them twice.
  std::set<const ChunkMemory*> FindOverlaps() const {
    std::vector<MemorySpan> spans;
    for (const ChunkMemory& memory : memory_) {
      const auto begin = reinterpret_cast<uintptr_t>(memory.bytes.data());
      spans.push_back({.begin = begin, .end = begin + memory.bytes.size()});
    }
    std::set<const ChunkMemory*> overlaps;
    for (const std::span<size_t> group : OverlapGroups(spans)) {
      if (group.size() == 1) continue;
      for (const size_t i : group) overlaps.insert(&memory_[i]);
    }
    return overlaps;
  }

  /// Updates the chunks that have deltas, and removes them from memory_. Reads a limited number of
  /// deltas at a time.
  Result<void> ApplyDeltas() {
    const std::set<const ChunkMemory*> overlaps = FindOverlaps();
    std::vector<const ChunkMemory*> batch;
    uint64_t bytes = 0;
    for (const ChunkMemory& memory : memory_) {
      const ChunkInfo& chunk = memory.updated->chunk;
      if (chunk.deltas.empty()) continue;
      // Read completely: its earlier version is not in memory, or would be changed twice.
      if (!memory.updated->base_deltas || memory.is_mixed || overlaps.contains(&memory)) {
        complete_.push_back(RequestOf(memory));
        continue;
      }
      batch.push_back(&memory);
      bytes += DeltaCost(chunk);
      if (bytes <= kMaxDeltaBytes) continue;
      CAIRN_TRY(ApplyDeltasTo(batch));
      batch.clear();
      bytes = 0;
    }
    CAIRN_TRY(ApplyDeltasTo(batch));
    std::erase_if(memory_,
                  [](const ChunkMemory& one) { return !one.updated->chunk.deltas.empty(); });
    return {};
  }

  Result<void> ApplyDeltasTo(std::span<const ChunkMemory* const> batch) {
    if (batch.empty()) return {};
    std::vector<DeltaChain> chains(batch.size());
    std::vector<DeltaRead> reads;
    for (size_t i = 0; i < batch.size(); ++i) {
      reads.push_back({.fqn = batch[i]->fqn,
                       .chunk = &batch[i]->updated->chunk,
                       .first = *batch[i]->updated->base_deltas,
                       .chain = &chains[i]});
    }
    CAIRN_TRY_ASSIGN(const uint64_t bytes, ReadDeltas(view_, reads));
    report_.bytes_read += bytes;
    std::atomic<size_t> wrong = batch.size();
    kv::ParallelFor(batch.size(), [&](size_t i, size_t) {
      const ChunkInfo& chunk = batch[i]->updated->chunk;
      const bool right = chains[i].ApplyAll(0, batch[i]->bytes) &&
                         kv::PayloadDigest(batch[i]->bytes) == chunk.digest;
      if (!right) wrong = i;
    });
    if (wrong == batch.size()) return {};
    const ChunkMemory& memory = *batch[wrong];
    return Fail(FindDamage(view_, *memory.fqn, memory.updated->chunk,
                           fmt::format("chunk {} does not match its digest",
                                       FormatNumbers(memory.updated->chunk.box.offsets))));
  }

  /// Returns the request for the complete chunk.
  LoadRequest RequestOf(const ChunkMemory& memory) const {
    const ChunkInfo& chunk = memory.updated->chunk;
    const DType dtype = ByName(owner_infos_, *memory.fqn).dtype;
    return {
        .fqn = *memory.fqn,
        .box = chunk.box,
        .target = {
            .dtype = dtype, .shape = chunk.box.sizes, .strides = {}, .data = memory.bytes.data()}};
  }

  /// Reads the pages that differ from the memory. Without stored digests, a chunk is read
  /// completely.
  Result<void> ReadPagesOf(std::span<const ChunkMemory> changed) {
    std::vector<const ChunkInfo*> chunks;
    for (const ChunkMemory& memory : changed) chunks.push_back(&memory.updated->chunk);
    auto stored = ReadStoredPageDigests(*view_.snapshot, chunks);
    const Progress none;
    ProgressMeter meter(none, 0);
    ChunkReader reader(view_, meter, ChunkReader::Limit::kNone);
    for (size_t i = 0; i < changed.size(); ++i) {
      const ChunkMemory& memory = changed[i];
      if (stored[i].empty()) {
        complete_.push_back(RequestOf(memory));
        continue;
      }
      report_.bytes_read += stored[i].size() * sizeof(uint64_t);
      std::vector<bool> differs(stored[i].size());
      for (size_t page = 0; page < differs.size(); ++page) {
        differs[page] = memory.page_digests[page] != stored[i][page];
      }
      CAIRN_TRY(reader.AddPages(*memory.fqn, *chunks[i], std::move(stored[i]), differs,
                                memory.bytes.data()));
    }
    reader.Close({});
    CAIRN_TRY(reader.ReadAll());
    report_.bytes_read += reader.bytes_read();
    return {};
  }

  const StepView& base_;
  const StepView& view_;
  const std::span<const LoadRequest> requests_;
  bool& is_compared_;
  std::vector<TensorInfo> requested_;    // key order
  std::vector<TensorInfo> owner_infos_;  // key order
  std::set<std::string> retied_;         // aliases that the base lacks, or of other bytes
  std::vector<Owner> owners_;            // in the order of owner_infos_
  std::vector<ChunkMemory> memory_;      // memory that is compared and updated page by page
  std::vector<LoadRequest> complete_;    // requests that are read completely
  UpdateReport report_;
};

}  // namespace

Result<UpdateReport> RunUpdate(const StepView& base, const StepView& view,
                               std::span<const LoadRequest> requests, const Progress& progress,
                               std::span<const DeviceStream> streams, bool& is_compared) {
  const auto start = std::chrono::steady_clock::now();
  CAIRN_TRY_ASSIGN(UpdateReport report,
                   Update(base, view, requests, is_compared).Run(progress, streams));
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  report.seconds = elapsed.count();
  return report;
}

}  // namespace cairn::core::internal
