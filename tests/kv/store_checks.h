#pragma once
/// Checks of complete stores.

#include <gmock/gmock.h>

#include <memory>
#include <optional>
#include <string>

#include "kv/read/snapshot.h"
#include "kv/storage/storage.h"
#include "kv/store.h"
#include "tests/kv/sample_step.h"
#include "tests/support/result_matchers.h"

namespace cairn::kv::testing {

/// Checks that VerifyFiles finds nothing.
inline void ExpectSound(const Snapshot& snapshot) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto damage, Verify(snapshot));
  EXPECT_THAT(damage, ::testing::IsEmpty());
}
inline void ExpectSound(const Store& store) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto snapshot, store.Latest());
  ExpectSound(*snapshot);
}
inline void ExpectSound(const std::shared_ptr<Storage>& storage) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto store, Store::Open(storage, OpenMode::kRead));
  ExpectSound(*store);
}

inline void ExpectSteps(const Store& store, const Steps& expected) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const Steps steps, LoadAllFrom(store));
  EXPECT_TRUE(steps == expected);
}
inline void ExpectSteps(const std::string& address, const Steps& expected) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto store, Store::Open(address, OpenMode::kRead));
  ExpectSteps(*store, expected);
}
/// By default of the latest step.
inline void ExpectSample(const Snapshot& snapshot, const SampleStep& expected,
                         std::optional<uint64_t> step = std::nullopt) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const SampleStep sample, LoadSample(snapshot, step));
  EXPECT_TRUE(sample == expected);
}

/// `place` is an address or a storage.
template <typename Place>
void ExpectNoLeftovers(const Place& place) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto leftovers, FindLeftovers(place));
  EXPECT_THAT(leftovers, ::testing::IsEmpty());
}

/// Checks that the next writer finds these steps, without damage, and leaves nothing else.
inline void ExpectWholeAndClean(const std::string& address, const Steps& expected,
                                const StoreOptions& options) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto store, Store::Open(address, OpenMode::kWrite, options));
  ExpectSteps(*store, expected);
  ExpectSound(*store);
  ExpectNoLeftovers(address);
}

}  // namespace cairn::kv::testing
