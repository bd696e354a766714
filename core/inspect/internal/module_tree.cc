// Names with a common prefix are contiguous in a sorted list, so each module is a range of it.

#include "core/inspect/internal/module_tree.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <queue>
#include <utility>

namespace cairn::core::internal {

ModuleTree::ModuleTree(std::vector<SizedName> names, size_t max_nodes)
    : names_(std::move(names)), sums_(names_.size() + 1), node_of_(names_.size()) {
  for (size_t i = 0; i < names_.size(); ++i) sums_[i + 1] = sums_[i] + names_[i].bytes;
  nodes_.push_back({});
  ranges_.push_back({.begin = 0, .end = names_.size(), .prefix_length = 0});
  using Sized = std::pair<uint64_t, uint32_t>;
  // The largest module is divided next; of equal ones the first.
  const auto is_later = [](const Sized& a, const Sized& b) {
    return a.first != b.first ? a.first < b.first : a.second > b.second;
  };
  std::priority_queue<Sized, std::vector<Sized>, decltype(is_later)> modules(is_later);
  modules.emplace(BytesOf(0, names_.size()), 0);
  while (!modules.empty()) {
    const uint32_t node = modules.top().second;
    modules.pop();
    const size_t count_before = nodes_.size();
    if (count_before + 2 > max_nodes) break;
    Divide(node, ranges_[node], max_nodes);
    for (size_t child = count_before; child < nodes_.size(); ++child) {
      if (nodes_[child].is_tensor || nodes_[child].is_rest) continue;
      const Range& range = ranges_[child];
      modules.emplace(BytesOf(range.begin, range.end), static_cast<uint32_t>(child));
    }
  }
}

std::string_view ModuleTree::PrefixOf(const Range& range) const {
  if (range.begin == range.end) return {};
  return std::string_view(names_[range.begin].fqn).substr(0, range.prefix_length);
}

std::vector<ModuleTree::Child> ModuleTree::ChildrenOf(const Range& range) const {
  std::vector<Child> children;
  size_t at = range.begin;
  while (at < range.end) {
    const std::string_view fqn = names_[at].fqn;
    const size_t dot = fqn.find('.', range.prefix_length);
    Child child{.range = {.begin = at, .end = at + 1, .prefix_length = fqn.size()}};
    if (dot == std::string_view::npos) {
      child.is_tensor = true;
    } else {
      const std::string_view prefix = fqn.substr(0, dot + 1);
      const auto first = names_.begin() + static_cast<ptrdiff_t>(at);
      const auto last = names_.begin() + static_cast<ptrdiff_t>(range.end);
      const auto end = std::partition_point(
          first, last, [&](const SizedName& name) { return name.fqn.starts_with(prefix); });
      child.range.end = static_cast<size_t>(end - names_.begin());
      child.range.prefix_length = dot + 1;
    }
    child.bytes = BytesOf(child.range.begin, child.range.end);
    at = child.range.end;
    children.push_back(child);
  }
  return children;
}

void ModuleTree::SkipOnlyChildren(Range& range) const {
  while (range.begin < range.end) {
    const std::string_view fqn = names_[range.begin].fqn;
    const size_t dot = fqn.find('.', range.prefix_length);
    if (dot == std::string_view::npos) return;
    if (!names_[range.end - 1].fqn.starts_with(fqn.substr(0, dot + 1))) return;
    range.prefix_length = dot + 1;
  }
}

void ModuleTree::Assign(const Range& range, uint32_t node) {
  std::fill(node_of_.begin() + static_cast<ptrdiff_t>(range.begin),
            node_of_.begin() + static_cast<ptrdiff_t>(range.end), node);
}

void ModuleTree::Divide(uint32_t node, const Range range, size_t max_nodes) {
  std::vector<Child> children = ChildrenOf(range);
  if (children.empty()) return;
  size_t shown = children.size();
  if (children.size() > kMaxChildren || nodes_.size() + children.size() > max_nodes) {
    shown = std::min(kMaxChildren, max_nodes - nodes_.size()) - 1;
    std::ranges::stable_sort(children, std::ranges::greater(), &Child::bytes);
    std::ranges::sort(children.begin(), children.begin() + static_cast<ptrdiff_t>(shown), {},
                      [](const Child& child) { return child.range.begin; });
  }
  for (size_t i = 0; i < shown; ++i) {
    const auto index = static_cast<uint32_t>(nodes_.size());
    Range own = children[i].range;
    if (!children[i].is_tensor) SkipOnlyChildren(own);
    std::string_view name =
        std::string_view(names_[own.begin].fqn)
            .substr(range.prefix_length, own.prefix_length - range.prefix_length);
    if (!children[i].is_tensor) {
      prefixes_.emplace(PrefixOf(own), index);
      name.remove_suffix(1);
    }
    nodes_.push_back(
        {.name = std::string(name), .parent = node, .is_tensor = children[i].is_tensor});
    ranges_.push_back(own);
    Assign(own, index);
  }
  if (shown == children.size()) return;
  const auto rest = static_cast<uint32_t>(nodes_.size());
  nodes_.push_back({.parent = node, .is_rest = true});
  ranges_.push_back({});
  for (size_t i = shown; i < children.size(); ++i) Assign(children[i].range, rest);
}

uint32_t ModuleTree::NodeOf(std::string_view fqn) {
  if (next_ >= names_.size() || names_[next_].fqn != fqn) {
    const auto found = std::ranges::lower_bound(names_, fqn, {}, &SizedName::fqn);
    next_ = static_cast<size_t>(found - names_.begin());
  }
  if (next_ < names_.size() && names_[next_].fqn == fqn) return node_of_[next_++];
  for (size_t end = fqn.rfind('.'); end != std::string_view::npos && end > 0;
       end = fqn.rfind('.', end - 1)) {
    const auto found = prefixes_.find(std::string(fqn.substr(0, end + 1)));
    if (found != prefixes_.end()) return found->second;
  }
  return 0;
}

namespace {

/// Returns how far the mean has moved, relative to the magnitude of the values.
double MeanShift(const TensorChange& change) {
  const auto& before = change.values_before;
  const auto& after = change.tensor->second.values;
  if (!before || !after) return 0;
  const double scale = std::fmax(before->abs_max(), after->abs_max());
  const double shift = std::fabs(after->mean - before->mean) / scale;
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

void ModuleRows::AddStep(size_t column, const TensorStates& states,
                         std::span<const TensorChange> changes) {
  const auto is_other = [](const TensorChange& change) {
    return change.kind != TensorChange::Kind::kChanged;
  };
  const uint64_t reads_before = std::exchange(complete_reads_, states.complete_reads());
  if (complete_reads_ != reads_before || std::ranges::any_of(changes, is_other)) {
    for (auto& tensors : tensors_of_) tensors.clear();
    for (const auto& [fqn, tensor] : states.tensors()) tensors_of_[tensor.node].push_back(&tensor);
  }
  std::map<uint32_t, Level> changed;  // by node
  for (const TensorChange& change : changes) {
    const bool is_removed = change.kind == TensorChange::Kind::kRemoved;
    Level& level = changed[is_removed ? change.removed_node : change.tensor->second.node];
    level.changed_bytes += change.changed_bytes;
    if (is_removed) level.removed_bytes += change.changed_bytes;
    if (change.kind == TensorChange::Kind::kChanged) {
      level.shift += MeanShift(change) * static_cast<double>(change.tensor->second.bytes);
    }
  }
  for (auto& [node, level] : changed) {
    for (const TensorState* const tensor : tensors_of_[node]) {
      level.bytes += tensor->bytes;
      level.nans += tensor->nans;
      level.infs += tensor->infs;
      if (tensor->values) level.abs_max = std::fmax(level.abs_max, tensor->values->abs_max());
    }
    own_[node] = level;
  }
  AddToColumn(column);
  for (const auto& [node, level] : changed) {
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
  for (const auto& [fqn, tensor] : states.tensors()) {
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
