#include "core/ranks/local_communicator.h"

#include <algorithm>

#include "core/ranks/communicator_arguments.h"

namespace cairn::core {

Result<void> LocalCommunicator::Broadcast(ByteTarget, int root) {
  return CheckRoot("Broadcast", root, 1);
}

Result<void> LocalCommunicator::Gather(ByteView mine, std::span<const ByteTarget> all, int root) {
  CAIRN_TRY(CheckRoot("Gather", root, 1));
  CAIRN_TRY(CheckRanges("Gather", all, 0, 1, mine.size()));
  std::ranges::copy(mine, all[0].begin());
  return {};
}

Result<void> LocalCommunicator::AllGather(ByteView mine, std::span<const ByteTarget> all) {
  CAIRN_TRY(CheckRanges("AllGather", all, 0, 1, mine.size()));
  std::ranges::copy(mine, all[0].begin());
  return {};
}

Result<void> LocalCommunicator::Scatter(std::span<const ByteView> all, ByteTarget mine, int root) {
  CAIRN_TRY(CheckRoot("Scatter", root, 1));
  CAIRN_TRY(CheckRanges("Scatter", all, 0, 1, mine.size()));
  std::ranges::copy(all[0], mine.begin());
  return {};
}

Result<void> LocalCommunicator::AllToAll(std::span<const ByteView> sent,
                                         std::span<const ByteTarget> received) {
  CAIRN_TRY(CheckAllToAll(sent, received, 0, 1));
  std::ranges::copy(sent[0], received[0].begin());
  return {};
}

Result<std::unique_ptr<Communicator>> LocalCommunicator::Split(uint32_t, uint32_t) {
  return std::make_unique<LocalCommunicator>();
}

}  // namespace cairn::core
