#pragma once
/// The ranks of one communicator, and the matching of their operations.

#include <nccl.h>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

namespace cairn::simulated_nccl {

enum class OperationKind { kSend, kReceive, kBroadcast, kAllReduce };

/// One operation of one rank, on bytes. A reduction is the largest value.
struct Operation {
  OperationKind kind = OperationKind::kSend;
  const void* source = nullptr;
  void* target = nullptr;
  uint64_t bytes = 0;
  int peer = 0;  // or the root
  // The addresses that the simulation accesses; set when the operation runs.
  const std::byte* read = nullptr;
  std::byte* write = nullptr;
};

/// A rank's operations of one group. They proceed together.
struct Batch {
  int rank = 0;
  std::vector<Operation> operations;
  uint64_t undone_count = 0;
  bool mismatched = false;  // does not match the operation of a peer: never done
};

/// Threads: all members are safe. Bytes are copied while the lock is held.
class Clique {
 public:
  explicit Clique(int size) : size_(size), collectives_posted_(size, 0) {}

  int size() const { return size_; }

  /// Adds a rank, on that device. Returns false if it was added already.
  bool Arrive(int rank, int device);
  bool Complete() const;
  /// Returns true if two of the added ranks have the same device.
  bool SharesDevices() const;

  /// Posts the operations of the batch and waits until all are done or `ended()` returns true,
  /// which is called every few milliseconds and after Wake. Operations that are not done by then
  /// are withdrawn.
  void Run(const std::shared_ptr<Batch>& batch, const std::function<bool()>& ended);

  /// Returns `look()`, called with the lock held: it may read batches and splits.
  template <class Look>
  auto Locked(Look&& look) const {
    const std::lock_guard lock(mutex_);
    return look();
  }

  /// Waits for a change, or a few milliseconds.
  void WaitForChange();
  void Wake();

  /// Joins the next split of `rank`. The result is complete when all ranks have joined.
  struct Split {
    std::map<int, std::pair<int, int>> color_and_key;  // by rank
    std::map<int, std::shared_ptr<Clique>> parts;      // by color, when all are there
    int rank_count = 0;
    bool complete() const { return static_cast<int>(color_and_key.size()) == rank_count; }
    /// The rank within its part.
    int RankInPart(int rank) const;
  };
  std::shared_ptr<Split> JoinSplit(int rank, int color, int key);

 private:
  struct Post {
    std::shared_ptr<Batch> batch;
    size_t index = 0;
    Operation& operation() const { return batch->operations[index]; }
  };
  struct Channel {  // from one rank to another
    std::deque<Post> sends;
    std::deque<Post> receives;
  };

  // All of these require the lock.
  void PostTransfer(const Post& post);
  void PostCollective(const Post& post);
  void FinishCollective(const std::map<int, Post>& posts);
  void TakeBack(const Batch& batch);

  const int size_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<int, int> arrived_;                           // devices, by rank
  std::map<std::pair<int, int>, Channel> channels_;      // by sender and receiver
  std::vector<uint64_t> collectives_posted_;             // by rank
  std::map<uint64_t, std::map<int, Post>> collectives_;  // by number, then rank
  std::map<int, uint64_t> splits_joined_;                // by rank
  std::map<uint64_t, std::shared_ptr<Split>> splits_;    // by number
};

}  // namespace cairn::simulated_nccl
