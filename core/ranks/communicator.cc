// Checks arguments, and reduces four collectives to one exchange.

#include "core/ranks/communicator.h"

#include <fmt/format.h>

#include <algorithm>

namespace cairn::core {
namespace {

size_t Index(int rank) { return static_cast<size_t>(rank); }

Result<void> CheckCount(const Communicator& communicator, Communicator::Operation operation,
                        size_t count) {
  if (count == Index(communicator.world_size())) return {};
  return Fail(ErrorCode::kInvalidArgument,
              fmt::format("{}: {} ranges were given for {} ranks", OperationName(operation), count,
                          communicator.world_size()));
}

/// kInvalidArgument: there is not one range per rank, or the range of this rank, which is copied to
/// or from a range of `own_bytes`, has another length.
template <typename Range>
Result<void> CheckRanges(const Communicator& communicator, Communicator::Operation operation,
                         std::span<const Range> ranges, uint64_t own_bytes) {
  CAIRN_TRY(CheckCount(communicator, operation, ranges.size()));
  const uint64_t other_bytes = ranges[Index(communicator.rank())].size();
  if (other_bytes == own_bytes) return {};
  return Fail(ErrorCode::kInvalidArgument,
              fmt::format("{}: the two ranges of rank {} for itself have {} and {} bytes",
                          OperationName(operation), communicator.rank(), own_bytes, other_bytes));
}

/// Returns `range` for one rank and empty ranges for all others.
template <typename Range>
std::vector<Range> Only(int rank, Range range, int world_size) {
  std::vector<Range> ranges(Index(world_size));
  ranges[Index(rank)] = range;
  return ranges;
}

}  // namespace

const char* OperationName(Communicator::Operation operation) {
  constexpr const char* kNames[] = {"Barrier",   "Broadcast", "Gather",
                                    "AllGather", "Scatter",   "AllToAll"};
  return kNames[static_cast<size_t>(operation)];
}

std::vector<int> RanksOfColor(std::span<const SplitChoice> choices, uint32_t color) {
  std::vector<int> ranks;
  for (size_t i = 0; i < choices.size(); ++i) {
    if (choices[i].color == color) ranks.push_back(static_cast<int>(i));
  }
  std::ranges::stable_sort(ranks, {}, [&](int rank) { return choices[Index(rank)].key; });
  return ranks;
}

Result<void> Communicator::CheckRoot(Operation operation, int root) const {
  if (root >= 0 && root < world_size()) return {};
  return Fail(ErrorCode::kInvalidArgument,
              fmt::format("{}: root {} is not one of {} ranks", OperationName(operation), root,
                          world_size()));
}

Result<void> Communicator::Gather(ByteView mine, std::span<const ByteTarget> all, int root) {
  CAIRN_TRY(CheckRoot(Operation::kGather, root));
  const std::vector<ByteView> sent = Only(root, mine, world_size());
  const std::vector<ByteTarget> none(Index(world_size()));
  if (rank() != root) return Exchange(Operation::kGather, sent, none);
  CAIRN_TRY(CheckRanges(*this, Operation::kGather, all, mine.size()));
  return Exchange(Operation::kGather, sent, all);
}

Result<void> Communicator::AllGather(ByteView mine, std::span<const ByteTarget> all) {
  CAIRN_TRY(CheckRanges(*this, Operation::kAllGather, all, mine.size()));
  return Exchange(Operation::kAllGather, std::vector<ByteView>(all.size(), mine), all);
}

Result<void> Communicator::Scatter(std::span<const ByteView> all, ByteTarget mine, int root) {
  CAIRN_TRY(CheckRoot(Operation::kScatter, root));
  const std::vector<ByteTarget> received = Only(root, mine, world_size());
  const std::vector<ByteView> none(Index(world_size()));
  if (rank() != root) return Exchange(Operation::kScatter, none, received);
  CAIRN_TRY(CheckRanges(*this, Operation::kScatter, all, mine.size()));
  return Exchange(Operation::kScatter, all, received);
}

Result<void> Communicator::AllToAll(std::span<const ByteView> sent,
                                    std::span<const ByteTarget> received) {
  CAIRN_TRY(CheckCount(*this, Operation::kAllToAll, received.size()));
  CAIRN_TRY(CheckRanges(*this, Operation::kAllToAll, sent, received[Index(rank())].size()));
  return Exchange(Operation::kAllToAll, sent, received);
}

Error Communicator::Broken(std::string_view call, Error error) {
  error.message = fmt::format("{}, rank {} of {}: {}", call, rank(), world_size(), error.message);
  broken_by_ = error.message;
  return error;
}

Result<void> Communicator::CheckUsable() const {
  if (!is_broken()) return {};
  return Fail(ErrorCode::kFailedPrecondition,
              fmt::format("rank {}: the communicator broke earlier: {}", rank(), broken_by_));
}

}  // namespace cairn::core
