// 1. Reads the newest root that can be read, if there is one.
// 2. Adds the steps whose records the tables contain and that are newer than this root.
// 3. Drops the steps of which an object is missing or damaged.
// 4. Adds the steps that only the footers of segments describe, each with a new table.
// 5. Puts two roots, because a single root with a gap before it is ignored (root_log.h).

#include "kv/maintain/internal/rebuild.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kv/base/digest.h"
#include "kv/maintain/internal/footer_recovery.h"
#include "kv/root/internal/framed_record.h"
#include "kv/root/internal/kv_records.h"
#include "kv/root/internal/root_log.h"
#include "kv/state/internal/attempt_outcome.h"
#include "kv/state/internal/live_bytes.h"
#include "kv/state/internal/root_change.h"
#include "kv/state/internal/store_identity.h"
#include "kv/storage/internal/object_names.h"
#include "kv/table/internal/table_reader.h"

namespace cairn::kv::internal {
namespace {

constexpr uint64_t kMaxTableBytes = 4ull << 30;

class Rebuilder {
 public:
  explicit Rebuilder(StoreState& state) : state_(state), storage_(*state.storage) {}

  Result<RebuildReport> Run() {
    CAIRN_TRY_ASSIGN(state_.uuid, ReadIdentity(storage_, &state_.features));
    CAIRN_TRY(CheckCanWrite(state_.features, ObjectPath(storage_.address(), kIdentityName)));
    CAIRN_TRY(ReadRoots());
    CAIRN_TRY(
        CheckCanWrite(best_.features, ObjectPath(storage_.address(), RootName(best_.number))));
    if (!state_.options.take_over && best_.number > 0) {
      CAIRN_TRY(CheckLease(storage_, best_.writer.session));
    }
    CAIRN_TRY(TakeStepsOfRoot());
    CAIRN_TRY(AddStepsOfTables());
    DropDamagedSteps();
    // Tables of a newer Cairn are not damaged, and neither are their steps lost.
    const auto newer = std::ranges::find(report_.lost, ErrorCode::kUnimplemented, &Error::code);
    if (newer != report_.lost.end()) return Fail(*newer);
    // Without this, an error of the network would be a reason to put a root that lacks a step.
    const auto unclear = std::ranges::find_if(report_.lost, MayBeTemporary);
    if (unclear != report_.lost.end()) return Fail(CannotTellLoss(*unclear));
    if (is_whole_ && report_.lost.empty()) {
      return Fail(Error{.code = ErrorCode::kFailedPrecondition,
                        .message = "the newest root and all its tables can be read; there is "
                                   "nothing to rebuild",
                        .file = storage_.address()});
    }
    CAIRN_TRY_ASSIGN(const uint32_t last_epoch, LastEpoch());
    state_.epoch = last_epoch + 1;
    CAIRN_TRY(AddStepsOfFooters());
    CAIRN_TRY(PutRoots());
    report_.steps = steps_.size();
    return report_;
  }

 private:
  /// Finds the newest root that can be read.
  Result<void> ReadRoots() {
    CAIRN_TRY_ASSIGN(const std::vector<uint64_t> numbers, ListRoots(storage_));
    if (!numbers.empty()) last_number_ = numbers.back();
    CAIRN_TRY(CheckCanFollow(storage_, RootName(last_number_), last_number_, 0));
    CAIRN_TRY_ASSIGN(const uint64_t hint, ReadHint(storage_, state_.uuid));
    CAIRN_TRY(CheckCanFollow(storage_, kHintName, hint, 0));
    if (hint > last_number_) {
      report_.notes.push_back(
          {.code = ErrorCode::kDataLoss,
           .message = fmt::format("the roots from {} to {} are missing", last_number_ + 1, hint),
           .file = ObjectPath(storage_.address(), RootName(hint))});
      last_number_ = hint;
    }
    for (auto number = numbers.rbegin(); number != numbers.rend(); ++number) {
      const std::string name = RootName(*number);
      auto bytes = storage_.Read(name, kMaxFramedBytes);
      if (!bytes && MayBeTemporary(bytes.error())) return Fail(CannotTellLoss(bytes.error()));
      auto root = bytes ? DecodeRoot(*bytes) : Result<Root>(std::unexpected(bytes.error()));
      // A root of a newer Cairn is not damaged. It may belong to another store.
      if (!root && root.error().code == ErrorCode::kUnimplemented) {
        auto identity = DecodeRootIdentity(*bytes);
        if (!identity || identity->store_uuid == state_.uuid) {
          return Fail(std::move(root).error().WithFile(ObjectPath(storage_.address(), name)));
        }
        root = std::move(identity);
      }
      if (root && root->store_uuid == state_.uuid && root->number == *number) {
        CAIRN_TRY(CheckCanFollow(storage_, name, root->number, root->epoch));
        best_ = *std::move(root);
        // Readers ignore a root without its predecessor, as the first one of another rebuild.
        CAIRN_TRY_ASSIGN(const Presence before,
                         *number == 1 ? Presence::kSame : LookBefore(storage_, best_));
        is_whole_ = *number == last_number_ && MayBeSame(before);
        return {};
      }
      Error error = root ? Error{.code = ErrorCode::kDataLoss,
                                 .message = "it belongs to another store or has another number"}
                         : std::move(root).error();
      // Not a loss by itself: its steps are in older roots, in pages and in tables.
      error.message = "a root cannot be used: " + error.message;
      report_.notes.push_back(std::move(error).WithFile(ObjectPath(storage_.address(), name)));
    }
    return {};
  }

  Result<void> TakeStepsOfRoot() {
    const StepList list(state_.storage, best_);
    for (const uint64_t number : list.numbers()) {
      auto entry = list.Find(number);
      if (entry && *entry != nullptr) {
        steps_[number] = **entry;
        continue;
      }
      if (entry) continue;
      report_.lost.push_back(Error(entry.error()).WithStep(number));
      unread_.insert(number);
    }
    return {};
  }

  /// Adds steps that were committed after the root was put: their records are in their tables.
  /// Steps whose commit failed have such tables too, and cannot be distinguished.
  Result<void> AddStepsOfTables() {
    if (is_whole_ && report_.lost.empty()) return {};
    CAIRN_TRY_ASSIGN(const auto names, storage_.List(ObjectFolder(ObjectKind::kTable)));
    std::set<ObjectId> known;
    for (const auto& [number, entry] : steps_) {
      for (const TableInfo& table : entry.tables) known.insert(table.id);
    }
    for (const std::string& name : names) {
      const auto parsed = ParseObjectName(name);
      if (!parsed || known.contains(parsed->id)) continue;
      auto entry = ReadEntry(parsed->id, name);
      if (!entry) {
        report_.lost.push_back(Error(entry.error()).WithFile(ObjectPath(storage_.address(), name)));
        continue;
      }
      // A generation is never assigned again, even if no step has it any more.
      last_number_ = std::max(last_number_, entry->info.generation);
      AddCandidate(*std::move(entry));
    }
    return {};
  }

  void AddCandidate(StepEntry entry) {
    const auto known = steps_.find(entry.info.step);
    if (known != steps_.end() && IsSameStep(known->second.info, entry.info)) {
      // A compaction has written one of them; both have the same contents.
      if (known->second.info.rewritten < entry.info.rewritten && best_.number == 0) {
        std::swap(known->second, entry);
      }
      same_[entry.info.step].push_back(std::move(entry));
      return;
    }
    // Otherwise it was deleted or replaced before the root.
    if (entry.info.generation <= best_.number && !unread_.contains(entry.info.step)) return;
    const auto [found, is_new] = steps_.try_emplace(entry.info.step, entry);
    // A copied step has the time of its creation in another store.
    const auto age = [](const StepInfo& info) {
      return std::pair(info.generation, info.created_unix_ns);
    };
    if (!is_new && age(found->second.info) < age(entry.info)) found->second = entry;
    report_.notes.push_back(
        Error{.code = ErrorCode::kUnavailable,
              .message = "recovered from its table, without evidence that it was committed and "
                         "not deleted since",
              .step = entry.info.step});
  }

  static bool IsSameStep(const StepInfo& a, const StepInfo& b) {
    return a.generation == b.generation && a.attempt == b.attempt;
  }

  /// Reads the entry of the step that wrote a table.
  Result<StepEntry> ReadEntry(const ObjectId& id, const std::string& name) {
    CAIRN_TRY_ASSIGN(const auto bytes, storage_.Read(name, kMaxTableBytes));
    TableInfo info{.id = id, .file_bytes = bytes.size(), .digest = Checksum64(bytes)};
    CAIRN_TRY_ASSIGN(const auto table, TableReader::Open(state_.storage, info));
    CAIRN_TRY_ASSIGN(const auto step, table->Get(TableKey(Column::kSteps, "")));
    CAIRN_TRY_ASSIGN(const auto after, table->Get(TableKey(Column::kTables, "")));
    if (!step || !after) {
      return Fail(ErrorCode::kDataLoss, "the table has no record of its step");
    }
    StepEntry entry;
    CAIRN_TRY_ASSIGN(entry.info, DecodeStep(*step));
    CAIRN_TRY(CheckCanFollow(storage_, name, entry.info.generation, id.epoch));
    CAIRN_TRY_ASSIGN(info.record_count, table->CountRecords());
    entry.tables.push_back(info);
    CAIRN_TRY_ASSIGN(const auto older, DecodeTables(*after));
    entry.tables.insert(entry.tables.end(), older.begin(), older.end());
    return entry;
  }

  /// Reads every record of each step, and drops the steps of which something is missing.
  void DropDamagedSteps() {
    for (auto step = steps_.begin(); step != steps_.end();) {
      auto& [number, entry] = *step;
      Result<void> checked = CheckEntry(entry);
      for (StepEntry& same : same_[number]) {
        if (checked) break;
        const Result<void> other = CheckEntry(same);
        if (other) entry = std::move(same);
        // An error of a newer Cairn is kept, for which the rebuild is refused.
        if (other || other.error().code == ErrorCode::kUnimplemented) checked = other;
      }
      if (checked) {
        without_segments_.erase(number);
        without_tables_.erase(number);
        ++step;
        continue;
      }
      report_.lost.push_back(std::move(checked).error().WithStep(number));
      step = steps_.erase(step);
    }
  }

  /// Checks that all objects of the step exist, and sets its usage.
  Result<void> CheckEntry(StepEntry& entry) {
    auto stack = state_.tables->OpenStack(entry.tables);
    auto live_bytes = stack ? CountLiveBytes(*stack) : std::unexpected(stack.error());
    if (!live_bytes) {
      without_tables_[entry.info.step] = entry.info.attempt;
      return std::unexpected(live_bytes.error());
    }
    Result<void> checked = CheckSegments(*stack, *live_bytes, entry);
    if (!checked) without_segments_.insert(entry.info.step);
    return checked;
  }

  Result<LiveBytes> CountLiveBytes(const TableStack& stack) {
    LiveBytes live_bytes;
    CAIRN_TRY(stack.Scan(ColumnPrefix(Column::kChunks),
                         [&](std::string_view, std::span<const std::byte> record) -> Result<bool> {
                           CAIRN_TRY_ASSIGN(const ChunkExtents extents, DecodeChunkExtents(record));
                           live_bytes.Add(extents);
                           return true;
                         }));
    return live_bytes;
  }

  /// Checks that all segments of a step exist, and sets its usage.
  Result<void> CheckSegments(const TableStack& stack, const LiveBytes& live_bytes,
                             StepEntry& entry) {
    std::vector<SegmentUse> usage;
    for (const auto& [segment_id, bytes] : live_bytes.Sorted()) {
      CAIRN_TRY_ASSIGN(const SegmentInfo info, ReadSegmentRecord(stack, segment_id));
      CAIRN_TRY_ASSIGN(const uint64_t file_bytes, storage_.Size(SegmentObject(info)));
      if (file_bytes != info.file_bytes) {
        return Fail(Error{.code = ErrorCode::kDataLoss,
                          .message = "a segment has another length than when it was sealed",
                          .file = ObjectPath(storage_.address(), SegmentObject(info))});
      }
      usage.push_back({.segment = IdOf(info), .live_bytes = bytes});
    }
    entry.usage_in_tables = usage.size() > kMaxInlineSegments;
    if (entry.usage_in_tables) {
      CAIRN_TRY_ASSIGN(const std::vector<SegmentUse> stored, ReadUsage(stack));
      if (stored != usage) {
        return Fail(ErrorCode::kDataLoss, "the usage in the tables is not that of their chunks");
      }
    }
    entry.usage = entry.usage_in_tables ? std::vector<SegmentUse>() : std::move(usage);
    return {};
  }

  /// Adds steps of which neither a root nor a table remains.
  Result<void> AddStepsOfFooters() {
    if (is_whole_ && unread_.empty() && without_tables_.empty()) return {};
    // The table of a rebuild that did not reach its roots has the epoch of that rebuild, which is
    // later than the epochs of the attempt and of all segments. The attempt of a copied step
    // belongs to another store.
    has_own_tables_ = std::ranges::any_of(steps_, [](const auto& step) {
      const StepEntry& entry = step.second;
      const uint32_t epoch = entry.tables.front().id.epoch;
      return EpochOfSession(entry.info.attempt) == epoch ||
             std::ranges::any_of(entry.usage,
                                 [&](const SegmentUse& use) { return use.segment.epoch >= epoch; });
    });
    const FooterRecovery recovery{
        .first_generation = last_number_ + 1,
        .wants = [this](const FooterAttempt& attempt) { return IsLost(attempt); }};
    CAIRN_TRY_ASSIGN(auto entries, RecoverFromFooters(state_, recovery, report_));
    last_number_ += entries.size();
    for (StepEntry& entry : entries) steps_[entry.info.step] = std::move(entry);
    return {};
  }

  /// Returns whether the footers are all that remains of a step. If the newest root cannot be read,
  /// a step without tables was most likely deleted, and others use its segments. To bring back a
  /// part of it would be worse than to lose it, unless nothing else is left.
  bool IsLost(const FooterAttempt& attempt) const {
    if (steps_.contains(attempt.step) || without_segments_.contains(attempt.step)) return false;
    if (!is_whole_) return best_.number == 0 && !has_own_tables_;
    if (unread_.contains(attempt.step)) return true;
    const auto found = without_tables_.find(attempt.step);
    return found != without_tables_.end() &&
           (attempt.attempt.empty() || attempt.attempt == found->second);
  }

  /// Returns the highest epoch in the names of objects.
  Result<uint32_t> LastEpoch() {
    uint32_t last = best_.epoch;
    for (const ObjectKind kind : {ObjectKind::kSegment, ObjectKind::kTable, ObjectKind::kPage}) {
      CAIRN_TRY_ASSIGN(const auto names, storage_.List(ObjectFolder(kind)));
      for (const std::string& name : names) {
        const auto parsed = ParseObjectName(name);
        if (!parsed) continue;
        CAIRN_TRY(CheckCanFollow(storage_, name, 0, parsed->id.epoch));
        last = std::max(last, parsed->id.epoch);
      }
    }
    return last;
  }

  Result<void> PutRoots() {
    Root next{.number = last_number_, .store_uuid = state_.uuid, .epoch = state_.epoch};
    next.features = best_.features;
    next.kept_before_epoch = next.epoch;
    std::vector<StepEntry> entries;
    for (const auto& [number, entry] : steps_) entries.push_back(entry);
    CAIRN_TRY_ASSIGN(StepList::WithPages written,
                     StepList(state_.storage).Add(entries).WritePages(next.epoch));
    next.recent = written.steps.recent();
    next.pages = written.steps.pages();
    next.compress = best_.compress;
    // Not its policy: what was rebuilt is not deleted before somebody has looked at it.
    for (const auto& [tag, step] : best_.tags) {
      if (steps_.contains(step)) next.tags[tag] = step;
    }
    CAIRN_TRY_ASSIGN(const std::string session, NewSession(next.epoch));
    next.writer = ThisWriter(session);
    next.created_unix_ns = NowUnixNs();
    ++next.number;
    CAIRN_TRY(PutRoot(next, std::nullopt));
    const Root first = next;
    ++next.number;
    CAIRN_TRY(PutRoot(next, first.commit_id));
    // As for every root (root_log.h): if this one is gone, others have committed so often that the
    // numbers were free again.
    const auto is_there = [&] { return IsStillThere(storage_, best_); };
    Result<bool> belongs = true;
    if (best_.number > 0) belongs = is_there();
    CAIRN_TRY(belongs);
    if (*belongs) {
      WriteHint(storage_, next.store_uuid, next.number);
      return {};
    }
    (void)WithdrawRoot(storage_, next, is_there);
    (void)WithdrawRoot(storage_, first, is_there);
    return Fail(Error{.code = ErrorCode::kConflict,
                      .message =
                          "another process has changed the store during the rebuild; look at "
                          "its steps, and run the rebuild again if any is missing",
                      .file = storage_.address()});
  }

  /// CommitRoot requires the root before, which may be missing here.
  Result<void> PutRoot(Root& next, const std::optional<Uuid>& predecessor) {
    next.predecessor = predecessor;
    next.commit_id = NewUuid();
    CAIRN_TRY_ASSIGN(const auto bytes, EncodeRoot(next));
    CAIRN_TRY(storage_.PutIfAbsent(RootName(next.number), bytes));
    return CheckStored(storage_, RootName(next.number), bytes.size());
  }

  StoreState& state_;
  Storage& storage_;
  RebuildReport report_;
  Root best_;  // the newest one that can be read; number 0: none can
  // Number of a root that exists, or that a table names as the generation of its step.
  uint64_t last_number_ = 0;
  bool is_whole_ = false;        // the newest root can be read
  bool has_own_tables_ = false;  // a step has the table that its save wrote
  std::map<uint64_t, StepEntry> steps_;
  std::map<uint64_t, std::vector<StepEntry>> same_;  // other tables of these steps
  std::map<uint64_t, std::string> without_tables_;   // attempts of dropped steps
  std::set<uint64_t> without_segments_;              // dropped steps
  std::set<uint64_t> unread_;  // steps that the root names, but whose page cannot be read
};

}  // namespace

Result<RebuildReport> Rebuild(StoreState& state) { return Rebuilder(state).Run(); }

}  // namespace cairn::kv::internal
