#include "core/load/internal/read_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <tuple>
#include <utility>

namespace cairn::core::internal {
namespace {

std::unexpected<Error> Invalid(const LoadRequest& request, std::string message) {
  return Fail(Error{
      .code = ErrorCode::kInvalidArgument, .message = std::move(message), .key = request.fqn});
}

Result<void> CheckDType(const LoadRequest& request, const TensorEntry& tensor) {
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
  return {};
}

std::vector<uint64_t> TargetStridesBytes(const TensorTarget& target) {
  return InBytes(target.strides.empty() ? RowMajorStrides(target.shape) : target.strides,
                 schema::ElementBytes(target.dtype));
}

Result<void> CheckRequest(const LoadRequest& request, const TensorEntry& tensor) {
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

// Returns how the elements of a tensor become those of the target.
RegionElement ElementOf(DType stored, const TensorTarget& target) {
  return {schema::ElementBytes(stored), FindElementCast(stored, target.dtype),
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
  CAIRN_TRY(plan.FindTensors(view, requests, known));
  size_t tensor = 0;
  for (const LoadRequest& request : requests) {
    tensor = plan.IndexOf(request.fqn, tensor);
    CAIRN_TRY(CheckRequest(request, plan.owners_[tensor++]));
  }
  if (!plan.aliases_.empty()) CAIRN_TRY(plan.FindOwners(view));
  plan.wants_.reserve(requests.size());
  size_t owner = 0;
  for (const LoadRequest& request : requests) {
    const TensorInfo* const alias = FindByName(plan.aliases_, request.fqn);
    owner = plan.IndexOf(alias == nullptr ? request.fqn : *alias->alias_of, owner);
    CAIRN_TRY(plan.AddWant(request, owner++));
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

Result<void> ReadPlan::FindTensors(const StepView& view, std::span<const LoadRequest> requests,
                                   std::span<const TensorInfo> known) {
  std::vector<std::string_view> fqns;
  fqns.reserve(requests.size());
  for (const LoadRequest& request : requests) fqns.push_back(request.fqn);
  SortUnique(fqns);
  owners_.reserve(fqns.size());
  for (size_t i = 0, next = 0; i < fqns.size(); ++i, ++next) {
    if (next >= known.size() || known[next].fqn != fqns[i]) {
      const TensorInfo* const named = FindByName(known, fqns[i]);
      if (named == nullptr) break;
      next = static_cast<size_t>(named - known.data());
    }
    owners_.push_back(EntryOf(known[next]));
    if (known[next].alias_of) aliases_.push_back(known[next]);
  }
  if (owners_.size() == fqns.size()) return {};
  owners_.clear();
  aliases_.clear();
  return ForEachTensor(view, fqns, [&](size_t i, TensorInfo&& tensor) -> Result<void> {
    TensorEntry& entry = owners_.emplace_back(EntryOf(tensor));
    entry.fqn = fqns[i];
    // Nearly always, a request has the shape, so that no memory is necessary for it.
    const bool is_request = fqns[i].data() == requests[i].fqn.data();
    if (is_request && requests[i].box.sizes == tensor.shape) {
      entry.shape = requests[i].box.sizes;
    } else {
      entry.shape = shapes_.emplace_back(tensor.shape);
    }
    if (tensor.alias_of) aliases_.push_back(std::move(tensor));
    return {};
  });
}

Result<void> ReadPlan::FindOwners(const StepView& view) {
  CAIRN_TRY_ASSIGN(alias_owners_, internal::FindOwners(view, aliases_));
  std::erase_if(owners_, [&](const TensorEntry& tensor) {
    return tensor.alias != nullptr || FindByName(alias_owners_, tensor.fqn) != nullptr;
  });
  for (const TensorInfo& owner : alias_owners_) owners_.push_back(EntryOf(owner));
  std::ranges::sort(owners_, {}, &TensorEntry::fqn);
  next_offset_bytes_.resize(owners_.size());
  return {};
}

size_t ReadPlan::IndexOf(std::string_view fqn, size_t hint) const {
  if (hint < owners_.size() && owners_[hint].fqn == fqn) return hint;
  const auto found = std::ranges::lower_bound(owners_, fqn, {}, &TensorEntry::fqn);
  return static_cast<size_t>(found - owners_.begin());
}

Result<void> ReadPlan::AddWant(const LoadRequest& request, size_t owner) {
  const TensorInfo* const alias = FindByName(aliases_, request.fqn);
  const DType dtype = alias == nullptr ? owners_[owner].dtype : alias->dtype;
  uint64_t length_bytes = owners_[owner].nbytes;
  if (alias != nullptr || !std::ranges::equal(request.box.sizes, owners_[owner].shape)) {
    CAIRN_TRY_ASSIGN(length_bytes, TensorBytes(dtype, request.box.sizes));
  }
  if (length_bytes == 0) return {};
  Want& want = wants_.emplace_back(&request, owner);
  if (alias != nullptr) {
    const TensorInfo& holder = ByName(alias_owners_, *alias->alias_of);
    CAIRN_TRY(CheckAlias(*alias, holder));
    // An alias of its complete owner is read as the owner, whatever the boxes of the chunks are.
    if (!IsSame(*alias, holder)) {
      const RegionElement element = ElementOf(dtype, request.target);
      if (element.cast != nullptr && alias->alias_offset_bytes % element.bytes != 0) {
        return Invalid(request,
                       "the tensor is an alias that does not begin at an element of its owner; "
                       "load it in its own dtype");
      }
      want.alias_region =
          std::make_unique<const StridedRegion>(AliasRegion(request, *alias, element));
    }
  }
  total_bytes_ += length_bytes;
  return {};
}

Result<void> ReadPlan::AddReads(const StepView& view, ChunkReader& reader) {
  return ForEachChunkOf(view, std::span<const TensorEntry>(owners_),
                        [&](size_t i, const ChunkInfo& chunk) { return Visit(i, chunk, reader); });
}

const std::string& ReadPlan::NameOf(const Want& want) const {
  const TensorInfo* const owner = FindByName(alias_owners_, owners_[want.owner].fqn);
  return owner == nullptr ? want.request->fqn : owner->fqn;
}

Result<void> ReadPlan::Visit(size_t i, const ChunkInfo& chunk, ChunkReader& reader) {
  const TensorEntry& owner = owners_[i];
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
      CAIRN_TRY(reader.AddWhole(NameOf(want), chunk, target.data));
    } else {
      CAIRN_TRY(reader.Add(NameOf(want), chunk,
                           BoxRegion(*want.request, chunk, ElementOf(owner.dtype, target))));
    }
  }
  return {};
}

Result<void> ReadPlan::VisitAliases(size_t i, const ChunkInfo& chunk, ChunkReader& reader) {
  const TensorEntry& owner = owners_[i];
  if (next_offset_bytes_.empty()) return {};
  const auto wants = std::span(wants_).subspan(begins_[i], begins_[i + 1] - begins_[i]);
  if (wants.empty() || !wants.front().alias_region) return {};
  // Aliases refer to positions in the row-major payload, so chunks must be consecutive ranges of
  // it.
  const auto offset = ContiguousOffsetBytes(owner.dtype, owner.shape, chunk.box);
  if (offset != next_offset_bytes_[i]) {
    return Fail(Error{.code = ErrorCode::kUnimplemented,
                      .message = "aliases of a tensor that is stored as boxes from different "
                                 "ranks cannot be read yet",
                      .key = std::string(owner.fqn)});
  }
  next_offset_bytes_[i] += chunk.length_bytes();
  for (const Want& want : wants) {
    if (!want.alias_region) break;
    CAIRN_TRY(reader.Add(NameOf(want), chunk,
                         want.alias_region->ShiftedBy(static_cast<int64_t>(*offset))));
  }
  return {};
}

}  // namespace cairn::core::internal
