#include "core/inspect/internal/examined_steps.h"

#include <algorithm>
#include <optional>

namespace cairn::core::internal {
namespace {

/// A record that changes is read again when the tables that contain it are merged with newer ones.
constexpr uint64_t kReadsPerChange = 6;
/// Tags and forks add at most so many steps.
constexpr size_t kMaxNamed = 256;

std::optional<size_t> IndexOf(std::span<const kv::StepInfo> steps, uint64_t number) {
  const auto found = std::ranges::lower_bound(steps, number, {}, &kv::StepInfo::step);
  if (found == steps.end() || found->step != number) return std::nullopt;
  return static_cast<size_t>(found - steps.begin());
}

}  // namespace

uint64_t ExpectedRecords(std::span<const kv::StepInfo> steps) {
  uint64_t sum = 0;
  for (const kv::StepInfo& step : steps) {
    const uint64_t reused = std::min(step.reused_chunk_count, step.chunk_count);
    const uint64_t changed = (step.chunk_count - reused) * kReadsPerChange;
    sum += step.base_step ? std::min(step.chunk_count, changed) : step.chunk_count;
  }
  return sum;
}

bool IsFork(std::span<const kv::StepInfo> steps, size_t index) {
  if (index == 0 || !steps[index].base_step) return false;
  return *steps[index].base_step < steps[index - 1].step;
}

std::vector<size_t> ChooseSteps(std::span<const kv::StepInfo> steps, const kv::Tags& tags,
                                uint64_t max_records) {
  std::vector<size_t> chosen;
  const uint64_t expected = ExpectedRecords(steps);
  const bool takes_all = max_records == 0 || expected <= max_records;
  size_t count = steps.size();
  if (!takes_all) {
    // Steps that are compared over a distance share few tables.
    uint64_t complete = 0;
    for (const kv::StepInfo& step : steps) complete += step.chunk_count;
    const uint64_t average = std::max<uint64_t>(1, complete / steps.size());
    count = std::clamp<size_t>(max_records / average, 2, steps.size());
  }
  for (size_t i = 0; i < count; ++i) {
    chosen.push_back(count == 1 ? 0 : i * (steps.size() - 1) / (count - 1));
  }
  if (takes_all) return chosen;
  const auto add = [&](std::optional<size_t> index) {
    if (index && chosen.size() < count + kMaxNamed) chosen.push_back(*index);
  };
  for (const auto& [name, step] : tags) add(IndexOf(steps, step));
  for (size_t i = 1; i < steps.size(); ++i) {
    if (!IsFork(steps, i)) continue;
    add(i - 1);
    add(i);
    add(IndexOf(steps, *steps[i].base_step));
  }
  std::ranges::sort(chosen);
  chosen.erase(std::ranges::unique(chosen).begin(), chosen.end());
  return chosen;
}

}  // namespace cairn::core::internal
