// `kv-dump verify`: reads every byte of a store, or of one step, and checks every digest and
// record.

#include <fmt/format.h>

#include <chrono>

#include "kv/step_info.h"
#include "tools/common/progress.h"
#include "tools/common/text.h"
#include "tools/dump/verbs.h"

namespace cairn::tools::internal {
namespace {

/// Collects problems and, for people, prints each as it is found.
class DamageReport {
 public:
  DamageReport(const DumpRun& run, ProgressLine* progress) : run_(run), progress_(progress) {}

  void Add(const Error& error) {
    ++count_;
    if (run_.json) {
      // A store whose every page is bad must not fill the memory; the count stays exact.
      if (problems_.size() < kMostProblems) problems_.push_back(ErrorJson(error));
      return;
    }
    progress_->Clear();
    run_.out->WriteLine(fmt::format("{}  {}", run_.out->Styled(Style::kRed, "damaged"),
                                    EscapeText(error.ToString())));
  }

  uint64_t count() const { return count_; }
  const Json& problems() const { return problems_; }

 private:
  static constexpr size_t kMostProblems = 100'000;
  DumpRun run_;
  ProgressLine* progress_;
  uint64_t count_ = 0;
  Json problems_ = Json::array();
};

/// What a failed open or a failed scan says about the store itself.
bool MeansDamage(const Error& error) { return error.code == ErrorCode::kDataLoss; }

struct Verdict {
  uint64_t bytes_read = 0;
  uint64_t steps = 0;
  double seconds = 0;
};

/// Runs the checks; whatever stops them because of damage is reported as damage.
Result<Verdict> Check(const std::string& address, ProgressLine& progress, DamageReport& report) {
  Verdict verdict;
  const auto begin = std::chrono::steady_clock::now();
  auto opened = OpenSilently(address);
  if (!opened && MeansDamage(opened.error())) {
    report.Add(opened.error());
    return verdict;
  }
  if (!opened) return Fail(std::move(opened).error());
  for (const Error& note : opened->store->kv().recovery_notes()) report.Add(note);
  const auto bytes = opened->store->Verify(
      opened->address.step, [&](const kv::Damage& damage) { report.Add(damage.error); },
      progress.callback());
  if (!bytes && !MeansDamage(bytes.error())) return Fail(bytes.error());
  if (!bytes) report.Add(bytes.error());
  const auto steps = opened->store->Steps();
  verdict.steps = opened->address.step ? 1 : steps ? steps->size() : 0;
  verdict.bytes_read = bytes.value_or(0);
  verdict.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return verdict;
}

}  // namespace

Result<int> DumpVerify(const DumpRun& run, const std::string& address) {
  ProgressLine progress("verifying");
  DamageReport report(run, &progress);
  CAIRN_TRY_ASSIGN(const Verdict verdict, Check(address, progress, report));
  progress.Clear();
  const bool fine = report.count() == 0;
  if (run.json) {
    WriteJson(*run.out, {{"store", JsonText(address)},
                         {"ok", fine},
                         {"steps", verdict.steps},
                         {"bytes_read", verdict.bytes_read},
                         {"seconds", verdict.seconds},
                         {"damage_count", report.count()},
                         {"damage", report.problems()}});
  } else {
    const std::string read =
        fmt::format("{} of payload in {} read in {} ({})", HumanBytes(verdict.bytes_read),
                    Plural(verdict.steps, "step"), HumanSeconds(verdict.seconds),
                    HumanRate(verdict.bytes_read, verdict.seconds));
    run.out->WriteLine(
        fine ? fmt::format("{}  {}; every digest and record is right",
                           run.out->Styled(Style::kGreen, "fine"), read)
             : fmt::format("{}; {}",
                           run.out->Styled(Style::kRed, Plural(report.count(), "problem")), read));
  }
  return fine ? kExitFine : kExitDiffers;
}

}  // namespace cairn::tools::internal
