// GPUDirect Storage on a simulated cuFile: which bytes devices write and read directly, that the
// bytes are the same as through the host, and the state after errors.

#include <cufile.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "core/async_save.h"
#include "core/base/progress.h"
#include "core/load/load_options.h"
#include "core/save/save_options.h"
#include "core/step_part.h"
#include "cuda/gds.h"
#include "cuda/internal/file_trial.h"
#include "kv/step_info.h"
#include "tests/cuda/device_store_fixture.h"
#include "tests/support/simulated_cuda/simulated_cuda.h"
#include "tests/support/simulated_cufile/simulated_cufile.h"

namespace cairn::cuda {
namespace {

using simulated_cufile::GetCounters;
using testing::DeviceStoreTest;
using testing::IsOk;

constexpr uint64_t kMiB = 1 << 20;

class LateStreams : public ::testing::Environment {
 public:
  void SetUp() override { simulated_cuda::Reset({.jitter_us = 20000, .shuffle_threads = true}); }
};
[[maybe_unused]] const auto* const late_streams =
    ::testing::AddGlobalTestEnvironment(new LateStreams);

class GdsTest : public DeviceStoreTest {
 protected:
  void SetUp() override {
    ::setenv("CAIRN_CUFILE_LIBRARY", CAIRN_SIMULATED_CUFILE, 1);
    // Independent of the file system of the tests.
    ::setenv("CAIRN_GDS", "on", 1);
    DeviceStoreTest::SetUp();
    if (const auto found = FindGpuDirectStorage(dir_.path()); !found) {
      // Only direct I/O is required.
      ASSERT_EQ(found.error().code, ErrorCode::kFailedPrecondition) << found.error().ToString();
      GTEST_SKIP() << found.error().ToString();
    }
    before_ = GetCounters();
  }
  void TearDown() override {
    EXPECT_EQ(GetCounters().live_handles, 0u);
    ::setenv("CAIRN_GDS", "on", 1);
  }
  uint64_t written_bytes() const { return GetCounters().write_bytes - before_.write_bytes; }
  uint64_t read_bytes() const { return GetCounters().read_bytes - before_.read_bytes; }

  core::SaveReport Save(uint64_t step) {
    auto report = store_->Save(step, State());
    EXPECT_TRUE(IsOk(report));
    return report ? *report : core::SaveReport();
  }
  /// Loads `large` to device memory.
  Result<core::LoadReport> LoadLarge(uint64_t step, const testing::DeviceBytes& target,
                                     const std::vector<core::DeviceStream>& streams = {},
                                     const core::Progress& progress = {}) {
    CAIRN_TRY_ASSIGN(const auto snapshot, store_->kv().Latest());
    CAIRN_TRY_ASSIGN(const kv::StepInfo info, snapshot->FindStep(step));
    const core::LoadRequest request{
        .fqn = "large",
        .box = core::WholeBox(std::vector<uint64_t>{target.length_bytes()}),
        .target = {core::DType::kUInt8, {target.length_bytes()}, {}, target.data(), 0}};
    return store_->Load(info, {&request, 1}, progress, streams);
  }
  void ExpectSaveFails(uint64_t step, ErrorCode code) {
    const auto report = store_->Save(step, State());
    ASSERT_FALSE(report.has_value());
    EXPECT_EQ(report.error().code, code) << report.error().ToString();
    EXPECT_NE(report.error().file.find("segments/"), std::string::npos)
        << report.error().ToString();
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto steps, store_->Steps());
    EXPECT_TRUE(
        std::ranges::none_of(steps, [&](const kv::StepInfo& info) { return info.step == step; }));
    EXPECT_EQ(GetCounters().live_handles, 0u);
  }
  testing::DeviceBytes LargeTarget() const {
    return testing::DeviceBytes(
        std::vector<std::byte>(tensors_.at("large").view.shape.front(), std::byte{7}));
  }

  simulated_cufile::Counters before_;
};

TEST_F(GdsTest, ASaveIsWrittenByTheDeviceAndReadByIt) {
  AddModel();
  const core::SaveReport report = Save(1);
  // Large contiguous tensors, except for bytes that do not fill a page of the file.
  const uint64_t large = (9 << 20) + 12345 + 40 * kv::kPageBytes;
  EXPECT_LE(report.direct_bytes, large);
  EXPECT_GT(report.direct_bytes, large - 64 * 1024);
  EXPECT_EQ(written_bytes(), report.direct_bytes);
  EXPECT_EQ(report.direct_bytes + report.device_bytes + host_tensor_.size(), report.written_bytes);
  ExpectStored(1);
  ExpectLoadsToDevice(1);
  EXPECT_EQ(read_bytes(), large);
}

TEST_F(GdsTest, PagesThatChangedAreWrittenByTheDevice) {
  AddPlain("large", 20 * kMiB);
  Save(1);
  const std::vector<std::byte> bytes = testing::RandomBytes(kMiB, 3);
  Write("large", 2 * kMiB, bytes);
  Write("large", 11 * kMiB + 5, std::span(bytes).first(10));
  const core::SaveReport report = Save(2);
  EXPECT_EQ(report.written_bytes, kMiB + kv::kPageBytes);
  EXPECT_EQ(report.direct_bytes, kMiB);
  EXPECT_EQ(report.device_bytes, kv::kPageBytes) << "a single page is not written directly";
  ExpectStored(2);
  ExpectLoadsToDevice(2);  // chunks of several extents
}

TEST_F(GdsTest, ATransferMayTakeSeveralCalls) {
  simulated_cufile::Reset({.max_transfer_bytes = 500 * 4096, .jitter_us = 300});
  // The product has opened the driver already.
  AddModel();
  ASSERT_EQ(cuFileDriverOpen().err, CU_FILE_SUCCESS);
  Save(1);
  ExpectStored(1);
  ExpectLoadsToDevice(1);
  EXPECT_GT(GetCounters().write_count, 5u) << "4 chunks";
  simulated_cufile::Reset();
  ASSERT_EQ(cuFileDriverOpen().err, CU_FILE_SUCCESS);
}

TEST_F(GdsTest, LazyStagingGoesThroughTheHostAndASnapshotDoesNot) {
  AddPlain("large", 20 * kMiB);
  core::AsyncSaver saver(store_.get());
  for (const bool snapshot : {false, true}) {
    core::SaveOptions options{.device_snapshot = snapshot};
    options.incremental = false;
    const uint64_t step = snapshot ? 2 : 1;
    CAIRN_ASSERT_OK_AND_ASSIGN(const core::SaveHandle handle, saver.Save(step, State(), options));
    const std::vector<std::byte> expected = Expected("large");
    handle.WaitStaged();
    Write("large", 0, testing::RandomBytes(20 * kMiB, step + 10));
    CAIRN_ASSERT_OK_AND_ASSIGN(const core::SaveReport report, handle.Wait());
    EXPECT_EQ(report.direct_bytes, snapshot ? 20 * kMiB : 0);
    const testing::DeviceBytes target = LargeTarget();
    CAIRN_ASSERT_OK(LoadLarge(step, target));
    EXPECT_TRUE(target.Read() == expected);
  }
}

TEST_F(GdsTest, AnAddedPortionIsTheCallersAgain) {
  AddPlain("a", 6 * kMiB);
  AddPlain("b", 6 * kMiB);
  CAIRN_ASSERT_OK_AND_ASSIGN(const core::StepTicket ticket,
                             core::StepPart::OpenSession(*store_, 1, 1));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto part, core::StepPart::Begin(*store_, ticket, 0, {}));
  for (const std::string name : {"a", "b"}) {
    core::StateDict portion;
    portion.root().Tensor(name, tensors_.at(name).view);
    CAIRN_ASSERT_OK(part->Add(std::move(portion)));
    storages_[tensors_.at(name).storage].Write(testing::RandomBytes(6 * kMiB, 77));
  }
  CAIRN_ASSERT_OK_AND_ASSIGN(const core::SaveReport report, part->Commit({}));
  EXPECT_EQ(report.direct_bytes, 12 * kMiB);
  ExpectStored(1);
}

TEST_F(GdsTest, AFullDiskFailsTheSaveAndNothingElse) {
  AddPlain("large", 20 * kMiB);
  Save(1);
  Write("large", 0, testing::RandomBytes(20 * kMiB, 8));
  for (const uint64_t nth : {1, 3, 5}) {
    // cuFile reports system errors in errno; some paths return them directly.
    simulated_cufile::FailCall("cuFileWrite", nth, nth == 5 ? ENOSPC : -ENOSPC);
    ExpectSaveFails(2, ErrorCode::kResourceExhausted);
  }
  EXPECT_GT(Save(2).direct_bytes, 0u);
  ExpectStored(2);
}

TEST_F(GdsTest, ACancelledLoadEndsSoon) {
  AddPlain("large", 20 * kMiB);
  Save(1);
  const testing::DeviceBytes target = LargeTarget();
  uint64_t told = 0;
  const auto loaded = LoadLarge(1, target, {}, [&](uint64_t done, uint64_t total) {
    EXPECT_EQ(total, 20 * kMiB);
    told = done;
    return false;
  });
  ASSERT_FALSE(loaded.has_value());
  EXPECT_EQ(loaded.error().code, ErrorCode::kCancelled);
  EXPECT_GT(told, 0u);
}

TEST_F(GdsTest, ALoadRunsAfterTheWorkOfTheCallersStream) {
  AddPlain("large", 20 * kMiB);
  Save(1);
  const testing::DeviceBytes target = LargeTarget();
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(cudaMemsetAsync(target.data(), 0, target.length_bytes(), stream), cudaSuccess);
  CAIRN_ASSERT_OK(LoadLarge(1, target, {{.device = 0, .stream = stream}}));
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_TRUE(target.Read() == Expected("large"));
  ASSERT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

TEST_F(GdsTest, ConcurrentLoadsAreAllDirect) {
  AddPlain("large", 20 * kMiB);
  Save(1);
  std::vector<testing::DeviceBytes> targets;
  for (int i = 0; i < 4; ++i) targets.push_back(LargeTarget());
  {
    std::vector<std::jthread> threads;
    for (const testing::DeviceBytes& target : targets) {
      threads.emplace_back([&] {
        const auto report = LoadLarge(1, target);
        ASSERT_TRUE(IsOk(report));
        EXPECT_EQ(report->direct_bytes, 20 * kMiB);
      });
    }
  }
  for (const testing::DeviceBytes& target : targets) {
    EXPECT_TRUE(target.Read() == Expected("large"));
  }
}

TEST_F(GdsTest, ChunksThatEndAnywhereAreReadTogether) {
  // Rows whose length does not divide a page.
  Add("rows", 3001 * 5003, {.dtype = core::DType::kUInt8, .shape = {3001, 5003}});
  const core::SaveReport report = Save(1);
  EXPECT_GT(report.direct_bytes, 3001 * 5003 - 64 * 1024);
  const uint64_t before = GetCounters().read_count;
  ExpectStored(1);
  ExpectLoadsToDevice(1);
  EXPECT_EQ(read_bytes(), 3001 * 5003);
  EXPECT_EQ(GetCounters().read_count, before + 1);
}

TEST_F(GdsTest, FilesThatCuFileRefusesGoThroughTheHost) {
  AddPlain("large", 20 * kMiB);
  simulated_cufile::FailCall("cuFileHandleRegister", 1, CU_FILE_IO_NOT_SUPPORTED);
  EXPECT_EQ(Save(1).direct_bytes, 0u);
  simulated_cufile::FailCall("cuFileHandleRegister", 1, CU_FILE_IO_NOT_SUPPORTED);
  const testing::DeviceBytes target = LargeTarget();
  CAIRN_ASSERT_OK_AND_ASSIGN(const core::LoadReport report, LoadLarge(1, target));
  EXPECT_EQ(report.direct_bytes, 0u);
  EXPECT_TRUE(target.Read() == Expected("large"));
}

TEST_F(GdsTest, BytesThatDoNotMatchTheirDigestAreReadAgain) {
  AddPlain("large", 20 * kMiB);
  Save(1);
  simulated_cufile::CorruptRead(1);
  const testing::DeviceBytes target = LargeTarget();
  CAIRN_ASSERT_OK_AND_ASSIGN(const core::LoadReport report, LoadLarge(1, target));
  EXPECT_TRUE(target.Read() == Expected("large"));
  EXPECT_GE(report.bytes_read, 40 * kMiB) << "each byte is read twice";
}

TEST_F(GdsTest, WrongBytesInASegmentAreDataLoss) {
  AddPlain("large", 20 * kMiB);
  // Corrupted on the way to the disk: the digest was computed from device memory.
  simulated_cufile::CorruptWrite(2);
  Save(1);
  const testing::DeviceBytes target = LargeTarget();
  const auto loaded = LoadLarge(1, target);
  ASSERT_FALSE(loaded.has_value());
  EXPECT_EQ(loaded.error().code, ErrorCode::kDataLoss);
  EXPECT_EQ(loaded.error().key, "large");
  EXPECT_NE(loaded.error().file.find("segments/"), std::string::npos);
  EXPECT_TRUE(loaded.error().offset_bytes.has_value());
}

TEST_F(GdsTest, StridedTensorsAndPartsOfChunksGoThroughTheHost) {
  Add("rows", 8 * kMiB,
      {.dtype = core::DType::kUInt8, .shape = {2000, 2000}, .strides = {4096, 1}});
  EXPECT_EQ(Save(1).direct_bytes, 0u);
  AddPlain("large", 20 * kMiB);
  Save(2);
  const uint64_t before = read_bytes();
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto snapshot, store_->kv().Latest());
  CAIRN_ASSERT_OK_AND_ASSIGN(const kv::StepInfo info, snapshot->FindStep(2));
  const testing::DeviceBytes target(std::vector<std::byte>(9 * kMiB));
  const core::LoadRequest part{.fqn = "large",
                               .box = {.offsets = {kMiB}, .sizes = {9 * kMiB}},
                               .target = {core::DType::kUInt8, {9 * kMiB}, {}, target.data(), 0}};
  CAIRN_ASSERT_OK(store_->Load(info, {&part, 1}));
  const std::vector<std::byte> large = Expected("large");
  EXPECT_TRUE(std::ranges::equal(target.Read(), std::span(large).subspan(kMiB, 9 * kMiB)));
  EXPECT_EQ(read_bytes(), before);
  // Complete chunks of a part of the tensor.
  const core::LoadRequest chunks{.fqn = "large",
                                 .box = {.offsets = {4 * kMiB}, .sizes = {8 * kMiB}},
                                 .target = {core::DType::kUInt8, {8 * kMiB}, {}, target.data(), 0}};
  CAIRN_ASSERT_OK(store_->Load(info, {&chunks, 1}));
  EXPECT_TRUE(std::ranges::equal(std::span<const std::byte>(target.Read()).first(8 * kMiB),
                                 std::span(large).subspan(4 * kMiB, 8 * kMiB)));
  EXPECT_EQ(read_bytes(), before + 8 * kMiB);
}

TEST_F(GdsTest, ASegmentClosesWhileTheNextIsWritten) {
  // Two segments, as one holds 65,536 chunks.
  const std::vector<std::byte> bytes = testing::RandomBytes(70'000, 6);
  const testing::DeviceBytes storage(bytes);
  core::StateDict state = OneByteTensors(storage);
  AddPlain("large", 20 * kMiB);
  for (const char* const name : {"a", "x"}) {  // before and after the small ones
    core::TensorView view = tensors_.at("large").view;
    state.root().Tensor(name, view);
    view.data += kMiB;
    view.shape = {5 * kMiB};
    state.root().Tensor(std::string(name) + "2", view);
  }
  CAIRN_ASSERT_OK_AND_ASSIGN(const core::SaveReport report, store_->Save(1, state));
  EXPECT_GE(report.direct_bytes, 20 * kMiB);
  uint64_t damaged = 0;
  CAIRN_ASSERT_OK(store_->Verify(1, [&](const kv::Damage&) { ++damaged; }));
  EXPECT_EQ(damaged, 0u);
}

TEST_F(GdsTest, ItCanBeTurnedOff) {
  AddPlain("large", 4 * kMiB);
  ::setenv("CAIRN_GDS", "off", 1);
  EXPECT_EQ(Save(1).direct_bytes, 0u);
  ExpectLoadsToDevice(1);
  EXPECT_EQ(written_bytes() + read_bytes(), 0u);
  const auto found = FindGpuDirectStorage(dir_.path());
  ASSERT_FALSE(found.has_value());
  EXPECT_EQ(found.error().message, "CAIRN_GDS=off");
  ::setenv("CAIRN_GDS", "perhaps", 1);
  Write("large", 0, testing::RandomBytes(4 * kMiB, 2));
  const auto report = store_->Save(2, State());
  ASSERT_FALSE(report.has_value());
  EXPECT_EQ(report.error().code, ErrorCode::kInvalidArgument);
}

TEST_F(GdsTest, ForkedChildrenDoNotUseIt) {
  EXPECT_EXIT(
      {
        const auto found = FindGpuDirectStorage(dir_.path());
        const bool refused = !found && found.error().message.find("fork") != std::string::npos;
        ::_exit(refused ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "");
}

// A DeviceFile that copies through the host, and may corrupt a byte.
class TrialFile final : public core::DeviceFile {
 public:
  TrialFile(int fd, bool spoil_write, bool spoil_read)
      : fd_(fd), spoil_write_(spoil_write), spoil_read_(spoil_read) {}
  Result<void> Write(int, std::span<const std::byte> source, uint64_t offset) override {
    return Move(source.size(), [&](std::span<std::byte> buffer) {
      simulated_cuda::PeekDevice(buffer.data(), source.data(), buffer.size());
      if (spoil_write_) buffer[777] ^= std::byte{1};
      return ::pwrite(fd_, buffer.data(), buffer.size(), static_cast<off_t>(offset));
    });
  }
  Result<void> Read(int, std::span<std::byte> target, uint64_t offset) override {
    return Move(target.size(), [&](std::span<std::byte> buffer) {
      const ssize_t count = ::pread(fd_, buffer.data(), buffer.size(), static_cast<off_t>(offset));
      if (spoil_read_) buffer[777] ^= std::byte{1};
      simulated_cuda::PokeDevice(target.data(), buffer.data(), buffer.size());
      return count;
    });
  }

 private:
  template <typename Io>
  static Result<void> Move(size_t count, const Io& io) {
    auto* const data = static_cast<std::byte*>(std::aligned_alloc(4096, count));
    const ssize_t moved = io(std::span(data, count));
    std::free(data);
    if (moved == static_cast<ssize_t>(count)) return {};
    return Fail(SystemError(errno, "moving"));
  }
  const int fd_;
  const bool spoil_write_;
  const bool spoil_read_;
};

TEST_F(GdsTest, ATrialFindsWrongBytes) {
  CAIRN_ASSERT_OK_AND_ASSIGN(core::DeviceBackend* const backend, FindBackend());
  for (int spoiled = 0; spoiled < 3; ++spoiled) {
    const auto tried = internal::TryOutFile(
        *backend, 0, dir_.path(), [&](int fd) -> Result<std::unique_ptr<core::DeviceFile>> {
          return std::make_unique<TrialFile>(fd, spoiled == 1, spoiled == 2);
        });
    EXPECT_EQ(tried.has_value(), spoiled == 0);
    if (tried) continue;
    EXPECT_EQ(tried.error().code, ErrorCode::kDataLoss) << tried.error().ToString();
  }
}

// The following tests turn it off for this process: keep them last.

TEST_F(GdsTest, AFailureOfCuFileFailsOneSaveAndTurnsItOff) {
  AddPlain("large", 20 * kMiB);
  Save(1);
  Write("large", 0, testing::RandomBytes(20 * kMiB, 8));
  simulated_cufile::FailCall("cuFileWrite", 3, CU_FILE_NVFS_DRIVER_ERROR);
  ExpectSaveFails(2, ErrorCode::kUnavailable);
  EXPECT_EQ(Save(2).direct_bytes, 0u);
  ExpectStored(2);
  const auto found = FindGpuDirectStorage(dir_.path());
  ASSERT_FALSE(found.has_value());
  EXPECT_NE(found.error().message.find("turned off for this file system because it failed"),
            std::string::npos);
}

TEST_F(GdsTest, AFailedReadIsRepeatedThroughTheHost) {
  AddPlain("large", 20 * kMiB);
  Save(1);
  simulated_cufile::FailCall("cuFileRead", 2, -EIO);
  const testing::DeviceBytes target = LargeTarget();
  CAIRN_ASSERT_OK(LoadLarge(1, target));
  EXPECT_TRUE(target.Read() == Expected("large"));
  const uint64_t before = read_bytes();
  CAIRN_ASSERT_OK(LoadLarge(1, target));
  EXPECT_EQ(read_bytes(), before);
}

}  // namespace
}  // namespace cairn::cuda
