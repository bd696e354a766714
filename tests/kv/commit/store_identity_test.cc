// Opens of a path that is not a store, of a newer store and of a damaged one: one clear error each,
// and nothing changes.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "kv/base/digest.h"
#include "kv/base/options.h"
#include "kv/io/internal/file.h"
#include "kv/store.h"
#include "tests/kv/sample_step.h"
#include "tests/kv/store_checks.h"
#include "tests/support/fault_hook.h"
#include "tests/support/result_matchers.h"
#include "tests/support/scoped_temp_dir.h"

namespace cairn::kv {
namespace {

using cairn::testing::IsError;
using cairn::testing::ScopedTempDir;
using ::testing::HasSubstr;
using namespace cairn::kv::testing;  // NOLINT(google-build-using-namespace)
namespace fs = std::filesystem;

class StoreIdentityTest : public ::testing::Test {
 protected:
  void MakeStore() {
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto store, Store::Open(path_, OpenMode::kWrite));
    CAIRN_ASSERT_OK(SaveSample(*store, MakeSample(1)));
  }
  void WriteIdentity(const std::string& text) {
    std::ofstream(path_ + "/CAIRN", std::ios::trunc | std::ios::binary) << text;
  }
  std::string Identity() {
    const auto bytes = internal::ReadWholeFile(path_ + "/CAIRN", 4096).value();
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  /// Writes the file that a build of format `format` would write.
  static std::string IdentityOf(const std::string& format) {
    const std::string text =
        fmt::format("cairn store\nformat {}\nuuid 000102030405060708090a0b0c0d0e0f\n", format);
    return text + fmt::format("checksum {:016x}\n", Checksum64(internal::AsBytes(text)));
  }
  void ExpectBothFail(ErrorCode code, const std::string& words) {
    EXPECT_THAT(Store::Open(path_, OpenMode::kRead), IsError(code, words));
    EXPECT_THAT(Store::Open(path_, OpenMode::kWrite), IsError(code, words));
  }

  ScopedTempDir dir_;
  const std::string path_ = dir_ / "store";
};

TEST_F(StoreIdentityTest, ReaderOfNothingGetsNotFoundAndCreatesNothing) {
  EXPECT_THAT(Store::Open(path_, OpenMode::kRead), IsError(ErrorCode::kNotFound, "no store here"));
  EXPECT_FALSE(fs::exists(path_));
}

TEST_F(StoreIdentityTest, WriterCreatesTheStoreAndItsParents) {
  const std::string deep = dir_ / "a/b/c";
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto store, Store::Open(deep, OpenMode::kWrite));
  EXPECT_TRUE(store->writable());
  EXPECT_EQ(store->directory(), deep);
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto snapshot, ReadLatest(deep));
  EXPECT_TRUE(snapshot->step_numbers().empty());
}

TEST_F(StoreIdentityTest, EmptyDirectoryBecomesAStoreOnlyForAWriter) {
  fs::create_directory(path_);
  EXPECT_THAT(Store::Open(path_, OpenMode::kRead), IsError(ErrorCode::kNotFound, "no store here"));
  EXPECT_TRUE(fs::is_empty(path_));
  CAIRN_EXPECT_OK(Store::Open(path_, OpenMode::kWrite));
}

TEST_F(StoreIdentityTest, ReaderOpensAStoreThatIsBeingCreatedOrGetsNotFound) {
  size_t absent = 0, opened = 0;
  const cairn::testing::ScopedFaults points([&](const cairn::testing::FaultPass& pass, uint32_t) {
    const auto store = Store::Open(path_, OpenMode::kRead);
    if (store) {
      ++opened;
    } else {
      EXPECT_THAT(store, IsError(ErrorCode::kNotFound, "no store here")) << pass.point;
      ++absent;
    }
    return 0;
  });
  CAIRN_EXPECT_OK(Store::Open(path_, OpenMode::kWrite));
  EXPECT_GE(absent, 4);  // create the directory, create a file, write and sync it
  EXPECT_GE(opened, 1);
}

TEST_F(StoreIdentityTest, StoreIsCreatedBesideOtherFilesAndLeavesThemUnchanged) {
  fs::create_directories(path_ + "/logs");
  for (const char* name : {"/config.json", "/model.pt", "/logs/1.txt"}) {
    std::ofstream(path_ + name) << "bytes";
  }
  MakeStore();
  for (const char* name : {"/config.json", "/model.pt", "/logs/1.txt"}) {
    EXPECT_EQ(fs::file_size(path_ + name), 5u) << name;
  }
  ExpectSteps(path_, {{1, MakeSample(1)}});
}

// A file, checkpoints of other formats, and names that a store uses. Next to other files, only a
// writer creates a store.
TEST_F(StoreIdentityTest, WhatIsNotAStoreIsRefusedAndNotChanged) {
  for (const std::string name :
       {"", ".metadata", "__0_0.distcp", "_METADATA", "manifest.ocdbt", "zarr.json", "CURRENT",
        "mp_rank_00_model_states.pt", "hint", "roots", "pending", "leases/notes.txt", "pages/a.csv",
        "config.json"}) {
    SCOPED_TRACE(name);
    const fs::path file = name.empty() ? fs::path(path_) : fs::path(path_) / name;
    fs::create_directories(file.parent_path());
    std::ofstream(file) << "mine";
    const std::string words = name.empty() ? "this is a file" : "not a Cairn store";
    EXPECT_THAT(Store::Open(path_, OpenMode::kRead), IsError(ErrorCode::kInvalidArgument, words));
    if (name != "config.json") {
      ExpectBothFail(ErrorCode::kInvalidArgument, words);
      EXPECT_THAT(Store::Open(path_, OpenMode::kWrite).error().message,
                  HasSubstr(name.substr(0, name.find('/'))));
    }
    EXPECT_EQ(fs::file_size(file), 4u);
    EXPECT_TRUE(name.empty() || std::distance(fs::directory_iterator(path_), {}) == 1);
    fs::remove_all(path_);
  }
}

TEST_F(StoreIdentityTest, OtherFormatsAreUnimplemented) {
  MakeStore();
  WriteIdentity(IdentityOf("4"));
  ExpectBothFail(ErrorCode::kUnimplemented, "format 4, this build reads 3; use a newer Cairn");
  WriteIdentity(IdentityOf("2"));
  ExpectBothFail(ErrorCode::kUnimplemented, "format 2, this build reads 3; save the state again");
}

// A flipped bit of the format is not a newer one.
TEST_F(StoreIdentityTest, EveryChangedByteAndAnEmptyFileAreDamage) {
  MakeStore();
  const std::string good = Identity();
  WriteIdentity("");
  ExpectBothFail(ErrorCode::kDataLoss, "CAIRN");
  for (size_t at = 0; at < good.size(); ++at) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 1);
    WriteIdentity(bad);
    EXPECT_THAT(Store::Open(path_, OpenMode::kRead), IsError(ErrorCode::kDataLoss, "CAIRN")) << at;
  }
  WriteIdentity(good);
  CAIRN_EXPECT_OK(Store::Open(path_, OpenMode::kRead));
}

TEST_F(StoreIdentityTest, StoreWithoutIdentityIsDamagedAndNotCreatedAgain) {
  MakeStore();
  fs::remove(path_ + "/CAIRN");
  ExpectBothFail(ErrorCode::kDataLoss, "missing");
  EXPECT_FALSE(fs::is_empty(path_ + "/segments"));
}

TEST_F(StoreIdentityTest, RootsOfAnotherStoreAreRefused) {
  MakeStore();
  CAIRN_ASSERT_OK(Store::Open(dir_ / "other", OpenMode::kWrite));
  fs::copy_file(dir_ / "other/CAIRN", path_ + "/CAIRN", fs::copy_options::overwrite_existing);
  ExpectBothFail(ErrorCode::kDataLoss, "belongs to another store");
}

TEST_F(StoreIdentityTest, SegmentOfAnotherStoreIsReported) {
  MakeStore();
  const fs::path mine = *fs::directory_iterator(path_ + "/segments");
  {
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto other, Store::Open(dir_ / "other", OpenMode::kWrite));
    CAIRN_ASSERT_OK(SaveSample(*other, MakeSample(1)));
  }
  const fs::path theirs = *fs::directory_iterator(dir_ / "other/segments");
  fs::copy_file(theirs, mine, fs::copy_options::overwrite_existing);
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto snapshot, ReadLatest(path_));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto damage, Verify(*snapshot));
  ASSERT_FALSE(damage.empty());
  EXPECT_THAT(damage.front(), HasSubstr("segment"));
}

TEST_F(StoreIdentityTest, StoreWithoutItsEmptyDirectoriesWorks) {
  MakeStore();
  for (const char* folder : {"/pending", "/leases", "/pages"}) {
    std::error_code ignored;
    fs::remove(path_ + folder, ignored);  // fails if it is not empty
  }
  {
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto reader, Store::Open(path_, OpenMode::kRead));
  }
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto store, Store::Open(path_, OpenMode::kWrite));
  CAIRN_EXPECT_OK(SaveSample(*store, MakeSample(2)));
}

TEST_F(StoreIdentityTest, MovedStoreIsTheSameStore) {
  MakeStore();
  fs::rename(path_, dir_ / "moved");
  ExpectSteps(dir_ / "moved", {{1, MakeSample(1)}});
}

}  // namespace
}  // namespace cairn::kv
