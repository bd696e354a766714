// 1. The keys of the state are compared with those of the step; values by their records.
// 2. The memory of each tensor is divided into pieces: what is contiguous in one chunk of the step.
//    The complete pages of all pieces are digested. A piece that is a complete chunk is equal if
//    the root of its page digests is the digest in the chunk's record.
// 3. The stored page digests of all other chunks are read, and compared with those of the pieces.
// 4. What is left, the pages that a piece has only in part and boxes that are not contiguous in
//    their chunk, is read and compared byte by byte.

#include "core/inspect/check_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <unordered_map>

#include "core/base/internal/groups.h"
#include "core/base/internal/progress_meter.h"
#include "core/device/internal/device_queues.h"
#include "core/load/internal/load.h"
#include "core/step/internal/lookup.h"
#include "core/step/internal/stored_page_digests.h"
#include "core/step/internal/tensor_records.h"
#include "core/tensor/strided_copy.h"
#include "kv/base/digest.h"
#include "kv/base/div.h"
#include "kv/io/worker_pool.h"

namespace cairn::core {
namespace internal {
namespace {

constexpr uint64_t kRoundBytes = 1 << 30;  // digested between two reports of progress
constexpr uint64_t kReadBytes = 64 << 20;  // of payload that is read and compared at a time
constexpr size_t kReadAheadChunks = 4096;  // chunks whose page digests are read together

/// Memory that is contiguous in one chunk of the step.
struct Piece {
  const std::string* fqn = nullptr;
  const ChunkInfo* chunk = nullptr;
  uint64_t chunk_begin = 0;  // bytes in the chunk
  TensorView view;
  std::vector<uint64_t> offsets;  // element 0 of `view` in the tensor
  uint64_t view_begin = 0;        // bytes in the row-major form of `view`
  uint64_t length_bytes = 0;
  std::vector<uint64_t> page_digests;  // its complete pages

  uint64_t page_bytes() const { return chunk->extents.page_bytes(); }
  uint64_t chunk_end() const { return chunk_begin + length_bytes; }
  bool is_complete() const { return length_bytes == chunk->length_bytes(); }
  uint64_t first_page() const { return DivCeil(chunk_begin, page_bytes()); }
  uint64_t page_count() const {
    const uint64_t end = chunk_end() == chunk->length_bytes()
                             ? kv::PageCount(chunk_end(), page_bytes())
                             : chunk_end() / page_bytes();
    return end > first_page() ? end - first_page() : 0;
  }
  /// The range [begin, end) of some of its complete pages in the row-major form of `view`.
  std::pair<uint64_t, uint64_t> RangeOf(uint64_t page, uint64_t count = 1) const {
    const uint64_t begin = (first_page() + page) * page_bytes();
    const uint64_t end = std::min(begin + count * page_bytes(), chunk->length_bytes());
    return {begin - chunk_begin + view_begin, end - chunk_begin + view_begin};
  }
};

/// A box of a tensor of the step, and memory to compare with its payload.
struct ReadBox {
  const std::string* fqn = nullptr;
  std::vector<uint64_t> offsets;
  TensorView view;
};

/// Returns the part of a tensor with bytes [begin, end) of its row-major form, rounded to indices
/// of the first dimension that has several.
Box RowsAround(const TensorView& view, uint64_t begin, uint64_t end) {
  Box box = WholeBox(view.shape);
  uint64_t row_bytes = schema::ElementBytes(view.dtype);
  for (const uint64_t size : view.shape) row_bytes *= size;
  for (size_t d = 0; d < view.shape.size(); ++d) {
    if (view.shape[d] == 1) continue;
    row_bytes /= view.shape[d];
    box.offsets[d] = begin / row_bytes;
    box.sizes[d] = DivCeil(end, row_bytes) - box.offsets[d];
    break;
  }
  return box;
}

class Check {
 public:
  Check(const StepView& view, const Contents& contents, const StateDict& state, uint32_t rank)
      : view_(view), contents_(contents), state_(state), rank_(rank) {}

  Result<StateCheck> Run(const Progress& progress, std::span<const DeviceStream> streams) {
    CAIRN_TRY(CompareKeys());
    CAIRN_TRY(DivideTensors());
    std::set<int> devices;
    uint64_t total_bytes = 0;
    for (const Piece& piece : pieces_) {
      total_bytes += piece.length_bytes;
      if (piece.view.device != kHostDevice) devices.insert(piece.view.device);
    }
    for (const ReadBox& read : reads_) {
      if (read.view.device != kHostDevice) devices.insert(read.view.device);
    }
    if (!devices.empty()) {
      CAIRN_TRY_ASSIGN(queues_, DeviceQueues::Open(devices, streams));
    }
    ProgressMeter meter(progress, total_bytes);
    for (const int device : devices) CAIRN_TRY(DigestOn(device));
    CAIRN_TRY(DigestHost(meter));
    CAIRN_TRY(ComparePages());
    CAIRN_TRY(CompareReads(meter));
    CAIRN_TRY(meter.Add(total_bytes));
    for (const auto& [fqn, pages] : pages_) {
      if (pages.different == 0) continue;
      check_.different.emplace_back(
          fqn, fmt::format("{} of {} pages differ, the first at {}", pages.different, pages.count,
                           FormatNumbers(pages.first)));
    }
    for (auto* findings : {&check_.different, &check_.not_comparable}) {
      std::ranges::sort(*findings);
    }
    for (auto* keys : {&check_.missing, &check_.unexpected}) std::ranges::sort(*keys);
    return std::move(check_);
  }

 private:
  struct Pages {
    uint64_t count = 0;
    uint64_t different = 0;
    std::vector<uint64_t> first;  // element 0 of the first page that differs
  };
  /// A tensor of the state, or the bytes of a long value.
  struct Held {
    std::string fqn;
    TensorView view;
    const Sharding* sharding = nullptr;
  };

  Result<void> CompareKeys() {
    CAIRN_TRY_ASSIGN(const std::vector<Leaf> stored, FlattenTree(contents_.tree));
    std::unordered_map<std::string_view, bool> is_tensor;  // of the keys that were not found yet
    for (const Leaf& leaf : stored) {
      is_tensor.emplace(leaf.fqn, IsTensor(contents_.tree.nodes[leaf.node].kind));
    }
    CAIRN_TRY_ASSIGN(std::vector<Leaf> leaves, state_.Leaves());
    for (size_t i = 0; i < leaves.size(); ++i) {
      std::string& fqn = leaves[i].fqn;
      const auto found = is_tensor.find(fqn);
      if (found == is_tensor.end()) {
        check_.missing.push_back(std::move(fqn));
        continue;
      }
      const bool stored_tensor = found->second;
      is_tensor.erase(found);
      const uint32_t slot = state_.slot[i];
      if (IsTensor(state_.tree.nodes[leaves[i].node].kind) != stored_tensor) {
        const char* const text = stored_tensor ? "a value in memory, a tensor in the step"
                                               : "a tensor in memory, a value in the step";
        check_.different.emplace_back(std::move(fqn), text);
      } else if (stored_tensor) {
        const auto sharding = state_.shardings.find(slot);
        held_.push_back(
            {.fqn = std::move(fqn),
             .view = state_.tensors[slot],
             .sharding = sharding == state_.shardings.end() ? nullptr : &sharding->second});
      } else {
        CAIRN_TRY(CompareValue(std::move(fqn), state_.values[slot]));
      }
    }
    for (const auto& [fqn, unused] : is_tensor) check_.unexpected.emplace_back(fqn);
    std::ranges::sort(held_, {}, &Held::fqn);
    return {};
  }

  Result<void> CompareValue(std::string fqn, const Value& value) {
    const auto stored = std::ranges::lower_bound(contents_.values, fqn, {}, &ValueInfo::fqn);
    CAIRN_CHECK(stored != contents_.values.end() && stored->fqn == fqn);
    if (std::holds_alternative<ChunkedValue>(stored->value) && IsLong(value)) {
      CAIRN_TRY_ASSIGN(const ChunkedValue without_bytes, WithoutBytes(value));
      if (without_bytes == std::get<ChunkedValue>(stored->value)) {
        const std::span<const std::byte> bytes = BytesOf(value);
        held_.push_back(
            {.fqn = std::move(fqn),
             .view = {.dtype = DType::kUInt8, .shape = {bytes.size()}, .data = bytes.data()}});
        return {};
      }
    } else if (!std::holds_alternative<ChunkedValue>(stored->value)) {
      CAIRN_TRY_ASSIGN(const auto record, EncodeValue(value));
      CAIRN_TRY_ASSIGN(const auto stored_record, EncodeValue(stored->value));
      if (record == stored_record) return {};
    }
    check_.different.emplace_back(std::move(fqn),
                                  fmt::format("{} in memory, {} in the step", FormatValue(value),
                                              FormatValue(stored->value)));
    return {};
  }

  Result<void> DivideTensors() {
    std::vector<std::string_view> fqns;
    for (const Held& held : held_) fqns.push_back(held.fqn);
    CAIRN_TRY_ASSIGN(const std::vector<TensorInfo> infos, FindNamed(view_, std::move(fqns)));
    CAIRN_TRY_ASSIGN(const std::vector<TensorInfo> owners, FindOwners(view_, infos));
    chunks_.resize(owners.size());
    CAIRN_TRY(ForEachChunkOf(view_, owners, [&](size_t i, ChunkInfo chunk) -> Result<void> {
      chunks_[i].push_back(std::move(chunk));
      return {};
    }));
    for (const Held& held : held_) {
      const TensorInfo& info = ByName(infos, held.fqn);
      const Shape& shape = held.sharding ? held.sharding->global_shape : held.view.shape;
      if (held.view.dtype != info.dtype) {
        check_.not_comparable.emplace_back(held.fqn, fmt::format("{} in memory, {} in the step",
                                                                 schema::DTypeName(held.view.dtype),
                                                                 schema::DTypeName(info.dtype)));
        continue;
      }
      if (shape != info.shape) {
        check_.different.emplace_back(
            held.fqn, fmt::format("shape {} in memory, {} in the step", FormatNumbers(shape),
                                  FormatNumbers(info.shape)));
        continue;
      }
      const TensorInfo& owner = ByName(owners, info.alias_of.value_or(info.fqn));
      if (info.alias_of) CAIRN_TRY(CheckAlias(info, owner));
      std::vector<ShardView> parts{{.box = WholeBox(shape), .view = held.view}};
      if (held.sharding != nullptr) {
        auto views = ShardViewsOf(*held.sharding, held.view, rank_);
        if (!views) return Fail(std::move(views).error().WithKey(held.fqn));
        parts = *std::move(views);
      }
      const auto& chunks = chunks_[static_cast<size_t>(&owner - owners.data())];
      for (const ShardView& part : parts) {
        if (HasNoElements(part.box.sizes)) continue;
        check_.compared_bytes += *TensorBytes(info.dtype, part.box.sizes);
        Divide(held.fqn, info, owner, part, chunks);
      }
    }
    return {};
  }

  void Divide(const std::string& fqn, const TensorInfo& info, const TensorInfo& owner,
              const ShardView& part, std::span<const ChunkInfo> chunks) {
    if (info.alias_of) {
      if (!DivideAlias(fqn, info, owner, part, chunks)) AddReads(fqn, part.box.offsets, part.view);
      return;
    }
    for (const ChunkInfo& chunk : chunks) {
      const Box both = Intersect(chunk.box, part.box);
      if (HasNoElements(both.sizes)) continue;
      Box in_part = both, in_chunk = both;
      for (size_t d = 0; d < both.sizes.size(); ++d) {
        in_part.offsets[d] -= part.box.offsets[d];
        in_chunk.offsets[d] -= chunk.box.offsets[d];
      }
      TensorView view = Narrow(part.view, in_part);
      const auto begin = ContiguousOffsetBytes(info.dtype, chunk.box.sizes, in_chunk);
      if (!begin) {
        AddReads(fqn, both.offsets, view);
        continue;
      }
      const uint64_t length = *TensorBytes(info.dtype, both.sizes);
      pieces_.push_back({.fqn = &fqn,
                         .chunk = &chunk,
                         .chunk_begin = *begin,
                         .view = std::move(view),
                         .offsets = both.offsets,
                         .length_bytes = length,
                         .page_digests = {}});
    }
  }

  /// Returns false, and adds nothing, if the alias is not one range of the owner's payload, or has
  /// bytes of chunks that are not.
  bool DivideAlias(const std::string& fqn, const TensorInfo& info, const TensorInfo& owner,
                   const ShardView& part, std::span<const ChunkInfo> chunks) {
    if (part.box.sizes != info.shape || !IsContiguous(info.shape, info.alias_strides)) return false;
    const uint64_t begin = info.alias_offset_bytes, end = begin + info.nbytes;
    const size_t before = pieces_.size();
    for (const ChunkInfo& chunk : chunks) {
      const auto offset = ContiguousOffsetBytes(owner.dtype, owner.shape, chunk.box);
      if (!offset) {
        pieces_.resize(before);
        return false;
      }
      const uint64_t first = std::max(begin, *offset);
      const uint64_t last = std::min(end, *offset + chunk.length_bytes());
      if (first >= last) continue;
      pieces_.push_back({.fqn = &fqn,
                         .chunk = &chunk,
                         .chunk_begin = first - *offset,
                         .view = part.view,
                         .offsets = part.box.offsets,
                         .view_begin = first - begin,
                         .length_bytes = last - first,
                         .page_digests = {}});
    }
    return true;
  }

  /// Adds the reads of bytes [begin, end) of the row-major form of `view`, which is at `offsets`.
  void AddReads(const std::string& fqn, const std::vector<uint64_t>& offsets,
                const TensorView& view, uint64_t begin, uint64_t end) {
    while (begin < end) {
      Box rows = RowsAround(view, begin, std::min(end, begin + kReadBytes));
      TensorView part = Narrow(view, rows);
      begin += kReadBytes;
      for (size_t d = 0; d < offsets.size(); ++d) rows.offsets[d] += offsets[d];
      reads_.push_back({.fqn = &fqn, .offsets = std::move(rows.offsets), .view = std::move(part)});
    }
  }
  void AddReads(const std::string& fqn, const std::vector<uint64_t>& offsets,
                const TensorView& view) {
    AddReads(fqn, offsets, view, 0, *TensorBytes(view.dtype, view.shape));
  }

  Result<void> DigestHost(ProgressMeter& meter) {
    for (size_t begin = 0; begin < pieces_.size();) {
      size_t end = begin;
      uint64_t bytes = 0;
      while (end < pieces_.size() && bytes < kRoundBytes) bytes += pieces_[end++].length_bytes;
      const auto groups = GroupByBytes(std::span(pieces_).subspan(begin, end - begin),
                                       [](const Piece& piece) { return piece.length_bytes; });
      kv::ParallelFor(groups.size(), [&](size_t i, size_t) {
        for (Piece& piece : groups[i]) {
          if (piece.view.device == kHostDevice) Digest(piece);
        }
      });
      begin = end;
      CAIRN_TRY(meter.Add(bytes));
    }
    return {};
  }

  static void Digest(Piece& piece) {
    const bool is_contiguous = IsContiguous(piece.view.shape, piece.view.strides);
    std::vector<std::byte> scratch(is_contiguous ? 0 : piece.page_bytes());
    const uint64_t count = piece.page_count();
    piece.page_digests.reserve(count);
    for (uint64_t page = 0; page < count; ++page) {
      const auto [begin, end] = piece.RangeOf(page);
      if (is_contiguous) {
        piece.page_digests.push_back(kv::PageDigest({piece.view.data + begin, end - begin}));
      } else {
        const auto bytes = std::span(scratch).first(end - begin);
        GatherBytes(piece.view, begin, bytes);
        piece.page_digests.push_back(kv::PageDigest(bytes));
      }
    }
  }

  /// Digests pages of 64 KiB on the device, and others on the host.
  Result<void> DigestOn(int device) {
    std::vector<DigestJob> jobs;
    std::vector<Piece*> digested;
    uint64_t pages = 0;
    for (Piece& piece : pieces_) {
      const uint64_t count = piece.page_count();
      if (piece.view.device != device || count == 0) continue;
      if (piece.page_bytes() != kv::kPageBytes) {
        CAIRN_TRY(DigestThroughHost(piece));
        continue;
      }
      const auto [begin, end] = piece.RangeOf(0, count);
      jobs.push_back({.source = piece.view, .begin_bytes = begin, .length_bytes = end - begin});
      digested.push_back(&piece);
      pages += count;
    }
    if (jobs.empty()) return {};
    DeviceQueue& queue = queues_.On(device);
    CAIRN_TRY_ASSIGN(const DeviceQueue::Digests digests, queue.Digest(jobs, {}));
    const DeviceQueue::PageRange all{.first = 0, .count = pages};
    CAIRN_TRY_ASSIGN(const std::vector<uint64_t> page_digests,
                     queue.FetchPageDigests(digests.page_digests, {&all, 1}));
    auto at = page_digests.begin();
    for (Piece* const piece : digested) {
      const auto end = at + static_cast<ptrdiff_t>(piece->page_count());
      piece->page_digests.assign(at, end);
      at = end;
    }
    return {};
  }

  Result<void> DigestThroughHost(Piece& piece) {
    std::vector<std::byte> bytes;
    for (uint64_t page = 0; page < piece.page_count(); ++page) {
      const auto [begin, end] = piece.RangeOf(page);
      bytes.resize(end - begin);
      CAIRN_TRY(queues_.Read(piece.view, begin, bytes, kHostDevice));
      CAIRN_TRY(queues_.Await());
      piece.page_digests.push_back(kv::PageDigest(bytes));
    }
    return {};
  }

  /// Compares the page digests with those of the step.
  Result<void> ComparePages() {
    std::vector<const Piece*> others;
    for (Piece& piece : pieces_) {
      Pages& pages = pages_[*piece.fqn];
      pages.count += piece.page_count();
      const bool is_equal =
          piece.is_complete() &&
          kv::RootDigest(piece.page_digests, piece.length_bytes) == piece.chunk->digest;
      if (!is_equal) others.push_back(&piece);
    }
    for (size_t begin = 0; begin < others.size(); begin += kReadAheadChunks) {
      const size_t count = std::min(kReadAheadChunks, others.size() - begin);
      const auto batch = std::span(others).subspan(begin, count);
      std::vector<const ChunkInfo*> chunks;
      for (const Piece* const piece : batch) chunks.push_back(piece->chunk);
      const auto stored = ReadStoredPageDigests(*view_.snapshot, chunks);
      for (size_t i = 0; i < count; ++i) ComparePiece(*batch[i], stored[i]);
    }
    return {};
  }

  void ComparePiece(const Piece& piece, std::span<const uint64_t> stored) {
    const auto add_reads = [&](uint64_t begin, uint64_t end) {
      AddReads(*piece.fqn, piece.offsets, piece.view, begin, end);
    };
    const uint64_t end = piece.view_begin + piece.length_bytes;
    const uint64_t count = piece.page_count();
    if (stored.empty() || count == 0) return add_reads(piece.view_begin, end);
    check_.bytes_read += stored.size_bytes();
    for (uint64_t page = 0; page < count; ++page) {
      if (piece.page_digests[page] == stored[piece.first_page() + page]) continue;
      const auto [page_begin, page_end] = piece.RangeOf(page);
      // Tied tensors have the same memory.
      if (counted_.insert(piece.view.data + page_begin).second) {
        check_.different_bytes += page_end - page_begin;
      }
      NoteDifference(*piece.fqn, piece.offsets, piece.view, page_begin);
    }
    const auto [pages_begin, pages_end] = piece.RangeOf(0, count);
    if (piece.view_begin < pages_begin) add_reads(piece.view_begin, pages_begin);
    if (pages_end < end) add_reads(pages_end, end);
  }

  /// Reads payload, and compares it with the memory.
  Result<void> CompareReads(ProgressMeter& meter) {
    const Progress none;
    for (size_t begin = 0; begin < reads_.size();) {
      std::vector<std::vector<std::byte>> payloads;
      std::vector<LoadRequest> requests;
      uint64_t bytes = 0;
      for (size_t i = begin; i < reads_.size() && bytes < kReadBytes; ++i) {
        const auto& [fqn, offsets, view] = reads_[i];
        const uint64_t length = *TensorBytes(view.dtype, view.shape);
        payloads.emplace_back(length);
        requests.push_back(
            RowMajorRequest(*fqn, view.dtype, {offsets, view.shape}, payloads.back().data()));
        bytes += length;
      }
      CAIRN_TRY_ASSIGN(const LoadReport report, RunLoad(view_, requests, none));
      check_.bytes_read += report.bytes_read;
      for (const auto& payload : payloads) CAIRN_TRY(CompareRead(reads_[begin++], payload));
      CAIRN_TRY(meter.Add(0));
    }
    return {};
  }

  Result<void> CompareRead(const ReadBox& read, std::span<const std::byte> payload) {
    std::vector<std::byte> page(kv::kPageBytes);
    for (uint64_t begin = 0; begin < payload.size(); begin += kv::kPageBytes) {
      const auto bytes = std::span(page).first(std::min(kv::kPageBytes, payload.size() - begin));
      if (read.view.device == kHostDevice) {
        GatherBytes(read.view, begin, bytes);
      } else {
        CAIRN_TRY(queues_.Read(read.view, begin, bytes, kHostDevice));
        CAIRN_TRY(queues_.Await());
      }
      ++pages_[*read.fqn].count;
      if (std::memcmp(bytes.data(), payload.data() + begin, bytes.size()) == 0) continue;
      check_.different_bytes += bytes.size();
      NoteDifference(*read.fqn, read.offsets, read.view, begin);
    }
    return {};
  }

  /// Notes that the page at `begin` of the row-major form of `view` differs.
  void NoteDifference(const std::string& fqn, const std::vector<uint64_t>& offsets,
                      const TensorView& view, uint64_t begin) {
    std::vector<uint64_t> element = offsets;
    uint64_t index = begin / schema::ElementBytes(view.dtype);
    for (size_t d = view.shape.size(); d-- > 0;) {
      element[d] += index % view.shape[d];
      index /= view.shape[d];
    }
    Pages& pages = pages_[fqn];
    if (pages.different++ == 0 || element < pages.first) pages.first = std::move(element);
  }

  const StepView& view_;
  const Contents& contents_;
  const StateDict& state_;
  const uint32_t rank_;
  std::vector<Held> held_;                      // key order
  std::vector<std::vector<ChunkInfo>> chunks_;  // by owner
  std::vector<Piece> pieces_;
  std::vector<ReadBox> reads_;
  std::map<std::string, Pages> pages_;  // by FQN
  DeviceQueues queues_;
  std::set<const std::byte*> counted_;  // pages in StateCheck::different_bytes
  StateCheck check_;
};

}  // namespace
}  // namespace internal

Result<StateCheck> CheckState(const kv::Store& store, const Contents& contents,
                              const StateDict& state, uint32_t rank, const Progress& progress,
                              std::span<const DeviceStream> streams) {
  return internal::WithStep(store, contents.step, [&](const internal::StepView& view) {
    return internal::Check(view, contents, state, rank).Run(progress, streams);
  });
}

}  // namespace cairn::core
