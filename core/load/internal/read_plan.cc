#include "core/load/internal/read_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "core/step/internal/lookup.h"

namespace cairn::core::internal {
namespace {

std::unexpected<Error> Invalid(const LoadRequest& request, std::string message) {
  return Fail(Error{
      .code = ErrorCode::kInvalidArgument, .message = std::move(message), .key = request.fqn});
}

Result<void> CheckDType(const LoadRequest& request, const TensorInfo& tensor) {
  if (request.target.dtype == tensor.dtype) return {};
  if (!request.cast) {
    return Invalid(request, fmt::format("the target is {}, the stored tensor {}; give a target of "
                                        "the stored dtype",
                                        schema::DTypeName(request.target.dtype),
                                        schema::DTypeName(tensor.dtype)));
  }
  if (FindElementCast(tensor.dtype, request.target.dtype) == nullptr) {
    return Invalid(request, fmt::format("there is no conversion from {} to {}",
                                        schema::DTypeName(tensor.dtype),
                                        schema::DTypeName(request.target.dtype)));
  }
  if (tensor.alias_of && tensor.alias_offset_bytes % schema::ElementBytes(tensor.dtype) != 0) {
    return Invalid(request,
                   "the tensor is an alias that does not begin at an element of its "
                   "owner; load it in its own dtype");
  }
  return {};
}

std::vector<uint64_t> InBytes(std::vector<uint64_t> strides, uint64_t element_bytes) {
  for (uint64_t& stride : strides) stride *= element_bytes;
  return strides;
}

std::vector<uint64_t> TargetStridesBytes(const TensorTarget& target) {
  return InBytes(target.strides.empty() ? RowMajorStrides(target.shape) : target.strides,
                 schema::ElementBytes(target.dtype));
}

Result<void> CheckRequest(const LoadRequest& request, const TensorInfo& tensor) {
  CAIRN_TRY(CheckDType(request, tensor));
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
  const bool empty = HasNoElements(request.box.sizes);
  if (!empty && request.target.data == nullptr) {
    return Invalid(request, "the target has no memory; allocate it first");
  }
  if (request.target.dtype != tensor.dtype && request.target.device != kHostDevice) {
    return Invalid(request, "tensors are converted in host memory only; load into host memory");
  }
  return {};
}

StridedRegion AliasRegion(const LoadRequest& request, const TensorInfo& alias,
                          RegionElement element) {
  const auto source_strides = InBytes(alias.alias_strides, element.bytes);
  uint64_t base = alias.alias_offset_bytes;
  for (size_t d = 0; d < source_strides.size(); ++d) {
    base += request.box.offsets[d] * source_strides[d];
  }
  return StridedRegion(request.box.sizes, source_strides, TargetStridesBytes(request.target),
                       element, static_cast<int64_t>(base), request.target.data);
}

// Returns what the request needs of a chunk, and its bytes; empty if the request needs nothing.
std::optional<std::pair<StridedRegion, uint64_t>> BoxRegion(const LoadRequest& request,
                                                            const ChunkInfo& chunk,
                                                            RegionElement element) {
  const Box common = Intersect(chunk.box, request.box);
  uint64_t bytes = element.bytes;
  for (const uint64_t size : common.sizes) bytes *= size;
  if (bytes == 0) return std::nullopt;
  const auto source_strides = InBytes(RowMajorStrides(chunk.box.sizes), element.bytes);
  const auto target_strides = TargetStridesBytes(request.target);
  uint64_t base = 0;
  uint64_t target = 0;
  for (size_t d = 0; d < common.sizes.size(); ++d) {
    base += (common.offsets[d] - chunk.box.offsets[d]) * source_strides[d];
    target += (common.offsets[d] - request.box.offsets[d]) * target_strides[d];
  }
  return std::pair(StridedRegion(common.sizes, source_strides, target_strides, element,
                                 static_cast<int64_t>(base), request.target.data + target),
                   bytes);
}

// Returns the indices of the requested tensors. Requires that all of them are in `tensors`. Fast if
// the requests are in key order, as nearly all are.
std::vector<size_t> IndicesOf(std::span<const LoadRequest> requests,
                              std::span<const TensorInfo> tensors) {
  std::vector<size_t> indices;
  indices.reserve(requests.size());
  size_t next = 0;
  for (const LoadRequest& request : requests) {
    if (next == tensors.size() || tensors[next].fqn != request.fqn) {
      next = static_cast<size_t>(&ByName(tensors, request.fqn) - tensors.data());
    }
    indices.push_back(next++);
  }
  return indices;
}

// Returns the requested tensors in key order without duplicates. Takes them from `known`, if this
// contains all of them.
Result<std::vector<TensorInfo>> FindRequested(const StepView& view,
                                              std::span<const LoadRequest> requests,
                                              std::span<const TensorInfo> known) {
  std::vector<size_t> indices;  // in `known`
  indices.reserve(requests.size());
  size_t next = 0;
  for (const LoadRequest& request : requests) {
    if (next >= known.size() || known[next].fqn != request.fqn) {
      const TensorInfo* const found = FindByName(known, request.fqn);
      if (found == nullptr) break;
      next = static_cast<size_t>(found - known.data());
    }
    indices.push_back(next++);
  }
  if (indices.size() < requests.size()) {
    std::vector<std::string> fqns;
    fqns.reserve(requests.size());
    for (const LoadRequest& request : requests) fqns.push_back(request.fqn);
    return FindNamed(view, std::move(fqns));
  }
  if (!std::ranges::is_sorted(indices)) std::ranges::sort(indices);
  indices.erase(std::ranges::unique(indices).begin(), indices.end());
  std::vector<TensorInfo> requested;
  requested.reserve(indices.size());
  for (const size_t i : indices) requested.push_back(known[i]);
  return requested;
}

Error BadTiling(const TensorInfo& owner) {
  return Error{.code = ErrorCode::kDataLoss,
               .message = "the step's chunks do not cover the tensor exactly once",
               .key = owner.fqn};
}

bool IsSame(const TensorInfo& alias, const TensorInfo& owner) {
  return alias.dtype == owner.dtype && alias.shape == owner.shape &&
         alias.alias_offset_bytes == 0 && alias.alias_strides == RowMajorStrides(owner.shape);
}

}  // namespace

Result<ReadPlan> ReadPlan::Make(const StepView& view, std::span<const LoadRequest> requests,
                                std::span<const TensorInfo> known) {
  ReadPlan plan;
  CAIRN_TRY_ASSIGN(std::vector<TensorInfo> requested, FindRequested(view, requests, known));
  const std::vector<size_t> indices = IndicesOf(requests, requested);
  for (size_t i = 0; i < requests.size(); ++i) {
    CAIRN_TRY(CheckRequest(requests[i], requested[indices[i]]));
  }
  const bool has_aliases = std::ranges::any_of(
      requested, [](const TensorInfo& tensor) { return tensor.alias_of.has_value(); });
  if (has_aliases) {
    CAIRN_TRY_ASSIGN(plan.owners_, FindOwners(view, requested));
  } else {
    plan.owners_ = std::move(requested);
  }
  plan.wants_.reserve(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    size_t owner = indices[i];
    const TensorInfo& tensor = has_aliases ? requested[owner] : plan.owners_[owner];
    if (has_aliases) {
      const std::string& name = tensor.alias_of ? *tensor.alias_of : tensor.fqn;
      owner = static_cast<size_t>(&ByName(plan.owners_, name) - plan.owners_.data());
    }
    CAIRN_TRY(plan.AddWant(requests[i], tensor, owner));
  }
  if (!std::ranges::is_sorted(plan.wants_, {}, &Want::owner)) {
    std::ranges::stable_sort(plan.wants_, {}, &Want::owner);
  }
  plan.begins_.resize(plan.owners_.size() + 1);
  for (const Want& want : plan.wants_) ++plan.begins_[want.owner + 1];
  std::partial_sum(plan.begins_.begin(), plan.begins_.end(), plan.begins_.begin());
  plan.next_offset_bytes_.resize(plan.owners_.size());
  return plan;
}

Result<void> ReadPlan::AddWant(const LoadRequest& request, const TensorInfo& tensor, size_t owner) {
  Want want{.request = &request, .owner = owner};
  CAIRN_TRY_ASSIGN(want.missing_bytes, TensorBytes(tensor.dtype, request.box.sizes));
  if (want.missing_bytes == 0) return {};
  want.element = {schema::ElementBytes(tensor.dtype),
                  FindElementCast(tensor.dtype, request.target.dtype),
                  schema::ElementBytes(request.target.dtype)};
  if (tensor.alias_of) {
    CAIRN_TRY(CheckAlias(tensor, owners_[owner]));
    // An alias of its complete owner is read as the owner, whatever the boxes of the chunks are.
    if (!IsSame(tensor, owners_[owner])) {
      want.alias_region =
          std::make_unique<const StridedRegion>(AliasRegion(request, tensor, want.element));
    }
  }
  total_bytes_ += want.missing_bytes;
  wants_.push_back(std::move(want));
  return {};
}

std::span<ReadPlan::Want> ReadPlan::WantsOf(size_t owner) {
  return std::span(wants_).subspan(begins_[owner], begins_[owner + 1] - begins_[owner]);
}

Result<void> ReadPlan::AddReads(const StepView& view, ChunkReader& reader) {
  CAIRN_TRY(ForEachChunkOf(view, owners_, [&](size_t i, ChunkInfo&& chunk) {
    return Visit(i, std::move(chunk), reader);
  }));
  return CheckCovered();
}

Result<void> ReadPlan::Visit(size_t i, ChunkInfo&& chunk, ChunkReader& reader) {
  const TensorInfo& owner = owners_[i];
  const std::span<Want> wants = WantsOf(i);
  if (wants.size() == 1 && !wants.front().alias_region) {
    return VisitWant(owner, wants.front(), std::move(chunk), reader);
  }
  if (wants.size() <= kFewWants) {
    for (Want& want : wants) CAIRN_TRY(VisitWant(owner, want, chunk, reader));
    return VisitAliases(i, chunk, reader);
  }
  if (indexed_owner_ != i) IndexWants(i);
  Result<void> visited = {};
  index_->ForEachOverlap(chunk.box.offsets, chunk.box.sizes, [&](size_t want) {
    if (visited) visited = VisitWant(owner, wants[want], chunk, reader);
  });
  CAIRN_TRY(std::move(visited));
  return VisitAliases(i, chunk, reader);
}

Result<void> ReadPlan::VisitWant(const TensorInfo& owner, Want& want, ChunkInfo chunk,
                                 ChunkReader& reader) {
  if (want.alias_region) return {};
  const TensorTarget& target = want.request->target;
  // A small tensor is one chunk, and there may be very many of them.
  if (chunk.box == want.request->box && want.element.cast == nullptr &&
      IsContiguous(target.shape, target.strides)) {
    if (chunk.length_bytes() > want.missing_bytes) return Fail(BadTiling(owner));
    want.missing_bytes -= chunk.length_bytes();
    return reader.AddWhole(owner.fqn, std::move(chunk), target.data);
  }
  auto region = BoxRegion(*want.request, chunk, want.element);
  if (!region) return {};
  // Chunks that overlap could hide that another part is not covered.
  if (region->second > want.missing_bytes) return Fail(BadTiling(owner));
  want.missing_bytes -= region->second;
  return reader.Add(owner.fqn, std::move(chunk), std::move(region->first));
}

Result<void> ReadPlan::VisitAliases(size_t i, const ChunkInfo& chunk, ChunkReader& reader) {
  const TensorInfo& owner = owners_[i];
  const bool aliased = std::ranges::any_of(
      WantsOf(i), [](const Want& want) { return want.alias_region != nullptr; });
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
  for (const Want& want : WantsOf(i)) {
    if (!want.alias_region) continue;
    CAIRN_TRY(
        reader.Add(owner.fqn, chunk, want.alias_region->ShiftedBy(static_cast<int64_t>(*offset))));
  }
  return {};
}

void ReadPlan::IndexWants(size_t i) {
  BoxList boxes(owners_[i].shape.size());
  boxes.Reserve(WantsOf(i).size());
  for (const Want& want : WantsOf(i)) {
    if (want.alias_region) {
      boxes.Add(Box{std::vector<uint64_t>(boxes.dimensions()), Shape(boxes.dimensions())});
    } else {
      boxes.Add(want.request->box);
    }
  }
  index_.emplace(std::move(boxes));
  indexed_owner_ = i;
}

Result<void> ReadPlan::CheckCovered() const {
  for (const Want& want : wants_) {
    const TensorInfo& owner = owners_[want.owner];
    const bool covered = want.alias_region ? next_offset_bytes_[want.owner] == owner.nbytes
                                           : want.missing_bytes == 0;
    if (!covered) return Fail(BadTiling(owner));
  }
  return {};
}

}  // namespace cairn::core::internal
