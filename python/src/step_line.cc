// The line of the latest step of several stores.

#include <map>
#include <optional>
#include <vector>

#include "kv/base/retention.h"
#include "python/src/store_binding.h"

namespace cairn::python {

std::vector<uint64_t> StoreBinding::LineWith(const std::vector<const StoreBinding*>& others,
                                             std::optional<uint64_t> end,
                                             std::optional<uint64_t> base) const {
  std::map<uint64_t, kv::StepInfo> found;
  const auto add = [&](const kv::Snapshot& now) -> Result<void> {
    CAIRN_TRY_ASSIGN(const std::vector<kv::StepInfo> steps, now.Steps());
    for (const kv::StepInfo& step : steps) {
      kv::StepInfo& known = found.try_emplace(step.step, step).first->second;
      if (step.created_unix_ns > known.created_unix_ns) known = step;
    }
    return {};
  };
  AskLatest(add);
  for (const StoreBinding* other : others) other->AskLatest(add);
  if (base) found.erase(*base);
  std::vector<kv::StepInfo> steps;
  for (auto& [number, step] : found) steps.push_back(std::move(step));
  if (!end) end = kv::LatestOf(steps);
  return end ? kv::LineOf(steps, *end) : std::vector<uint64_t>();
}

}  // namespace cairn::python
