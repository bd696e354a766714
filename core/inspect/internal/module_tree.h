#pragma once
/// Divides the tensors of a store into few modules, so that each of the largest is shown by itself,
/// and adds up what the tensors of each module have.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/inspect/internal/tensor_states.h"
#include "core/inspect/report.h"

namespace cairn::core::internal {

/// A tensor, and the bytes by which its module is chosen.
struct SizedName {
  std::string fqn;
  uint64_t bytes = 0;
};

/// Threads: as for a value.
class ModuleTree {
 public:
  struct Node {
    std::string name;  // path elements below the parent's name; empty for the root and a rest
    uint32_t parent = 0;
    bool is_tensor = false;
    bool is_rest = false;  // the children of the parent that have no node
  };
  /// A node is divided into at most so many children.
  static constexpr size_t kMaxChildren = 200;

  /// Divides the largest modules until there are `max_nodes`. Requires that `names` ascend without
  /// duplicates, and `max_nodes >= 2`. Cost: linear in the number of names for each level of
  /// modules.
  ModuleTree(std::vector<SizedName> names, size_t max_nodes);

  /// The root is first, and parents precede their children.
  const std::vector<Node>& nodes() const { return nodes_; }
  /// Returns the node of a tensor: itself, or the module or rest that contains it. A tensor that
  /// the constructor did not receive belongs to the smallest module that would contain it. Cost:
  /// constant if `fqn` follows the `fqn` of the call before in the list.
  uint32_t NodeOf(std::string_view fqn);

 private:
  struct Range {
    size_t begin = 0;
    size_t end = 0;
    size_t prefix_length = 0;  // length of the names' prefix, up to and including a '.'
  };
  struct Child {
    Range range;
    uint64_t bytes = 0;
    bool is_tensor = false;
  };
  std::vector<Child> ChildrenOf(const Range& range) const;
  uint64_t BytesOf(size_t begin, size_t end) const { return sums_[end] - sums_[begin]; }
  std::string_view PrefixOf(const Range& range) const;
  /// Replaces a range by the range of its only child, as long as this is a module.
  void SkipOnlyChildren(Range& range) const;
  void Divide(uint32_t node, Range range, size_t max_nodes);
  void Assign(const Range& range, uint32_t node);

  std::vector<SizedName> names_;
  std::vector<uint64_t> sums_;  // bytes of the names before each one, and of all
  std::vector<uint32_t> node_of_;
  std::vector<Node> nodes_;
  std::vector<Range> ranges_;                           // by node; empty for a rest
  std::unordered_map<std::string, uint32_t> prefixes_;  // nodes of modules, with the last '.'
  size_t next_ = 0;                                     // position of the name after the last call
};

/// Adds up what the tensors of each module have and what changed of them, step by step.
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
  void AddToColumn(size_t column);

  std::vector<ReportModule> modules_;
  std::vector<Level> own_;                                   // by node
  std::vector<std::vector<const TensorState*>> tensors_of_;  // by node; in the TensorStates
  uint64_t complete_reads_ = 0;                              // of these
};

}  // namespace cairn::core::internal
