// Goal: a writer acts only on the store that it has opened. In a bucket, its prefix may be removed
// and written again at any time; then nothing of the other store changes.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kv/compact.h"
#include "kv/read/snapshot.h"
#include "kv/root/internal/root_log.h"
#include "kv/state/internal/root_change.h"
#include "kv/state/internal/store_state.h"
#include "kv/storage/files/internal/memory_storage.h"
#include "kv/store.h"
#include "tests/kv/sample_step.h"
#include "tests/kv/store_checks.h"
#include "tests/support/result_matchers.h"
#include "tests/support/without_value.h"

namespace cairn::kv {
namespace {

using cairn::testing::IsError;
using cairn::testing::WithoutValue;
using internal::MemoryStorage;
using internal::StoreAccess;
using ::testing::HasSubstr;
using namespace cairn::kv::testing;  // NOLINT(google-build-using-namespace)

/// An address at which one store after the other is.
class Address final : public Storage {
 public:
  /// Called before each request, with the operation and the name.
  std::function<void(std::string_view, std::string_view)> before;

  void Replace(std::shared_ptr<MemoryStorage> store) { stores_.push_back(std::move(store)); }

  const std::string& address() const override { return address_; }
  Result<void> Put(std::string_view name, std::span<const std::byte> bytes) override {
    return Now("put", name).Put(name, bytes);
  }
  Result<void> PutIfAbsent(std::string_view name, std::span<const std::byte> bytes) override {
    return Now("put if absent", name).PutIfAbsent(name, bytes);
  }
  Result<std::unique_ptr<ObjectWriter>> Create(std::string_view name) override {
    return Now("create", name).Create(name);
  }
  Result<void> ReadRange(std::string_view name, uint64_t offset_bytes,
                         std::span<std::byte> target) override {
    return Now("read", name).ReadRange(name, offset_bytes, target);
  }
  Result<uint64_t> Size(std::string_view name) override { return Now("size", name).Size(name); }
  Result<std::vector<std::string>> List(std::string_view prefix) override {
    return Now("list", prefix).List(prefix);
  }
  Result<void> Remove(std::string_view name) override { return Now("remove", name).Remove(name); }

 private:
  Storage& Now(std::string_view operation, std::string_view name) {
    if (before) before(operation, name);
    return *stores_.back();
  }

  const std::string address_ = "bucket/prefix";
  // Writers of objects may outlive the replacement of their store.
  std::vector<std::shared_ptr<MemoryStorage>> stores_{std::make_shared<MemoryStorage>("own")};
};

struct Change {
  const char* name;
  std::function<Result<void>(Store&)> perform;
};

std::vector<Change> AllChanges() {
  return {
      {"save", [](Store& store) { return WithoutValue(SaveSample(store, MakeSample(9))); }},
      {"overwrite",
       [](Store& store) {
         return WithoutValue(SaveSample(store, MakeSample(1, 1), /*overwrite=*/true));
       }},
      {"delete",
       [](Store& store) { return WithoutValue(store.Delete(std::array<uint64_t, 1>{1})); }},
      {"tag", [](Store& store) { return store.ChangeTags({{"best", 2}}); }},
      {"retention", [](Store& store) { return store.SetRetention({.keep_last = 1}); }},
      {"compression", [](Store& store) { return store.SetCompression(true); }},
      {"compact", [](Store& store) { return WithoutValue(Compact(store, {.max_dead = 0})); }},
      {"announce",
       [](Store& store) -> Result<void> {
         const internal::RemovedObject object{.name =
                                                  "segments/00000001-000000000000000100000000.seg"};
         const MutexLock lock(StoreAccess::StateOf(store).write_mutex);
         return internal::CommitChange(StoreAccess::StateOf(store), {}, {},
                                       {.announced = {&object, 1}});
       }},
  };
}

class ReplacedStoreTest : public ::testing::Test {
 protected:
  /// Performs `action`, and replaces the store before its n-th request. Returns whether there
  /// were so many.
  template <typename Action>
  bool ReplaceAt(uint64_t n, const Action& action) {
    uint64_t left = n;
    address_->before = [&](std::string_view operation, std::string_view name) {
      if (left == 0 || --left > 0) return;
      last_ = fmt::format("{} {}", operation, name);
      address_->Replace(other_);
    };
    action();
    address_->before = nullptr;
    return left == 0;
  }
  /// Opens a store with steps 1 and 2, of which deleted ones wait for their removal.
  std::unique_ptr<Store> OpenOwn() {
    auto store = Store::Open(address_, OpenMode::kWrite, {.grace = std::chrono::milliseconds(0)});
    EXPECT_TRUE(cairn::testing::IsOk(store));
    for (const uint64_t step : {1, 2}) {
      CAIRN_EXPECT_OK(SaveSample(**store, MakeSample(step), /*overwrite=*/true));
    }
    return *std::move(store);
  }
  /// Fills another store, in which `commit_count` roots are put.
  void MakeOther(uint64_t commit_count) {
    other_ = std::make_shared<MemoryStorage>("other");
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto store, Store::Open(other_, OpenMode::kWrite));
    CAIRN_ASSERT_OK(SaveSample(*store, MakeSample(1, 7)));
    for (uint64_t i = 2; i < commit_count; ++i) CAIRN_ASSERT_OK(store->SetCompression(i % 2 == 1));
  }
  void ExpectOtherIsUsable() {
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto store, Store::Open(other_, OpenMode::kWrite));
    CAIRN_ASSERT_OK(SaveSample(*store, MakeSample(2)));
    CAIRN_ASSERT_OK(store->Close());
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto snapshot, ReadLatest(other_));
    EXPECT_THAT(snapshot->step_numbers(), ::testing::ElementsAre(1, 2));
    ExpectSample(*snapshot, MakeSample(1, 7), 1);
    ExpectSound(*snapshot);
    // What has a later epoch remains.
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto root, internal::FindNewest(*other_));
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto leftovers, FindLeftovers(other_));
    for (const std::string& name : leftovers) {
      const std::string epoch = name.substr(name.find('/') + 1, 8);
      EXPECT_GT(std::stoul(epoch, nullptr, 16), root->epoch) << name;
    }
  }

  const std::shared_ptr<Address> address_ = std::make_shared<Address>();
  std::shared_ptr<MemoryStorage> other_;
  std::string last_;  // request before which the store was replaced
};

// The other store has fewer, as many, and more roots, and some of them were removed.
TEST_F(ReplacedStoreTest, EachChangeAfterItIsRefusedAndChangesNothing) {
  for (const Change& change : AllChanges()) {
    for (const uint64_t commit_count : {2, 3, 4, 80}) {
      SCOPED_TRACE(fmt::format("{}, {} roots", change.name, commit_count));
      address_->Replace(std::make_shared<MemoryStorage>("own"));
      const auto store = OpenOwn();
      MakeOther(commit_count);
      const auto before = ContentsOf(*other_);
      address_->Replace(other_);
      for (int i = 0; i < 2; ++i) {
        const auto changed = change.perform(*store);
        ASSERT_FALSE(changed.has_value());
        if (i > 0 && changed.error().code == ErrorCode::kFailedPrecondition) continue;
        EXPECT_EQ(changed.error().code, ErrorCode::kConflict);
        EXPECT_THAT(changed.error().message,
                    HasSubstr("the store at bucket/prefix was replaced by another one"));
      }
      CAIRN_EXPECT_OK(store->Close());
      EXPECT_TRUE(ContentsOf(*other_) == before);
      ExpectOtherIsUsable();
      if (HasFailure()) return;
    }
  }
}

// It is replaced before each request of a change, which is either performed before or refused.
TEST_F(ReplacedStoreTest, EachChangeDuringItChangesNothing) {
  for (const Change& change : AllChanges()) {
    bool is_replaced = true;
    for (uint64_t request = 1; is_replaced; ++request) {
      SCOPED_TRACE(fmt::format("{}, request {}", change.name, request));
      address_->Replace(std::make_shared<MemoryStorage>("own"));
      auto store = OpenOwn();
      MakeOther(4);
      Result<void> changed;
      is_replaced = ReplaceAt(request, [&] { changed = change.perform(*store); });
      SCOPED_TRACE(last_);
      if (!changed) {
        EXPECT_THAT(changed.error().code,
                    ::testing::AnyOf(ErrorCode::kConflict, ErrorCode::kNotFound,
                                     ErrorCode::kUnavailable, ErrorCode::kDataLoss));
      }
      (void)store->Close();
      store.reset();
      // What a change has begun there is swept, except for what has a later epoch.
      ExpectOtherIsUsable();
      if (HasFailure()) return;
    }
  }
}

// The open commits a root with its epoch, and then removes what it takes for garbage.
TEST_F(ReplacedStoreTest, OpenDuringItChangesNothing) {
  bool is_replaced = true;
  for (uint64_t request = 1; is_replaced; ++request) {
    address_->Replace(std::make_shared<MemoryStorage>("own"));
    for (int i = 0; i < 2; ++i) OpenOwn();
    MakeOther(2);
    const auto before = ContentsOf(*other_);
    Result<std::unique_ptr<Store>> opened;
    is_replaced = ReplaceAt(request, [&] { opened = Store::Open(address_, OpenMode::kWrite); });
    SCOPED_TRACE(last_);
    if (opened) (void)(*opened)->Close();
    for (const auto& [name, bytes] : before) {
      const auto found = other_->Read(name, 1 << 30);
      EXPECT_TRUE(name == internal::kHintName || (found && *found == bytes)) << name;
    }
    if (HasFailure()) return;
  }
}

TEST_F(ReplacedStoreTest, ReaderIsToldSo) {
  OpenOwn();
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto reader, Store::Open(address_, OpenMode::kRead));
  MakeOther(70);
  address_->Replace(other_);
  EXPECT_THAT(reader->Latest(), IsError(ErrorCode::kConflict, "was replaced by another one"));
}

// Nothing of the store is there any more, or only what the creation of another one has put first. A
// rebuild would create a store without its steps.
TEST_F(ReplacedStoreTest, NobodyIsToldToRebuildAStoreThatWasRemoved) {
  const auto writer = OpenOwn();
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto reader, Store::Open(address_, OpenMode::kRead));
  MakeOther(2);
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto identity, other_->Read(internal::kIdentityName, 1 << 10));
  for (const bool has_identity : {false, true}) {
    auto other = std::make_shared<MemoryStorage>("other");
    if (has_identity) {
      CAIRN_ASSERT_OK(other->Put(internal::kIdentityName, identity));
    }
    address_->Replace(std::move(other));
    const ErrorCode code = has_identity ? ErrorCode::kConflict : ErrorCode::kFailedPrecondition;
    const auto found = reader->Latest();
    const auto checked = internal::CheckStillWriter(StoreAccess::StateOf(*writer));
    ASSERT_FALSE(found || checked);
    for (const Error& error : {found.error(), checked.error()}) {
      EXPECT_EQ(error.code, code);
      EXPECT_EQ(error.hint, Hint::kNone);
    }
  }
  (void)writer->Close();
}

}  // namespace
}  // namespace cairn::kv
