// Requests are checked and resolved to the tensors that hold the bytes. A second thread intersects
// the chunks of these tensors with the requested boxes, in key order, and adds the results to the
// ChunkReader, while this thread reads.

#include "core/load/internal/load.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <new>
#include <thread>

#include "core/load/internal/chunk_reader.h"
#include "core/load/internal/device_load.h"
#include "core/load/internal/direct_load.h"
#include "core/step/internal/owners.h"
#include "core/tensor/box_index.h"

namespace cairn::core::internal {
namespace {

std::unexpected<Error> Invalid(const LoadRequest& request, std::string message) {
  return Fail(Error{
      .code = ErrorCode::kInvalidArgument, .message = std::move(message), .key = request.fqn});
}

std::vector<uint64_t> InBytes(std::vector<uint64_t> strides, uint64_t element_bytes) {
  for (uint64_t& stride : strides) stride *= element_bytes;
  return strides;
}

Result<void> CheckRequest(const LoadRequest& request, const TensorInfo& tensor) {
  if (request.target.dtype != tensor.dtype) {
    return Invalid(request, fmt::format("the target is {}, the stored tensor {}; give a target of "
                                        "the stored dtype",
                                        schema::DTypeName(request.target.dtype),
                                        schema::DTypeName(tensor.dtype)));
  }
  if (!BoxFits(request.box, tensor.shape)) {
    return Invalid(request,
                   fmt::format("box at {} of sizes {} leaves the stored shape {}",
                               FormatNumbers(request.box.offsets), FormatNumbers(request.box.sizes),
                               FormatNumbers(tensor.shape)));
  }
  if (request.target.shape != request.box.sizes) {
    return Invalid(request, fmt::format("the target has shape {}, the box sizes {}",
                                        FormatNumbers(request.target.shape),
                                        FormatNumbers(request.box.sizes)));
  }
  if (const auto checked = CheckStrides(request.target.shape, request.target.strides); !checked) {
    return Invalid(request, "the target has " + checked.error().message);
  }
  const bool empty = std::ranges::find(request.box.sizes, uint64_t{0}) != request.box.sizes.end();
  if (!empty && request.target.data == nullptr) {
    return Invalid(request, "the target has no memory; allocate it first");
  }
  return {};
}

// What a request needs of the tensor that holds its bytes.
struct Want {
  const LoadRequest* request = nullptr;
  std::optional<StridedRegion> alias_region;  // in the owner's payload; empty: the request's box
  uint64_t missing_bytes = 0;                 // not planned yet
};

StridedRegion AliasRegion(const LoadRequest& request, const TensorInfo& alias) {
  const uint64_t element_bytes = schema::ElementBytes(alias.dtype);
  const auto source_strides = InBytes(alias.alias_strides, element_bytes);
  uint64_t base = alias.alias_offset_bytes;
  for (size_t d = 0; d < source_strides.size(); ++d) {
    base += request.box.offsets[d] * source_strides[d];
  }
  const auto target_strides =
      InBytes(request.target.strides.empty() ? RowMajorStrides(request.target.shape)
                                             : request.target.strides,
              element_bytes);
  return StridedRegion(request.box.sizes, source_strides, target_strides, element_bytes,
                       static_cast<int64_t>(base), request.target.data);
}

// Returns what the request needs of a chunk, and its bytes; empty if the request needs nothing.
std::optional<std::pair<StridedRegion, uint64_t>> BoxRegion(const LoadRequest& request,
                                                            const ChunkInfo& chunk,
                                                            uint64_t element_bytes) {
  const Box common = Intersect(chunk.box, request.box);
  uint64_t bytes = element_bytes;
  for (const uint64_t size : common.sizes) bytes *= size;
  if (bytes == 0) return std::nullopt;
  const auto source_strides = InBytes(RowMajorStrides(chunk.box.sizes), element_bytes);
  const auto target_strides =
      InBytes(request.target.strides.empty() ? RowMajorStrides(request.target.shape)
                                             : request.target.strides,
              element_bytes);
  uint64_t base = 0;
  uint64_t target = 0;
  for (size_t d = 0; d < common.sizes.size(); ++d) {
    base += (common.offsets[d] - chunk.box.offsets[d]) * source_strides[d];
    target += (common.offsets[d] - request.box.offsets[d]) * target_strides[d];
  }
  return std::pair(StridedRegion(common.sizes, source_strides, target_strides, element_bytes,
                                 static_cast<int64_t>(base), request.target.data + target),
                   bytes);
}

// All requests, grouped by the tensor that holds the bytes.
class Plan {
 public:
  static Result<Plan> Make(const StepView& view, std::span<const LoadRequest> requests) {
    Plan plan;
    std::vector<std::string> fqns;
    for (const LoadRequest& request : requests) fqns.push_back(request.fqn);
    CAIRN_TRY_ASSIGN(plan.requested_, FindNamed(view, std::move(fqns)));
    for (const LoadRequest& request : requests) {
      CAIRN_TRY(CheckRequest(request, ByName(plan.requested_, request.fqn)));
    }
    CAIRN_TRY_ASSIGN(plan.owners_, FindOwners(view, plan.requested_));
    plan.wants_.resize(plan.owners_.size());
    plan.next_offset_bytes_.resize(plan.owners_.size());
    for (const LoadRequest& request : requests) CAIRN_TRY(plan.AddWant(request));
    return plan;
  }

  uint64_t total_bytes() const { return total_bytes_; }

  /// Adds what the requests need to the reader, chunk by chunk. kDataLoss: the chunks do not cover
  /// a request.
  Result<void> VisitAll(const StepView& view, ChunkReader& reader) {
    CAIRN_TRY(ForEachChunkOf(
        view, owners_, [&](size_t i, const ChunkInfo& chunk) { return Visit(i, chunk, reader); }));
    return CheckCovered();
  }

 private:
  /// Adds what the requests need of a chunk of owner `i`.
  Result<void> Visit(size_t i, const ChunkInfo& chunk, ChunkReader& reader) {
    const TensorInfo& owner = owners_[i];
    if (wants_[i].size() <= kFewWants) {
      for (Want& want : wants_[i]) CAIRN_TRY(VisitWant(owner, want, chunk, reader));
      return VisitAliases(i, chunk, reader);
    }
    if (indexed_owner_ != i) IndexWants(i);
    Result<void> visited = {};
    index_->ForEachOverlap(chunk.box.offsets, chunk.box.sizes, [&](size_t want) {
      if (visited) visited = VisitWant(owner, wants_[i][want], chunk, reader);
    });
    CAIRN_TRY(std::move(visited));
    return VisitAliases(i, chunk, reader);
  }

  static Result<void> VisitWant(const TensorInfo& owner, Want& want, const ChunkInfo& chunk,
                                ChunkReader& reader) {
    if (want.alias_region) return {};
    auto region = BoxRegion(*want.request, chunk, schema::ElementBytes(owner.dtype));
    if (!region) return {};
    // Chunks that overlap could hide that another part is not covered.
    if (region->second > want.missing_bytes) return Fail(BadTiling(owner));
    want.missing_bytes -= region->second;
    return reader.Add(owner.fqn, chunk, std::move(region->first));
  }

  // Sets index_ to the requested boxes of owner `i`. Chunks are visited owner by owner.
  void IndexWants(size_t i) {
    BoxList boxes(owners_[i].shape.size());
    boxes.Reserve(wants_[i].size());
    for (const Want& want : wants_[i]) {
      if (want.alias_region) {
        boxes.Add(Box{std::vector<uint64_t>(boxes.dimensions()), Shape(boxes.dimensions())});
      } else {
        boxes.Add(want.request->box);
      }
    }
    index_.emplace(std::move(boxes));
    indexed_owner_ = i;
  }

  /// kDataLoss: the chunks did not cover a request.
  Result<void> CheckCovered() const {
    for (size_t i = 0; i < owners_.size(); ++i) {
      for (const Want& want : wants_[i]) {
        const bool covered = want.alias_region ? next_offset_bytes_[i] == owners_[i].nbytes
                                               : want.missing_bytes == 0;
        if (!covered) return Fail(BadTiling(owners_[i]));
      }
    }
    return {};
  }

  static Error BadTiling(const TensorInfo& owner) {
    return Error{.code = ErrorCode::kDataLoss,
                 .message = "the index's chunks do not cover the tensor exactly once",
                 .key = owner.fqn};
  }

  Result<void> AddWant(const LoadRequest& request) {
    const TensorInfo& tensor = ByName(requested_, request.fqn);
    const TensorInfo& owner = ByName(owners_, tensor.alias_of.value_or(tensor.fqn));
    Want want{.request = &request};
    CAIRN_TRY_ASSIGN(want.missing_bytes, TensorBytes(tensor.dtype, request.box.sizes));
    if (want.missing_bytes == 0) return {};
    if (tensor.alias_of) {
      CAIRN_TRY(CheckAlias(tensor, owner));
      // An alias of its complete owner is read as the owner, whatever the boxes of the chunks are.
      if (!IsSame(tensor, owner)) want.alias_region = AliasRegion(request, tensor);
    }
    total_bytes_ += want.missing_bytes;
    wants_[static_cast<size_t>(&owner - owners_.data())].push_back(std::move(want));
    return {};
  }

  static bool IsSame(const TensorInfo& alias, const TensorInfo& owner) {
    return alias.dtype == owner.dtype && alias.shape == owner.shape &&
           alias.alias_offset_bytes == 0 && alias.alias_strides == RowMajorStrides(owner.shape);
  }

  Result<void> VisitAliases(size_t i, const ChunkInfo& chunk, ChunkReader& reader) {
    const TensorInfo& owner = owners_[i];
    const bool aliased = std::ranges::any_of(
        wants_[i], [](const Want& want) { return want.alias_region.has_value(); });
    if (!aliased) return {};
    // Aliases refer to positions in the row-major payload, so chunks must be consecutive ranges of
    // it.
    const auto offset = ContiguousOffsetBytes(owner.dtype, owner.shape, chunk.box);
    if (offset != next_offset_bytes_[i]) {
      return Fail(Error{.code = ErrorCode::kUnimplemented,
                        .message = "aliases of a tensor that is stored as boxes from different "
                                   "ranks cannot be read yet",
                        .key = owner.fqn});
    }
    next_offset_bytes_[i] += chunk.length_bytes();
    for (const Want& want : wants_[i]) {
      if (!want.alias_region) continue;
      CAIRN_TRY(reader.Add(owner.fqn, chunk,
                           want.alias_region->ShiftedBy(static_cast<int64_t>(*offset))));
    }
    return {};
  }

  std::vector<TensorInfo> requested_;     // key order
  std::vector<TensorInfo> owners_;        // key order
  std::vector<std::vector<Want>> wants_;  // by owner
  static constexpr size_t kFewWants = 8;
  std::optional<BoxIndex> index_;  // of the wants of indexed_owner_, if there are many
  size_t indexed_owner_ = ~size_t{0};
  std::vector<uint64_t> next_offset_bytes_;  // by owner: payload that the chunks seen so far hold
  uint64_t total_bytes_ = 0;
};

// Loads to host memory. LoadReport::seconds is not set.
Result<LoadReport> LoadHost(const StepView& view, Plan plan, const Progress& progress) {
  ProgressMeter meter(progress, plan.total_bytes());
  ChunkReader reader(view, meter);
  // Planning many small chunks takes as long as reading them, so both run at the same time.
  const std::jthread planner([&] {
    try {
      reader.Close(plan.VisitAll(view, reader));
    } catch (const std::bad_alloc&) {
      reader.Close(Fail(ErrorCode::kResourceExhausted, "not enough memory to plan the load"));
    }
  });
  CAIRN_TRY(reader.ReadAll());
  return LoadReport{.bytes_read = reader.bytes_read()};
}

Result<LoadReport> LoadAnywhere(const StepView& view, std::span<const LoadRequest> requests,
                                const Progress& progress, std::span<const DeviceStream> streams) {
  CAIRN_TRY_ASSIGN(Plan plan, Plan::Make(view, requests));
  if (!HasDeviceTargets(requests)) return LoadHost(view, std::move(plan), progress);
  uint64_t reported_bytes = 0;
  uint64_t before_bytes = 0;
  Progress report_progress;
  if (progress) {
    // Bytes that have to be read again were reported before.
    report_progress = [&](uint64_t done, uint64_t total) {
      reported_bytes = std::max(reported_bytes, before_bytes + done);
      return progress(reported_bytes, before_bytes + total);
    };
  }
  CAIRN_TRY_ASSIGN(const DirectLoad direct, LoadDirectly(view, requests, streams, report_progress));
  before_bytes = direct.loaded_bytes;
  const HostLoad load_part = [&](std::span<const LoadRequest> part,
                                 const Progress& part_progress) -> Result<LoadReport> {
    CAIRN_TRY_ASSIGN(Plan part_plan, Plan::Make(view, part));
    return LoadHost(view, std::move(part_plan), part_progress);
  };
  LoadReport report;
  if (!direct.rest.empty()) {
    CAIRN_TRY_ASSIGN(report, LoadThroughBlocks(direct.rest, streams, report_progress, load_part));
  }
  report.bytes_read += direct.bytes_read;
  report.direct_bytes = direct.bytes_read;
  return report;
}

}  // namespace

Result<LoadReport> RunLoad(const StepView& view, std::span<const LoadRequest> requests,
                           const Progress& progress, std::span<const DeviceStream> streams) {
  const auto start = std::chrono::steady_clock::now();
  CAIRN_TRY_ASSIGN(LoadReport report, LoadAnywhere(view, requests, progress, streams));
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  report.seconds = elapsed.count();
  return report;
}

}  // namespace cairn::core::internal
