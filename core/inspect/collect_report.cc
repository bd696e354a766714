// 1. The last step is read, and some others whose keys may differ. Their tensors are divided into
//    modules.
// 2. The chosen steps are read in ascending order. Each is compared with the step before it, or, at
//    a fork, with its base.
// 3. The rows of the modules, findings and the tensors of the last step are completed.

#include "core/inspect/collect_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/inspect/internal/bad_values.h"
#include "core/inspect/internal/examined_steps.h"
#include "core/inspect/internal/module_tree.h"
#include "core/inspect/internal/tensor_states.h"
#include "core/step/internal/lookup.h"
#include "core/tensor/tensor.h"
#include "kv/read/snapshot.h"
#include "kv/storage/storage.h"

namespace cairn::core {
namespace internal {
namespace {

constexpr std::string_view kFolder = "segments/";
/// In a storage where each request takes long, the lengths of so many files are requested.
constexpr size_t kMaxRequests = 1000;

struct Largest {
  uint64_t first = 0;
  uint64_t second = 0;
};

Result<std::unordered_map<uint64_t, Largest>> LargestUses(const kv::Snapshot& snapshot) {
  CAIRN_TRY_ASSIGN(const auto usage, snapshot.SegmentUsage());
  std::unordered_map<uint64_t, Largest> uses;
  for (const kv::Usage& use : usage) {
    Largest& largest = uses[use.segment_id];
    if (use.live_bytes > largest.first) {
      largest.second = std::exchange(largest.first, use.live_bytes);
    } else {
      largest.second = std::max(largest.second, use.live_bytes);
    }
  }
  return uses;
}

/// Returns the segments of all steps that can be read, by id.
Result<std::map<uint64_t, kv::SegmentInfo>> ReadSegments(const kv::Snapshot& snapshot,
                                                         std::vector<Error>& problems) {
  std::map<uint64_t, kv::SegmentInfo> segments;
  CAIRN_TRY_ASSIGN(const auto steps, snapshot.Steps());
  std::unordered_set<uint64_t> known;
  for (const kv::StepInfo& step : steps) {
    auto of_step = snapshot.FurtherSegmentsOf(step, known);
    if (!of_step) {
      problems.push_back(std::move(of_step).error().WithStep(step.step));
      continue;
    }
    for (kv::SegmentInfo& info : *of_step) segments.try_emplace(info.segment_id, std::move(info));
  }
  return segments;
}

/// Checks that a segment is as long as its record states, without reading it.
void CheckFile(kv::Storage& storage, const kv::SegmentInfo& segment, std::vector<Error>& problems) {
  const std::string name = std::string(kFolder) + segment.name;
  const Result<uint64_t> size = storage.Size(name);
  if (size && *size == segment.file_bytes) return;
  Error error{.code = ErrorCode::kDataLoss,
              .file = fmt::format("{}/{}", storage.address(), name),
              .step = segment.step};
  if (size) {
    error.message = fmt::format(
        "the segment has {} bytes instead of {}; kv-dump verify names what "
        "is lost",
        *size, segment.file_bytes);
  } else if (size.error().code == ErrorCode::kNotFound) {
    error.message = "the segment is missing; kv-dump verify names what is lost";
  } else {
    error = size.error();
  }
  problems.push_back(std::move(error));
}

/// Adds up the usage records of all steps: in each segment, at least the bytes of the step that
/// uses most are live, and at least the bytes of the step that uses second most are shared. This is
/// exact as long as later steps use parts of what earlier steps use. If the usage cannot be read,
/// all is live. Compares with the files of the storage, and adds a problem for each file that is
/// missing or has another length, and for each step whose segments cannot be read. Errors: see
/// Snapshot::Steps and Storage::List.
Result<ReportSpace> MeasureSegmentUse(const kv::Snapshot& snapshot, kv::Storage& storage,
                                      std::vector<Error>& problems) {
  ReportSpace space;
  auto uses = LargestUses(snapshot);
  CAIRN_TRY_ASSIGN(auto segments, ReadSegments(snapshot, problems));
  std::unordered_set<std::string> used;
  const bool is_local = storage.local_files() != nullptr;
  size_t requests = 0;
  for (auto& [id, segment] : segments) {
    const Largest largest = uses ? (*uses)[id] : Largest{.first = segment.payload_bytes};
    space.file_bytes += segment.file_bytes;
    space.payload_bytes += segment.payload_bytes;
    space.live_bytes += std::min(largest.first, segment.payload_bytes);
    space.shared_bytes += std::min(largest.second, segment.payload_bytes);
    used.insert(std::string(kFolder) + segment.name);
    if (is_local || ++requests <= kMaxRequests) CheckFile(storage, segment, problems);
    space.segments.push_back({.segment = std::move(segment),
                              .live_bytes = largest.first,
                              .shared_bytes = largest.second});
  }
  CAIRN_TRY_ASSIGN(const auto names, storage.List(kFolder));
  for (const std::string& name : names) {
    if (used.contains(name)) continue;
    ++space.unused_files;
    if (is_local || ++requests <= kMaxRequests) {
      space.unused_file_bytes += storage.Size(name).value_or(0);
    }
  }
  return space;
}

using Kind = TensorChange::Kind;
using Tensor = TensorStateMap::value_type;

constexpr size_t kMaxProblems = 200;
/// Steps from which the names of tensors are taken, and steps at the end that may be damaged.
constexpr size_t kMaxTreeSteps = 8;
constexpr size_t kMaxSeries = 48;
constexpr size_t kMaxPoints = 200;
/// A phase begins if at least such a part of the bytes, or of the tensors, is added or removed.
constexpr double kPhaseBytes = 1.0 / 256;
constexpr double kPhaseTensors = 1.0 / 16;
/// A phase continues the step before if such a part of its bytes, or of its tensors, was there.
constexpr double kContinuedBytes = 0.1;
constexpr double kContinuedTensors = 0.5;
/// A module grows if such a part of all growth is in it.
constexpr double kMainGrowth = 0.9;

double Ratio(uint64_t part, uint64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

uint64_t BadValues(const Tensor& tensor) { return tensor.second.nans + tensor.second.infs; }
uint64_t BytesOf(const Tensor* tensor) { return tensor->second.bytes; }

/// Threads: one.
class ReportCollector {
 public:
  ReportCollector(std::shared_ptr<const kv::Snapshot> snapshot, const ReportOptions& options)
      : snapshot_(std::move(snapshot)), options_(options) {}

  /// `storage` is the store's storage. Requires that it is called once.
  Result<Report> Collect(kv::Storage& storage) {
    report_.address = storage.address();
    report_.tags = snapshot_->tags();
    CAIRN_TRY_ASSIGN(report_.steps, snapshot_->Steps());
    examined_ = ChooseSteps(report_.steps, report_.tags, options_.max_records);
    if (!examined_.empty()) CAIRN_TRY(Examine(report_.address));
    std::vector<Error> problems;
    if (auto space = MeasureSegmentUse(*snapshot_, storage, problems)) {
      report_.space = *std::move(space);
    } else {
      AddProblem(std::move(space).error());
    }
    for (Error& problem : problems) AddProblem(std::move(problem));
    return std::move(report_);
  }

 private:
  Result<void> Examine(const std::string& address) {
    CAIRN_TRY(BuildTree());
    if (examined_.empty()) return {};
    MakeColumns();
    rows_.emplace(tree_->nodes(), report_.columns.size());
    for (size_t position = 0; position < examined_.size(); ++position) {
      CAIRN_TRY(ExamineStep(position));
      if (options_.progress && !options_.progress(position + 1, examined_.size())) {
        return Fail(ErrorCode::kCancelled, "stopped on request");
      }
    }
    Finish(address);
    return {};
  }

  /// Reads the last step, and builds the modules from its tensors and the tensors of some other
  /// steps.
  Result<void> BuildTree() {
    TensorStates last;
    // Damaged steps at the end are reported when they are examined.
    size_t position = examined_.size() - 1;
    for (size_t tries = 0; tries < kMaxTreeSteps; ++tries, --position) {
      if (last.MoveTo(*snapshot_, StepAt(position)) || position == 0) break;
    }
    std::vector<SizedName> names;
    AddNames(last, names);
    ChooseSeries(last);
    if (examined_.size() > 1) {
      for (const size_t other : StepsWithOtherKeys()) {
        if (other == position) continue;
        if (last.MoveTo(*snapshot_, StepAt(other))) AddNames(last, names);
      }
      // If several steps have a tensor, the size in the last step counts, which is first.
      std::ranges::stable_sort(names, {}, &SizedName::fqn);
      names.erase(std::ranges::unique(names, {}, &SizedName::fqn).begin(), names.end());
      report_.records += last.record_count();
    } else {
      states_ = std::move(last);
    }
    tree_.emplace(std::move(names), options_.max_modules);
    return {};
  }

  void AddNames(const TensorStates& states, std::vector<SizedName>& names) const {
    for (const auto& [fqn, tensor] : states.tensors()) {
      names.push_back({.fqn = fqn, .bytes = tensor.bytes});
    }
  }

  std::vector<size_t> StepsWithOtherKeys() const {
    std::vector<size_t> positions = {0};
    for (size_t position = 1; position + 1 < examined_.size(); ++position) {
      if (positions.size() == kMaxTreeSteps) break;
      const uint64_t before = StepAt(position - 1).tensor_count;
      const uint64_t count = StepAt(position).tensor_count;
      const uint64_t difference = count > before ? count - before : before - count;
      if (Ratio(difference, before) >= kPhaseTensors) {
        positions.push_back(position - 1);
        positions.push_back(position);
      }
    }
    return positions;
  }

  void ChooseSeries(const TensorStates& last) {
    std::vector<const Tensor*> order;
    for (const Tensor& tensor : last.tensors()) {
      if (tensor.second.values) order.push_back(&tensor);
    }
    const auto is_bad = [](const Tensor* tensor) { return BadValues(*tensor) > 0; };
    const size_t count = std::min(order.size(), kMaxSeries);
    const auto largest_end = order.begin() + static_cast<ptrdiff_t>(count);
    std::ranges::partial_sort(order, largest_end, std::ranges::greater(), BytesOf);
    // The last quarter is for tensors with NaN or infinities.
    auto bad = largest_end;
    for (size_t i = count - count / 4; i < count && bad != order.end(); ++i) {
      bad = std::ranges::find_if(bad, order.end(), is_bad);
      if (bad != order.end()) std::swap(order[i], *bad++);
    }
    for (size_t i = 0; i < count; ++i)
      report_.series.push_back({.fqn = order[i]->first, .points = {}});
    std::ranges::sort(report_.series, NaturalLess, &ReportSeries::fqn);
  }

  void MakeColumns() {
    report_.columns.resize(std::min(examined_.size(), options_.max_columns));
    size_t index_before = 0;  // steps up to here are in earlier columns
    for (size_t position = 0; position < examined_.size(); ++position) {
      ReportColumn& column = report_.columns[ColumnOf(position)];
      if (column.examined_steps++ == 0) column.first_step = StepAt(position).step;
      column.last_step = StepAt(position).step;
      column.total_steps += examined_[position] + 1 - index_before;
      index_before = examined_[position] + 1;
    }
  }

  Result<void> ExamineStep(size_t position) {
    const kv::StepInfo& step = StepAt(position);
    const bool is_fork = IsFork(report_.steps, examined_[position]);
    if (is_fork) {
      const auto base =
          std::ranges::lower_bound(report_.steps, *step.base_step, {}, &kv::StepInfo::step);
      if (base->step == *step.base_step) {
        if (const auto changes = states_.StartAgainAt(*snapshot_, *base)) AssignNodes(*changes);
      }
    }
    std::vector<TensorChange> changes;
    if (position == 0 && examined_.size() == 1 && !states_.tensors().empty()) {
      // BuildTree has read this step.
      for (Tensor& tensor : states_.tensors()) {
        changes.push_back(
            {.kind = Kind::kAdded, .tensor = &tensor, .changed_bytes = tensor.second.bytes});
      }
    } else {
      auto moved = states_.MoveTo(*snapshot_, step);
      if (!moved) {
        AddProblem(std::move(moved).error().WithStep(step.step));
        return {};
      }
      changes = *std::move(moved);
    }
    AssignNodes(changes);
    rows_->AddStep(ColumnOf(position), states_, changes);
    nans_.AddStep(examined_[position], step, changes);
    infs_.AddStep(examined_[position], step, changes);
    NotePhase(position, changes);
    AddSeriesPoints(step);
    const auto unknown = static_cast<uint64_t>(std::ranges::count_if(
        states_.tensors(), [](const Tensor& tensor) { return !tensor.second.values; }));
    report_.tensors_without_statistics = unknown;
    report_.steps_with_unknown_values += unknown > 0;
    report_.steps_with_statistics += unknown < states_.tensors().size();
    ++report_.examined_steps;
    last_read_ = position;
    return {};
  }

  void AssignNodes(std::span<const TensorChange> changes) {
    for (const TensorChange& change : changes) {
      if (change.kind != Kind::kAdded) continue;
      change.tensor->second.node = tree_->NodeOf(change.tensor->first);
    }
  }

  void NotePhase(size_t position, std::span<const TensorChange> changes) {
    uint64_t added = 0, added_bytes = 0, removed = 0, removed_bytes = 0, bytes = 0;
    for (const TensorChange& change : changes) {
      added += change.kind == Kind::kAdded;
      removed += change.kind == Kind::kRemoved;
      if (change.kind == Kind::kAdded) added_bytes += change.changed_bytes;
      if (change.kind == Kind::kRemoved) removed_bytes += change.changed_bytes;
    }
    const bool is_fork = IsFork(report_.steps, examined_[position]);
    if (added + removed == 0 && !is_fork) return;
    for (const auto& [fqn, tensor] : states_.tensors()) bytes += tensor.bytes;
    const uint64_t tensors = states_.tensors().size();
    if (!is_fork && Ratio(added_bytes + removed_bytes, bytes) < kPhaseBytes &&
        Ratio(added + removed, tensors) < kPhaseTensors) {
      return;
    }
    phase_position_ = position;
    phase_base_.reset();
    if (last_read_ && (Ratio(bytes - added_bytes, bytes) >= kContinuedBytes ||
                       Ratio(tensors - added, tensors) >= kContinuedTensors)) {
      phase_base_ = is_fork ? *StepAt(position).base_step : StepAt(*last_read_).step;
    }
  }

  void AddSeriesPoints(const kv::StepInfo& step) {
    const size_t stride = examined_.size() / kMaxPoints + 1;
    const bool is_last = step.step == report_.steps.back().step;
    if (report_.examined_steps % stride != 0 && !is_last) return;
    for (ReportSeries& series : report_.series) {
      const auto tensor = states_.tensors().find(series.fqn);
      if (tensor == states_.tensors().end() || !tensor->second.values) continue;
      const StoredStatistics& values = *tensor->second.values;
      series.points.push_back(
          {.step = step.step, .min = values.min, .max = values.max, .mean = values.mean});
    }
  }

  void Finish(const std::string& address) {
    report_.records += states_.record_count();
    FinishPhase();
    report_.modules = rows_->Finish(states_, report_.phase ? report_.phase->reference_step : 0);
    for (const ReportModule& module : report_.modules) {
      if (module.is_rest) report_.merged_tensors += module.tensors;
    }
    FinishGrowth();
    nans_.Refine(*snapshot_, report_.steps, options_.max_records);
    infs_.Refine(*snapshot_, report_.steps, options_.max_records);
    report_.nans = nans_.Finish(states_);
    report_.infs = infs_.Finish(states_);
    FinishTensors(address);
  }

  void FinishPhase() {
    if (!last_read_) return;
    ReportPhase phase{.first_step = StepAt(phase_position_).step,
                      .last_step = StepAt(*last_read_).step};
    phase.has_base = phase_base_.has_value();
    phase.reference_step = phase_base_.value_or(phase.first_step);
    report_.phase = phase;
  }

  void FinishGrowth() {
    if (!last_read_) return;
    const size_t first = ColumnOf(phase_position_);
    const size_t last = ColumnOf(*last_read_);
    const auto growth = [&](const ReportModule& module) {
      return module.bytes[last] - std::min(module.bytes[first], module.bytes[last]);
    };
    const uint64_t total = growth(report_.modules[0]);
    if (total == 0) return;
    size_t found = 0;
    for (size_t i = 1; i < report_.modules.size(); ++i) {
      const ReportModule& module = report_.modules[i];
      if (module.parent == found && Ratio(growth(module), total) >= kMainGrowth) found = i;
    }
    const ReportModule& module = report_.modules[found];
    ReportGrowth result{.module = found,
                        .first_bytes = module.bytes[first],
                        .last_bytes = module.bytes[last],
                        .total_growth = total};
    for (size_t column = first + 1; column <= last; ++column) {
      result.columns += module.bytes[column] > module.bytes[column - 1];
    }
    report_.growth = result;
  }

  void FinishTensors(const std::string& address) {
    report_.all_tensors = states_.tensors().size();
    if (!last_read_) return;
    std::vector<const Tensor*> order;
    for (const Tensor& tensor : states_.tensors()) order.push_back(&tensor);
    const auto is_bad = [](const Tensor* tensor) { return BadValues(*tensor) > 0; };
    const size_t bad_count = std::min<size_t>(
        options_.max_tensors / 3, static_cast<size_t>(std::ranges::count_if(order, is_bad)));
    const size_t count = std::min(options_.max_tensors, order.size());
    const auto at = [&](size_t i) { return order.begin() + static_cast<ptrdiff_t>(i); };
    std::ranges::partial_sort(order, at(bad_count), std::ranges::greater(),
                              [](const Tensor* tensor) { return BadValues(*tensor); });
    std::ranges::partial_sort(at(bad_count), at(count), order.end(), std::ranges::greater(),
                              BytesOf);
    order.resize(count);
    std::vector<std::string_view> fqns;
    for (const Tensor* const tensor : order) fqns.push_back(tensor->first);
    std::ranges::sort(fqns);
    const StepView view{.snapshot = snapshot_, .step = StepAt(*last_read_), .directory = address};
    auto infos = FindTensors(view, fqns);
    if (!infos) {
      AddProblem(std::move(infos).error());
      return;
    }
    for (const Tensor* const tensor : order) {
      ReportTensor& row = report_.tensors.emplace_back();
      row.info = *std::ranges::lower_bound(*infos, tensor->first, {}, &TensorInfo::fqn);
      row.module = tensor->second.node;
      row.last_changed_step = tensor->second.last_changed_step;
      row.statistics = tensor->second.values;
      if (row.statistics) row.statistics->count = ElementCount(row.info.shape).value_or(0);
    }
  }

  void AddProblem(Error error) {
    const auto is_same = [&](const Error& other) {
      return other.step == error.step && other.file == error.file && other.message == error.message;
    };
    if (std::ranges::any_of(report_.problems, is_same)) return;
    if (report_.problem_count++ < kMaxProblems) report_.problems.push_back(std::move(error));
  }

  const kv::StepInfo& StepAt(size_t position) const { return report_.steps[examined_[position]]; }
  size_t ColumnOf(size_t position) const {
    return position * report_.columns.size() / examined_.size();
  }

  const std::shared_ptr<const kv::Snapshot> snapshot_;
  const ReportOptions& options_;
  Report report_;
  std::vector<size_t> examined_;  // indices in report_.steps
  std::optional<ModuleTree> tree_;
  std::optional<ModuleRows> rows_;
  TensorStates states_;
  BadValueSearch nans_{BadValueSearch::Kind::kNan};
  BadValueSearch infs_{BadValueSearch::Kind::kInf};
  std::optional<size_t> last_read_;  // position of the last step that could be read
  // The phase that began last:
  size_t phase_position_ = 0;
  std::optional<uint64_t> phase_base_;
};

}  // namespace
}  // namespace internal

Result<Report> CollectReport(const kv::Store& store, const ReportOptions& options) {
  constexpr int kMaxRounds = 8;
  for (int round = 1;; ++round) {
    CAIRN_TRY_ASSIGN(const auto snapshot, store.Latest());
    internal::ReportCollector collector(snapshot, options);
    CAIRN_TRY_ASSIGN(Report report, collector.Collect(store.storage()));
    report.uuid = store.uuid();
    if (report.problems.empty() || round == kMaxRounds) return report;
    // Missing objects may have been deleted or compacted since the snapshot was taken.
    CAIRN_TRY_ASSIGN(const auto latest, store.Latest());
    if (latest == snapshot) return report;
  }
}

}  // namespace cairn::core
