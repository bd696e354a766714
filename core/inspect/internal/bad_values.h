#pragma once
/// Finds the step and the tensors in which NaN or infinities began.

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/inspect/internal/tensor_states.h"
#include "core/inspect/report.h"

namespace cairn::core::internal {

/// Compares names as people read them: digits are numbers, so that "layers.2" precedes "layers.10".
bool NaturalLess(std::string_view a, std::string_view b);

/// Counts either NaN or infinities.
class BadValueSearch {
 public:
  enum class Kind { kNan, kInf };
  explicit BadValueSearch(Kind kind) : kind_(kind) {}

  /// Adds an examined step. `index` is its index in the list of all steps.
  void AddStep(size_t index, const kv::StepInfo& step, std::span<const TensorChange> changes);
  /// Reads the records of the steps between the examined ones to find where it began, but at most
  /// about `max_records` (0: no limit). Steps that cannot be read are skipped.
  void Refine(const kv::Snapshot& snapshot, std::span<const kv::StepInfo> steps,
              uint64_t max_records);
  /// Returns where it began, or nothing if there are no such values.
  std::optional<BadStart> Finish(const TensorStates& states);

 private:
  using Counts = std::map<std::string, uint64_t, std::less<>>;  // by FQN
  /// The tensors in which it began at one examined step.
  struct Start {
    size_t index = 0;
    size_t index_before = 0;  // index of the examined step before
    BadStart start;
    Counts tensors;
  };
  uint64_t Select(uint64_t nans, uint64_t infs) const { return kind_ == Kind::kNan ? nans : infs; }
  Result<Counts> Read(const kv::Snapshot& snapshot, const kv::StepInfo& step) const;

  const Kind kind_;
  bool has_values_ = false;  // whether an earlier step has values
  std::optional<size_t> index_before_;
  uint64_t step_before_ = 0;
  std::optional<Start> first_;  // in the first step that has statistics
  std::optional<Start> later_;  // in a later one
};

}  // namespace cairn::core::internal
