// Matching sends with receives and collectives with each other.
//
// 1. Sends and receives of a pair of ranks match in the order in which they run.
// 2. The n-th collective of each rank matches the n-th of the others.
// 3. The thread that completes a match copies the bytes while it holds the lock. So the memory of
//    an operation is not accessed after it was withdrawn.
// 4. Operations that do not match (sizes, kinds, roots) are never done: their ranks report an error
//    and wait for an abort.
#include "tests/support/simulated_nccl/clique.h"

#include <algorithm>
#include <chrono>
#include <cstring>

namespace cairn::simulated_nccl {
namespace {

constexpr auto kPoll = std::chrono::milliseconds(2);  // the loss of a device is not signalled

void Move(std::byte* target, const std::byte* source, uint64_t bytes) {
  if (bytes > 0) std::memmove(target, source, bytes);
}

bool AreAlike(const Operation& a, const Operation& b) {
  return a.kind == b.kind && a.bytes == b.bytes && a.peer == b.peer;
}

}  // namespace

bool Clique::Arrive(int rank, int device) {
  const std::lock_guard lock(mutex_);
  const bool is_new = arrived_.emplace(rank, device).second;
  changed_.notify_all();
  return is_new;
}

bool Clique::Complete() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int>(arrived_.size()) == size_;
}

bool Clique::SharesDevices() const {
  const std::lock_guard lock(mutex_);
  std::set<int> devices;
  for (const auto& [rank, device] : arrived_) devices.insert(device);
  return devices.size() < arrived_.size();
}

void Clique::Run(const std::shared_ptr<Batch>& batch, const std::function<bool()>& ended) {
  std::unique_lock lock(mutex_);
  batch->undone_count = batch->operations.size();
  for (size_t i = 0; i < batch->operations.size(); ++i) {
    const OperationKind kind = batch->operations[i].kind;
    const bool is_transfer = kind == OperationKind::kSend || kind == OperationKind::kReceive;
    is_transfer ? PostTransfer({batch, i}) : PostCollective({batch, i});
  }
  changed_.notify_all();
  while (batch->undone_count > 0 && !ended()) changed_.wait_for(lock, kPoll);
  if (batch->undone_count > 0) TakeBack(*batch);
}

void Clique::WaitForChange() {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, kPoll);
}

void Clique::Wake() {
  const std::lock_guard lock(mutex_);
  changed_.notify_all();
}

void Clique::PostTransfer(const Post& post) {
  const Operation& operation = post.operation();
  const bool sends = operation.kind == OperationKind::kSend;
  Channel& channel = channels_[sends ? std::pair(post.batch->rank, operation.peer)
                                     : std::pair(operation.peer, post.batch->rank)];
  (sends ? channel.sends : channel.receives).push_back(post);
  while (!channel.sends.empty() && !channel.receives.empty()) {
    const Post send = channel.sends.front();
    const Post receive = channel.receives.front();
    channel.sends.pop_front();
    channel.receives.pop_front();
    if (send.operation().bytes != receive.operation().bytes) {
      send.batch->mismatched = receive.batch->mismatched = true;
      continue;
    }
    Move(receive.operation().write, send.operation().read, send.operation().bytes);
    --send.batch->undone_count;
    --receive.batch->undone_count;
  }
}

void Clique::PostCollective(const Post& post) {
  const int rank = post.batch->rank;
  const uint64_t number = collectives_posted_[rank]++;
  std::map<int, Post>& posts = collectives_[number];
  posts.emplace(rank, post);
  if (static_cast<int>(posts.size()) < size_) return;
  bool alike = true;
  for (const auto& [other, other_post] : posts) {
    alike = alike && AreAlike(other_post.operation(), post.operation());
  }
  if (alike) {
    FinishCollective(posts);
  } else {
    for (const auto& [other, other_post] : posts) other_post.batch->mismatched = true;
  }
  collectives_.erase(number);
}

void Clique::FinishCollective(const std::map<int, Post>& posts) {
  const Operation& any = posts.begin()->second.operation();
  // Reads all sources first, because targets may be sources.
  std::vector<std::byte> result;
  if (any.kind == OperationKind::kBroadcast) {
    const Operation& root = posts.at(any.peer).operation();
    result.assign(root.read, root.read + any.bytes);
  } else {
    result.resize(any.bytes);
    for (const auto& [rank, post] : posts) {
      const std::byte* const given = post.operation().read;
      for (uint64_t i = 0; i < any.bytes; ++i) result[i] = std::max(result[i], given[i]);
    }
  }
  for (const auto& [rank, post] : posts) {
    Move(post.operation().write, result.data(), result.size());
    --post.batch->undone_count;
  }
}

void Clique::TakeBack(const Batch& batch) {
  const auto is_mine = [&](const Post& post) { return post.batch.get() == &batch; };
  for (auto& [ranks, channel] : channels_) {
    std::erase_if(channel.sends, is_mine);
    std::erase_if(channel.receives, is_mine);
  }
  for (auto& [number, posts] : collectives_) {
    std::erase_if(posts, [&](const auto& entry) { return is_mine(entry.second); });
  }
}

int Clique::Split::RankInPart(int rank) const {
  const auto [color, key] = color_and_key.at(rank);
  int before_count = 0;
  for (const auto& [other, other_entry] : color_and_key) {
    if (other_entry.first != color) continue;
    if (std::pair(other_entry.second, other) < std::pair(key, rank)) ++before_count;
  }
  return before_count;
}

std::shared_ptr<Clique::Split> Clique::JoinSplit(int rank, int color, int key) {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<Split>& split = splits_[splits_joined_[rank]++];
  if (!split) {
    split = std::make_shared<Split>();
    split->rank_count = size_;
  }
  split->color_and_key[rank] = {color, key};
  if (split->complete()) {
    std::map<int, int> sizes;
    for (const auto& [member, entry] : split->color_and_key) ++sizes[entry.first];
    for (const auto& [part_color, size] : sizes) {
      split->parts[part_color] = std::make_shared<Clique>(size);
    }
  }
  changed_.notify_all();
  return split;
}

}  // namespace cairn::simulated_nccl
