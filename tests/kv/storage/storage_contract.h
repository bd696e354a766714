#pragma once
/// The contract of kv/storage/storage.h, as a test suite in which each implementation registers:
///
///   INSTANTIATE_TEST_SUITE_P(Memory, StorageContractTest,
///                            ::testing::Values(StorageParam{&MakeMemory}));
///
/// Link with cairn_storage_contract.

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <ostream>

#include "kv/storage/storage.h"

namespace cairn::testing {

/// Objects that are empty at first. Each call returns an access to the same objects, which is, as
/// far as the implementation can, independent of the others, as that of another process would be.
using OpenSameStorage = std::function<std::shared_ptr<kv::Storage>()>;

struct StorageParam {
  /// Fails the test if there can be no storage. What it returns owns the objects.
  std::function<OpenSameStorage()> make;
  /// How often threads race to put one object. Losers of a race wait for seconds on some servers.
  int race_count = 100;

  friend void PrintTo(const StorageParam&, std::ostream* out) { *out << "a storage"; }
};

class StorageContractTest : public ::testing::TestWithParam<StorageParam> {
 protected:
  /// Puts, and fails the test if that fails.
  void Put(std::string_view name, std::string_view bytes);
  /// Returns the bytes of an object; "(error)" fails the test.
  std::string Read(std::string_view name);
  /// Returns the sorted result of List.
  std::vector<std::string> List(std::string_view prefix);

  const OpenSameStorage open_ = GetParam().make();
  const std::shared_ptr<kv::Storage> storage_ = open_();
};

}  // namespace cairn::testing
