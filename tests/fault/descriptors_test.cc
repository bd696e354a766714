// Goal: a process that has no file descriptors left gets an error that states this. Nothing is lost
// or reported as damaged, and the same handle works again when there are descriptors.
//
// Each operation runs with 0, 1, 2, ... free descriptors, until it succeeds.

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <array>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/async_save.h"
#include "core/checkpoint_store.h"
#include "tests/core/tensor/test_tensor.h"
#include "tests/support/result_matchers.h"
#include "tests/support/scoped_temp_dir.h"
#include "tests/support/without_value.h"

namespace cairn::core {
namespace {

using cairn::testing::WithoutValue;
using ::testing::AnyOf;
using ::testing::Eq;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// While it exists, the process can open `count` more descriptors.
class FreeDescriptors {
 public:
  explicit FreeDescriptors(rlim_t count) {
    EXPECT_EQ(::getrlimit(RLIMIT_NOFILE, &old_), 0);
    std::vector<bool> is_open(old_.rlim_cur, false);
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      const size_t fd = std::stoul(entry.path().filename());
      if (::fcntl(static_cast<int>(fd), F_GETFD) >= 0) is_open[fd] = true;
    }
    // The directory itself was open at the first free number.
    rlimit limit = old_;
    for (limit.rlim_cur = 0; limit.rlim_cur < is_open.size(); ++limit.rlim_cur) {
      if (!IsOpen(limit.rlim_cur) && count-- == 0) break;
    }
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  }
  ~FreeDescriptors() { ::setrlimit(RLIMIT_NOFILE, &old_); }
  FreeDescriptors(const FreeDescriptors&) = delete;
  FreeDescriptors& operator=(const FreeDescriptors&) = delete;

 private:
  static bool IsOpen(rlim_t fd) { return ::fcntl(static_cast<int>(fd), F_GETFD) >= 0; }
  rlimit old_{};
};

/// Whether stores use io_uring, which needs descriptors, too.
class DescriptorsTest : public ::testing::TestWithParam<bool> {
 protected:
  kv::StoreOptions Options() const {
    return {.io = kv::IoOptions{.uring = GetParam(), .block_bytes = 65536},
            .grace = std::chrono::milliseconds(0)};
  }
  Result<std::unique_ptr<CheckpointStore>> Open(kv::OpenMode mode) const {
    return CheckpointStore::Open(path_, mode, Options());
  }
  static std::vector<TestTensor> TensorsOf(uint64_t step) {
    const auto seed = static_cast<uint8_t>(step);
    return {TestTensor(DType::kInt8, {300'000}, seed), TestTensor(DType::kInt16, {500}, 7)};
  }
  static Result<SaveReport> Save(CheckpointStore& store, uint64_t step) {
    const std::vector<TestTensor> tensors = TensorsOf(step);
    StateDict state;
    state.root().Tensor("changed", tensors[0].view());
    state.root().Tensor("same", tensors[1].view());
    return store.Save(step, state, {.overwrite = true});
  }
  static Result<void> Load(const CheckpointStore& store, uint64_t step) {
    std::vector<TestTensor> loaded = TensorsOf(100);
    CAIRN_TRY_ASSIGN(const Contents contents, store.List(step));
    const std::array requests{WholeRequest("changed", loaded[0]), WholeRequest("same", loaded[1])};
    CAIRN_TRY(store.Load(contents.step, requests));
    const std::vector<TestTensor> expected = TensorsOf(step);
    for (size_t i = 0; i < loaded.size(); ++i) EXPECT_TRUE(loaded[i].bytes == expected[i].bytes);
    return {};
  }
  static Result<void> Verify(const CheckpointStore& store) {
    std::vector<std::string> damage;
    const auto verified = store.Verify(
        std::nullopt, [&](const kv::Damage& one) { damage.push_back(one.error.ToString()); });
    EXPECT_THAT(damage, IsEmpty());
    CAIRN_TRY(verified);
    return {};
  }

  void SetUp() override {
#if defined(__SANITIZE_ADDRESS__)
    GTEST_SKIP() << "UBSan, which is on too, opens a pipe to check the type of an object";
#endif
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto writer, Open(kv::OpenMode::kWrite));
    for (const uint64_t step : {1, 2, 3}) CAIRN_ASSERT_OK(Save(*writer, step));
    // Free segments for the compaction.
    CAIRN_ASSERT_OK(writer->Delete(std::array<uint64_t, 1>{2}));
  }
  void ExpectSteps(const std::vector<uint64_t>& steps) const {
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto reader, Open(kv::OpenMode::kRead));
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto numbers, reader->StepNumbers());
    EXPECT_EQ(numbers, steps);
    for (const uint64_t step : numbers) CAIRN_EXPECT_OK(Load(*reader, step));
    CAIRN_EXPECT_OK(Verify(*reader));
  }

  /// Runs `operation` on a store that is open in `mode`, as described above. `steps` are those
  /// afterwards.
  void Exhaust(kv::OpenMode mode, const std::vector<uint64_t>& steps,
               const std::function<Result<void>(CheckpointStore&)>& operation) {
    int failures = 0;
    for (rlim_t count = 0;; ++count) {
      SCOPED_TRACE(fmt::format("{} free descriptors", count));
      CAIRN_ASSERT_OK_AND_ASSIGN(const auto store, Open(mode));
      Result<void> done;
      {
        const FreeDescriptors free(count);
        done = operation(*store);
      }
      if (!done) {
        ++failures;
        EXPECT_THAT(done.error().code,
                    AnyOf(Eq(ErrorCode::kResourceExhausted), Eq(ErrorCode::kUnavailable)))
            << ErrorCodeName(done.error().code);
        EXPECT_THAT(done.error().ToString(), HasSubstr("open files"));
        CAIRN_ASSERT_OK(operation(*store));
      }
      CAIRN_ASSERT_OK(store->Close());
      ExpectSteps(steps);
      if (HasFailure()) return;
      if (done) break;
      ASSERT_LT(count, 100u);
    }
    EXPECT_GT(failures, 0);
  }

  testing::ScopedTempDir directory_;
  const std::string path_ = directory_ / "store";
};

TEST_P(DescriptorsTest, Open) {
  for (const kv::OpenMode mode : {kv::OpenMode::kRead, kv::OpenMode::kWrite}) {
    Exhaust(kv::OpenMode::kRead, {1, 3},
            [&](CheckpointStore&) { return WithoutValue(Open(mode)); });
  }
}

TEST_P(DescriptorsTest, Creation) {
  for (rlim_t count = 0;; ++count) {
    const std::string path = directory_ / "new" + std::to_string(count);
    const auto create = [&] {
      return CheckpointStore::Open(path, kv::OpenMode::kWrite, Options());
    };
    bool is_created = false;
    {
      const FreeDescriptors free(count);
      const auto created = create();
      is_created = created.has_value();
      if (!is_created) {
        EXPECT_THAT(created.error().ToString(), HasSubstr("open files"));
      }
    }
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto store, create());
    CAIRN_ASSERT_OK(Save(*store, 1));
    CAIRN_EXPECT_OK(Load(*store, 1));
    if (is_created) break;
  }
}

TEST_P(DescriptorsTest, Save) {
  Exhaust(kv::OpenMode::kWrite, {1, 3, 4},
          [](CheckpointStore& store) { return WithoutValue(Save(store, 4)); });
}

TEST_P(DescriptorsTest, AsynchronousSave) {
  Exhaust(kv::OpenMode::kWrite, {1, 3, 4}, [](CheckpointStore& store) -> Result<void> {
    AsyncSaver saver(&store);
    const std::vector<TestTensor> tensors = TensorsOf(4);
    StateDict state;
    state.root().Tensor("changed", tensors[0].view());
    state.root().Tensor("same", tensors[1].view());
    CAIRN_TRY_ASSIGN(const SaveHandle handle, saver.Save(4, state, {.overwrite = true}));
    CAIRN_TRY(handle.Wait());
    return {};
  });
}

TEST_P(DescriptorsTest, Load) {
  Exhaust(kv::OpenMode::kRead, {1, 3}, [](CheckpointStore& store) -> Result<void> {
    for (const uint64_t step : {1, 3}) CAIRN_TRY(Load(store, step));
    return {};
  });
}

TEST_P(DescriptorsTest, Verification) {
  Exhaust(kv::OpenMode::kRead, {1, 3}, [](CheckpointStore& store) { return Verify(store); });
}

TEST_P(DescriptorsTest, Delete) {
  Exhaust(kv::OpenMode::kWrite, {1, 3}, [](CheckpointStore& store) -> Result<void> {
    CAIRN_TRY(Save(store, 5));
    CAIRN_TRY(store.Delete(std::array<uint64_t, 1>{5}));
    return {};
  });
}

TEST_P(DescriptorsTest, Compaction) {
  Exhaust(kv::OpenMode::kWrite, {1, 3},
          [](CheckpointStore& store) { return WithoutValue(store.Compact({.max_dead = 0})); });
}

INSTANTIATE_TEST_SUITE_P(Engines, DescriptorsTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Uring" : "Threads"; });

}  // namespace
}  // namespace cairn::core
