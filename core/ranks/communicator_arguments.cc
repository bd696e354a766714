#include "core/ranks/communicator_arguments.h"

#include <fmt/format.h>

namespace cairn::core {
namespace {

Result<void> CheckCount(const char* operation, size_t count, int world_size) {
  if (count == static_cast<size_t>(world_size)) return {};
  return Fail(ErrorCode::kInvalidArgument,
              fmt::format("{}: {} ranges were given for {} ranks", operation, count, world_size));
}

template <typename Range>
Result<void> CheckRangesOf(const char* operation, std::span<const Range> ranges, int rank,
                           int world_size, uint64_t own_bytes) {
  CAIRN_TRY(CheckCount(operation, ranges.size(), world_size));
  const uint64_t other_bytes = ranges[static_cast<size_t>(rank)].size();
  if (other_bytes != own_bytes) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("{}: the two ranges of rank {} for itself have {} and {} bytes",
                            operation, rank, own_bytes, other_bytes));
  }
  return {};
}

}  // namespace

Result<void> CheckRoot(const char* operation, int root, int world_size) {
  if (root >= 0 && root < world_size) return {};
  return Fail(ErrorCode::kInvalidArgument,
              fmt::format("{}: root {} is not one of {} ranks", operation, root, world_size));
}

Result<void> CheckRanges(const char* operation, std::span<const ByteView> ranges, int rank,
                         int world_size, uint64_t own_bytes) {
  return CheckRangesOf(operation, ranges, rank, world_size, own_bytes);
}

Result<void> CheckRanges(const char* operation, std::span<const ByteTarget> ranges, int rank,
                         int world_size, uint64_t own_bytes) {
  return CheckRangesOf(operation, ranges, rank, world_size, own_bytes);
}

Result<void> CheckAllToAll(std::span<const ByteView> sent, std::span<const ByteTarget> received,
                           int rank, int world_size) {
  CAIRN_TRY(CheckCount("AllToAll", received.size(), world_size));
  return CheckRanges("AllToAll", sent, rank, world_size,
                     received[static_cast<size_t>(rank)].size());
}

}  // namespace cairn::core
