#include "core/inspect/internal/module_rows.h"

#include <algorithm>
#include <cmath>

namespace cairn::core::internal {
namespace {

/// Returns how far the mean has moved, relative to the magnitude of the values.
double MeanShift(const TensorChange& change, const TensorValues& after) {
  if (!change.were_known || !after.is_known) return 0;
  const double scale = std::fmax(change.abs_max_before, after.abs_max());
  const double shift = std::fabs(after.mean - change.mean_before) / scale;
  return std::isfinite(shift) ? shift : 0;
}

template <typename Number>
void KeepLargest(Number value, Number& kept) {
  kept = std::max(kept, value);
}

}  // namespace

ModuleRows::ModuleRows(std::span<const ModuleTree::Node> nodes, size_t column_count)
    : own_(nodes.size()), tensors_of_(nodes.size()) {
  for (const ModuleTree::Node& node : nodes) {
    ReportModule& module = modules_.emplace_back();
    module.name = node.name;
    module.parent = node.parent;
    module.is_tensor = node.is_tensor;
    module.is_rest = node.is_rest;
    module.bytes.resize(column_count);
    module.changed.resize(column_count);
    module.nans.resize(column_count);
    module.infs.resize(column_count);
    module.abs_max.resize(column_count);
    module.mean_shift.resize(column_count);
  }
}

void ModuleRows::FindTensors(std::span<const TensorState> tensors) {
  for (auto& indices : tensors_of_) indices.clear();
  for (size_t i = 0; i < tensors.size(); ++i) {
    tensors_of_[tensors[i].node].push_back(static_cast<uint32_t>(i));
  }
}

void ModuleRows::MeasureNode(uint32_t node, std::span<const TensorState> tensors) {
  Level& level = own_[node];
  level.bytes = level.nans = level.infs = 0;
  level.abs_max = 0;
  for (const uint32_t i : tensors_of_[node]) {
    level.bytes += tensors[i].bytes;
    level.nans += tensors[i].values.nans;
    level.infs += tensors[i].values.infs;
    if (tensors[i].values.is_known) {
      level.abs_max = std::fmax(level.abs_max, tensors[i].values.abs_max());
    }
  }
}

void ModuleRows::AddStep(size_t column, const TensorStates& states,
                         std::span<const TensorChange> changes) {
  const std::span<const TensorState> tensors = states.tensors();
  const auto is_other = [](const TensorChange& change) {
    return change.kind != TensorChange::Kind::kChanged;
  };
  if (std::ranges::any_of(changes, is_other)) FindTensors(tensors);
  std::vector<uint32_t> nodes;
  for (const TensorChange& change : changes) {
    const bool is_removed = change.kind == TensorChange::Kind::kRemoved;
    const uint32_t node = is_removed ? change.removed_node : tensors[change.tensor].node;
    own_[node].changed_bytes += change.changed_bytes;
    if (is_removed) own_[node].removed_bytes += change.changed_bytes;
    if (change.kind == TensorChange::Kind::kChanged) {
      const TensorState& tensor = tensors[change.tensor];
      own_[node].shift += MeanShift(change, tensor.values) * static_cast<double>(tensor.bytes);
    }
    nodes.push_back(node);
  }
  std::ranges::sort(nodes);
  nodes.erase(std::ranges::unique(nodes).begin(), nodes.end());
  for (const uint32_t node : nodes) MeasureNode(node, tensors);
  AddToColumn(column);
  for (const uint32_t node : nodes) {
    own_[node].changed_bytes = own_[node].removed_bytes = 0;
    own_[node].shift = 0;
  }
}

void ModuleRows::AddToColumn(size_t column) {
  std::vector<Level> levels = own_;
  for (size_t node = levels.size(); node-- > 0;) {
    const Level& level = levels[node];
    ReportModule& module = modules_[node];
    const auto bytes = static_cast<double>(level.bytes + level.removed_bytes);
    module.bytes[column] = level.bytes;
    if (bytes > 0) {
      const double part = static_cast<double>(level.changed_bytes) / bytes;
      KeepLargest(static_cast<float>(std::min(part, 1.0)), module.changed[column]);
      KeepLargest(static_cast<float>(level.shift / bytes), module.mean_shift[column]);
    }
    KeepLargest(level.nans, module.nans[column]);
    KeepLargest(level.infs, module.infs[column]);
    KeepLargest(static_cast<float>(level.abs_max), module.abs_max[column]);
    if (node == 0) break;
    Level& parent = levels[module.parent];
    parent.bytes += level.bytes;
    parent.nans += level.nans;
    parent.infs += level.infs;
    parent.abs_max = std::max(parent.abs_max, level.abs_max);
    parent.changed_bytes += level.changed_bytes;
    parent.removed_bytes += level.removed_bytes;
    parent.shift += level.shift;
  }
}

std::vector<ReportModule> ModuleRows::Finish(const TensorStates& states, uint64_t reference_step) {
  for (const TensorState& tensor : states.tensors()) {
    ReportModule& module = modules_[tensor.node];
    ++module.tensors;
    module.logical_bytes += tensor.bytes;
    module.stored_bytes += tensor.stored_bytes;
    if (tensor.last_changed_step <= reference_step) module.unchanged_bytes += tensor.bytes;
    KeepLargest(tensor.last_changed_step, module.last_changed_step);
  }
  for (size_t i = modules_.size(); i-- > 1;) {
    const ReportModule& module = modules_[i];
    ReportModule& parent = modules_[module.parent];
    parent.tensors += module.tensors;
    parent.logical_bytes += module.logical_bytes;
    parent.stored_bytes += module.stored_bytes;
    parent.unchanged_bytes += module.unchanged_bytes;
    KeepLargest(module.last_changed_step, parent.last_changed_step);
  }
  return std::move(modules_);
}

}  // namespace cairn::core::internal
