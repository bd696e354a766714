// The list of steps in roots and pages, compared with a map.

#include "kv/root/internal/step_list.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <time.h>

#include <algorithm>
#include <iostream>
#include <map>
#include <random>
#include <set>

#include "kv/storage/files/internal/memory_storage.h"
#include "tests/kv/root/sample_root.h"
#include "tests/support/result_matchers.h"

namespace cairn::kv {
namespace {

using cairn::testing::IsError;
using internal::MemoryStorage;
using internal::ObjectKind;
using internal::ObjectName;
using internal::PageRef;
using internal::Root;
using internal::StepEntry;
using internal::StepEntryPtr;
using internal::StepList;
using testing::EmptyRoot;
using ::testing::IsEmpty;
using testing::Same;
using testing::SampleEntry;

constexpr uint32_t kEpoch = 4;

StepList Added(const StepList& list, const StepEntry& entry) { return list.Add({&entry, 1}); }

/// A store that has only its step list: each commit is encoded, decoded, and opened again.
class ListStore {
 public:
  explicit ListStore(std::shared_ptr<Storage> storage)
      : storage_(std::move(storage)), steps_(storage_) {}

  const StepList& steps() const { return steps_; }
  uint64_t written_bytes() const { return written_bytes_; }
  const std::vector<std::byte>& root() const { return root_; }
  const std::vector<PageRef>& unreachable() const { return unreachable_; }
  size_t page_count() const { return steps_.pages().size(); }

  /// Commits `changed`, and continues with the list of the decoded root.
  void Commit(const StepList& changed) {
    const std::set<uint64_t> old_pages = PageIds();
    CAIRN_ASSERT_OK_AND_ASSIGN(auto paged, changed.WritePages(kEpoch));
    unreachable_ = paged.unreachable;
    Root root = EmptyRoot(1);
    root.recent = paged.steps.recent();
    root.pages = paged.steps.pages();
    CAIRN_ASSERT_OK_AND_ASSIGN(root_, internal::EncodeRoot(root));
    CAIRN_ASSERT_OK_AND_ASSIGN(const Root decoded, internal::DecodeRoot(root_));
    steps_ = StepList(storage_, decoded);
    written_bytes_ = root_.size();
    for (const PageRef& page : steps_.pages()) {
      if (!old_pages.contains(page.id.id)) written_bytes_ += page.file_bytes;
    }
    for (const PageRef& page : unreachable_) {
      CAIRN_ASSERT_OK(storage_->Remove(ObjectName(ObjectKind::kPage, page.id)));
    }
  }

 private:
  std::set<uint64_t> PageIds() const {
    std::set<uint64_t> ids;
    for (const PageRef& page : steps_.pages()) ids.insert(page.id.id);
    return ids;
  }

  std::shared_ptr<Storage> storage_;
  StepList steps_;
  std::vector<std::byte> root_;
  std::vector<PageRef> unreachable_;
  uint64_t written_bytes_ = 0;
};

class StepListTest : public ::testing::Test {
 protected:
  void AddSteps(uint64_t begin, uint64_t end) {
    for (uint64_t step = begin; step < end; ++step) {
      store_.Commit(Added(store_.steps(), SampleEntry(step, step + 1, random_)));
    }
  }
  /// Adds entries that compress as well as those of a job. Returns the length of all pages that
  /// were put.
  uint64_t AddShortSteps(uint64_t begin, uint64_t end) {
    uint64_t page_bytes = 0;
    for (uint64_t step = begin; step < end; ++step) {
      StepEntry entry = SampleEntry(step, step + 1, random_, 1, 1);
      entry.info.structure = {.lo = 1, .hi = 2};
      entry.info.written_bytes = 1 << 20;
      entry.usage.front().live_bytes = 1 << 20;
      store_.Commit(Added(store_.steps(), entry));
      page_bytes += store_.written_bytes() - store_.root().size();
    }
    return page_bytes;
  }
  size_t StoredPages() { return storage_->List("pages/").value().size(); }
  void RemoveAllPages() {
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto names, storage_->List("pages/"));
    for (const std::string& name : names) CAIRN_ASSERT_OK(storage_->Remove(name));
  }

  std::shared_ptr<MemoryStorage> storage_ = std::make_shared<MemoryStorage>("test");
  ListStore store_{storage_};
  std::mt19937_64 random_{1};
};

TEST_F(StepListTest, NumbersAndLatestReadNoPage) {
  AddSteps(0, 500);
  RemoveAllPages();

  EXPECT_EQ(store_.steps().numbers().size(), 500u);
  CAIRN_ASSERT_OK_AND_ASSIGN(const StepEntryPtr latest, store_.steps().Latest());
  EXPECT_EQ(latest->info.step, 499u);
  EXPECT_THAT(store_.steps().Find(0), IsError(ErrorCode::kNotFound, "pages/"));
}

TEST_F(StepListTest, PageIsReadOnce) {
  AddSteps(0, 500);
  const StepList copy = store_.steps();
  CAIRN_ASSERT_OK(store_.steps().All());
  RemoveAllPages();

  CAIRN_EXPECT_OK(copy.All());
  CAIRN_EXPECT_OK(Added(copy, SampleEntry(3, 600, random_)).Find(4));
}

TEST_F(StepListTest, WrongPageIsDamage) {
  AddSteps(0, 300);
  const auto names = storage_->List("pages/").value();
  const auto first = storage_->Read(names[0], 1 << 20).value();
  for (const std::string& name : names) CAIRN_ASSERT_OK(storage_->Put(name, first));
  EXPECT_THAT(store_.steps().All(), IsError(ErrorCode::kDataLoss, "not the one"));
}

TEST_F(StepListTest, PagesWithFewStepsAreMerged) {
  AddSteps(0, 2000);
  std::vector<uint64_t> removed;
  for (uint64_t step = 0; step < 1900; ++step) {
    if (step % 20 != 0) removed.push_back(step);
  }
  store_.Commit(store_.steps().Remove(removed));
  for (int i = 0; i < 10; ++i) store_.Commit(store_.steps());

  // Two neighbours have more steps than one page can have, so pages are half full on average.
  size_t steps = 0;
  for (const PageRef& page : store_.steps().pages()) steps += page.steps.size();
  EXPECT_LE(store_.page_count(), 2 * steps / internal::kMaxPageSteps + 1);
  EXPECT_EQ(StoredPages(), store_.page_count());
  store_.Commit(store_.steps());
  EXPECT_THAT(store_.unreachable(), IsEmpty());
}

TEST_F(StepListTest, ShortPagesAreMerged) {
  AddShortSteps(0, 4000);

  // All but the last few pages were merged, if they are short enough together.
  EXPECT_LE(store_.page_count(), 4000 / internal::kMaxPageSteps / 2);
  EXPECT_EQ(StoredPages(), store_.page_count());
  for (const PageRef& page : store_.steps().pages()) {
    if (page.steps.size() > internal::kMaxPageSteps) {
      EXPECT_LE(page.file_bytes, internal::kMaxMergedPageBytes);
    }
  }
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto all, store_.steps().All());
  ASSERT_EQ(all.size(), 4000u);
  for (uint64_t step = 0; step < 4000; ++step) ASSERT_EQ(all[step]->info.step, step);
}

// Otherwise a page would be written again with each page that follows it.
TEST_F(StepListTest, MergedPagesAreSeldomMergedAgain) {
  const uint64_t page_bytes = AddShortSteps(0, 4000);

  uint64_t remaining_bytes = 0;
  for (const PageRef& page : store_.steps().pages()) remaining_bytes += page.file_bytes;
  EXPECT_LE(page_bytes, 3 * remaining_bytes);
}

/// Random changes, each committed and loaded again, against a map.
class StepListModelTest : public ::testing::TestWithParam<uint64_t> {
 protected:
  void Check() {
    const StepList& steps = store_.steps();
    ASSERT_EQ(steps.numbers().size(), model_.size());
    ASSERT_TRUE(std::ranges::equal(steps.numbers(), model_, {}, {},
                                   [](const auto& each) { return each.first; }));
    ASSERT_LE(steps.recent().size(), internal::kMaxRecentSteps);
    if (model_.empty()) return;
    CAIRN_ASSERT_OK_AND_ASSIGN(const StepEntryPtr latest, steps.Latest());
    const auto last_saved = std::ranges::max_element(model_, {}, [](const auto& each) {
      return std::pair(each.second.info.created_unix_ns, each.first);
    });
    ASSERT_TRUE(Same(*latest, last_saved->second));
    const uint64_t step = random_() % 2000;
    CAIRN_ASSERT_OK_AND_ASSIGN(const StepEntryPtr found, steps.Find(step));
    ASSERT_EQ(found != nullptr, model_.contains(step));
    ASSERT_TRUE(found == nullptr || Same(*found, model_.at(step)));
  }
  void CheckAll() {
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto all, store_.steps().All());
    ASSERT_EQ(all.size(), model_.size());
    size_t i = 0;
    for (const auto& [step, entry] : model_) ASSERT_TRUE(Same(*all[i++], entry)) << step;
    ASSERT_EQ(storage_->List("pages/").value().size(), store_.page_count());
  }
  void AddStep(uint64_t step) {
    StepEntry entry = SampleEntry(step, ++generation_, random_);
    entry.info.parent.reset();
    entry.info.created_unix_ns = static_cast<int64_t>(generation_);
    model_[step] = entry;
    store_.Commit(Added(store_.steps(), entry));
  }
  void RemoveSteps(const std::vector<uint64_t>& steps) {
    for (const uint64_t step : steps) model_.erase(step);
    store_.Commit(store_.steps().Remove(steps));
  }
  std::vector<uint64_t> SomeSteps() {
    std::vector<uint64_t> steps;
    const uint64_t begin = random_() % 2000;
    const uint64_t stride = 1 + random_() % 9;
    const uint64_t count = random_() % 150;
    for (uint64_t i = 0; i < count; ++i) steps.push_back(begin + i * stride);
    return steps;
  }
  void ChangeSomething() {
    const uint64_t choice = random_() % 100;
    if (choice < 75 && next_ < 2000) return AddStep(next_++);
    if (choice < 90) return AddStep(random_() % 2000);
    if (choice < 97) return RemoveSteps({random_() % 2000});
    if (choice < 99) return RemoveSteps(SomeSteps());
    if (!model_.empty()) RemoveSteps({model_.rbegin()->first});
  }

  std::mt19937_64 random_{GetParam()};
  std::shared_ptr<MemoryStorage> storage_ = std::make_shared<MemoryStorage>("test");
  ListStore store_{storage_};
  std::map<uint64_t, StepEntry> model_;
  uint64_t generation_ = 0;
  uint64_t next_ = 0;
};

TEST_P(StepListModelTest, AgreesWithAMap) {
  for (int round = 0; round < 3000; ++round) {
    ChangeSomething();
    Check();
    if (round % 100 == 0) CheckAll();
    if (HasFatalFailure()) FAIL() << "seed " << GetParam() << ", round " << round;
  }
  CheckAll();
}

INSTANTIATE_TEST_SUITE_P(Seeds, StepListModelTest, ::testing::Range<uint64_t>(1, 5));

struct Cost {
  uint64_t commit_bytes = 0;  // the largest of many commits
  uint64_t root_bytes = 0;    // the largest root of these commits
  double decode_us = 0;
};

/// Replaces two of 8 tables, two of 16 segments, and all other numbers.
void ChangeEntry(StepEntry& entry, uint64_t step, std::mt19937_64& random) {
  const StepEntry fresh = SampleEntry(step, step, random, 2, 16);
  entry.info = fresh.info;
  entry.tables.resize(8);
  for (size_t i = 0; i < 2; ++i) entry.tables[(step + i) % 8] = fresh.tables[i];
  entry.usage.resize(internal::kMaxInlineSegments);
  for (size_t i = 0; i < entry.usage.size(); ++i) {
    entry.usage[i].live_bytes = fresh.usage[i].live_bytes;
    if (i < 2) entry.usage[(step + i) % 16].segment = fresh.usage[i].segment;
  }
}

/// The processor time of this thread, which other programs do not increase.
double ThreadMicroseconds() {
  timespec time{};
  EXPECT_EQ(::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time), 0);
  return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_nsec) / 1e3;
}

/// Measures 100 commits, each of which adds a step, to a list of `count` steps. This is the worst
/// case: steps have random distances, and as many tables and segments as they can have.
Cost Measure(uint64_t count) {
  std::mt19937_64 random(5);
  const auto storage = std::make_shared<MemoryStorage>("test");
  StepList steps(storage);
  uint64_t step = 0;
  StepEntry entry;
  const auto add = [&](const StepList& list) {
    step += 1 + random() % 200;
    ChangeEntry(entry, step, random);
    return Added(list, entry);
  };
  for (uint64_t i = 0; i < count; ++i) steps = add(steps).WritePages(kEpoch).value().steps;
  ListStore store(storage);
  store.Commit(steps);
  Cost cost;
  for (uint64_t i = 0; i < (count == 0 ? 1 : 100); ++i) {
    store.Commit(add(store.steps()));
    cost.commit_bytes = std::max(cost.commit_bytes, store.written_bytes());
    cost.root_bytes = std::max<uint64_t>(cost.root_bytes, store.root().size());
  }
  constexpr int kRounds = 20;
  const double start = ThreadMicroseconds();
  for (int i = 0; i < kRounds; ++i) {
    const StepList list(storage, internal::DecodeRoot(store.root()).value());
    EXPECT_GT(list.numbers().size(), count);
  }
  cost.decode_us = (ThreadMicroseconds() - start) / kRounds;
  return cost;
}

TEST(StepListCostTest, CommitOfTenThousandStepsWritesLittleMoreThanTheFirst) {
  const Cost first = Measure(0);
  const Cost later = Measure(10'000);

  std::cout << fmt::format(
      "first commit: {} bytes; with 10,000 steps: at most {} bytes, of a root of {} bytes; "
      "decoding "
      "{:.0f} us\n",
      first.commit_bytes, later.commit_bytes, later.root_bytes, later.decode_us);
  EXPECT_LE(later.commit_bytes - first.commit_bytes, 48u << 10);
  // The bar is 1 ms; sanitizers are slower.
  EXPECT_LE(later.decode_us, 20'000);
}

}  // namespace
}  // namespace cairn::kv
