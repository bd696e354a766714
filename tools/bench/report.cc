#include "tools/bench/report.h"

#include <fmt/format.h>

#include <cstdio>

#include "tools/common/quantities.h"

namespace cairn::tools {
namespace {

// Rows are printed while the work continues, so the columns cannot wait for the widest cell.
constexpr std::string_view kLine = "{:<28} {:>3} {:>10} {:>10} {:>12} {:>10} {:>14}  {}";

double Rate(const BenchRow& row) {
  return row.measured.seconds > 0 ? static_cast<double>(row.bytes) / row.measured.seconds : 0;
}

Json RowJson(const std::string& verb, const BenchRow& row) {
  const Measurement& measured = row.measured;
  Json json = {{"verb", verb},
               {"what", row.what},
               {"run", row.run},
               {"bytes", row.bytes},
               {"seconds", measured.seconds}};
  if (row.in_this_process) {
    json.update({{"cpu_seconds", measured.cpu_seconds},
                 {"peak_resident_bytes", measured.peak_resident_bytes},
                 {"peak_beyond_tensors_bytes", measured.peak_beyond_tensors_bytes},
                 {"peak_is_of_run", measured.peak_is_of_run}});
  }
  json["bytes_per_second"] = Rate(row);
  json.update(row.extra);
  return json;
}

}  // namespace

void BenchReport::Write(const Json& json, const std::string& text) {
  out_->WriteLine(json_ ? JsonLine(json) : text);
  // A run can take minutes; its row appears at once, also in a pipe.
  std::fflush(stdout);
}

void BenchReport::Add(const BenchRow& row) {
  const Measurement& measured = row.measured;
  rates_[row.what].push_back(Rate(row));
  seconds_[row.what].push_back(measured.seconds);
  if (!json_ && seconds_.size() == 1 && seconds_[row.what].size() == 1) {
    out_->WriteLine(
        out_->Styled(Style::kBold, fmt::format(kLine, "WHAT", "RUN", "BYTES", "TIME", "RATE", "CPU",
                                               "BEYOND TENSORS", "NOTE")));
  }
  Write(RowJson(verb_, row),
        fmt::format(kLine, row.what, row.run, row.bytes > 0 ? HumanBytes(row.bytes) : "-",
                    HumanSeconds(measured.seconds),
                    row.bytes > 0 ? HumanRate(row.bytes, measured.seconds) : "-",
                    row.in_this_process ? HumanSeconds(measured.cpu_seconds) : "-",
                    row.in_this_process ? HumanBytes(measured.peak_beyond_tensors_bytes) : "-",
                    row.note));
}

std::optional<double> BenchReport::MedianOf(const Figures& figures, const std::string& what) {
  const auto found = figures.find(what);
  return found == figures.end() ? std::nullopt : std::optional(Median(found->second));
}

void BenchReport::AddTimeBar(const std::string& what, const std::string& reference, double most) {
  const std::optional<double> figure = MedianOf(seconds_, what);
  const std::optional<double> limit = MedianOf(seconds_, reference);
  if (figure && limit) AddBar({what, reference, *figure, *limit, "s", most});
}

void BenchReport::AddTimeBar(const std::string& what, double most_seconds) {
  const std::optional<double> figure = MedianOf(seconds_, what);
  if (figure) AddBar({what, HumanSeconds(most_seconds), *figure, most_seconds, "s", 1});
}

void BenchReport::AddRateBar(const std::string& what, const std::string& reference, double least) {
  const std::optional<double> figure = MedianOf(rates_, what);
  const std::optional<double> limit = MedianOf(rates_, reference);
  if (figure && limit) AddBar({what, reference, *figure, *limit, "bytes/s", least, true});
}

void BenchReport::AddBar(const BenchBar& bar) {
  const double ratio = bar.limit > 0 ? bar.figure / bar.limit : 0;
  const bool met = bar.at_least ? ratio >= bar.bar : ratio <= bar.bar;
  const char* const relation = bar.at_least ? "at least" : "at most";
  const Json json = {
      {"verb", verb_},        {"what", "bar"},      {"of", bar.what},   {"to", bar.reference},
      {"figure", bar.figure}, {"limit", bar.limit}, {"unit", bar.unit}, {"ratio", ratio},
      {"bar", bar.bar},       {"bar_is", relation}, {"met", met}};
  Write(json, out_->Styled(Style::kBold,
                           fmt::format("{}: {:.4g} of {} (bar: {} {:g}, {})", bar.what, ratio,
                                       bar.reference, relation, bar.bar, met ? "met" : "not met")));
}

void BenchReport::AddFact(const std::string& what, const Json& members) {
  Json json = {{"verb", verb_}, {"what", what}};
  json.update(members);
  std::string line = what + ":";
  for (const auto& [name, value] : members.items()) {
    line += fmt::format(" {} {};", name,
                        value.is_string() ? value.get<std::string>() : JsonLine(value));
  }
  Write(json, line);
}

}  // namespace cairn::tools
