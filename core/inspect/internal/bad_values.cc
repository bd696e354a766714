#include "core/inspect/internal/bad_values.h"

#include <algorithm>
#include <utility>

namespace cairn::core::internal {
namespace {

constexpr size_t kMaxListed = 100;

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

/// Takes the digits at the begin of `text`, without leading zeros.
std::string_view TakeDigits(std::string_view& text) {
  size_t end = 0;
  while (end < text.size() && IsDigit(text[end])) ++end;
  std::string_view digits = text.substr(0, end);
  text.remove_prefix(end);
  while (digits.size() > 1 && digits.front() == '0') digits.remove_prefix(1);
  return digits;
}

}  // namespace

bool NaturalLess(std::string_view a, std::string_view b) {
  std::string_view x = a, y = b;
  while (!x.empty() && !y.empty()) {
    if (IsDigit(x.front()) && IsDigit(y.front())) {
      const std::string_view digits_x = TakeDigits(x);
      const std::string_view digits_y = TakeDigits(y);
      if (digits_x.size() != digits_y.size()) return digits_x.size() < digits_y.size();
      if (digits_x != digits_y) return digits_x < digits_y;
      continue;
    }
    if (x.front() != y.front()) {
      return static_cast<unsigned char>(x.front()) < static_cast<unsigned char>(y.front());
    }
    x.remove_prefix(1);
    y.remove_prefix(1);
  }
  if (x.empty() != y.empty()) return x.empty();
  return a < b;
}

void BadValueSearch::AddStep(size_t index, const kv::StepInfo& step,
                             std::span<const TensorChange> changes) {
  Counts began;
  bool has_values = false;
  bool is_known_before = true;
  for (const TensorChange& change : changes) {
    if (change.kind == TensorChange::Kind::kRemoved) continue;
    const auto& [fqn, tensor] = *change.tensor;
    const uint64_t count = Select(tensor.nans, tensor.infs);
    has_values |= tensor.values.has_value() || count > 0;
    if (count == 0 || Select(change.nans_before, change.infs_before) > 0) continue;
    if (change.kind == TensorChange::Kind::kChanged && !change.values_before) {
      is_known_before = false;
    }
    began.emplace(fqn, count);
  }
  auto& start = has_values_ ? later_ : first_;
  if (!began.empty() && !start && !later_) {
    start = Start{.index = index,
                  .index_before = index_before_.value_or(index),
                  .start = {.step = step.step,
                            .step_before = step_before_,
                            .is_exact = index <= index_before_.value_or(index) + 1,
                            .is_known_before = is_known_before,
                            .is_first = !has_values_},
                  .tensors = std::move(began)};
  }
  has_values_ |= has_values;
  index_before_ = index;
  step_before_ = step.step;
}

Result<BadValueSearch::Counts> BadValueSearch::Read(const kv::Snapshot& snapshot,
                                                    const kv::StepInfo& step) const {
  Counts counts;
  kv::ChunkView chunk;
  CAIRN_TRY(
      snapshot.Scan(kv::Column::kChunks, step, "",
                    [&](std::string_view key, std::span<const std::byte> record) -> Result<bool> {
                      CAIRN_TRY(chunk.Set(key, record));
                      const auto values = kv::ReadStatistics(chunk.record());
                      const uint64_t count = values ? Select(values->nans, values->infs) : 0;
                      if (count > 0) counts[std::string(chunk.fqn())] += count;
                      return true;
                    }));
  return counts;
}

void BadValueSearch::Refine(const kv::Snapshot& snapshot, std::span<const kv::StepInfo> steps,
                            uint64_t max_records) {
  if (!later_ || later_->index <= later_->index_before + 1) return;
  const auto before = Read(snapshot, steps[later_->index_before]);
  uint64_t records = 0;
  for (size_t i = later_->index_before + 1; i < later_->index; ++i) {
    records += steps[i].chunk_count;
    if (max_records != 0 && records > max_records) return;
    auto counts = Read(snapshot, steps[i]);
    if (!counts) continue;
    if (before)
      std::erase_if(*counts, [&](const auto& one) { return before->contains(one.first); });
    if (counts->empty()) {
      later_->start.step_before = steps[i].step;
      continue;
    }
    later_->tensors = *std::move(counts);
    later_->start.step = steps[i].step;
    break;
  }
  later_->start.is_exact = true;
}

std::optional<BadStart> BadValueSearch::Finish(const TensorStates& states) {
  std::optional<Start>& found = later_ ? later_ : first_;
  if (!found) return std::nullopt;
  BadStart start = found->start;
  for (auto& [fqn, count] : found->tensors) start.tensors.push_back({fqn, count});
  start.tensor_count = start.tensors.size();
  std::ranges::sort(start.tensors, NaturalLess, &BadTensor::fqn);
  if (start.tensors.size() > kMaxListed) start.tensors.resize(kMaxListed);
  for (const auto& [fqn, tensor] : states.tensors()) {
    start.tensors_with_values += tensor.values.has_value();
    start.tensors_at_end += Select(tensor.nans, tensor.infs) > 0;
  }
  return start;
}

}  // namespace cairn::core::internal
