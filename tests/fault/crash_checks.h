#pragma once
/// What the tests of crashes share.

#include <gmock/gmock.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "kv/storage/open/open_storage.h"
#include "kv/store.h"
#include "tests/fault/operations.h"
#include "tests/kv/store_checks.h"
#include "tests/process/child.h"
#include "tests/support/result_matchers.h"

namespace cairn::kv::testing {

inline int RunStoreProgram(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), CAIRN_STORE_PROGRAM);
  return cairn::testing::Child(arguments).Wait();
}

/// Opens for writing and checks that the store has one of the two states, bit for bit, has no
/// leftovers, and is usable.
inline void ExpectOldOrNew(const std::string& address, const Steps& before, const Steps& after) {
  {
    // A reader opens the store first, before a writer has cleaned up.
    CAIRN_ASSERT_OK_AND_ASSIGN(const Steps read, LoadAll(address));
    EXPECT_TRUE(read == before || read == after);
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto store,
                               Store::Open(address, OpenMode::kWrite, SmallBlocks()));
    CAIRN_ASSERT_OK_AND_ASSIGN(const Steps found, LoadAllFrom(*store));
    EXPECT_TRUE(found == read) << "the writer sees other steps than the reader before it";
    ExpectSound(*store);
    ExpectNoLeftovers(address);
    if (std::filesystem::exists(address)) {
      for (const auto& entry : std::filesystem::recursive_directory_iterator(address)) {
        EXPECT_THAT(entry.path().string(), ::testing::Not(::testing::HasSubstr(".tmp")));
      }
    }
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto storage, OpenStorage(address));
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto leases, storage->List("leases/"));
    EXPECT_THAT(leases, ::testing::SizeIs(1)) << "leases of dead writers remain";
    CAIRN_EXPECT_OK(SaveSample(*store, MakeSample(50)));
  }
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto store, Store::Open(address, OpenMode::kRead));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto snapshot, store->Latest());
  CAIRN_ASSERT_OK_AND_ASSIGN(const SampleStep saved, LoadSample(*snapshot));
  EXPECT_TRUE(saved == MakeSample(50));
}

}  // namespace cairn::kv::testing
