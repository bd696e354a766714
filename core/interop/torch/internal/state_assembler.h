#pragma once
/// Builds state dicts from the values that torch pickles: containers, tensors, plain values.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/interop/torch/imported_state.h"
#include "core/interop/torch/internal/torch_archive.h"
#include "core/state_dict/state_dict.h"

namespace cairn::core::internal {

/// Key of a child in the form that state dicts have.
struct ChildKey {
  std::string text;
  KeyKind kind = KeyKind::kString;
};

/// Builds one state in preorder. A small pickle can describe a huge state, for example a list that
/// contains the same list a thousand times, and so on; a budget of nodes and text, and a maximal
/// depth, bound the result; so does a budget of bytes for tensors that repeat elements.
///
/// kDataLoss from any function that adds: the values are nested too deeply. kResourceExhausted: the
/// budget is spent. Errors name the key. Threads: one.
class StateAssembler {
 public:
  explicit StateAssembler(bool skip_unknown);
  /// Raises the budget for objects of another pickle, which has `pickle_bytes`.
  void RaiseBudget(uint64_t pickle_bytes);

  /// Begins a container. All values are added to the container that was begun last and has not
  /// ended. The first value is the root, and its key is ignored.
  Result<void> Begin(const ChildKey& key, NodeKind kind);
  /// Requires an open container.
  void End();
  Result<void> AddTensor(const ChildKey& key, TensorView view);
  Result<void> AddSharded(const ChildKey& key, DType dtype, Sharding sharding);
  /// Adds an object of a pickle with everything in it. kUnimplemented: it contains an object of a
  /// class that a state dict cannot hold (with skip_unknown, the object is left out).
  Result<void> AddObject(const ChildKey& key, const TorchArchive& archive, PickleRef object);
  /// Handles a value that cannot be kept: returns `error`, or, if that is kUnimplemented and
  /// skip_unknown is set, adds it to ImportedState::left_out.
  Result<void> AddUnknown(const ChildKey& key, Error error);

  /// Moves the state and the lists of what was left out to `result`. Requires that all containers
  /// have ended.
  Result<void> Finish(ImportedState& result);

 private:
  Result<void> Spend(const ChildKey& key, uint64_t text_bytes);
  std::string PathOf(const ChildKey& key) const;
  void RecordLeaf(bool keep) { keep_.push_back(keep); }

  Result<void> AddCall(const ChildKey& key, const TorchArchive& archive, PickleRef object);
  Result<void> AddPickledTensor(const ChildKey& key, const TorchArchive& archive, PickleRef object);
  Result<void> AddMapping(const ChildKey& key, NodeKind kind, const TorchArchive& archive,
                          std::span<const PickleRef> items);
  Result<void> AddSequence(const ChildKey& key, NodeKind kind, const TorchArchive& archive,
                           std::span<const PickleRef> elements);
  Result<void> AddValue(const ChildKey& key, Value value);
  Result<ChildKey> KeyOf(const PickleTree& pickle, PickleRef ref) const;

  const bool skip_unknown_;
  uint64_t nodes_left_;
  uint64_t text_bytes_left_;
  RepeatedBytes repeated_;
  StateDict state_;  // its only child is the root of the state that is built
  std::vector<StateDict::Builder> open_;
  std::vector<std::string> path_;  // keys of the open containers, without the root
  uint64_t path_bytes_ = 0;
  std::vector<bool> keep_;  // by leaf
  std::vector<ImportedState::LeftOut> left_out_;
  std::vector<ImportedState::LeftOut> attributes_;
};

}  // namespace cairn::core::internal
