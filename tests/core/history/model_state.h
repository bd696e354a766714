#pragma once
/// A state that changes as a training run does, and what a store must contain of it.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/state_dict/state_dict.h"
#include "core/tensor/tensor.h"
#include "tests/support/seeded_random.h"

namespace cairn::core {

/// One tensor. Steps share the bytes that are equal.
struct ModelTensor {
  DType dtype = DType::kUInt8;
  Shape shape;
  std::shared_ptr<const std::vector<std::byte>> bytes;
};

/// The contents of a step, by FQN.
using ModelStep = std::map<std::string, ModelTensor>;

/// Returns whether the steps have the same keys, dtypes and shapes.
bool CanBeMerged(const ModelStep& a, const ModelStep& b);
/// The weighted mean of at least two such steps, as docs/merging.md defines it. The weights are
/// divided by their sum.
ModelStep MeanOf(const std::vector<ModelStep>& steps, const std::vector<double>& weights);

/// Threads: one.
class ModelState {
 public:
  /// `random` outlives the state.
  explicit ModelState(testing::SeededRandom& random);

  /// Changes the state in one of the ways in which steps differ: scattered elements of weights, all
  /// moments, some rows of an embedding, a new or removed tensor, or nothing.
  void Change();
  /// Continues with another step.
  void Set(const ModelStep& step) { tensors_ = step; }
  const ModelStep& tensors() const { return tensors_; }
  /// The state as views of the bytes of tensors().
  StateDict View() const;

 private:
  std::vector<std::byte> CopyOf(const std::string& fqn) const;
  void Put(const std::string& fqn, std::vector<std::byte> bytes);
  void Add(const std::string& fqn, DType dtype, Shape shape);
  void ChangeElements(const std::string& fqn, double share);
  void ChangeRows(const std::string& fqn);
  void AddOrRemove();

  testing::SeededRandom& random_;
  ModelStep tensors_;
  uint64_t next_extra_ = 0;
};

}  // namespace cairn::core
