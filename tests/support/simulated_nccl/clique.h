#pragma once
/// The ranks of one communicator, where their operations meet.

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

enum class OperationKind { kSend, kReceive, kBroadcast, kAllGather, kAllReduce };

/// What one rank asks for.
struct Operation {
  OperationKind kind = OperationKind::kSend;
  const void* source = nullptr;
  void* target = nullptr;
  uint64_t count = 0;  // elements given by this rank; for a broadcast, of the root
  ncclDataType_t type = ncclUint8;
  int peer = 0;  // or the root
  ncclRedOp_t reduction = ncclSum;
  // Where the simulation reads and writes; set when the operation runs.
  const std::byte* read = nullptr;
  std::byte* write = nullptr;
};

/// A rank's operations of one group. They proceed together.
struct Batch {
  int rank = 0;
  std::vector<Operation> operations;
  uint64_t undone_count = 0;
  bool mismatched = false;  // with what a peer asked for: never done
};

/// Threads: any, one lock inside, under which bytes are moved too.
class Clique {
 public:
  explicit Clique(int size) : size_(size), collectives_posted_(size, 0) {}

  int size() const { return size_; }

  /// A rank is there, on that device. False: it was already.
  bool Arrive(int rank, int device);
  bool Complete() const;
  /// Two of the ranks that are there have one device.
  bool SharesDevices() const;

  /// Posts what the batch holds and waits until all of it is done, or `ended()`, which is asked
  /// every few milliseconds and after Wake. What is not done by then is taken back.
  void Run(const std::shared_ptr<Batch>& batch, const std::function<bool()>& ended);

  /// `look()`, under the lock: for what batches and splits say.
  template <class Look>
  auto Locked(Look&& look) const {
    const std::lock_guard lock(mutex_);
    return look();
  }

  /// Waits for a change, or a few milliseconds.
  void WaitForChange();
  void Wake();

  /// What `rank` says at its next split. The result is complete when all ranks have said theirs.
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
