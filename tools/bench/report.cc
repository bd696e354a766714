// Rows of measurements: JSON objects, one per line, or a table for people.

#include "tools/bench/report.h"

#include <fmt/format.h>

#include <cstdio>

#include "tools/bench/measure.h"
#include "tools/common/quantities.h"

namespace cairn::tools {
namespace {

// Rows are printed while the work continues, so the columns cannot wait for the widest cell.
constexpr std::string_view kLine = "{:<28} {:>3} {:>10} {:>10} {:>12} {:>10} {:>14}  {}";

double Rate(const BenchRow& row) {
  return row.measured.seconds > 0 ? static_cast<double>(row.bytes) / row.measured.seconds : 0;
}

Json RowJson(const BenchRow& row) {
  const Measurement& measured = row.measured;
  Json json = {{"verb", row.verb},
               {"what", row.what},
               {"run", row.run},
               {"bytes", row.bytes},
               {"seconds", measured.seconds}};
  if (row.in_this_process) {
    json.update({{"cpu_seconds", measured.cpu_seconds},
                 {"peak_resident_bytes", measured.peak_resident_bytes},
                 {"peak_beyond_tensors_bytes", measured.peak_beyond_tensors_bytes},
                 {"peak_is_of_run", measured.peak_is_of_run}});
    if (measured.device_read_bytes) json["device_read_bytes"] = *measured.device_read_bytes;
    if (measured.device_written_bytes) {
      json["device_written_bytes"] = *measured.device_written_bytes;
    }
  }
  json["bytes_per_second"] = Rate(row);
  json.update(row.extra);
  return json;
}

}  // namespace

BenchReport::BenchReport(Output* out, bool json) : out_(out), json_(json) {}

void BenchReport::Add(const BenchRow& row) {
  rates_[row.what].push_back(Rate(row));
  seconds_[row.what].push_back(row.measured.seconds);
  if (json_) {
    out_->WriteLine(JsonLine(RowJson(row)));
  } else {
    AddText(row);
  }
  // A run can take minutes; its row appears at once, also in a pipe.
  std::fflush(stdout);
}

void BenchReport::AddText(const BenchRow& row) {
  if (!header_written_) {
    out_->WriteLine(
        out_->Styled(Style::kBold, fmt::format(kLine, "WHAT", "RUN", "BYTES", "TIME", "RATE", "CPU",
                                               "BEYOND TENSORS", "NOTE")));
    header_written_ = true;
  }
  const Measurement& measured = row.measured;
  out_->WriteLine(fmt::format(
      kLine, row.what, row.run, HumanBytes(row.bytes), HumanSeconds(measured.seconds),
      row.rate_matters ? HumanRate(row.bytes, measured.seconds) : "-",
      row.in_this_process ? HumanSeconds(measured.cpu_seconds) : "-",
      row.in_this_process ? HumanBytes(measured.peak_beyond_tensors_bytes) : "-", row.note));
}

void BenchReport::AddRatio(const std::string& verb, const std::string& what,
                           const std::string& reference) {
  const std::optional<double> rate = MedianRate(what);
  const std::optional<double> reference_rate = MedianRate(reference);
  if (!rate || !reference_rate || !(*reference_rate > 0)) return;
  const double ratio = *rate / *reference_rate;
  if (json_) {
    out_->WriteLine(JsonLine({{"verb", verb},
                              {"what", "ratio of medians"},
                              {"of", what},
                              {"to", reference},
                              {"median_bytes_per_second", *rate},
                              {"reference_median_bytes_per_second", *reference_rate},
                              {"ratio", ratio}}));
  } else {
    out_->WriteLine(out_->Styled(
        Style::kBold, fmt::format("median {} is {:.2f} of median {}", what, ratio, reference)));
  }
}

std::optional<double> BenchReport::MedianOf(const Figures& figures, const std::string& what) {
  const auto found = figures.find(what);
  if (found == figures.end() || found->second.empty()) return std::nullopt;
  return Median(found->second);
}

std::optional<double> BenchReport::MedianRate(const std::string& what) const {
  return MedianOf(rates_, what);
}

std::optional<double> BenchReport::MedianSeconds(const std::string& what) const {
  return MedianOf(seconds_, what);
}

void BenchReport::AddTimeRatioBar(const std::string& verb, const std::string& what,
                                  const std::string& reference, double most) {
  const std::optional<double> figure = MedianSeconds(what);
  const std::optional<double> limit = MedianSeconds(reference);
  if (!figure || !limit) return;
  AddBar({.verb = verb,
          .what = what,
          .reference = reference,
          .figure = *figure,
          .limit = *limit,
          .unit = "s",
          .bar = most});
}

void BenchReport::AddTimeBar(const std::string& verb, const std::string& what,
                             double most_seconds) {
  const std::optional<double> figure = MedianSeconds(what);
  if (!figure) return;
  AddBar({.verb = verb,
          .what = what,
          .reference = HumanSeconds(most_seconds),
          .figure = *figure,
          .limit = most_seconds,
          .unit = "s",
          .bar = 1});
}

void BenchReport::AddRateBar(const std::string& verb, const std::string& what,
                             const std::string& reference, double least) {
  const std::optional<double> figure = MedianRate(what);
  const std::optional<double> limit = MedianRate(reference);
  if (!figure || !limit || !(*limit > 0)) return;
  AddBar({.verb = verb,
          .what = what,
          .reference = reference,
          .figure = *figure,
          .limit = *limit,
          .unit = "bytes/s",
          .bar = least,
          .at_least = true});
}

void BenchReport::AddBar(const BenchBar& bar) {
  const double ratio = bar.limit > 0 ? bar.figure / bar.limit : 0;
  const bool met = bar.at_least ? ratio >= bar.bar : ratio <= bar.bar;
  const char* const relation = bar.at_least ? "at least" : "at most";
  if (json_) {
    out_->WriteLine(JsonLine({{"verb", bar.verb},
                              {"what", "bar"},
                              {"of", bar.what},
                              {"to", bar.reference},
                              {"figure", bar.figure},
                              {"limit", bar.limit},
                              {"unit", bar.unit},
                              {"ratio", ratio},
                              {"bar", bar.bar},
                              {"bar_is", relation},
                              {"met", met}}));
  } else {
    out_->WriteLine(out_->Styled(
        Style::kBold, fmt::format("{}: {:.4g} of {} (bar: {} {:g}, {})", bar.what, ratio,
                                  bar.reference, relation, bar.bar, met ? "met" : "not met")));
  }
  std::fflush(stdout);
}

void BenchReport::AddFact(const std::string& verb, const std::string& what, const Json& members) {
  Json json = {{"verb", verb}, {"what", what}};
  json.update(members);
  std::string line = what + ":";
  for (const auto& [name, value] : members.items()) {
    line += fmt::format(" {} {};", name,
                        value.is_string() ? value.get<std::string>() : JsonLine(value));
  }
  out_->WriteLine(json_ ? JsonLine(json) : line);
  std::fflush(stdout);
}

}  // namespace cairn::tools
