#include "core/ranks/gather_v.h"

#include <fmt/format.h>

#include <algorithm>
#include <new>

#include "core/ranks/gather_values.h"

namespace cairn::core {
namespace {

Result<void> CheckTotal(std::span<const uint64_t> lengths, uint64_t max_bytes) {
  uint64_t left_bytes = max_bytes;
  for (size_t i = 0; i < lengths.size(); ++i) {
    if (lengths[i] > left_bytes) {
      return Fail(ErrorCode::kInvalidArgument,
                  fmt::format("rank {} gives {} bytes, of which {} are left below the limit of {}",
                              i, lengths[i], left_bytes, max_bytes));
    }
    left_bytes -= lengths[i];
  }
  return {};
}

Result<ByteVector> Allocate(uint64_t length_bytes) {
  try {
    return ByteVector(length_bytes);
  } catch (const std::bad_alloc&) {
    return Fail(ErrorCode::kResourceExhausted,
                fmt::format("not enough memory for {} bytes from other ranks", length_bytes));
  }
}

}  // namespace

Result<std::vector<ByteVector>> AllGatherV(Communicator& communicator, ByteView mine,
                                           uint64_t max_bytes) {
  CAIRN_TRY_ASSIGN(const auto lengths, AllGatherValues<uint64_t>(communicator, mine.size()));
  CAIRN_TRY(CheckTotal(lengths, max_bytes));
  std::vector<ByteVector> all;
  for (const uint64_t length : lengths) {
    CAIRN_TRY_ASSIGN(ByteVector bytes, Allocate(length));
    all.push_back(std::move(bytes));
  }
  const std::vector<ByteTarget> targets(all.begin(), all.end());
  CAIRN_TRY(communicator.AllGather(mine, targets));
  return all;
}

Result<ByteVector> BroadcastV(Communicator& communicator, ByteView bytes, int root,
                              uint64_t max_bytes) {
  uint64_t length = communicator.rank() == root ? bytes.size() : 0;
  CAIRN_TRY(communicator.Broadcast(std::as_writable_bytes(std::span(&length, 1)), root));
  if (length > max_bytes) {
    return Fail(
        ErrorCode::kInvalidArgument,
        fmt::format("rank {} broadcasts {} bytes, the limit is {}", root, length, max_bytes));
  }
  CAIRN_TRY_ASSIGN(ByteVector copy, Allocate(length));
  if (communicator.rank() == root) std::ranges::copy(bytes, copy.begin());
  CAIRN_TRY(communicator.Broadcast(copy, root));
  return copy;
}

Result<std::unique_ptr<Communicator>> SplitAlong(Communicator& communicator, const DeviceMesh& mesh,
                                                 std::span<const size_t> along) {
  // A mesh has no rank twice. If it has as many as the communicator, and none is too large, they
  // are all ranks.
  const auto world_size = static_cast<uint32_t>(communicator.world_size());
  const auto highest = std::ranges::max(mesh.ranks());
  if (mesh.size() != world_size || highest >= world_size) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("a mesh of {} ranks up to {} does not match the communicator's {}",
                            mesh.size(), highest, world_size));
  }
  for (const size_t dim : along) {
    if (dim >= mesh.dims().size()) {
      return Fail(
          ErrorCode::kInvalidArgument,
          fmt::format("the mesh has {} dimensions, none numbered {}", mesh.dims().size(), dim));
    }
  }
  const auto rank = static_cast<uint32_t>(communicator.rank());
  const std::vector<uint32_t> group = mesh.GroupOf(rank, along);
  const auto place = std::ranges::find(group, rank) - group.begin();
  return communicator.Split(group.front(), static_cast<uint32_t>(place));
}

}  // namespace cairn::core
