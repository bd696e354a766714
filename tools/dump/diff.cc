// `kv-dump diff`: the keys and bytes that differ between two steps, and with --values by how much.

#include <fmt/format.h>

#include <filesystem>
#include <map>
#include <optional>

#include "core/inspect/compare.h"
#include "core/inspect/value_difference.h"
#include "core/state_dict/key_pattern.h"
#include "kv/base/step_info.h"
#include "kv/read/snapshot.h"
#include "tools/common/exit_status.h"
#include "tools/common/progress.h"
#include "tools/common/quantities.h"
#include "tools/common/text.h"
#include "tools/dump/contents_json.h"
#include "tools/dump/opened_store.h"
#include "tools/dump/rows.h"
#include "tools/dump/tensor_values.h"
#include "tools/dump/verbs.h"

namespace cairn::tools {
namespace {

using Kind = core::KeyChange::Kind;

/// By how much the values of each changed key differ, in the order of the changes, if they were
/// compared.
using ValueDifferences = std::vector<std::optional<ValueDifference>>;

struct Sides {
  OpenedStore opened;  // one store, two steps
  kv::StepInfo a;
  kv::StepInfo b;
};

bool SameDirectory(const std::string& a, const std::string& b) {
  if (a == b) return true;
  std::error_code error;  // a path that cannot be examined is a different one
  const bool same = std::filesystem::equivalent(AddressDirectory(a), AddressDirectory(b), error);
  return !error && same;
}

Result<Sides> OpenSides(const std::string& address_a, const std::string& address_b) {
  Sides sides;
  CAIRN_TRY_ASSIGN(sides.opened, OpenStore(address_a));
  const std::string& store = sides.opened.address.store;
  const std::string full_b = address_b.starts_with('@') ? store + address_b : address_b;
  CAIRN_TRY_ASSIGN(const Address b, ParseAddress(full_b));
  if (!SameDirectory(store, b.store)) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("diff compares two steps of one store, but {0} and {1} are two stores; "
                            "copy the steps of one to the other with kv-admin push {1} {0}",
                            ShellWord(store), ShellWord(b.store)));
  }
  CAIRN_TRY_ASSIGN(sides.a, FindStep(sides.opened));
  CAIRN_TRY_ASSIGN(const auto snapshot, sides.opened.store->kv().Latest());
  CAIRN_TRY_ASSIGN(sides.b, snapshot->FindStep(b.step));
  return sides;
}

Result<ValueDifferences> CompareChangedValues(const Sides& sides, const core::Diff& diff) {
  std::vector<size_t> compared;  // indices of changes
  std::vector<std::string> fqns;
  uint64_t total_bytes = 0;
  for (size_t i = 0; i < diff.changes.size(); ++i) {
    const core::KeyChange& change = diff.changes[i];
    if (change.kind != Kind::kChanged || !change.is_tensor) continue;
    compared.push_back(i);
    fqns.push_back(change.fqn);
    total_bytes += change.total_bytes;
  }
  ProgressLine line("comparing");
  const auto progress = [&](uint64_t bytes, uint64_t) { return line.Update(bytes, total_bytes); };
  CAIRN_TRY_ASSIGN(const ValueDifferences found,
                   core::CompareValues(sides.opened.store->kv(), sides.a, sides.b, fqns, progress));
  ValueDifferences differences(diff.changes.size());
  // The detail states which dtype or shape differs, if there is no difference.
  for (size_t i = 0; i < compared.size(); ++i) differences[compared[i]] = found[i];
  return differences;
}

Json RowJson(const core::KeyChange& change, const std::optional<ValueDifference>& values) {
  Json json = {{"fqn", JsonText(change.fqn)}};
  json.update(ChangeJson(change));
  if (values) json.update(DifferenceJson(*values));
  return json;
}

std::vector<Column> Columns(bool has_values) {
  std::vector<Column> columns = {Left("CHANGE"), Flexible("FQN"), Right("BYTES"), Right("OF")};
  if (has_values) columns.push_back(Left("VALUES DIFFER IN"));
  columns.push_back(Flexible("DETAIL"));
  return columns;
}

void PrintTotal(const DumpRun& run, const Sides& sides, const core::Diff& diff) {
  std::map<Kind, uint64_t> counts;
  uint64_t changed_bytes = 0;
  for (const core::KeyChange& change : diff.changes) {
    ++counts[change.kind];
    changed_bytes += change.changed_bytes;
  }
  if (!diff.changes.empty()) run.out->WriteLine("");
  run.out->WriteLine(
      fmt::format("step {} -> {}: {} added, {} removed, {} changed ({}), {} unchanged",
                  sides.a.step, sides.b.step, GroupedCount(counts[Kind::kAdded]),
                  GroupedCount(counts[Kind::kRemoved]), GroupedCount(counts[Kind::kChanged]),
                  HumanBytes(changed_bytes), GroupedCount(diff.unchanged_keys)));
}

}  // namespace

Result<int> DumpDiff(const DumpRun& run) {
  CAIRN_TRY_ASSIGN(const core::KeyPatterns patterns, core::KeyPatterns::Parse(run.patterns));
  CAIRN_TRY_ASSIGN(const Sides sides, OpenSides(run.address, run.second));
  CAIRN_TRY_ASSIGN(const core::Diff diff, core::CompareSteps(sides.opened.store->kv(), sides.a.step,
                                                             sides.b.step, patterns));
  ValueDifferences differences(diff.changes.size());
  if (run.values) {
    CAIRN_TRY_ASSIGN(differences, CompareChangedValues(sides, diff));
  }
  Rows rows(run, Columns(run.values),
            {{"store", StoreText(sides.opened)},
             {"step_a", sides.a.step},
             {"step_b", sides.b.step},
             {"unchanged_keys", diff.unchanged_keys}},
            "changes");
  for (size_t i = 0; i < diff.changes.size(); ++i) {
    const core::KeyChange& change = diff.changes[i];
    rows.Add(
        [&] {
          std::vector<Cell> cells = {ChangeCell(change), EscapeText(change.fqn),
                                     change.is_tensor ? HumanBytes(change.changed_bytes) : "value",
                                     change.is_tensor ? HumanBytes(change.total_bytes) : ""};
          if (run.values) cells.emplace_back(differences[i] ? DifferenceText(*differences[i]) : "");
          cells.emplace_back(EscapeText(change.detail));
          return cells;
        },
        [&] { return RowJson(change, differences[i]); });
  }
  CAIRN_TRY(rows.Finish());
  if (!run.json) PrintTotal(run, sides, diff);
  return diff.changes.empty() ? kExitSuccess : kExitDiffers;
}

}  // namespace cairn::tools
