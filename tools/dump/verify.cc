// `kv-dump verify`: reads every byte and checks every digest and record.

#include <fmt/format.h>

#include <chrono>
#include <functional>
#include <utility>

#include "core/upkeep/scrub.h"
#include "tools/common/address.h"
#include "tools/common/exit_status.h"
#include "tools/common/json.h"
#include "tools/common/progress.h"
#include "tools/common/quantities.h"
#include "tools/common/text.h"
#include "tools/dump/opened_store.h"
#include "tools/dump/verbs.h"

namespace cairn::tools {
namespace {

constexpr uint64_t kMaxListed = 100'000;

/// Returns whether a failed open or a failed scan means that the store is damaged.
bool MeansDamage(const Error& error) { return error.code == ErrorCode::kDataLoss; }

struct Verdict {
  uint64_t bytes_read = 0;
  uint64_t steps = 0;
  double seconds = 0;
};

/// Runs the checks. Damage that stops them is reported as damage, not as an error.
Result<Verdict> Check(const std::string& address, uint64_t max_bytes_per_second,
                      ProgressLine& progress, const std::function<void(const Error&)>& report) {
  Verdict verdict;
  const auto begin = std::chrono::steady_clock::now();
  // Verifies the storage, and not its contents in a cache.
  auto opened = OpenStore(address, {.reader_cache = false});
  if (!opened && MeansDamage(opened.error())) {
    report(opened.error());
    return verdict;
  }
  if (!opened) return Fail(std::move(opened).error());
  const auto payload = progress.callback();
  const auto records = progress.callback("checking records", ProgressUnit::kCount);
  Result<uint64_t> bytes;
  if (max_bytes_per_second > 0) {
    const auto pass = core::ScrubOnce(*opened->store, max_bytes_per_second, payload, records);
    if (pass) {
      for (const Error& error : pass->damage) report(error);
      bytes = pass->bytes_read;
    } else {
      bytes = Fail(pass.error());
    }
  } else {
    bytes = opened->store->Verify(
        opened->address.step, [&](const kv::Damage& damage) { report(damage.error); }, payload,
        records);
  }
  if (!bytes && !MeansDamage(bytes.error())) return Fail(bytes.error());
  if (!bytes) report(bytes.error());
  const auto steps = opened->store->Steps();
  verdict.steps = opened->address.step ? 1 : steps ? steps->size() : 0;
  verdict.bytes_read = bytes.value_or(0);
  verdict.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return verdict;
}

}  // namespace

Result<int> DumpVerify(const DumpRun& run) {
  uint64_t max_bytes_per_second = 0;
  if (!run.max_rate.empty()) {
    CAIRN_TRY_ASSIGN(max_bytes_per_second, ParseBytes(run.max_rate));
    CAIRN_TRY_ASSIGN(const Address parsed, ParseAddress(run.address));
    if (max_bytes_per_second == 0 || parsed.step) {
      return Fail(
          ErrorCode::kInvalidArgument,
          "--max-rate is at least one byte per second, and for a complete store; write a rate such "
          "as 100M, and the store without a step");
    }
  }
  ProgressLine progress("verifying");
  uint64_t damage_count = 0;
  uint64_t unread_count = 0;  // of these, what may be intact
  Json damage = Json::array();
  const auto report = [&](const Error& error) {
    ++damage_count;
    const bool is_unread = error.code == ErrorCode::kUnavailable;
    if (is_unread) ++unread_count;
    if (run.json) {
      // The list is limited because every page of a store may be damaged; the count is exact.
      if (damage_count <= kMaxListed) damage.push_back(ErrorJson(error));
      return;
    }
    progress.Clear();
    run.out->WriteLine(fmt::format("{}  {}",
                                   run.out->Styled(Style::kRed, is_unread ? "unread " : "damaged"),
                                   EscapeText(error.ToString())));
  };
  CAIRN_TRY_ASSIGN(const Verdict verdict,
                   Check(run.address, max_bytes_per_second, progress, report));
  progress.Clear();
  const bool intact = damage_count == 0;
  if (run.json) {
    WriteJson(*run.out, {{"store", JsonText(run.address)},
                         {"ok", intact},
                         {"steps", verdict.steps},
                         {"bytes_read", verdict.bytes_read},
                         {"seconds", verdict.seconds},
                         {"damage_count", damage_count},
                         {"damage", std::move(damage)}});
  } else {
    const std::string read =
        fmt::format("{} of payload in {} read in {} ({})", HumanBytes(verdict.bytes_read),
                    Plural(verdict.steps, "step"), HumanSeconds(verdict.seconds),
                    HumanRate(verdict.bytes_read, verdict.seconds));
    run.out->WriteLine(
        intact ? fmt::format("{}  {}; every digest and record is correct",
                             run.out->Styled(Style::kGreen, "ok"), read)
               : fmt::format("{}; {}",
                             run.out->Styled(Style::kRed, Plural(damage_count, "problem")), read));
    if (unread_count > 0) {
      PrintRemark(run,
                  "what is unread may be intact: give access to it, or wait for the storage, "
                  "and verify again");
    }
    if (damage_count > unread_count) {
      // Damage of a table or a root needs another remedy than damage of payload.
      PrintRemark(run,
                  fmt::format("kv-admin repair {0} --from MIRROR replaces damaged bytes by good "
                              "copies; kv-admin rebuild {0} recovers lost tables and roots",
                              ShellWord(StoreOf(run.address))));
    }
  }
  return intact ? kExitSuccess : kExitDiffers;
}

}  // namespace cairn::tools
