#include "core/load/internal/group_load.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/ranks/gather_values.h"
#include "core/step/internal/tensor_records.h"
#include "core/tensor/internal/tensor_stream.h"
#include "kv/base/digest.h"

namespace cairn::core::internal {

uint64_t GroupLoad::share_bytes() const {
  uint64_t total_bytes = 0;
  for (const GroupItem& item : items_) total_bytes += item.bytes;
  return total_bytes / place_.size;
}

void GroupLoad::Divide(uint64_t window_count) {
  CAIRN_CHECK(begins_.empty() && window_count > 0);
  uint64_t total_bytes = 0;
  for (const GroupItem& item : items_) total_bytes += item.bytes;
  const uint64_t share_count = window_count * place_.size;
  uint64_t before_bytes = 0;
  for (size_t i = 0; i < items_.size(); ++i) {
    const uint64_t share = ShareOf(before_bytes + items_[i].bytes / 2, total_bytes, share_count);
    while (begins_.size() <= share) begins_.push_back(i);
    before_bytes += items_[i].bytes;
  }
  while (begins_.size() <= share_count) begins_.push_back(items_.size());
}

std::span<const GroupItem> GroupLoad::ShareOfMember(uint64_t window, uint64_t member) const {
  const uint64_t share = window * place_.size + member;
  return std::span(items_).subspan(begins_[share], begins_[share + 1] - begins_[share]);
}

void GroupLoad::AddOwnRequests(uint64_t window, std::vector<LoadRequest>& requests) const {
  for (const GroupItem& item : ShareOfMember(window, place_.index)) {
    requests.push_back({.fqn = *item.fqn, .box = item.box, .target = item.target});
  }
}

Result<void> GroupLoad::CheckAgreed(Communicator& group, const kv::StepInfo& step) const {
  std::string plan = fmt::format("{} {} {}", step.step, step.generation, step.attempt);
  for (const GroupItem& item : items_) {
    plan += fmt::format("|{} {} {} {}", *item.fqn, FormatNumbers(item.box.offsets),
                        FormatNumbers(item.box.sizes), item.bytes);
  }
  const kv::Digest own = kv::PayloadDigest(std::as_bytes(std::span(plan)));
  CAIRN_TRY_ASSIGN(const std::vector<kv::Digest> all, AllGatherValues(group, own));
  if (all.size() == place_.size && static_cast<uint64_t>(group.rank()) == place_.index &&
      std::ranges::count(all, own) == std::ssize(all)) {
    return {};
  }
  return Fail(Error{.code = ErrorCode::kInvalidArgument,
                    .message =
                        "ranks that read for each other request different steps, keys, meshes "
                        "or placements; request the same, or load without read_once",
                    .key = items_.empty() ? std::string() : *items_.front().fqn});
}

void GroupLoad::AddDevices(std::set<int>& devices) const {
  for (const GroupItem& item : items_) {
    if (item.target.device != kHostDevice) devices.insert(item.target.device);
  }
}

Result<void> GroupLoad::Exchange(uint64_t window, Communicator& group, RoundMover& mover,
                                 uint64_t buffer_bytes) const {
  const uint64_t round_bytes = std::max<uint64_t>(buffer_bytes / place_.size, 1);
  TensorStream<TensorView> mine;
  for (const GroupItem& item : ShareOfMember(window, place_.index)) mine.Add(AsView(item.target));
  std::vector<TensorStream<TensorTarget>> shares(place_.size);
  uint64_t longest = 0;
  for (uint64_t member = 0; member < place_.size; ++member) {
    for (const GroupItem& item : ShareOfMember(window, member)) shares[member].Add(item.target);
    longest = std::max(longest, shares[member].length_bytes());
  }
  for (uint64_t at = 0; at < longest; at += round_bytes) {
    const auto count_of = [&](uint64_t member) {
      const uint64_t length = shares[member].length_bytes();
      return std::min(length - std::min(at, length), round_bytes);
    };
    mover.Begin();
    CAIRN_TRY_ASSIGN(const ByteView own, mover.Source(mine, at, count_of(place_.index)));
    std::vector<ByteView> sent(place_.size, own);
    std::vector<ByteTarget> parts(place_.size);
    for (uint64_t member = 0; member < place_.size; ++member) {
      if (member != place_.index)
        parts[member] = mover.Target(shares[member], at, count_of(member));
    }
    sent[place_.index] = {};
    CAIRN_TRY(mover.Packed());
    CAIRN_TRY(group.AllToAll(sent, parts));
    CAIRN_TRY(mover.Unpack());
  }
  return {};
}

}  // namespace cairn::core::internal
