// `kv-dump log`: the tree of steps.
//
// Each branch has a lane, a pair of columns. A lane waits for one node: the parent of the node that
// was drawn last in it. A node follows all of its children.

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <queue>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/inspect/descent.h"
#include "kv/base/step_info.h"
#include "kv/read/snapshot.h"
#include "tools/common/exit_status.h"
#include "tools/common/quantities.h"
#include "tools/dump/contents_json.h"
#include "tools/dump/opened_store.h"
#include "tools/dump/rows.h"
#include "tools/dump/verbs.h"

namespace cairn::tools {
namespace {

// --- The graph

/// A line of the graph: a step, an absent parent of steps, or only connections between the lines
/// above and below.
struct GraphLine {
  std::string text;  // "| * ", and so on
  const kv::StepInfo* step = nullptr;
  std::optional<uint64_t> absent;  // number of the absent parent
};

constexpr size_t kNone = std::numeric_limits<size_t>::max();

struct Node {
  const kv::StepInfo* step = nullptr;  // null: an absent parent
  uint64_t number = 0;
  size_t parent = kNone;
  size_t waiting_children = 0;
  bool is_drawn = false;

  /// An absent parent follows its last child.
  std::pair<int64_t, uint64_t> order() const {
    if (step == nullptr) return {std::numeric_limits<int64_t>::max(), number};
    return {step->created_unix_ns, number};
  }
};

std::vector<Node> NodesOf(std::span<const kv::StepInfo> steps) {
  const core::Descent descent = core::FindDescent(steps);
  std::vector<Node> nodes;
  for (size_t i = 0; i < steps.size(); ++i) {
    nodes.push_back({&steps[i], steps[i].step, descent.parents[i].value_or(kNone)});
  }
  for (const core::AbsentParent& absent : descent.absent) {
    nodes.push_back({.number = absent.step, .parent = absent.before.value_or(kNone)});
  }
  for (const Node& node : nodes) {
    if (node.parent != kNone) ++nodes[node.parent].waiting_children;
  }
  return nodes;
}

struct Lane {
  size_t node = kNone;  // for which it waits; kNone: the lane is free
  char bar = '|';
};

/// Draws the graph of steps: each step is above its parent, and otherwise newer ones are above
/// older ones. ":" leads from an absent parent to the step from which it probably descends
/// (core::FindDescent). The lines point to the steps of the nodes.
class GraphDrawing {
 public:
  explicit GraphDrawing(std::vector<Node> nodes) : nodes_(std::move(nodes)) {}

  std::vector<GraphLine> Draw() {
    for (size_t i = 0; i < nodes_.size(); ++i) {
      if (nodes_[i].waiting_children == 0) ready_.emplace(nodes_[i].order(), i);
    }
    DrawReady();
    // Only records of a hostile store have cycles.
    for (size_t i = 0; i < nodes_.size(); ++i) {
      ready_.emplace(nodes_[i].order(), i);
      DrawReady();
    }
    return std::move(lines_);
  }

 private:
  void DrawReady() {
    while (!ready_.empty()) {
      const size_t node = ready_.top().second;
      ready_.pop();
      if (!std::exchange(nodes_[node].is_drawn, true)) DrawNode(node);
    }
  }

  void DrawNode(size_t i) {
    const Node& node = nodes_[i];
    auto lane = std::ranges::find(lanes_, i, &Lane::node);
    if (lane == lanes_.end()) lane = std::ranges::find(lanes_, kNone, &Lane::node);
    if (lane == lanes_.end()) lane = lanes_.insert(lanes_.end(), Lane());
    const auto at = static_cast<size_t>(lane - lanes_.begin());
    lane->node = i;
    std::string text = Bars();
    text[2 * at] = node.step != nullptr ? '*' : 'o';
    lines_.push_back({.text = std::move(text), .step = node.step});
    if (node.step == nullptr) lines_.back().absent = node.number;
    const size_t parent = node.parent;
    const bool goes_on = parent != kNone && !nodes_[parent].is_drawn;
    lanes_[at] = {};
    if (goes_on) {
      const auto other = std::ranges::find(lanes_, parent, &Lane::node);
      lanes_[at] = {.node = parent, .bar = node.step != nullptr ? '|' : ':'};
      if (other != lanes_.end()) Join(at, static_cast<size_t>(other - lanes_.begin()));
      if (--nodes_[parent].waiting_children == 0) ready_.emplace(nodes_[parent].order(), parent);
    }
    while (!lanes_.empty() && lanes_.back().node == kNone) lanes_.pop_back();
  }

  /// Joins two lanes that wait for the same node in the left one of them.
  void Join(size_t a, size_t b) {
    const auto [left, right] = std::minmax(a, b);
    lanes_[right] = {};
    std::string text = Bars();
    for (size_t column = 2 * left + 1; column < 2 * right - 1; column += 2) text[column] = '_';
    text[2 * right - 1] = '/';
    lines_.push_back({.text = std::move(text)});
  }

  std::string Bars() const {
    std::string text(2 * lanes_.size(), ' ');
    for (size_t i = 0; i < lanes_.size(); ++i) {
      if (lanes_[i].node != kNone) text[2 * i] = lanes_[i].bar;
    }
    return text;
  }

  std::vector<Node> nodes_;
  std::vector<Lane> lanes_;
  std::priority_queue<std::pair<std::pair<int64_t, uint64_t>, size_t>> ready_;
  std::vector<GraphLine> lines_;
};

// --- The verb

Cell GraphCell(const GraphLine& line) {
  if (line.absent) {
    return {fmt::format("{}{} (not in the store)", line.text, *line.absent), Style::kDim};
  }
  return line.text + (line.step != nullptr ? fmt::to_string(line.step->step) : "");
}

}  // namespace

Result<int> DumpLog(const DumpRun& run) {
  CAIRN_TRY_ASSIGN(const OpenedStore opened, OpenWithoutStep(run.address, "log"));
  CAIRN_TRY_ASSIGN(const auto snapshot, opened.store->kv().Latest());
  CAIRN_TRY_ASSIGN(const std::vector<kv::StepInfo> steps, snapshot->Steps());
  const StepNotes notes(steps, snapshot->tags());
  std::vector<Column> columns = {Left("STEP"), Left("SAVED"), Right("AGE"), Right("NEW")};
  notes.AppendColumns(columns, /*flexible=*/true);
  std::map<std::string, std::vector<uint64_t>> children;  // by attempt
  for (const kv::StepInfo& step : steps) {
    if (step.parent) children[step.parent->attempt].push_back(step.step);
  }
  const auto is_present = [&](const kv::ParentStep& parent) {
    return std::ranges::find(steps, parent.attempt, &kv::StepInfo::attempt) != steps.end();
  };
  const size_t width = columns.size();
  Rows rows(run, std::move(columns), {{"store", StoreText(opened)}}, "steps");
  const int64_t now = NowUnixNs();
  for (const GraphLine& line : GraphDrawing(NodesOf(steps)).Draw()) {
    const auto cells = [&] {
      std::vector<Cell> cells = {GraphCell(line)};
      if (line.step == nullptr) {
        cells.resize(width, "");
        return cells;
      }
      cells.emplace_back(LocalTime(line.step->created_unix_ns));
      cells.emplace_back(Age(line.step->created_unix_ns, now));
      cells.emplace_back(HumanBytes(line.step->written_bytes));
      notes.AppendCells(*line.step, cells);
      return cells;
    };
    if (line.step == nullptr) {
      rows.AddToTable(cells());
      continue;
    }
    rows.Add(cells, [&] {
      Json json = StepJson(*line.step, &snapshot->tags());
      if (line.step->parent) json["parent"]["present"] = is_present(*line.step->parent);
      json["children"] = children[line.step->attempt];
      return json;
    });
  }
  CAIRN_TRY(rows.Finish());
  if (rows.is_empty()) PrintRemark(run, "No steps yet.");
  return kExitSuccess;
}

}  // namespace cairn::tools
