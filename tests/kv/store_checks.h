#pragma once
/// Checks of complete stores.

#include <gmock/gmock.h>

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kv/read/snapshot.h"
#include "kv/storage/storage.h"
#include "kv/store.h"
#include "tests/kv/sample_step.h"
#include "tests/support/result_matchers.h"

namespace cairn::kv::testing {

/// Returns all objects of the storage and their bytes.
inline std::map<std::string, std::vector<std::byte>> ContentsOf(Storage& storage) {
  std::map<std::string, std::vector<std::byte>> contents;
  const auto names = storage.List("").value();
  for (const std::string& name : names) contents[name] = storage.Read(name, 1 << 30).value();
  return contents;
}

inline void RemoveObjects(Storage& storage, const std::string& prefix = "") {
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto names, storage.List(prefix));
  for (const std::string& name : names) CAIRN_ASSERT_OK(storage.Remove(name));
}

/// Checks that VerifyFiles finds nothing.
inline void ExpectSound(const Snapshot& snapshot) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto damage, Verify(snapshot));
  EXPECT_THAT(damage, ::testing::IsEmpty());
}
inline void ExpectSound(const Store& store) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto snapshot, store.Latest());
  ExpectSound(*snapshot);
}
/// `place` is an address or a storage.
template <typename Place>
void ExpectSound(const Place& place) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto snapshot, ReadLatest(place));
  ExpectSound(*snapshot);
}

inline void ExpectSteps(const Store& store, const Steps& expected) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const Steps steps, LoadAllFrom(store));
  EXPECT_TRUE(steps == expected);
}
/// `place` is an address or a storage.
template <typename Place>
void ExpectSteps(const Place& place, const Steps& expected) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto store, Store::Open(place, OpenMode::kRead));
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
