#pragma once
/// Parts of a step as the pickles that torch.save makes of them, which weights_only takes.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/step/contents.h"


namespace cairn::core::internal {

/// Deeper than any state that is saved from Python; a damaged store must not exhaust the stack.
inline constexpr uint32_t kMostTreeDepth = 1000;

struct TorchPickle {
  std::string pickle;
  std::vector<TensorInfo> storages;  // whose row-major bytes are storage 0, 1, ...
};

struct TorchCounts {
  uint64_t tensors = 0;
  uint64_t bytes = 0;  // of storages
  uint64_t values = 0;
  uint64_t arrays = 0;  // numpy arrays and scalars, which became tensors
};

/// Ownership: borrows the contents. Threads: one.
class TorchPickler {
 public:
  /// Errors: as FlattenTree.
  static Result<TorchPickler> Make(const Contents& contents);

  /// Node `node` of the tree and all below it; tensors that share memory share their storage.
  /// kInvalidArgument: a pickled object or an int of more than 255 bytes, which weights_only does
  /// not take; names the key. kDataLoss: the step contradicts itself.
  Result<TorchPickle> Object(uint32_t node);
  /// The same of a tensor that gets a storage of its own: what it has as its own elements only.
  Result<TorchPickle> TensorAlone(uint32_t node);

  /// Of all that was pickled so far.
  const TorchCounts& counts() const { return counts_; }

 private:
  class Run;
  explicit TorchPickler(const Contents& contents) : contents_(contents) {}
  void FindMixedOwners();

  const Contents& contents_;
  std::vector<Leaf> leaves_;
  // Of all views of a storage, by FQN of its owner. Unknown if they differ: then it is untyped, for
  // torch refuses two types of one storage.
  std::map<std::string, DType> dtype_of_;
  TorchCounts counts_;
};

}  // namespace cairn::core::internal
