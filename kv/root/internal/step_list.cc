// Recent entries, pages, and what moves entries between them.

#include "kv/root/internal/step_list.h"

#include <algorithm>
#include <utility>

#include "kv/base/digest.h"
#include "kv/base/mutex.h"
#include "kv/base/retention.h"
#include "kv/root/internal/framed_record.h"
#include "kv/storage/internal/object_names.h"

namespace cairn::kv::internal {
namespace {

constexpr auto kStepOf = [](const StepEntryPtr& entry) { return entry->info.step; };
constexpr auto kSavedAt = [](const StepEntryPtr& entry) {
  return std::pair(entry->info.created_unix_ns, entry->info.step);
};
constexpr auto kFirstStepOf = [](const auto& page) { return page.ref.steps.front(); };

}  // namespace

struct StepList::Cache {
  Mutex mutex;
  std::shared_ptr<const std::vector<StepEntryPtr>> entries CAIRN_GUARDED_BY(mutex);
};

StepList::StepList(std::shared_ptr<Storage> storage) : storage_(std::move(storage)) {}

StepList::StepList(std::shared_ptr<Storage> storage, const Root& root)
    : storage_(std::move(storage)), recent_(root.recent) {
  pages_.reserve(root.pages.size());
  for (const PageRef& page : root.pages) {
    pages_.push_back({.ref = page, .cache = std::make_shared<Cache>()});
  }
  ListNumbers();
}

void StepList::ListNumbers() {
  numbers_.clear();
  for (const Page& page : pages_) {
    numbers_.insert(numbers_.end(), page.ref.steps.begin(), page.ref.steps.end());
  }
  for (const StepEntryPtr& entry : recent_) numbers_.push_back(entry->info.step);
  // Usually they are in order: old steps are not written again.
  if (!std::ranges::is_sorted(numbers_)) std::ranges::sort(numbers_);
}

bool StepList::Contains(uint64_t step) const { return std::ranges::binary_search(numbers_, step); }

std::vector<PageRef> StepList::pages() const {
  std::vector<PageRef> refs;
  refs.reserve(pages_.size());
  for (const Page& page : pages_) refs.push_back(page.ref);
  return refs;
}

Result<std::shared_ptr<const std::vector<StepEntryPtr>>> StepList::Load(const Page& page) const {
  {
    const MutexLock lock(page.cache->mutex);
    if (page.cache->entries) return page.cache->entries;
  }
  const std::string name = ObjectName(ObjectKind::kPage, page.ref.id);
  const std::string path = ObjectPath(storage_->address(), name);
  CAIRN_TRY_ASSIGN(const std::vector<std::byte> object, storage_->Read(name, kMaxFramedBytes));
  if (object.size() != page.ref.file_bytes || Checksum64(object) != page.ref.digest) {
    return Fail(Error{.code = ErrorCode::kDataLoss,
                      .hint = Hint::kRebuildTables,
                      .message = "a page of steps is not the one that the root names",
                      .file = path});
  }
  auto entries = DecodePage(object);
  if (!entries) return Fail(std::move(entries).error().WithFile(path));
  auto shared = std::make_shared<const std::vector<StepEntryPtr>>(*std::move(entries));
  for (const uint64_t step : page.ref.steps) {
    if (!std::ranges::binary_search(*shared, step, {}, kStepOf)) {
      return Fail(Error{.code = ErrorCode::kDataLoss,
                        .hint = Hint::kRebuildTables,
                        .message = "a page of steps lacks a step that the root names",
                        .file = path,
                        .step = step});
    }
  }
  const MutexLock lock(page.cache->mutex);
  page.cache->entries = shared;
  return shared;
}

Result<std::vector<StepEntryPtr>> StepList::LiveEntries(const Page& page) const {
  CAIRN_TRY_ASSIGN(const auto entries, Load(page));
  std::vector<StepEntryPtr> live;
  for (const StepEntryPtr& entry : *entries) {
    if (std::ranges::binary_search(page.ref.steps, entry->info.step)) live.push_back(entry);
  }
  return live;
}

Result<StepEntryPtr> StepList::Find(uint64_t step) const {
  const auto recent = std::ranges::lower_bound(recent_, step, {}, kStepOf);
  if (recent != recent_.end() && (*recent)->info.step == step) return *recent;
  if (!Contains(step)) return nullptr;
  for (const Page& page : pages_) {
    if (!std::ranges::binary_search(page.ref.steps, step)) continue;
    CAIRN_TRY_ASSIGN(const auto entries, Load(page));
    return *std::ranges::lower_bound(*entries, step, {}, kStepOf);
  }
  CAIRN_CHECK(false && "numbers() has no other steps than recent and pages");
  return nullptr;
}

Result<StepEntryPtr> StepList::Latest() const {
  if (recent_.empty()) return numbers_.empty() ? nullptr : Find(numbers_.back());
  StepEntryPtr latest = *std::ranges::max_element(recent_, {}, kSavedAt);
  while (IsBelowParent(latest->info)) {
    CAIRN_TRY_ASSIGN(StepEntryPtr parent, Find(latest->info.parent->step));
    if (parent == nullptr || !IsParent(parent->info, latest->info)) {
      CAIRN_TRY_ASSIGN(const auto entries, All());
      std::vector<StepInfo> all;
      for (const StepEntryPtr& entry : entries) all.push_back(entry->info);
      return Find(*LatestOf(all));
    }
    if (parent->info.step == latest->info.step) break;
    latest = std::move(parent);
  }
  return latest;
}

Result<std::vector<StepEntryPtr>> StepList::All() const {
  std::vector<StepEntryPtr> all;
  all.reserve(numbers_.size());
  for (const Page& page : pages_) {
    CAIRN_TRY_ASSIGN(const std::vector<StepEntryPtr> live, LiveEntries(page));
    all.insert(all.end(), live.begin(), live.end());
  }
  all.insert(all.end(), recent_.begin(), recent_.end());
  if (!std::ranges::is_sorted(all, {}, kStepOf)) std::ranges::sort(all, {}, kStepOf);
  return all;
}

void StepList::Insert(StepEntryPtr entry) {
  const uint64_t step = entry->info.step;
  recent_.insert(std::ranges::lower_bound(recent_, step, {}, kStepOf), std::move(entry));
}

StepList StepList::Add(std::span<const StepEntry> entries) const {
  std::vector<uint64_t> numbers;
  for (const StepEntry& entry : entries) numbers.push_back(entry.info.step);
  StepList changed = Remove(numbers);
  for (const StepEntry& entry : entries) changed.Insert(std::make_shared<const StepEntry>(entry));
  std::ranges::sort(numbers);
  const auto old_end =
      changed.numbers_.insert(changed.numbers_.end(), numbers.begin(), numbers.end());
  std::ranges::inplace_merge(changed.numbers_, old_end);
  return changed;
}

StepList StepList::Remove(std::span<const uint64_t> steps) const {
  StepList changed = *this;
  std::vector<uint64_t> gone;
  for (const uint64_t step : steps) {
    if (Contains(step)) gone.push_back(step);
  }
  if (gone.empty()) return changed;
  std::ranges::sort(gone);
  const auto is_gone = [&gone](uint64_t step) { return std::ranges::binary_search(gone, step); };
  if (!recent_.empty() && !pages_.empty()) {
    const auto last = std::ranges::max_element(recent_, {}, kSavedAt);
    changed.has_lost_last_saved_ |= is_gone((*last)->info.step);
  }
  std::erase_if(changed.recent_, [&](const auto& entry) { return is_gone(entry->info.step); });
  for (Page& page : changed.pages_) std::erase_if(page.ref.steps, is_gone);
  std::erase_if(changed.numbers_, is_gone);
  return changed;
}

Result<void> StepList::PutPage(uint32_t epoch, std::vector<StepEntryPtr> entries) {
  CAIRN_TRY_ASSIGN(const std::vector<std::byte> object, EncodePage(entries));
  Page page{.ref = {.id = NewObjectId(epoch),
                    .file_bytes = object.size(),
                    .digest = Checksum64(object),
                    .steps = {}},
            .cache = std::make_shared<Cache>()};
  for (const StepEntryPtr& entry : entries) page.ref.steps.push_back(entry->info.step);
  const std::string name = ObjectName(ObjectKind::kPage, page.ref.id);
  CAIRN_TRY(storage_->Put(name, object));
  CAIRN_TRY(CheckStored(*storage_, name, object.size()));
  {
    const MutexLock lock(page.cache->mutex);
    page.cache->entries = std::make_shared<const std::vector<StepEntryPtr>>(std::move(entries));
  }
  const auto after = std::ranges::upper_bound(pages_, page.ref.steps.front(), {}, kFirstStepOf);
  pages_.insert(after, std::move(page));
  return {};
}

/// Makes the entries of the page with the highest step recent, if that step is not recent.
Result<void> StepList::RecallHighest(std::vector<PageRef>& unreachable) {
  if (pages_.empty()) return {};
  const auto page =
      std::ranges::max_element(pages_, {}, [](const Page& each) { return each.ref.steps.back(); });
  if (!recent_.empty() && recent_.back()->info.step > page->ref.steps.back()) return {};
  CAIRN_TRY_ASSIGN(std::vector<StepEntryPtr> live, LiveEntries(*page));
  for (StepEntryPtr& entry : live) Insert(std::move(entry));
  unreachable.push_back(page->ref);
  pages_.erase(page);
  return {};
}

/// Makes the step that was saved last recent, if it is in a page.
Result<void> StepList::RecallLastSaved() {
  if (!std::exchange(has_lost_last_saved_, false) || pages_.empty()) return {};
  CAIRN_TRY_ASSIGN(const std::vector<StepEntryPtr> all, All());
  const StepEntryPtr last = *std::ranges::max_element(all, {}, kSavedAt);
  if (std::ranges::binary_search(recent_, last->info.step, {}, kStepOf)) return {};
  for (Page& page : pages_) std::erase(page.ref.steps, last->info.step);
  Insert(last);
  return {};
}

/// Merges the longest run of neighbouring pages that may become one. Several commits merge all
/// runs, so that no commit takes long.
Result<void> StepList::MergePages(uint32_t epoch, std::vector<PageRef>& unreachable) {
  size_t best_begin = 0;
  size_t best_count = 1;
  const auto find_longest = [&](size_t least_count, auto cost_of, uint64_t most) {
    for (size_t begin = 0, end = 0, cost = 0; end < pages_.size();) {
      cost += cost_of(pages_[end++].ref);
      for (; cost > most || end - begin > kMaxMergedPages; ++begin) {
        cost -= cost_of(pages_[begin].ref);
      }
      const size_t count = end - begin;
      if (end > begin && count >= least_count && count > best_count) {
        best_begin = begin;
        best_count = count;
      }
    }
  };
  find_longest(2, [](const PageRef& page) { return page.steps.size(); }, kMaxPageSteps);
  // Fewer pages would be merged again and again while the page that results grows.
  find_longest(
      kMaxMergedPages, [](const PageRef& page) { return page.file_bytes; }, kMaxMergedPageBytes);
  if (best_count == 1) return {};
  const auto begin = pages_.begin() + static_cast<ptrdiff_t>(best_begin);
  const auto end = begin + static_cast<ptrdiff_t>(best_count);
  std::vector<StepEntryPtr> merged;
  for (auto page = begin; page != end; ++page) {
    CAIRN_TRY_ASSIGN(const std::vector<StepEntryPtr> live, LiveEntries(*page));
    merged.insert(merged.end(), live.begin(), live.end());
    unreachable.push_back(page->ref);
  }
  std::ranges::sort(merged, {}, kStepOf);
  pages_.erase(begin, end);
  return PutPage(epoch, std::move(merged));
}

Result<StepList::WithPages> StepList::WritePages(uint32_t epoch) const {
  WithPages result{.steps = *this, .unreachable = {}};
  StepList& steps = result.steps;
  CAIRN_TRY(steps.RecallLastSaved());
  std::erase_if(steps.pages_, [&result](const Page& page) {
    if (page.ref.steps.empty()) result.unreachable.push_back(page.ref);
    return page.ref.steps.empty();
  });
  std::ranges::sort(steps.pages_, {}, kFirstStepOf);
  CAIRN_TRY(steps.RecallHighest(result.unreachable));
  if (steps.recent_.size() <= kMaxRecentSteps) {
    CAIRN_TRY(steps.MergePages(epoch, result.unreachable));
  }
  while (steps.recent_.size() > kMaxRecentSteps) {
    // The step that was saved last remains.
    const StepEntryPtr last = *std::ranges::max_element(steps.recent_, {}, kSavedAt);
    std::erase(steps.recent_, last);
    const auto end = steps.recent_.begin() + kMaxPageSteps;
    CAIRN_TRY(steps.PutPage(epoch, {steps.recent_.begin(), end}));
    steps.recent_.erase(steps.recent_.begin(), end);
    steps.Insert(last);
  }
  return result;
}

}  // namespace cairn::kv::internal
