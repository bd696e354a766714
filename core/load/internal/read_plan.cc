#include "core/load/internal/read_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>
#include <string>
#include <tuple>
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

// Returns whether the boxes have an element in common. Requires the same number of dimensions.
bool Overlaps(const Box& a, const Box& b) {
  for (size_t d = 0; d < a.sizes.size(); ++d) {
    const uint64_t end = std::min(a.offsets[d] + a.sizes[d], b.offsets[d] + b.sizes[d]);
    if (std::max(a.offsets[d], b.offsets[d]) >= end) return false;
  }
  return true;
}

// Returns what the request needs of a chunk. Requires that they overlap.
StridedRegion BoxRegion(const LoadRequest& request, const ChunkInfo& chunk, RegionElement element) {
  const Box common = Intersect(chunk.box, request.box);
  const auto source_strides = InBytes(RowMajorStrides(chunk.box.sizes), element.bytes);
  const auto target_strides = TargetStridesBytes(request.target);
  uint64_t base = 0;
  uint64_t target = 0;
  for (size_t d = 0; d < common.sizes.size(); ++d) {
    base += (common.offsets[d] - chunk.box.offsets[d]) * source_strides[d];
    target += (common.offsets[d] - request.box.offsets[d]) * target_strides[d];
  }
  return StridedRegion(common.sizes, source_strides, target_strides, element,
                       static_cast<int64_t>(base), request.target.data + target);
}

// Returns the requested tensors, or nothing if one of them is not in `tensors`. Fast if the
// requests are in key order, as nearly all are.
std::optional<std::vector<const TensorInfo*>> FindAll(std::span<const LoadRequest> requests,
                                                      std::span<const TensorInfo> tensors) {
  std::vector<const TensorInfo*> found;
  found.reserve(requests.size());
  size_t next = 0;
  for (const LoadRequest& request : requests) {
    if (next >= tensors.size() || tensors[next].fqn != request.fqn) {
      const TensorInfo* const named = FindByName(tensors, request.fqn);
      if (named == nullptr) return std::nullopt;
      next = static_cast<size_t>(named - tensors.data());
    }
    found.push_back(&tensors[next++]);
  }
  return found;
}

// Returns how the elements of a tensor become those of the target.
RegionElement ElementOf(const TensorInfo& tensor, const TensorTarget& target) {
  return {schema::ElementBytes(tensor.dtype), FindElementCast(tensor.dtype, target.dtype),
          schema::ElementBytes(target.dtype)};
}

bool IsSame(const TensorInfo& alias, const TensorInfo& owner) {
  return alias.dtype == owner.dtype && alias.shape == owner.shape &&
         alias.alias_offset_bytes == 0 && alias.alias_strides == RowMajorStrides(owner.shape);
}

}  // namespace

uint64_t ReadPlan::Want::begin() const {
  return alias_region || request->box.sizes.empty() ? 0 : request->box.offsets.front();
}

uint64_t ReadPlan::Want::end() const {
  return alias_region || request->box.sizes.empty() ? ~uint64_t{0}
                                                    : begin() + request->box.sizes.front();
}

Result<ReadPlan> ReadPlan::Make(const StepView& view, std::span<const LoadRequest> requests,
                                std::span<const TensorInfo> known) {
  ReadPlan plan;
  CAIRN_TRY_ASSIGN(const auto tensors, plan.FindTensors(view, requests, known));
  for (size_t i = 0; i < requests.size(); ++i) CAIRN_TRY(CheckRequest(requests[i], *tensors[i]));
  CAIRN_TRY(plan.FindOwners(view, tensors));
  plan.wants_.reserve(requests.size());
  size_t owner = 0;
  for (size_t i = 0; i < requests.size(); ++i, ++owner) {
    const TensorInfo& tensor = *tensors[i];
    if (owner >= plan.owners_.size() || plan.owners_[owner] != &tensor) {
      const std::string& name = tensor.alias_of ? *tensor.alias_of : tensor.fqn;
      const auto found = std::ranges::lower_bound(plan.owners_, name, {}, &TensorInfo::fqn);
      owner = static_cast<size_t>(found - plan.owners_.begin());
    }
    CAIRN_TRY(plan.AddWant(requests[i], tensor, owner));
  }
  const auto position = [](const Want& want) {
    return std::tuple(want.owner, want.alias_region == nullptr, want.begin());
  };
  if (!std::ranges::is_sorted(plan.wants_, {}, position)) {
    std::ranges::stable_sort(plan.wants_, {}, position);
  }
  plan.begins_.resize(plan.owners_.size() + 1);
  for (const Want& want : plan.wants_) ++plan.begins_[want.owner + 1];
  std::partial_sum(plan.begins_.begin(), plan.begins_.end(), plan.begins_.begin());
  return plan;
}

Result<std::vector<const TensorInfo*>> ReadPlan::FindTensors(const StepView& view,
                                                             std::span<const LoadRequest> requests,
                                                             std::span<const TensorInfo> known) {
  if (auto tensors = FindAll(requests, known)) return *std::move(tensors);
  std::vector<std::string_view> fqns;
  fqns.reserve(requests.size());
  for (const LoadRequest& request : requests) fqns.push_back(request.fqn);
  CAIRN_TRY_ASSIGN(found_, FindNamed(view, std::move(fqns)));
  return *FindAll(requests, found_);
}

Result<void> ReadPlan::FindOwners(const StepView& view,
                                  std::span<const TensorInfo* const> tensors) {
  owners_.assign(tensors.begin(), tensors.end());
  // All are in one array, in key order.
  if (std::ranges::adjacent_find(owners_, std::greater_equal<>()) != owners_.end()) {
    std::ranges::sort(owners_);
    owners_.erase(std::ranges::unique(owners_).begin(), owners_.end());
  }
  if (std::ranges::none_of(owners_,
                           [](const TensorInfo* tensor) { return tensor->alias_of.has_value(); })) {
    return {};
  }
  std::vector<TensorInfo> requested;
  for (const TensorInfo* const tensor : owners_) requested.push_back(*tensor);
  CAIRN_TRY_ASSIGN(found_owners_, internal::FindOwners(view, requested));
  owners_.clear();
  for (const TensorInfo& owner : found_owners_) owners_.push_back(&owner);
  next_offset_bytes_.resize(owners_.size());
  return {};
}

Result<void> ReadPlan::AddWant(const LoadRequest& request, const TensorInfo& tensor, size_t owner) {
  uint64_t length_bytes = tensor.nbytes;
  if (request.box.sizes != tensor.shape) {
    CAIRN_TRY_ASSIGN(length_bytes, TensorBytes(tensor.dtype, request.box.sizes));
  }
  if (length_bytes == 0) return {};
  Want& want = wants_.emplace_back(&request, owner);
  if (tensor.alias_of) {
    CAIRN_TRY(CheckAlias(tensor, *owners_[owner]));
    // An alias of its complete owner is read as the owner, whatever the boxes of the chunks are.
    if (!IsSame(tensor, *owners_[owner])) {
      want.alias_region = std::make_unique<const StridedRegion>(
          AliasRegion(request, tensor, ElementOf(tensor, request.target)));
    }
  }
  total_bytes_ += length_bytes;
  return {};
}

Result<void> ReadPlan::AddReads(const StepView& view, ChunkReader& reader) {
  return ForEachChunkOf(view, std::span<const TensorInfo* const>(owners_),
                        [&](size_t i, const ChunkInfo& chunk) { return Visit(i, chunk, reader); });
}

Result<void> ReadPlan::Visit(size_t i, const ChunkInfo& chunk, ChunkReader& reader) {
  const TensorInfo& owner = *owners_[i];
  const size_t end = begins_[i + 1];
  const uint64_t first_index = chunk.box.offsets.empty() ? 0 : chunk.box.offsets.front();
  const uint64_t end_index = chunk.box.sizes.empty() ? 1 : first_index + chunk.box.sizes.front();
  // Chunks in key order never go back in the first dimension.
  while (begins_[i] < end && wants_[begins_[i]].end() <= first_index) ++begins_[i];
  CAIRN_TRY(VisitAliases(i, chunk, reader));
  for (size_t w = begins_[i]; w < end && wants_[w].begin() < end_index; ++w) {
    const Want& want = wants_[w];
    if (want.alias_region || !Overlaps(chunk.box, want.request->box)) continue;
    const TensorTarget& target = want.request->target;
    // A small tensor is one chunk, and there may be very many of them.
    if (target.dtype == owner.dtype && chunk.box == want.request->box &&
        IsContiguous(target.shape, target.strides)) {
      CAIRN_TRY(reader.AddWhole(owner.fqn, chunk, target.data));
    } else {
      CAIRN_TRY(
          reader.Add(owner.fqn, chunk, BoxRegion(*want.request, chunk, ElementOf(owner, target))));
    }
  }
  return {};
}

Result<void> ReadPlan::VisitAliases(size_t i, const ChunkInfo& chunk, ChunkReader& reader) {
  const TensorInfo& owner = *owners_[i];
  const auto wants = std::span(wants_).subspan(begins_[i], begins_[i + 1] - begins_[i]);
  if (wants.empty() || !wants.front().alias_region) return {};
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
  for (const Want& want : wants) {
    if (!want.alias_region) break;
    CAIRN_TRY(
        reader.Add(owner.fqn, chunk, want.alias_region->ShiftedBy(static_cast<int64_t>(*offset))));
  }
  return {};
}

}  // namespace cairn::core::internal
