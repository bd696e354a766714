#pragma once
// SPDX-License-Identifier: Apache-2.0
/// A report on a store: where the bytes are, what changed at which step, the recorded statistics,
/// and the use of segments.
///
/// All of it is read from roots, tables and the lengths of files; payload is never read. Modules
/// and steps are merged until the result fits a page, and the result states what was merged.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/base/progress.h"
#include "core/inspect/stored_statistics.h"
#include "core/step/contents.h"
#include "kv/base/annotations.h"
#include "kv/base/error.h"
#include "kv/base/step_info.h"
#include "kv/read/segment_space.h"

namespace cairn::core {

struct ReportOptions {
  /// Records of chunks that are read, about; 0: no limit. Decides how many steps are examined.
  uint64_t max_records = 4'000'000;
  size_t max_columns = 320;
  size_t max_modules = 1000;  // at least 2
  size_t max_tensors = 1500;
  /// Receives the numbers of examined steps and of steps to be examined.
  Progress progress;
};

/// Consecutive examined steps that share one column of all rows.
struct ReportColumn {
  uint64_t first_step = 0;
  uint64_t last_step = 0;
  uint64_t examined_steps = 0;
  uint64_t total_steps = 0;  // steps of the store, after the column before
};

/// A module, a tensor, or the rest of a module. Sizes refer to the last examined step.
struct ReportModule {
  std::string name;   // path elements below the parent's name; empty for the root and a rest
  size_t parent = 0;  // index of the parent, which is less than its own; 0 for the root
  bool is_tensor = false;
  bool is_rest = false;  // merged children of the parent that are too small for the report
  uint64_t tensors = 0;  // tensors that have chunks
  uint64_t logical_bytes = 0;
  uint64_t stored_bytes = 0;
  uint64_t unchanged_bytes = 0;  // since ReportPhase::reference_step
  uint64_t last_changed_step = 0;

  // One element per column. If a column has several steps, the largest value counts, except for
  // `bytes`, where the last step counts.
  std::vector<uint64_t> bytes;
  std::vector<float> changed;     // part of the bytes that changed since the examined step before
  std::vector<uint64_t> nans;     // as far as recorded
  std::vector<uint64_t> infs;     // as far as recorded
  std::vector<float> abs_max;     // largest magnitude; 0 if not recorded
  std::vector<float> mean_shift;  // distance of the means, relative to the magnitude
};

/// A tensor with the statistics that its save recorded.
struct ReportTensor {
  TensorInfo info;
  size_t module = 0;
  std::optional<StoredStatistics> statistics;
  uint64_t last_changed_step = 0;
};

/// The values of one tensor at one examined step.
struct ReportPoint {
  uint64_t step = 0;
  double min = 0;
  double max = 0;
  double mean = 0;
};
struct ReportSeries {
  std::string fqn;
  std::vector<ReportPoint> points;
};

/// Tensors in which NaN or infinities began at one step.
struct BadTensor {
  std::string fqn;
  uint64_t values = 0;
};
struct BadStart {
  uint64_t step = 0;
  uint64_t step_before = 0;          // the examined step before it
  bool is_exact = true;              // false: it may have begun after `step_before`
  bool is_known_before = true;       // false: some of the tensors had no statistics before
  bool is_first = false;             // the first step with statistics already has them
  uint64_t tensor_count = 0;         // may exceed tensors.size()
  std::vector<BadTensor> tensors;    // natural order
  uint64_t tensors_at_end = 0;       // tensors that have them in the last examined step
  uint64_t tensors_with_values = 0;  // in the last examined step, with statistics
};

/// The last steps, from where on the store has the same kind of state.
struct ReportPhase {
  uint64_t first_step = 0;
  uint64_t last_step = 0;
  /// The step with which `unchanged_bytes` compares: the one before the phase, or the first.
  uint64_t reference_step = 0;
  bool has_base = false;  // the reference is before the phase, as in fine-tuning
};

/// A module that grows.
struct ReportGrowth {
  size_t module = 0;
  uint64_t first_bytes = 0;
  uint64_t last_bytes = 0;
  uint64_t total_growth = 0;  // growth of all modules that grow
  uint64_t columns = 0;       // at which it grew
};

struct ReportSpace {
  uint64_t file_bytes = 0;         // segments that steps use, with headers and footers
  uint64_t payload_bytes = 0;      // payload in these
  uint64_t live_bytes = 0;         // part of the payload that steps use, at least
  uint64_t shared_bytes = 0;       // part of the payload that several steps use, at least
  uint64_t unused_file_bytes = 0;  // segments that no step uses
  uint64_t unused_files = 0;       // number of these
  std::vector<kv::SegmentSpace> segments;
};

struct Report {
  std::string address;
  std::string uuid;
  std::vector<kv::StepInfo> steps;  // all
  kv::Tags tags;
  uint64_t examined_steps = 0;
  uint64_t steps_with_statistics = 0;  // examined steps of which a tensor has statistics
  // Tensors with chunks that have no statistics, in the last examined step; and the examined steps
  // that have such tensors.
  uint64_t tensors_without_statistics = 0;
  uint64_t steps_with_unknown_values = 0;
  uint64_t records = 0;  // chunk records that were read
  std::vector<ReportColumn> columns;
  std::vector<ReportModule> modules;  // the root is first; parents precede children
  uint64_t merged_tensors = 0;        // tensors in modules that are a rest
  std::vector<ReportTensor> tensors;  // tensors with NaN or infinities first, then by size
  uint64_t all_tensors = 0;           // tensors with chunks in the last examined step
  std::vector<ReportSeries> series;   // series of few tensors
  std::optional<ReportPhase> phase;
  std::optional<BadStart> nans;
  std::optional<BadStart> infs;
  std::optional<ReportGrowth> growth;
  ReportSpace space;
  std::vector<Error> problems;  // first reports of damaged or missing objects
  uint64_t problem_count = 0;
};

}  // namespace cairn::core
