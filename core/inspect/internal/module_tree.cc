// Names with a common prefix are contiguous in a sorted list, so each module is a range of it.

#include "core/inspect/internal/module_tree.h"

#include <algorithm>
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

}  // namespace cairn::core::internal
