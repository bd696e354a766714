#pragma once
/// Adds up what the tensors of each module have and what changed of them, step by step.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/inspect/internal/module_tree.h"
#include "core/inspect/internal/tensor_states.h"
#include "core/inspect/report.h"

namespace cairn::core::internal {

/// Threads: one.
class ModuleRows {
 public:
  ModuleRows(std::span<const ModuleTree::Node> nodes, size_t column_count);

  /// Adds a step to a column: its tensors, and what changed since the step before.
  void AddStep(size_t column, const TensorStates& states, std::span<const TensorChange> changes);
  /// Returns the modules with their rows, and with the sizes of the tensors of the last step.
  /// Bytes are unchanged if they have not changed after `reference_step`.
  std::vector<ReportModule> Finish(const TensorStates& states, uint64_t reference_step);

 private:
  /// Sums over the tensors of a node itself, or over all nodes below it.
  struct Level {
    uint64_t bytes = 0;
    uint64_t nans = 0;
    uint64_t infs = 0;
    double abs_max = 0;
    // Since the step before:
    uint64_t changed_bytes = 0;
    uint64_t removed_bytes = 0;
    double shift = 0;  // times bytes
  };
  void FindTensors(std::span<const TensorState> tensors);
  void MeasureNode(uint32_t node, std::span<const TensorState> tensors);
  void AddToColumn(size_t column);

  std::vector<ReportModule> modules_;
  std::vector<Level> own_;                         // by node
  std::vector<std::vector<uint32_t>> tensors_of_;  // by node: indices of tensors
};

}  // namespace cairn::core::internal
