// Rows of measurements: JSON objects, one a line, or a table for people.

#include "tools/bench/report.h"

#include <fmt/format.h>

#include <algorithm>

#include "tools/common/text.h"

namespace cairn::tools::internal {
namespace {

// Rows appear while the work goes on, so the columns cannot wait for the widest cell.
constexpr std::string_view kLine = "{:<28} {:>3} {:>10} {:>10} {:>12} {:>10} {:>14}  {}";

double Rate(const BenchRow& row) {
  return row.measured.seconds > 0 ? static_cast<double>(row.bytes) / row.measured.seconds : 0;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

Json RowJson(const BenchRow& row) {
  const Measurement& measured = row.measured;
  Json json = {{"verb", row.verb},
               {"what", row.what},
               {"run", row.run},
               {"bytes", row.bytes},
               {"seconds", measured.seconds}};
  if (row.in_this_process) {
    json["cpu_seconds"] = measured.cpu_seconds;
    json["peak_resident_bytes"] = measured.peak_resident_bytes;
    json["peak_beyond_tensors_bytes"] = measured.peak_beyond_tensors_bytes;
    json["peak_is_of_run"] = measured.peak_is_of_run;
    if (measured.device_read_bytes) json["device_read_bytes"] = *measured.device_read_bytes;
    if (measured.device_written_bytes) {
      json["device_written_bytes"] = *measured.device_written_bytes;
    }
  }
  json["bytes_per_second"] = Rate(row);
  for (const auto& [name, value] : row.extra.items()) json[name] = value;
  return json;
}

}  // namespace

BenchReport::BenchReport(Output* out, bool json) : out_(out), json_(json) {}

void BenchReport::Add(const BenchRow& row) {
  rates_[row.what].push_back(Rate(row));
  if (json_) {
    out_->WriteLine(RowJson(row).dump());
  } else {
    if (!header_written_) {
      out_->WriteLine(
          out_->Styled(Style::kBold, fmt::format(kLine, "WHAT", "RUN", "BYTES", "TIME", "RATE",
                                                 "CPU", "BEYOND TENSORS", "NOTE")));
      header_written_ = true;
    }
    const Measurement& measured = row.measured;
    out_->WriteLine(fmt::format(
        kLine, row.what, row.run, HumanBytes(row.bytes), HumanSeconds(measured.seconds),
        row.rate_matters ? HumanRate(row.bytes, measured.seconds) : "-",
        row.in_this_process ? HumanSeconds(measured.cpu_seconds) : "-",
        row.in_this_process ? HumanBytes(measured.peak_beyond_tensors_bytes) : "-", row.note));
  }
  // A run can take minutes; what is known is shown at once, also through a pipe.
  std::fflush(stdout);
}

void BenchReport::AddRatio(const std::string& verb, const std::string& what,
                           const std::string& reference) {
  if (rates_[what].empty() || rates_[reference].empty()) return;
  const double rate = Median(rates_[what]);
  const double reference_rate = Median(rates_[reference]);
  if (!(reference_rate > 0)) return;
  if (json_) {
    out_->WriteLine(Json{{"verb", verb},
                         {"what", "ratio of medians"},
                         {"of", what},
                         {"to", reference},
                         {"median_bytes_per_second", rate},
                         {"reference_median_bytes_per_second", reference_rate},
                         {"ratio", rate / reference_rate}}
                        .dump());
  } else {
    out_->WriteLine(out_->Styled(Style::kBold, fmt::format("median {} is {:.2f} of median {}", what,
                                                           rate / reference_rate, reference)));
  }
}

std::optional<double> BenchReport::MedianRate(const std::string& what) const {
  const auto found = rates_.find(what);
  if (found == rates_.end() || found->second.empty()) return std::nullopt;
  return Median(found->second);
}

void BenchReport::AddBar(const std::string& verb, const std::string& what,
                         const std::string& reference, double least) {
  const std::optional<double> figure = MedianRate(what);
  const std::optional<double> limit = MedianRate(reference);
  if (!figure || !limit || !(*limit > 0)) return;
  const double ratio = *figure / *limit;
  WriteBar({{"verb", verb},
            {"what", "bar"},
            {"of", what},
            {"to", reference},
            {"figure", *figure},
            {"limit", *limit},
            {"unit", "bytes/s"},
            {"ratio", ratio},
            {"bar", least},
            {"bar_is", "at least"},
            {"met", ratio >= least}});
}

void BenchReport::AddBar(const Bar& bar) {
  const double ratio = bar.limit > 0 ? bar.figure / bar.limit : 0;
  WriteBar({{"verb", bar.verb},
            {"what", "bar"},
            {"of", bar.what},
            {"to", bar.reference},
            {"figure", bar.figure},
            {"limit", bar.limit},
            {"unit", bar.unit},
            {"ratio", ratio},
            {"bar", bar.most},
            {"bar_is", "at most"},
            {"met", ratio <= bar.most}});
}

void BenchReport::WriteBar(const Json& json) {
  if (json_) {
    out_->WriteLine(json.dump());
  } else {
    out_->WriteLine(out_->Styled(
        Style::kBold,
        fmt::format("{}: {:.4g} of {} (bar: {} {:g}, {})", json["of"].get<std::string>(),
                    json["ratio"].get<double>(), json["to"].get<std::string>(),
                    json["bar_is"].get<std::string>(), json["bar"].get<double>(),
                    json["met"].get<bool>() ? "met" : "not met")));
  }
  std::fflush(stdout);
}

void BenchReport::AddFact(const std::string& verb, const std::string& what, const Json& members) {
  if (json_) {
    Json json = {{"verb", verb}, {"what", what}};
    json.update(members);
    out_->WriteLine(json.dump());
  } else {
    std::string line = what + ":";
    for (const auto& [name, value] : members.items()) {
      line +=
          fmt::format(" {} {};", name, value.is_string() ? value.get<std::string>() : value.dump());
    }
    out_->WriteLine(line);
  }
  std::fflush(stdout);
}

}  // namespace cairn::tools::internal
