#pragma once
/// Rows of measurements: JSON objects, one a line, or a table for people.

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tools/internal/json.h"
#include "tools/internal/measure.h"
#include "tools/internal/table.h"

namespace cairn::tools::internal {

struct BenchRow {
  std::string verb;
  std::string what;    // tells the rows of one verb apart: "cold", "fio write", "unchanged"
  uint64_t run = 0;    // counts repetitions from 1
  uint64_t bytes = 0;  // that the work was about
  Measurement measured;
  bool in_this_process = true;  // false: memory and processor time are not known (fio)
  bool rate_matters = true;     // false: the bytes are few and the time is what counts
  Json extra = Json::object();  // further members, in JSON
  std::string note;             // what is worth saying of them, for people
};

/// Prints rows as they come and remembers the rates.
class BenchReport {
 public:
  BenchReport(Output* out, bool json);
  void Add(const BenchRow& row);
  /// The ratio of the median rates of two kinds of rows (named by `what`), as a row of its own.
  void AddRatio(const std::string& verb, const std::string& what, const std::string& reference);

 private:
  Output* out_;
  bool json_;
  bool header_written_ = false;
  std::map<std::string, std::vector<double>> rates_;  // bytes a second by `what`
};

}  // namespace cairn::tools::internal
