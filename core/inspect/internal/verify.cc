// 1. kv checks roots, pages, tables, segments and its own columns.
// 2. For each step: structure, tensors, values and chunks decode; chunks tile their tensors;
//    aliases are inside their owners; the leaves of the tree are exactly the tensors and values.
// 3. Every distinct extent is read once and checked (scrub_payload.h).

#include "core/inspect/internal/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/base/internal/progress_meter.h"
#include "core/inspect/internal/scrub_payload.h"
#include "core/state_dict/state_dict.h"
#include "core/state_dict/value.h"
#include "core/step/application_records.h"
#include "core/tensor/tiling.h"
#include "kv/base/key.h"

namespace cairn::core::internal {
namespace {

using DamageCallback = std::function<void(const kv::Damage&)>;

// Checks the records of one step, and adds its payload to the index.
class StepChecker {
 public:
  StepChecker(const StepView& view, const DamageCallback& damage, PayloadIndex* payload,
              ProgressMeter& progress)
      : view_(view), damage_(damage), payload_(payload), progress_(progress) {}

  /// kCancelled: the caller asked to stop. Everything else is reported as damage.
  Result<void> Run() {
    ReadTensors();
    if (!is_deleted_ && !cancelled_) ReadValues();
    if (!is_deleted_ && !cancelled_) ReadApplicationRecords();
    if (!is_deleted_ && !cancelled_) ReadChunks();
    if (cancelled_) return Fail(*cancelled_);
    // If the step was deleted during the check, its records are incomplete.
    if (is_deleted_) return {};
    for (auto& [fqn, entry] : tensors_) CheckTensor(fqn, entry);
    CheckStructure();
    return {};
  }

 private:
  struct Entry {
    TensorInfo info;
    BoxList boxes;
  };

  void Report(Error error) {
    // The step was deleted during the check, and its grace period has passed.
    is_deleted_ |= error.code == ErrorCode::kNotFound;
    if (!error.step) error.step = view_.step.step;
    damage_({std::move(error)});
  }
  void Report(std::string_view fqn, std::string message) {
    Report(Error{
        .code = ErrorCode::kDataLoss, .message = std::move(message), .key = std::string(fqn)});
  }

  // Scans a column. `visit` reports damage to a record; only a request to stop ends the scan.
  void ScanAll(kv::Column column,
               const std::function<void(std::string_view, std::span<const std::byte>)>& visit) {
    auto scanned = view_.snapshot->Scan(
        column, view_.step, "",
        [&](std::string_view key, std::span<const std::byte> record) -> Result<bool> {
          visit(key, record);
          return !cancelled_;
        });
    if (!scanned) Report(std::move(scanned).error());
  }

  void CountRecord() {
    if (auto added = progress_.Add(1); !added) cancelled_ = std::move(added).error();
  }

  void ReadTensors() {
    ScanAll(kv::Column::kTensors, [&](std::string_view key, std::span<const std::byte> record) {
      CountRecord();
      auto parsed = kv::ParseKey(key);
      if (!parsed) return Report(std::move(parsed).error());
      auto info = DecodeTensor(parsed->fqn, record);
      if (!info) return Report(std::move(info).error());
      std::string fqn = info->fqn;
      const size_t dimensions = info->shape.size();
      tensors_.emplace(std::move(fqn),
                       Entry{.info = *std::move(info), .boxes = BoxList(dimensions)});
    });
  }

  void ReadValues() {
    ScanAll(kv::Column::kValues, [&](std::string_view key, std::span<const std::byte> record) {
      auto parsed = kv::ParseKey(key);
      if (!parsed) return Report(std::move(parsed).error());
      auto value = DecodeValue(record);
      values_.emplace(parsed->fqn);
      if (!value) return Report(std::move(value).error().WithKey(parsed->fqn));
      if (!std::holds_alternative<ChunkedValue>(*value)) return;
      const auto bytes = tensors_.find(parsed->fqn);
      auto checked =
          CheckBytes(view_, {.fqn = std::string(parsed->fqn), .value = *std::move(value)},
                     bytes == tensors_.end() ? nullptr : &bytes->second.info);
      if (!checked) Report(std::move(checked).error());
    });
  }

  void ReadApplicationRecords() {
    ScanAll(kv::Column::kApplication,
            [&](std::string_view name, std::span<const std::byte> record) {
              auto data = DecodeApplicationRecord(name, record);
              if (!data) Report(std::move(data).error());
            });
  }

  void ReadChunks() {
    ScanAll(kv::Column::kChunks, [&](std::string_view key, std::span<const std::byte> record) {
      CountRecord();
      auto decoded = DecodeChunk(key, record);
      if (!decoded) return Report(std::move(decoded).error());
      AddPayload(*decoded);
      const auto entry = tensors_.find(decoded->fqn);
      if (entry == tensors_.end()) {
        return Report(decoded->fqn, "there is a chunk but no tensor of this name");
      }
      auto fits = CheckChunk(EntryOf(entry->second.info), decoded->info);
      if (!fits) return Report(std::move(fits).error());
      entry->second.boxes.Add(decoded->info.box);
    });
  }

  void AddPayload(const DecodedChunk& decoded) {
    const ScrubItem* const other = payload_->Add(view_.step.step, decoded.fqn, decoded.info);
    if (other == nullptr) return;
    const kv::Extent& extent = decoded.info.extents.front();
    Report(
        DamagedBytes(view_, std::string(decoded.fqn), extent.segment_id,
                     fmt::format("chunk {} and one of '{}' in step {} claim the same bytes but "
                                 "disagree on what they are",
                                 FormatNumbers(decoded.info.box.offsets), other->fqn, other->step),
                     extent.offset_bytes));
  }

  void CheckTensor(const std::string& fqn, const Entry& entry) {
    const TensorInfo& info = entry.info;
    if (info.alias_of) {
      const auto owner = tensors_.find(*info.alias_of);
      if (owner == tensors_.end()) {
        return Report(fqn, fmt::format("'{}', whose bytes it shares, is missing", *info.alias_of));
      }
      auto fits = CheckAlias(info, owner->second.info);
      if (!fits) Report(std::move(fits).error());
      if (entry.boxes.size() > 0) Report(fqn, "it shares another tensor's bytes but has chunks");
      return;
    }
    if (entry.boxes.size() != info.chunk_count) {
      return Report(fqn, fmt::format("the step has {} of its {} chunks", entry.boxes.size(),
                                     info.chunk_count));
    }
    if (const auto flaw = FindTilingFlaw(info.shape, entry.boxes)) {
      Report(fqn,
             fmt::format("its chunks do not cover it exactly once: element {} is in {} of them",
                         FormatNumbers(flaw->element), flaw->boxes.size()));
    }
  }

  void CheckStructure() {
    auto record = view_.snapshot->GetStructure(view_.step);
    if (!record) return Report(std::move(record).error());
    if (!*record) return Report("", "the step's structure record is missing");
    auto tree = DecodeTree(**record);
    if (!tree) return Report(std::move(tree).error());
    auto leaves = FlattenTree(*tree);
    if (!leaves) return Report(std::move(leaves).error());
    uint64_t tensor_leaves = 0;
    for (const Leaf& leaf : *leaves) {
      const bool is_tensor = IsTensor(tree->nodes[leaf.node].kind);
      tensor_leaves += is_tensor;
      const auto tensor = tensors_.find(leaf.fqn);
      const bool found = is_tensor ? tensor != tensors_.end() && !tensor->second.info.hidden
                                   : values_.contains(leaf.fqn);
      if (!found) Report(leaf.fqn, "the state dict has this key but the step has no record of it");
    }
    uint64_t shown = 0;
    for (const auto& [fqn, entry] : tensors_) shown += !entry.info.hidden;
    if (shown > tensor_leaves || values_.size() > leaves->size() - tensor_leaves) {
      Report("", "the step has tensors or values that are not in the state dict");
    }
  }

  const StepView& view_;
  const DamageCallback& damage_;
  PayloadIndex* payload_;  // payload of all steps; outlives the checker
  ProgressMeter& progress_;
  std::optional<Error> cancelled_;
  std::map<std::string, Entry, std::less<>> tensors_;
  std::set<std::string, std::less<>> values_;
  bool is_deleted_ = false;
};

// Checks `steps` in one snapshot. Reports kNotFound for what was deleted or compacted since.
Result<uint64_t> VerifySteps(const std::shared_ptr<const kv::Snapshot>& snapshot,
                             const std::string& directory, std::span<const kv::StepInfo> steps,
                             const DamageCallback& damage, const Progress& progress,
                             const Progress& record_progress) {
  auto files = snapshot->VerifyFiles([&](const kv::Damage& found) { damage(found); });
  if (!files) damage({std::move(files).error()});
  PayloadIndex payload;
  uint64_t records = 0;
  for (const kv::StepInfo& info : steps) records += info.chunk_count + info.tensor_count;
  ProgressMeter checked(record_progress, records);
  for (const kv::StepInfo& info : steps) {
    const StepView view{.snapshot = snapshot, .step = info, .directory = directory};
    CAIRN_TRY(StepChecker(view, damage, &payload, checked).Run());
  }
  const std::vector<ScrubItem> items = payload.Take();
  return ScrubPayload(snapshot, directory, items, damage, progress);
}

// Returns the steps of `verified` that `snapshot` has with other tables.
Result<std::vector<kv::StepInfo>> RewrittenSteps(const kv::Snapshot& snapshot,
                                                 std::span<const kv::StepInfo> verified) {
  std::map<uint64_t, kv::StepInfo> current;
  CAIRN_TRY_ASSIGN(std::vector<kv::StepInfo> steps, snapshot.Steps());
  for (kv::StepInfo& step : steps) current[step.step] = std::move(step);
  std::vector<kv::StepInfo> rewritten;
  for (const kv::StepInfo& step : verified) {
    const auto now = current.find(step.step);
    if (now == current.end() || now->second.generation != step.generation) continue;
    if (!now->second.HasRecordsOf(step)) rewritten.push_back(now->second);
  }
  return rewritten;
}

}  // namespace

Result<uint64_t> RunVerify(const kv::Store& store, std::optional<uint64_t> step,
                           const DamageCallback& report, const Progress& progress,
                           const Progress& record_progress) {
  constexpr int kMaxRounds = 8;
  // A process without memory or file descriptors learns nothing about what is stored.
  std::optional<Error> exhausted;
  bool is_absent = false;
  std::set<std::string> reported;  // damage that a further round finds again
  const DamageCallback damage = [&](const kv::Damage& found) {
    is_absent |= found.error.code == ErrorCode::kNotFound;
    if (found.error.code == ErrorCode::kNotFound) return;
    if (found.error.code == ErrorCode::kResourceExhausted) {
      if (!exhausted) exhausted = found.error;
    } else if (reported.insert(found.error.ToString()).second) {
      report(found);
    }
  };
  CAIRN_TRY_ASSIGN(auto snapshot, store.Latest());
  std::vector<kv::StepInfo> steps;
  if (step) {
    CAIRN_TRY_ASSIGN(const kv::StepInfo only, snapshot->FindStep(step));
    steps = {only};
  } else {
    CAIRN_TRY_ASSIGN(steps, snapshot->Steps());
  }
  uint64_t read_bytes = 0;
  for (int round = 1; !steps.empty(); ++round) {
    CAIRN_TRY_ASSIGN(const uint64_t of_round, VerifySteps(snapshot, store.directory(), steps,
                                                          damage, progress, record_progress));
    read_bytes += of_round;
    if (exhausted) return Fail(*std::move(exhausted));
    if (!std::exchange(is_absent, false)) break;
    // Deleted steps need no check. Compacted payload is elsewhere now.
    CAIRN_TRY_ASSIGN(snapshot, store.Latest());
    CAIRN_TRY_ASSIGN(steps, RewrittenSteps(*snapshot, steps));
    if (round == kMaxRounds && !steps.empty()) {
      return Fail(Error{.code = ErrorCode::kUnavailable,
                        .message = "the store was compacted each time that it was verified",
                        .file = store.directory()});
    }
  }
  return read_bytes;
}

}  // namespace cairn::core::internal
