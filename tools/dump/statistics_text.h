#pragma once
/// Statistics of tensors as columns and JSON, and conditions on them.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/inspect/stored_statistics.h"
#include "core/step/contents.h"
#include "kv/base/error.h"
#include "tools/common/json.h"
#include "tools/common/table.h"

namespace cairn::tools {

/// Whether a tensor has values of which no statistics were recorded. An alias has those of another.
inline bool LacksStatistics(const core::TensorInfo& tensor,
                            const std::optional<core::StoredStatistics>& statistics) {
  return !statistics && !tensor.alias_of && tensor.nbytes > 0;
}

/// The columns MIN, MAX, MEAN, ZEROS, NAN, INF, and their cells; empty ones without statistics.
void AppendStatisticsColumns(std::vector<Column>& columns);
void AppendStatisticsCells(const std::optional<core::StoredStatistics>& statistics,
                           std::vector<Cell>& cells);
Json StatisticsJson(const core::StoredStatistics& statistics);
/// Returns everything except the count, under the names that the document has for some members.
Json ValuesJson(const kv::ChunkStatistics& values, const char* nans = "nan",
                const char* infs = "inf");

/// A user's expression to select tensors: `nan>0`, `absmax>=1e4 and zeros==0`.
class StatisticsFilter {
 public:
  static constexpr std::string_view kHelp =
      "Only tensors for which this holds: FIELD OP NUMBER, joined by 'and'. Fields: min, max, "
      "mean, absmax, zeros, nan, inf, count, bytes, chunks. OP: < <= > >= == !=";

  /// kInvalidArgument: the text is not a condition; the error states what is expected.
  static Result<StatisticsFilter> Parse(const std::string& text);

  /// True if all conditions hold. A comparison with NaN does not hold. False without statistics.
  bool Matches(const core::TensorInfo& tensor,
               const std::optional<core::StoredStatistics>& statistics) const;

 private:
  struct Condition {
    std::string field;
    std::string comparison;
    double number = 0;
  };
  std::vector<Condition> conditions_;
};

}  // namespace cairn::tools
