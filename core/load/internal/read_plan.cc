#include "core/load/internal/read_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "core/step/internal/owners.h"

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

Result<ReadPlan> ReadPlan::Make(const StepView& view, std::span<const LoadRequest> requests) {
  ReadPlan plan;
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

Result<void> ReadPlan::AddWant(const LoadRequest& request) {
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

Result<void> ReadPlan::AddReads(const StepView& view, ChunkReader& reader) {
  CAIRN_TRY(ForEachChunkOf(
      view, owners_, [&](size_t i, const ChunkInfo& chunk) { return Visit(i, chunk, reader); }));
  return CheckCovered();
}

Result<void> ReadPlan::Visit(size_t i, const ChunkInfo& chunk, ChunkReader& reader) {
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

Result<void> ReadPlan::VisitWant(const TensorInfo& owner, Want& want, const ChunkInfo& chunk,
                                 ChunkReader& reader) {
  if (want.alias_region) return {};
  auto region = BoxRegion(*want.request, chunk, schema::ElementBytes(owner.dtype));
  if (!region) return {};
  // Chunks that overlap could hide that another part is not covered.
  if (region->second > want.missing_bytes) return Fail(BadTiling(owner));
  want.missing_bytes -= region->second;
  return reader.Add(owner.fqn, chunk, std::move(region->first));
}

Result<void> ReadPlan::VisitAliases(size_t i, const ChunkInfo& chunk, ChunkReader& reader) {
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
    CAIRN_TRY(
        reader.Add(owner.fqn, chunk, want.alias_region->ShiftedBy(static_cast<int64_t>(*offset))));
  }
  return {};
}

void ReadPlan::IndexWants(size_t i) {
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

Result<void> ReadPlan::CheckCovered() const {
  for (size_t i = 0; i < owners_.size(); ++i) {
    for (const Want& want : wants_[i]) {
      const bool covered =
          want.alias_region ? next_offset_bytes_[i] == owners_[i].nbytes : want.missing_bytes == 0;
      if (!covered) return Fail(BadTiling(owners_[i]));
    }
  }
  return {};
}

}  // namespace cairn::core::internal
