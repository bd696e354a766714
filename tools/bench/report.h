#pragma once
/// Rows of measurements: JSON objects, one a line, or a table for people.

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tools/common/json.h"
#include "tools/bench/measure.h"
#include "tools/common/table.h"

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
  /// As AddRatio, with the least that the ratio should be.
  void AddBar(const std::string& verb, const std::string& what, const std::string& reference,
              double least);
  /// A figure beside its limit, both in `unit`, and the most that their ratio should be.
  struct Bar {
    std::string verb;
    std::string what;
    std::string reference;
    double figure = 0;
    double limit = 0;
    std::string unit;
    double most = 0;
  };
  void AddBar(const Bar& bar);
  /// A fact that is no measurement: what the measurements ran on.
  void AddFact(const std::string& verb, const std::string& what, const Json& members);

 private:
  std::optional<double> MedianRate(const std::string& what) const;
  void WriteBar(const Json& json);

  Output* out_;
  bool json_;
  bool header_written_ = false;
  std::map<std::string, std::vector<double>> rates_;  // bytes a second by `what`
};

}  // namespace cairn::tools::internal
