// The environment variables that set the I/O options of a store that was opened without any.

#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <filesystem>

#include "kv/base/options.h"
#include "kv/store.h"
#include "tests/support/result_matchers.h"
#include "tests/support/scoped_temp_dir.h"

namespace cairn::kv {
namespace {

using cairn::testing::IsError;
using cairn::testing::ScopedTempDir;

constexpr std::array kVariables = {"CAIRN_IO_BLOCK_BYTES", "CAIRN_IO_DEPTH", "CAIRN_IO_ENGINE",
                                   "CAIRN_IO_DIRECT", "CAIRN_THREADS"};

class IoEnvironmentTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : kVariables) ::unsetenv(name);
  }
  void TearDown() override { SetUp(); }

  Result<IoOptions> OptionsOfAnOpen(const StoreOptions& given = {}) {
    CAIRN_TRY_ASSIGN(const auto store, Store::Open(path_, OpenMode::kWrite, given));
    return store->options().io.value();
  }

  ScopedTempDir dir_;
  const std::string path_ = dir_ / "store";
};

TEST_F(IoEnvironmentTest, WithoutVariablesTheDefaultsHold) {
  ::setenv("CAIRN_IO_DEPTH", "", 1);  // an empty variable is ignored
  CAIRN_ASSERT_OK_AND_ASSIGN(const IoOptions io, OptionsOfAnOpen());
  EXPECT_EQ(io.block_bytes, IoOptions().block_bytes);
  EXPECT_EQ(io.queue_depth, IoOptions().queue_depth);
  EXPECT_TRUE(io.uring);
  EXPECT_TRUE(io.direct);
}

TEST_F(IoEnvironmentTest, EachVariableSetsItsOption) {
  ::setenv("CAIRN_IO_BLOCK_BYTES", "65536", 1);
  ::setenv("CAIRN_IO_DEPTH", "3", 1);
  ::setenv("CAIRN_IO_ENGINE", "threads", 1);
  ::setenv("CAIRN_IO_DIRECT", "0", 1);
  CAIRN_ASSERT_OK_AND_ASSIGN(const IoOptions io, OptionsOfAnOpen());
  EXPECT_EQ(io.block_bytes, 65536u);
  EXPECT_EQ(io.queue_depth, 3u);
  EXPECT_FALSE(io.uring);
  EXPECT_FALSE(io.direct);
}

TEST_F(IoEnvironmentTest, OptionsOfTheCallerWin) {
  ::setenv("CAIRN_IO_DEPTH", "3", 1);
  ::setenv("CAIRN_IO_ENGINE", "nonsense", 1);
  StoreOptions given;
  given.io = {.queue_depth = 5};
  CAIRN_ASSERT_OK_AND_ASSIGN(const IoOptions io, OptionsOfAnOpen(given));
  EXPECT_EQ(io.queue_depth, 5u);
  EXPECT_TRUE(io.uring);
}

TEST_F(IoEnvironmentTest, BadValuesAreRefusedBeforeAnythingIsCreated) {
  const std::array<std::pair<const char*, const char*>, 14> bad = {{
      {"CAIRN_IO_BLOCK_BYTES", "4095"},
      {"CAIRN_IO_BLOCK_BYTES", "1073741825"},
      {"CAIRN_IO_BLOCK_BYTES", "8MiB"},
      {"CAIRN_IO_BLOCK_BYTES", "-4096"},
      {"CAIRN_IO_BLOCK_BYTES", "99999999999999999999"},
      {"CAIRN_IO_DEPTH", "0"},
      {"CAIRN_IO_DEPTH", "1025"},
      {"CAIRN_IO_DEPTH", " 8"},
      {"CAIRN_IO_ENGINE", "io_uring"},
      {"CAIRN_IO_ENGINE", "Threads"},
      {"CAIRN_IO_DIRECT", "2"},
      {"CAIRN_IO_DIRECT", "true"},
      {"CAIRN_THREADS", "0"},
      {"CAIRN_THREADS", "1025"},
  }};
  for (const auto& [name, value] : bad) {
    ::setenv(name, value, 1);
    EXPECT_THAT(OptionsOfAnOpen(), IsError(ErrorCode::kInvalidArgument, name)) << value;
    EXPECT_THAT(OptionsOfAnOpen(), IsError(ErrorCode::kInvalidArgument, value));
    ::unsetenv(name);
  }
  EXPECT_FALSE(std::filesystem::exists(path_));
}

}  // namespace
}  // namespace cairn::kv
