#pragma once
/// Writes parts of a step as the pickles that torch.save would write, restricted to what
/// torch.load(weights_only=True) accepts.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/step/contents.h"

namespace cairn::core::internal {

/// The limit on the depth of a step's structure. States that are saved from Python are not as deep;
/// a damaged store must not exhaust the stack.
inline constexpr uint32_t kMaxTreeDepth = 1000;

struct TorchPickle {
  std::string pickle;
  std::vector<TensorInfo> storages;  // tensors whose row-major bytes are storage 0, 1, ...
};

struct TorchCounts {
  uint64_t tensors = 0;
  uint64_t bytes = 0;  // of storages
  uint64_t values = 0;
  uint64_t arrays = 0;  // numpy arrays and scalars, which became tensors
};

/// Pickles nodes of one step. Ownership: borrows the contents. Threads: one.
class TorchPickler {
 public:
  /// Requires contents with tensors and values in key order, as List returns them. kDataLoss: child
  /// counts do not add up.
  static Result<TorchPickler> Make(const Contents& contents);

  /// Pickles node `node` of the tree with everything below it; tensors that share memory share a
  /// storage. kInvalidArgument: weights_only does not accept a pickled object, an int of more than
  /// 255 bytes or a text that is not UTF-8; the error names the key where there is one. kDataLoss:
  /// the step is inconsistent.
  Result<TorchPickle> PickleNode(uint32_t node);
  /// Pickles the tensor `node` with a storage that contains only the tensor's own elements, even if
  /// it shares memory with other tensors. Has the errors of PickleNode.
  Result<TorchPickle> PickleTensor(uint32_t node);

  /// Counts of everything that was pickled so far.
  const TorchCounts& counts() const { return counts_; }

 private:
  class ObjectPickler;
  explicit TorchPickler(const Contents& contents) : contents_(contents) {}
  void FindMixedOwners();

  const Contents& contents_;
  std::vector<Leaf> leaves_;
  // The dtype that all views of a storage have, by FQN of the storage's owner. Unknown if they
  // differ: the storage is then untyped, because torch refuses two types for one storage.
  std::map<std::string, DType> dtype_of_;
  TorchCounts counts_;
};

}  // namespace cairn::core::internal
