#pragma once
/// The reports of a store that C++ makes for Python out of others.

#include <string>
#include <vector>

#include "core/rewrite/step_merge.h"
#include "core/save/save_options.h"
#include "kv/base/step_info.h"

namespace cairn::python {

/// A step with its tags: cairn.StepInfo.
struct TaggedStep : kv::StepInfo {
  std::vector<std::string> tags;
};

/// What a merge wrote and read: cairn.MergeReport.
struct MergedStep : core::SaveReport {
  explicit MergedStep(const core::MergeReport& report);
  MergedStep() = default;
  uint64_t bytes_read = 0;
};

}  // namespace cairn::python
