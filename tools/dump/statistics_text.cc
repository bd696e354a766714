#include "tools/dump/statistics_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "tools/common/quantities.h"
#include "tools/common/text.h"
#include "tools/dump/contents_json.h"

namespace cairn::tools {
namespace {

using core::StoredStatistics;

constexpr std::array<std::string_view, 10> kFields = {"min", "max", "mean",  "absmax", "zeros",
                                                      "nan", "inf", "count", "bytes",  "chunks"};
// Longer ones first, because others begin with the same character.
constexpr std::array<std::string_view, 6> kComparisons = {"<=", ">=", "==", "!=", "<", ">"};

double FieldOf(std::string_view field, const core::TensorInfo& tensor,
               const StoredStatistics& statistics) {
  if (field == "min") return statistics.min;
  if (field == "max") return statistics.max;
  if (field == "mean") return statistics.mean;
  if (field == "absmax") return statistics.abs_max();
  if (field == "zeros") return static_cast<double>(statistics.zeros);
  if (field == "nan") return static_cast<double>(statistics.nans);
  if (field == "inf") return static_cast<double>(statistics.infs);
  if (field == "count") return static_cast<double>(statistics.count);
  if (field == "bytes") return static_cast<double>(tensor.nbytes);
  return static_cast<double>(tensor.chunk_count);
}

bool Holds(double value, std::string_view comparison, double number) {
  if (comparison == "<=") return value <= number;
  if (comparison == ">=") return value >= number;
  if (comparison == "==") return value == number;
  if (comparison == "!=") return value < number || value > number;
  return comparison == "<" ? value < number : value > number;
}

std::string NumberText(double value) { return fmt::format("{:.6g}", value); }
std::string CountText(uint64_t count) { return count == 0 ? "0" : GroupedCount(count); }

}  // namespace

void AppendStatisticsColumns(std::vector<Column>& columns) {
  for (const char* const title : {"MIN", "MAX", "MEAN", "ZEROS", "NAN", "INF"}) {
    columns.push_back(Right(title));
  }
}

void AppendStatisticsCells(const std::optional<StoredStatistics>& statistics,
                           std::vector<Cell>& cells) {
  if (!statistics) {
    for (int i = 0; i < 6; ++i) cells.emplace_back("");
    return;
  }
  cells.emplace_back(NumberText(statistics->min));
  cells.emplace_back(NumberText(statistics->max));
  cells.emplace_back(NumberText(statistics->mean));
  cells.emplace_back(CountText(statistics->zeros));
  const auto bad = [&](uint64_t count) {
    return Cell(CountText(count), count > 0 ? Style::kRed : Style::kPlain);
  };
  cells.push_back(bad(statistics->nans));
  cells.push_back(bad(statistics->infs));
}

Json StatisticsJson(const StoredStatistics& statistics) {
  Json json = {{"count", statistics.count}};
  json.update(ValuesJson(statistics));
  return json;
}

Json ValuesJson(const kv::ChunkStatistics& values, const char* nans, const char* infs) {
  return {{"min", FloatJson(values.min)},
          {"max", FloatJson(values.max)},
          {"mean", FloatJson(values.mean)},
          {"zeros", values.zeros},
          {nans, values.nans},
          {infs, values.infs}};
}

Result<StatisticsFilter> StatisticsFilter::Parse(const std::string& text) {
  const auto fail = [&] {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("{} is not a condition; write FIELD OP NUMBER, such as 'nan>0' or "
                            "'absmax>=1e4 and zeros==0', with the fields {}",
                            ShellWord(text), fmt::join(kFields, ", ")));
  };
  StatisticsFilter filter;
  constexpr std::string_view kAnd = " and ";
  for (std::string_view rest = text; !rest.empty();) {
    const size_t end = rest.find(kAnd);
    const std::string_view condition = rest.substr(0, end);
    rest = end == std::string_view::npos ? "" : rest.substr(end + kAnd.size());
    if (end != std::string_view::npos && Trim(rest).empty()) return fail();
    const size_t at = condition.find_first_of("<>=!");
    if (at == std::string_view::npos) return fail();
    const auto* const comparison = std::ranges::find_if(
        kComparisons, [&](std::string_view one) { return condition.substr(at).starts_with(one); });
    if (comparison == kComparisons.end()) return fail();
    const std::string_view field = Trim(condition.substr(0, at));
    const auto number = ParseWhole<double>(Trim(condition.substr(at + comparison->size())));
    if (!number || std::isnan(*number) || std::ranges::find(kFields, field) == kFields.end())
      return fail();
    filter.conditions_.push_back({std::string(field), std::string(*comparison), *number});
  }
  if (filter.conditions_.empty()) return fail();
  return filter;
}

bool StatisticsFilter::Matches(const core::TensorInfo& tensor,
                               const std::optional<StoredStatistics>& statistics) const {
  if (!statistics) return false;
  return std::ranges::all_of(conditions_, [&](const Condition& condition) {
    return Holds(FieldOf(condition.field, tensor, *statistics), condition.comparison,
                 condition.number);
  });
}

}  // namespace cairn::tools
