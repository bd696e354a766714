#pragma once
/// Rows of measurements: JSON objects, one per line, or a table for people.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tools/bench/measure.h"
#include "tools/common/json.h"
#include "tools/common/terminal.h"

namespace cairn::tools {

struct BenchRow {
  std::string what;    // distinguishes the rows of a verb: "cold open", "digest kernel"
  uint64_t run = 0;    // number of the repetition, from 1
  uint64_t bytes = 0;  // bytes that the operation processed; 0: only the time counts
  Measurement measured;
  bool in_this_process = true;  // false: memory and processor time are not known
  Json extra = Json::object();  // further members of the JSON object
  std::string note;             // remarks for people about the row
};

/// A figure compared with its limit.
struct BenchBar {
  std::string what;
  std::string reference;  // name of the limit
  double figure = 0;      // in `unit`
  double limit = 0;       // in `unit`
  std::string unit;
  double bar = 1;         // for figure / limit
  bool at_least = false;  // the ratio should be at least `bar`; false: at most
};

/// Prints rows as soon as they are added, and remembers their rates and times.
class BenchReport {
 public:
  /// `out` must outlive the report.
  BenchReport(Output* out, bool json, std::string verb)
      : out_(out), json_(json), verb_(std::move(verb)) {}
  void Add(const BenchRow& row);
  /// Adds the ratio of the median rates of two kinds of rows, named by their `what`: it should be
  /// at least `least`. Adds nothing if one kind has no rows.
  void AddRateBar(const std::string& what, const std::string& reference, double least);
  /// Adds the ratio of the median times: it should be at most `most`. Adds nothing if one kind has
  /// no rows.
  void AddTimeBar(const std::string& what, const std::string& reference, double most);
  /// Adds the median time: it should be at most `most_seconds`. Adds nothing if there are no rows.
  void AddTimeBar(const std::string& what, double most_seconds);
  void AddBar(const BenchBar& bar);
  /// Adds a fact that is not a measurement: what the measurements ran on.
  void AddFact(const std::string& what, const Json& members);

 private:
  using Figures = std::map<std::string, std::vector<double>>;  // by `what`

  static std::optional<double> MedianOf(const Figures& figures, const std::string& what);
  void Write(const Json& json, const std::string& text);

  Output* out_;
  bool json_;
  std::string verb_;
  Figures rates_;  // bytes per second
  Figures seconds_;
};

}  // namespace cairn::tools
