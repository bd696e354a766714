#pragma once
/// Moves through the steps of a store and collects what a report shows.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/inspect/internal/bad_values.h"
#include "core/inspect/internal/module_rows.h"
#include "core/inspect/internal/module_tree.h"
#include "core/inspect/internal/tensor_states.h"
#include "core/inspect/report.h"
#include "kv/base/error.h"
#include "kv/read/snapshot.h"
#include "kv/storage/storage.h"

namespace cairn::core::internal {

/// Adds up the usage records of all steps: in each segment, at least the bytes of the step that
/// uses most are live, and at least the bytes of the step that uses second most are shared. This is
/// exact as long as later steps use parts of what earlier steps use. If the usage cannot be read,
/// all is live. Compares with the files of the storage, and adds a problem for each file that is
/// missing or has another length, and for each step whose segments cannot be read. Errors: see
/// Snapshot::Steps and Storage::List.
Result<ReportSpace> MeasureSegmentUse(const kv::Snapshot& snapshot, kv::Storage& storage,
                                      std::vector<Error>& problems);

/// Threads: one.
class ReportCollector {
 public:
  ReportCollector(std::shared_ptr<const kv::Snapshot> snapshot, const ReportOptions& options)
      : snapshot_(std::move(snapshot)), options_(options) {}

  /// `storage` is the store's storage. Requires that it is called once.
  Result<Report> Collect(kv::Storage& storage);

 private:
  Result<void> Examine(const std::string& address);
  /// Reads the last step, and builds the modules from its tensors and the tensors of some other
  /// steps.
  Result<void> BuildTree();
  void AddNames(const TensorStates& states, std::vector<SizedName>& names) const;
  std::vector<size_t> StepsWithOtherKeys() const;
  void ChooseSeries(const TensorStates& last);
  void MakeColumns();
  Result<void> ExamineStep(size_t position);
  void AssignNodes(std::span<const TensorChange> changes);
  void NotePhase(size_t position, std::span<const TensorChange> changes);
  void AddSeriesPoints(const kv::StepInfo& step);
  void Finish(const std::string& address);
  void FinishPhase();
  void FinishGrowth();
  void FinishTensors(const std::string& address);
  void AddProblem(Error error);

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

}  // namespace cairn::core::internal
