// Failures of format 1 that format 2 makes impossible by construction: one test for each.

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <thread>

#include "kv/file_descriptor.h"
#include "kv/internal/root/root_log.h"
#include "kv/internal/storage/object_names.h"
#include "kv/open_storage.h"
#include "kv/options.h"
#include "kv/snapshot.h"
#include "kv/store.h"
#include "tests/kv/sample_step.h"
#include "tests/support/fault_hook.h"
#include "tests/support/result_matchers.h"
#include "tests/support/scoped_temp_dir.h"

namespace cairn::kv {
namespace {

using cairn::testing::FailNth;
using cairn::testing::IsError;
using cairn::testing::ScopedFaults;
using cairn::testing::ScopedTempDir;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Not;
using namespace cairn::kv::testing;  // NOLINT(google-build-using-namespace)
namespace fs = std::filesystem;

constexpr SampleShape kSmall{.tensor_count = 4, .largest_bytes = 3'000};
const StoreOptions kNoGrace{.grace = std::chrono::milliseconds(0)};

/// Runs `body` in a forked child, and returns its exit status; 1000 or more if it was killed.
int RunInChild(const std::function<int()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(60);  // a hang is a failure
    ::_exit(body());
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + status;
}

/// A child that is forked before the parent has opened a store, so that it inherits no knowledge of
/// it, and runs `body` when it is told to.
class EarlyChild {
 public:
  explicit EarlyChild(const std::function<int()>& body) {
    std::array<int, 2> pipe{};
    EXPECT_EQ(::pipe2(pipe.data(), O_CLOEXEC), 0);
    child_ = ::fork();
    if (child_ == 0) {
      ::close(pipe[1]);
      char byte = 0;
      ::_exit(::read(pipe[0], &byte, 1) == 1 ? body() : 99);
    }
    ::close(pipe[0]);
    start_ = FileDescriptor(pipe[1]);
  }
  /// Runs the body, and returns its status.
  int Run() {
    EXPECT_EQ(::write(start_.get(), "x", 1), 1);
    int status = 0;
    ::waitpid(child_, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + status;
  }

 private:
  pid_t child_ = -1;
  FileDescriptor start_;
};

class ImpossibleFailuresTest : public ::testing::Test {
 protected:
  Result<std::unique_ptr<Store>> OpenWriter(const StoreOptions& options = {}) {
    return Store::Open(path_, OpenMode::kWrite, options);
  }
  void ExpectSteps(const std::map<uint64_t, SampleStep>& expected) {
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto steps, LoadAll(path_));
    EXPECT_TRUE(steps == expected);
  }
  /// Returns the paths of all files of the store.
  std::vector<fs::path> Files() {
    std::vector<fs::path> files;
    for (const auto& entry : fs::recursive_directory_iterator(path_)) {
      if (entry.is_regular_file()) files.push_back(entry.path());
    }
    return files;
  }

  ScopedTempDir dir_{fs::exists("/dev/shm") ? "/dev/shm" : ""};
  const std::string path_ = dir_ / "store";
};

// --- A lock is lost because the process itself closes a descriptor of the lock file.

TEST_F(ImpossibleFailuresTest, ClosingDescriptorsOfAnyFileLetsNoSecondWriterIn) {
  // Returns 0 if it is refused. A child that gets in saves, as the second of two writers.
  EarlyChild other([this] {
    const auto second = OpenWriter();
    if (!second) return second.error().code == ErrorCode::kConflict ? 0 : 1;
    return SaveSample(**second, MakeSample(2)) && (*second)->Close() ? 2 : 3;
  });
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto writer, OpenWriter());
  CAIRN_ASSERT_OK(SaveSample(*writer, MakeSample(1)));
  for (const fs::path& file : Files()) FileDescriptor(::open(file.c_str(), O_RDWR | O_CLOEXEC));

  EXPECT_EQ(other.Run(), 0);
  CAIRN_ASSERT_OK(SaveSample(*writer, MakeSample(3)));
  CAIRN_ASSERT_OK(writer->Close());
  ExpectSteps({{1, MakeSample(1)}, {3, MakeSample(3)}});
}

TEST_F(ImpossibleFailuresTest, EvenWithoutALeaseNoAcknowledgedStepIsDestroyed) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer allows no threads in a forked child";
#endif
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto writer, OpenWriter(kNoGrace));
  CAIRN_ASSERT_OK(SaveSample(*writer, MakeSample(1)));
  fs::remove_all(path_ + "/leases");
  EXPECT_EQ(RunInChild([this] {
              auto second = OpenWriter(kNoGrace);
              if (!second || !SaveSample(**second, MakeSample(2))) return 1;
              return (*second)->Close() ? 0 : 2;
            }),
            0);
  EXPECT_THAT(SaveSample(*writer, MakeSample(3)), IsError(ErrorCode::kConflict, "taken over"));
  ExpectSteps({{1, MakeSample(1)}, {2, MakeSample(2)}});
}

// --- A generation is assigned twice, so that a reader mixes two steps.

TEST_F(ImpossibleFailuresTest, NoGenerationIsAssignedTwice) {
  std::set<uint64_t> generations;
  const auto save = [&](Store& store, const SampleStep& sample) {
    const auto info = SaveSample(store, sample, /*overwrite=*/true);
    if (info) {
      EXPECT_TRUE(generations.insert(info->generation).second) << info->generation;
    }
    return info.has_value();
  };
  // Each round fails at another point of a save, and some rounds delete what the last one saved.
  for (uint32_t round = 1; round <= 40; ++round) {
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto store, OpenWriter(kNoGrace));
    ASSERT_TRUE(save(*store, MakeSample(round % 3, round, kSmall)));
    if (round % 4 == 0) {
      CAIRN_ASSERT_OK(store->Delete(std::array<uint64_t, 1>{round % 3}));
    }
    {
      ScopedFaults faults(cairn::testing::FailFromNth(round, EIO));
      save(*store, MakeSample(5, round, kSmall));
    }
    (void)store->Close();
  }
}

TEST_F(ImpossibleFailuresTest, ReaderNeverMixesVersionsOfAStep) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto writer, OpenWriter());
  CAIRN_ASSERT_OK(SaveSample(*writer, MakeSample(1, 0, kSmall)));
  std::atomic<bool> stop = false;
  std::thread reading([&] {
    const auto reader = Store::Open(path_, OpenMode::kRead);
    ASSERT_TRUE(cairn::testing::IsOk(reader));
    uint64_t newest = 0;
    while (!stop) {
      const auto snapshot = (*reader)->Latest();
      ASSERT_TRUE(cairn::testing::IsOk(snapshot));
      const auto read = LoadSample(**snapshot, 1);
      ASSERT_TRUE(cairn::testing::IsOk(read));
      EXPECT_TRUE(*read == MakeSample(1, read->version, kSmall)) << "mixed with another version";
      EXPECT_GE(read->version, newest) << "went back";
      newest = read->version;
    }
  });
  for (uint64_t version = 1; version <= 100; ++version) {
    CAIRN_EXPECT_OK(SaveSample(*writer, MakeSample(1, version, kSmall), /*overwrite=*/true));
  }
  stop = true;
  reading.join();
}

// --- An open for writing ignores a loss, or no reader can open a store with one bad step.

class BadStepTest : public ImpossibleFailuresTest {
 protected:
  void SetUp() override {
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto writer, OpenWriter(kNoGrace));
    for (const uint64_t step : {1, 2, 3}) {
      // Steps that have nothing in common, so that each has its own objects.
      SampleStep sample = MakeSample(step, step, kSmall);
      for (auto& [fqn, bytes] : sample.tensors) bytes = RandomBytes(step * 100 + bytes.size(), 999);
      CAIRN_ASSERT_OK(SaveSample(*writer, sample));
      steps_[step] = sample;
    }
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto storage, OpenStorage(path_));
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto root, internal::FindNewest(*storage));
    for (const auto& entry : root->recent) {
      if (entry->info.step != 2) continue;
      table_ = path_ + "/" + ObjectName(internal::ObjectKind::kTable, entry->tables.front().id);
      segment_ =
          path_ + "/" + ObjectName(internal::ObjectKind::kSegment, entry->usage.front().segment);
    }
  }
  /// Checks that step 2 is listed and damaged, and that the others can be loaded.
  void ExpectOnlyStepTwoIsDamaged(Store& store) {
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto snapshot, store.Latest());
    EXPECT_THAT(snapshot->step_numbers(), ElementsAre(1u, 2u, 3u));
    EXPECT_THAT(LoadSample(*snapshot, 2), IsError(ErrorCode::kDataLoss, ""));
    for (const uint64_t step : {1, 3}) {
      CAIRN_ASSERT_OK_AND_ASSIGN(const SampleStep read, LoadSample(*snapshot, step));
      EXPECT_TRUE(read == steps_.at(step));
    }
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto damage, Verify(*snapshot));
    EXPECT_THAT(damage, Not(IsEmpty()));
  }
  /// Checks that an open for writing lists all steps, or fails and reports a loss; and that readers
  /// can load the steps that are not damaged. Returns whether it was opened.
  bool ExpectNothingForgotten(const std::string& path) {
    const auto store = Store::Open(path, OpenMode::kWrite, kNoGrace);
    if (!store) {
      EXPECT_THAT(store, IsError(ErrorCode::kDataLoss, ""));
      return false;
    }
    const auto snapshot = (*store)->Latest();
    EXPECT_THAT((*snapshot)->step_numbers(), ElementsAre(1u, 2u, 3u, 4u));
    const auto reader = Store::Open(path, OpenMode::kRead);
    EXPECT_TRUE(cairn::testing::IsOk(reader));
    if (!reader) return true;
    const auto seen = (*reader)->Latest();
    uint32_t loaded = 0;
    for (const auto& [step, sample] : steps_) {
      const auto read = LoadSample(**seen, step);
      EXPECT_TRUE(read ? *read == sample : read.error().code == ErrorCode::kDataLoss);
      loaded += read.has_value() ? 1 : 0;
    }
    EXPECT_GE(loaded, 2u) << "a step that is not damaged cannot be read";
    return true;
  }
  std::map<uint64_t, SampleStep> steps_;
  std::string table_, segment_;  // of step 2
};

TEST_F(BadStepTest, OthersAreReadAndTheLossIsNeverForgotten) {
  const std::string whole = dir_ / "whole";
  fs::rename(path_, whole);
  for (const auto& files : {std::vector{table_}, {segment_}, {table_, segment_}}) {
    for (const bool truncated : {false, true}) {
      fs::remove_all(path_);
      fs::copy(whole, path_, fs::copy_options::recursive);
      for (const std::string& file : files) {
        truncated ? fs::resize_file(file, fs::file_size(file) / 2) : (void)fs::remove(file);
      }
      {
        CAIRN_ASSERT_OK_AND_ASSIGN(const auto reader, Store::Open(path_, OpenMode::kRead));
        ExpectOnlyStepTwoIsDamaged(*reader);
      }
      // Neither opens for writing nor commits remove the step, or report that it can be read.
      for (int open = 0; open < 2; ++open) {
        CAIRN_ASSERT_OK_AND_ASSIGN(const auto writer, OpenWriter(kNoGrace));
        CAIRN_ASSERT_OK(SaveSample(*writer, MakeSample(4, 0, kSmall)));
        CAIRN_ASSERT_OK(writer->Delete(std::array<uint64_t, 1>{4}));
        ExpectOnlyStepTwoIsDamaged(*writer);
      }
      for (const std::string& file : files) {
        fs::copy_file(whole + file.substr(path_.size()), file,
                      fs::copy_options::overwrite_existing);
      }
      ExpectSteps(steps_);
    }
  }
}

// Two losses at once: a segment is missing, and any other file has lost its tail or is empty.
TEST_F(BadStepTest, NoOpenForWritingForgetsAStep) {
  const std::string killed = dir_ / "killed", copy = dir_ / "copy";
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto writer, OpenWriter(kNoGrace));
  steps_[4] = MakeSample(4, 0, kSmall);
  CAIRN_ASSERT_OK(SaveSample(*writer, steps_[4]));
  fs::copy(path_, killed, fs::copy_options::recursive);  // as a writer leaves it that is killed
  fs::remove_all(killed + "/leases");
  CAIRN_ASSERT_OK(writer->Close());
  uint32_t refused = 0, listed = 0;
  for (const auto& segment : fs::directory_iterator(killed + "/segments")) {
    for (const auto& file : fs::recursive_directory_iterator(killed)) {
      if (!file.is_regular_file()) continue;
      for (const uint64_t cut : {uint64_t{1}, file.file_size() / 2, file.file_size()}) {
        if (cut > file.file_size()) continue;
        SCOPED_TRACE(file.path().string() + " loses " + std::to_string(cut) + " bytes");
        fs::remove_all(copy);
        fs::copy(killed, copy, fs::copy_options::recursive);
        fs::resize_file(fs::path(copy) / fs::relative(file.path(), killed), file.file_size() - cut);
        fs::remove(fs::path(copy) / fs::relative(segment.path(), killed));
        const bool opened = ExpectNothingForgotten(copy);
        ++(opened ? listed : refused);
        if (HasFailure()) return;
      }
    }
  }
  fmt::print("{} opens for writing listed all steps, {} were refused\n", listed, refused);
  EXPECT_GT(listed, refused);
}

TEST_F(BadStepTest, DamagedNewestRootIsRefusedAndNotReplacedByAnOlderOne) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto storage, OpenStorage(path_));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto root, internal::FindNewest(*storage));
  const std::string name = internal::RootName(root->number);
  fs::resize_file(path_ + "/" + name, fs::file_size(path_ + "/" + name) - 1);
  EXPECT_THAT(Store::Open(path_, OpenMode::kRead), IsError(ErrorCode::kDataLoss, name));
  EXPECT_THAT(OpenWriter(), IsError(ErrorCode::kDataLoss, name));
}

// --- A forked child hangs in its first save.

TEST_F(ImpossibleFailuresTest, ForkedChildSaves) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer allows no threads in a forked child";
#endif
  CAIRN_ASSERT_OK_AND_ASSIGN(auto writer, OpenWriter());
  CAIRN_ASSERT_OK(SaveSample(*writer, MakeSample(1)));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto steps, LoadAll(path_));
  const auto save_two = [](const std::string& path) {
    auto store = Store::Open(path, OpenMode::kWrite);
    if (!store) return 1;
    if (!SaveSample(**store, MakeSample(2)) || !SaveSample(**store, MakeSample(3))) return 2;
    const auto loaded = LoadAll(path);
    if (!loaded || !(loaded->at(3) == MakeSample(3))) return 3;
    return (*store)->Close() ? 0 : 4;
  };
  // Another store, while the parent has its store open; then the same store.
  EXPECT_EQ(RunInChild([&] { return save_two(dir_ / "other"); }), 0);
  CAIRN_ASSERT_OK(SaveSample(*writer, MakeSample(9)));
  CAIRN_ASSERT_OK(writer->Delete(std::array<uint64_t, 1>{9}));
  CAIRN_ASSERT_OK(writer->Close());
  EXPECT_EQ(RunInChild([&] { return save_two(path_); }), 0);
  ExpectSteps({{1, MakeSample(1)}, {2, MakeSample(2)}, {3, MakeSample(3)}});
}

// --- Reads return kDataLoss while the same process deletes or overwrites a step.
// --- Verification reports damage while a writer is active.

class ActiveWriterTest : public ImpossibleFailuresTest, public ::testing::WithParamInterface<bool> {
 protected:
  /// Whether the reads use the store of the writer.
  bool same_store() const { return GetParam(); }

  /// Calls `read` with the newest snapshot, again and again, while the store changes. `grace` is
  /// that of the writer.
  void ReadWhileWriting(std::chrono::milliseconds grace,
                        const std::function<void(const Snapshot&)>& read) {
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto writer, OpenWriter({.grace = grace}));
    CAIRN_ASSERT_OK(SaveSample(*writer, MakeSample(1, 0, kSmall)));
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto reader, Store::Open(path_, OpenMode::kRead));
    const Store& read_from = same_store() ? *writer : *reader;
    std::atomic<bool> stop = false;
    std::atomic<int> reads = 0;
    std::vector<std::thread> threads;
    for (int i = 0; i < 2; ++i) {
      threads.emplace_back([&] {
        while (!stop) {
          const auto snapshot = read_from.Latest();
          ASSERT_TRUE(cairn::testing::IsOk(snapshot));
          read(**snapshot);
          ++reads;
        }
      });
    }
    for (uint64_t i = 1; i <= 60 || reads < 60; ++i) {
      // Not based on what is replaced, so that all objects of the old version become unreachable.
      SampleStep other = MakeSample(1, i, kSmall);
      for (auto& [fqn, bytes] : other.tensors) bytes = RandomBytes(i * 100 + bytes.size(), 500);
      CAIRN_EXPECT_OK(SaveSample(*writer, other, /*overwrite=*/true));
      CAIRN_EXPECT_OK(SaveSample(*writer, MakeSample(2, i, kSmall), /*overwrite=*/true));
      CAIRN_EXPECT_OK(writer->Delete(std::array<uint64_t, 1>{2}));
    }
    stop = true;
    for (std::thread& thread : threads) thread.join();
  }
};
INSTANTIATE_TEST_SUITE_P(Stores, ActiveWriterTest, ::testing::Bool(), [](const auto& info) {
  return info.param ? "StoreOfTheWriter" : "StoreOfAReader";
});

TEST_P(ActiveWriterTest, ReadsSucceedDuringTheGracePeriod) {
  ReadWhileWriting(std::chrono::minutes(1), [](const Snapshot& snapshot) {
    for (const uint64_t step : snapshot.step_numbers()) {
      CAIRN_EXPECT_OK(LoadSample(snapshot, step));
    }
  });
}

TEST_P(ActiveWriterTest, ReadsWithoutGraceSucceedOrAreNotFound) {
  ReadWhileWriting(std::chrono::milliseconds(0), [](const Snapshot& snapshot) {
    for (const uint64_t step : snapshot.step_numbers()) {
      const auto read = LoadSample(snapshot, step);
      if (!read) {
        EXPECT_THAT(read, IsError(ErrorCode::kNotFound, "deleted while"));
      }
    }
  });
}

TEST_P(ActiveWriterTest, VerificationReportsNoDamage) {
  for (const int grace_ms : {0, 60'000}) {
    fs::remove_all(path_);
    ReadWhileWriting(std::chrono::milliseconds(grace_ms), [](const Snapshot& snapshot) {
      CAIRN_ASSERT_OK_AND_ASSIGN(const auto damage, Verify(snapshot));
      EXPECT_THAT(damage, IsEmpty());
    });
  }
}

// --- A commit is durable but is reported as failed.

TEST_F(ImpossibleFailuresTest, CommitIsDurableIfAndOnlyIfItIsReported) {
  for (uint32_t n = 1;; ++n) {
    ScopedTempDir dir(dir_.path());
    const std::string path = dir / "store";
    bool fired = false, reported = false;
    std::string point;
    {
      CAIRN_ASSERT_OK_AND_ASSIGN(const auto store, Store::Open(path, OpenMode::kWrite));
      CAIRN_ASSERT_OK(SaveSample(*store, MakeSample(1, 0, kSmall)));
      ScopedFaults faults(FailNth(n, EIO));
      reported = SaveSample(*store, MakeSample(2, 0, kSmall)).has_value();
      fired = faults.fired();
      point = faults.fired_at();
    }
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto steps, LoadAll(path));
    EXPECT_EQ(steps.contains(2), reported) << "after a failure at " << point;
    EXPECT_TRUE(steps.at(1) == MakeSample(1, 0, kSmall));
    if (!fired) break;
  }
}

// --- A deleted step reappears when the tail of a log is cut off.

TEST_F(ImpossibleFailuresTest, DeletedStepDoesNotReappearIfTheTailOfAFileIsCutOff) {
  {
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto writer, OpenWriter());
    for (const uint64_t step : {1, 2}) {
      CAIRN_ASSERT_OK(SaveSample(*writer, MakeSample(step, 0, kSmall)));
    }
    CAIRN_ASSERT_OK(writer->Delete(std::array<uint64_t, 1>{2}));
  }
  const std::string away = dir_ / "away";
  for (const fs::path& file : Files()) {
    fs::copy_file(file, away, fs::copy_options::overwrite_existing);
    const uint64_t size = fs::file_size(file);
    for (const uint64_t cut : {uint64_t{1}, size / 4, size / 2, size - 1, size}) {
      fs::resize_file(file, size - cut);
      for (const OpenMode mode : {OpenMode::kRead, OpenMode::kWrite}) {
        const std::string copy = dir_ / "copy";
        fs::remove_all(copy);
        fs::copy(path_, copy, fs::copy_options::recursive);
        const auto store = Store::Open(copy, mode);
        if (!store) continue;  // it is reported
        CAIRN_ASSERT_OK_AND_ASSIGN(const auto snapshot, (*store)->Latest());
        EXPECT_THAT(snapshot->step_numbers(), ElementsAre(1u)) << file << " without " << cut;
      }
    }
    fs::copy_file(away, file, fs::copy_options::overwrite_existing);
  }
  ExpectSteps({{1, MakeSample(1, 0, kSmall)}});
}

}  // namespace
}  // namespace cairn::kv
