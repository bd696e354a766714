#pragma once
/// State dicts from the values that torch pickles: containers, tensors, plain values.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/interop/torch/imported_state.h"
#include "core/interop/torch/internal/torch_archive.h"
#include "core/state_dict/state_dict.h"

namespace cairn::core::internal {

/// Key of a child, as state dicts write it.
struct ChildKey {
  std::string text;
  KeyKind kind = KeyKind::kString;
};

/// Builds one state, in preorder. A pickle that says the same list a thousand times in a thousand
/// lists is bounded by a budget of nodes and text, and by a depth.
///
/// Threads: one. Errors name the key.
class StateAssembler {
 public:
  explicit StateAssembler(bool skip_unknown);
  /// Objects of a further pickle of this length are to come: the budget grows.
  void Grant(uint64_t pickle_bytes);

  /// Every value goes into the container that was begun last and has not ended. The first value is
  /// the root, whatever its key.
  Result<void> Begin(const ChildKey& key, NodeKind kind);
  void End();
  Result<void> AddTensor(const ChildKey& key, TensorView view);
  Result<void> AddSharded(const ChildKey& key, DType dtype, Sharding sharding);
  /// A whole object of a pickle: containers, with tensors in them, or one value. kUnimplemented: it
  /// holds something of a class that a state dict has no place for (left out with skip_unknown).
  Result<void> AddObject(const ChildKey& key, const TorchArchive& archive, PickleRef object);
  /// Something that cannot be kept: its error, or with skip_unknown a line in `left_out`.
  Result<void> AddUnknown(const ChildKey& key, Error error);

  /// The state, and what was left out, into `result`. Requires that all containers have ended.
  Result<void> Finish(ImportedState& result);

 private:
  Result<void> Spend(const ChildKey& key, uint64_t text_bytes);
  std::string PathOf(const ChildKey& key) const;
  void Leaf(bool keep) { keep_.push_back(keep); }

  Result<void> AddCall(const ChildKey& key, const TorchArchive& archive, PickleRef object);
  Result<void> AddTensorOf(const ChildKey& key, const TorchArchive& archive, PickleRef object);
  Result<void> AddMapping(const ChildKey& key, NodeKind kind, const TorchArchive& archive,
                          std::span<const PickleRef> items);
  Result<void> AddSequence(const ChildKey& key, NodeKind kind, const TorchArchive& archive,
                           std::span<const PickleRef> elements);
  Result<void> AddValue(const ChildKey& key, Value value);
  Result<ChildKey> KeyOf(const PickleTree& pickle, PickleRef ref) const;

  const bool skip_unknown_;
  uint64_t nodes_left_;
  uint64_t text_bytes_left_;
  StateDict state_;  // its root holds the state's root as its only child
  std::vector<StateDict::Builder> open_;
  std::vector<std::string> path_;  // keys of the open containers but the root's
  uint64_t path_bytes_ = 0;
  std::vector<bool> keep_;  // by leaf
  std::vector<ImportedState::LeftOut> left_out_;
  std::vector<ImportedState::LeftOut> attributes_;
};

}  // namespace cairn::core::internal
