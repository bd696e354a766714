#pragma once
/// The steps that a store contains at one root: entries of the newest steps in the root, entries of
/// older steps in pages, which are read when they are needed.
///
/// The highest steps are the recent ones, and the one that was saved last. Add, Remove and
/// WritePages return a changed list and do not change this one. A commit calls Add or Remove, then
/// WritePages, and puts a root with recent() and pages(). Pages are never changed: a page contains
/// entries of steps that no longer exist until WritePages merges it with others.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kv/base/error.h"
#include "kv/root/internal/root_record.h"
#include "kv/storage/storage.h"

namespace cairn::kv::internal {

/// A root never has more recent entries.
inline constexpr size_t kMaxRecentSteps = 64;
/// The number of entries of a new page. A commit writes an entry to the root or to a page, so its
/// cost does not depend on this limit, but the number of pages does. With both limits, a commit in
/// a store of 10,000 steps writes at most 34 KiB more than in a new one (step_list_test measures
/// it). Much of that is references to pages, which grow with the number of steps.
inline constexpr size_t kMaxPageSteps = 56;
static_assert(kMaxPageSteps < kMaxRecentSteps);  // the highest step stays recent

/// Immutable, and cheap to copy. Copies share the pages that were read. Threads: all members may
/// run on many threads at once.
class StepList {
 public:
  struct WithPages;

  /// The list of an empty store.
  explicit StepList(std::shared_ptr<Storage> storage);
  /// The list of `root`. Reads nothing.
  StepList(std::shared_ptr<Storage> storage, const Root& root);

  /// The numbers of all steps, ascending. Reads nothing.
  const std::vector<uint64_t>& numbers() const { return numbers_; }
  bool Contains(uint64_t step) const;

  // kUnavailable, kNotFound, kDataLoss: a page cannot be read, is absent, or is damaged.

  /// Returns the entry of `step`, or null. Cost: reads at most one page, once.
  Result<StepEntryPtr> Find(uint64_t step) const;
  /// Returns the latest step (kv/base/retention.h), or null if there are no steps. Usually reads
  /// nothing if the list comes from a root.
  Result<StepEntryPtr> Latest() const;
  /// Returns all entries, ascending by step. Cost: reads all pages, each once.
  Result<std::vector<StepEntryPtr>> All() const;

  /// Adds steps, or replaces their entries. Requires that their numbers differ.
  StepList Add(std::span<const StepEntry> entries) const;
  /// Removes the steps in `steps` that the list contains.
  StepList Remove(std::span<const uint64_t> steps) const;

  /// Prepares the list for a root: moves the lowest recent entries to a new page if there are more
  /// than kMaxRecentSteps, otherwise merges short pages and pages with few remaining steps, and
  /// drops empty pages. Ensures that the highest step and the one that was saved last are recent.
  /// Cost: usually nothing, or puts one page; puts more only if the list was changed a lot, or if
  /// all recent steps were removed. A merge reads at most kMaxMergedPages. Reads all pages if the
  /// step that was saved last was removed.
  Result<WithPages> WritePages(uint32_t epoch) const;

  /// For the next root. Requires that WritePages returned this list, or that it comes from a root.
  const std::vector<StepEntryPtr>& recent() const { return recent_; }
  std::vector<PageRef> pages() const;

 private:
  struct Cache;
  struct Page {
    PageRef ref;
    std::shared_ptr<Cache> cache;  // shared by all copies of this list and lists made from it
  };

  void ListNumbers();
  void Insert(StepEntryPtr entry);
  Result<std::shared_ptr<const std::vector<StepEntryPtr>>> Load(const Page& page) const;
  Result<std::vector<StepEntryPtr>> LiveEntries(const Page& page) const;
  Result<void> PutPage(uint32_t epoch, std::vector<StepEntryPtr> entries);
  Result<void> RecallHighest(std::vector<PageRef>& unreachable);
  Result<void> RecallLastSaved();
  Result<void> MergePages(uint32_t epoch, std::vector<PageRef>& unreachable);

  std::shared_ptr<Storage> storage_;
  std::vector<StepEntryPtr> recent_;  // ascending
  std::vector<Page> pages_;           // ascending by their first step after WritePages
  std::vector<uint64_t> numbers_;
  bool has_lost_last_saved_ = false;  // Remove has removed the recent step that was saved last
};

struct StepList::WithPages {
  StepList steps;
  std::vector<PageRef> unreachable;  // pages that the next root does not reach
};

/// WritePages merges at most this number of pages at once.
inline constexpr size_t kMaxMergedPages = 8;
/// WritePages merges that many pages, whatever the number of their steps, if they are not longer
/// than this together: most of the root of a store with many steps would be references to pages,
/// of about 25 bytes each. A commit that merges pages puts no other page.
inline constexpr uint64_t kMaxMergedPageBytes = 32 << 10;

}  // namespace cairn::kv::internal
