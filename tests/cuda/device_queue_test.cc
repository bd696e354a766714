// Direct, packed and strided copies through a queue equal the copies of the host.

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "core/tensor/strided_copy.h"
#include "cuda/backend.h"
#include "tests/cuda/device_tensor.h"
#include "tests/support/result_matchers.h"

namespace cairn::cuda {
namespace {

using core::DType;
using core::TensorTarget;
using core::TensorView;
using testing::DeviceBytes;
using testing::IsError;
using testing::PinnedBytes;
using testing::RandomBytes;

class DeviceQueueTest : public ::testing::Test {
 protected:
  void SetUp() override {
    CAIRN_SKIP_WITHOUT_GPU();
    CAIRN_ASSERT_OK_AND_ASSIGN(core::DeviceBackend* const backend, FindBackend());
    backend_ = backend;
    CAIRN_ASSERT_OK_AND_ASSIGN(queue_, backend->OpenQueue(0));
  }
  void AwaitAll() {
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto fence, queue_->Flush());
    CAIRN_ASSERT_OK(fence->Await());
    CAIRN_ASSERT_OK_AND_ASSIGN(const bool passed, fence->Passed());
    EXPECT_TRUE(passed);
  }

  core::DeviceBackend* backend_ = nullptr;
  std::shared_ptr<core::DeviceQueue> queue_;
};

std::vector<std::byte> RowMajor(const TensorView& host) {
  std::vector<std::byte> bytes(*core::TensorBytes(host.dtype, host.shape));
  core::GatherBytes(host, 0, bytes);
  return bytes;
}

// Views of one storage that cannot be copied as one range.
std::vector<TensorView> StridedViews() {
  return {{.dtype = DType::kFloat32, .shape = {300, 200}, .strides = {256, 1}},
          {.dtype = DType::kFloat32, .shape = {200, 300}, .strides = {1, 256}},
          {.dtype = DType::kBFloat16, .shape = {9, 50, 3, 8}, .strides = {6000, 100, 30, 2}},
          {.dtype = DType::kUInt8, .shape = {333, 77}, .strides = {501, 1}},
          {.dtype = DType::kFloat64, .shape = {4, 1000}, .strides = {0, 3}},
          {.dtype = DType::kComplex128, .shape = {60, 60}, .strides = {1, 60}}};
}

TEST_F(DeviceQueueTest, CopiesOutRangesOfEveryKindTogether) {
  const std::vector<std::byte> bytes = RandomBytes(400'000, 1);
  const DeviceBytes device(bytes);
  PinnedBytes host(3 << 20);
  std::fill(host.span().begin(), host.span().end(), std::byte{0x77});
  std::vector<std::byte> expected(host.span().begin(), host.span().end());
  uint64_t at = 0;
  const auto copy_out = [&](const TensorView& view, uint64_t begin, uint64_t count,
                            uint64_t shift = 0) {
    TensorView on_device = view;
    on_device.data = device.data() + shift;
    on_device.device = 0;
    TensorView on_host = view;
    on_host.data = bytes.data() + shift;
    core::GatherBytes(on_host, begin, std::span(expected).subspan(at, count));
    CAIRN_EXPECT_OK(queue_->CopyOut(on_device, begin, host.span().subspan(at, count)));
    at += count;
  };
  copy_out(device.View(), 0, 1);
  copy_out(device.View(), 5, 1000);
  copy_out(device.View(), 0, 300'000);  // direct
  std::fill_n(expected.begin() + static_cast<ptrdiff_t>(at), 63, std::byte{0});
  CAIRN_EXPECT_OK(queue_->ZeroOut(host.span().subspan(at, 63)));
  at += 63;
  copy_out(device.View(), 1, 70'000);
  copy_out({.dtype = DType::kComplex128, .shape = {}}, 0, 16);
  std::vector<TensorView> views = StridedViews();
  // Dimensions that can be joined, that have one element, and that repeat.
  views.push_back({.dtype = DType::kFloat32, .shape = {80, 160}, .strides = {160, 1}});
  views.push_back({.dtype = DType::kFloat64, .shape = {40, 1, 60}, .strides = {60, 999, 1}});
  views.push_back({.dtype = DType::kFloat32, .shape = {50, 40}, .strides = {0, 1}});
  for (const TensorView& view : views) {
    const uint64_t length = *core::TensorBytes(view.dtype, view.shape);
    copy_out(view, 0, length, 1);  // an address that is not a multiple of the element size
    copy_out(view, 0, length);
    at += 11;                                  // the gap must not change
    copy_out(view, 16, length / 2 / 16 * 16);  // from the middle of a row
    copy_out(view, 3, length / 3);             // from the middle of an element
  }
  ASSERT_LE(at, expected.size());
  AwaitAll();
  EXPECT_EQ(std::memcmp(host.span().data(), expected.data(), expected.size()), 0);
}

TEST_F(DeviceQueueTest, CopiesOutMoreThanItsBuffersContain) {
  // 60 MiB in ranges of up to 100 KB, and one strided tensor that is larger than a buffer.
  const std::vector<std::byte> bytes = RandomBytes(12'000'000, 2);
  const DeviceBytes device(bytes);
  PinnedBytes host(72 << 20);
  std::vector<std::byte> expected(host.span().size());
  uint64_t at = 0;
  for (uint64_t i = 0; at < 56 << 20; ++i) {
    const uint64_t count = 1 + i * 7919 % 100'000;
    const uint64_t begin = i * 104'729 % (bytes.size() - count);
    std::copy_n(bytes.begin() + static_cast<ptrdiff_t>(begin), count,
                expected.begin() + static_cast<ptrdiff_t>(at));
    CAIRN_ASSERT_OK(queue_->CopyOut(device.View(), begin, host.span().subspan(at, count)));
    at += count;
  }
  TensorView strided{
      .dtype = DType::kFloat32, .shape = {3000, 990}, .strides = {1000, 1}, .data = bytes.data()};
  const std::vector<std::byte> row_major = RowMajor(strided);
  std::copy(row_major.begin(), row_major.end(), expected.begin() + static_cast<ptrdiff_t>(at));
  strided.data = device.data();
  strided.device = 0;
  CAIRN_ASSERT_OK(queue_->CopyOut(strided, 0, host.span().subspan(at, row_major.size())));
  at += row_major.size();
  AwaitAll();
  EXPECT_EQ(std::memcmp(host.span().data(), expected.data(), at), 0);
}

TEST_F(DeviceQueueTest, CopiesInRangesOfEveryKind) {
  for (const TensorView& view : StridedViews()) {
    if (view.strides[0] == 0) continue;  // overlapping elements cannot be written
    const std::vector<std::byte> before = RandomBytes(400'000, 3);
    const DeviceBytes device(before);
    const uint64_t length = *core::TensorBytes(view.dtype, view.shape);
    PinnedBytes payload(length);
    const std::vector<std::byte> random = RandomBytes(length, 4);
    std::copy(random.begin(), random.end(), payload.span().begin());
    std::vector<std::byte> expected = before;
    const TensorTarget on_host{view.dtype, view.shape, view.strides, expected.data()};
    const TensorTarget on_device{view.dtype, view.shape, view.strides, device.data(), 0};
    // In three ranges that end within elements.
    const uint64_t cuts[] = {0, length / 3 + 1, length / 2, length};
    for (int i = 0; i < 3; ++i) {
      const auto range = payload.span().subspan(cuts[i], cuts[i + 1] - cuts[i]);
      core::ScatterBytes(range, on_host, cuts[i]);
      CAIRN_ASSERT_OK(queue_->CopyIn(range, on_device, cuts[i]));
    }
    AwaitAll();
    EXPECT_EQ(device.Read(), expected);
  }
}

TEST_F(DeviceQueueTest, CopiesInSmallAndLargeRanges) {
  DeviceBytes device(RandomBytes(2 << 20, 5));
  std::vector<std::byte> expected = device.Read();
  PinnedBytes payload(2 << 20);
  const std::vector<std::byte> random = RandomBytes(2 << 20, 6);
  std::copy(random.begin(), random.end(), payload.span().begin());
  const TensorTarget target{DType::kUInt8, {device.length_bytes()}, {}, device.data(), 0};
  uint64_t at = 3;
  for (const uint64_t count : {1, 4096, 200'000, 17, 131'072, 65'536, 5, 1'000'000}) {
    std::copy_n(random.begin() + static_cast<ptrdiff_t>(at), count,
                expected.begin() + static_cast<ptrdiff_t>(at));
    CAIRN_ASSERT_OK(queue_->CopyIn(payload.span().subspan(at, count), target, at));
    at += count + 13;
  }
  AwaitAll();
  EXPECT_EQ(device.Read(), expected);
}

TEST_F(DeviceQueueTest, PacksAndUnpacksWithinTheDevice) {
  for (const TensorView& view : StridedViews()) {
    const std::vector<std::byte> bytes = RandomBytes(400'000, 7);
    const DeviceBytes device(bytes);
    TensorView host = view;
    host.data = bytes.data();
    TensorView source = view;
    source.data = device.data();
    source.device = 0;
    const std::vector<std::byte> row_major = RowMajor(host);
    DeviceBytes packed(std::vector<std::byte>(row_major.size()));
    CAIRN_ASSERT_OK(queue_->Pack(source, 0, row_major.size(), packed.data()));
    // Copies see what earlier kernels have written, and kernels see what earlier copies have
    // written.
    PinnedBytes read_back(row_major.size());
    CAIRN_ASSERT_OK(queue_->CopyOut(packed.View(), 0, read_back.span()));
    AwaitAll();
    EXPECT_EQ(packed.Read(), row_major);
    EXPECT_EQ(std::memcmp(read_back.span().data(), row_major.data(), row_major.size()), 0);
    if (view.strides[0] == 0) continue;
    const DeviceBytes target(std::vector<std::byte>(bytes.size()));
    std::vector<std::byte> expected(bytes.size());
    core::ScatterBytes(row_major, {view.dtype, view.shape, view.strides, expected.data()}, 0);
    CAIRN_ASSERT_OK(queue_->Unpack(packed.data(), row_major.size(),
                                   {view.dtype, view.shape, view.strides, target.data(), 0}, 0));
    AwaitAll();
    EXPECT_EQ(target.Read(), expected);
  }
}

TEST_F(DeviceQueueTest, WaitsForTheCallersStreamAndMakesItWait) {
  const std::vector<std::byte> first = RandomBytes(500'000, 8);
  const std::vector<std::byte> second = RandomBytes(500'000, 9);
  DeviceBytes device(std::vector<std::byte>(first.size()));
  PinnedBytes a(first.size());
  PinnedBytes b(second.size());
  PinnedBytes seen(first.size());
  std::copy(first.begin(), first.end(), a.span().begin());
  std::copy(second.begin(), second.end(), b.span().begin());
  cudaStream_t caller = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&caller, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(
      cudaMemcpyAsync(device.data(), a.span().data(), first.size(), cudaMemcpyHostToDevice, caller),
      cudaSuccess);
  CAIRN_ASSERT_OK(queue_->WaitForStream(caller));
  CAIRN_ASSERT_OK(queue_->CopyOut(device.View(), 0, seen.span()));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto fence, queue_->Flush());
  CAIRN_ASSERT_OK(fence->MakeStreamWait(caller));
  ASSERT_EQ(cudaMemcpyAsync(device.data(), b.span().data(), second.size(), cudaMemcpyHostToDevice,
                            caller),
            cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(caller), cudaSuccess);
  CAIRN_ASSERT_OK(fence->Await());
  EXPECT_EQ(std::memcmp(seen.span().data(), first.data(), first.size()), 0);
  EXPECT_EQ(device.Read(), second);
  ASSERT_EQ(cudaStreamDestroy(caller), cudaSuccess);
}

TEST_F(DeviceQueueTest, ErrorNamesTheDeviceAndItsMemory) {
  EXPECT_THAT(backend_->OpenQueue(99), IsError(ErrorCode::kInvalidArgument, "no GPU 99"));
  EXPECT_THAT(backend_->Allocate(0, uint64_t{1} << 50),
              IsError(ErrorCode::kResourceExhausted, "GPU 0 has no 1125899906842624 bytes left"));
}

TEST_F(DeviceQueueTest, RefusesMoreDimensionsThanTheKernelSupports) {
  const DeviceBytes device(RandomBytes(1 << 20, 8));
  PinnedBytes host(1 << 17);
  TensorView view{.dtype = DType::kUInt8, .data = device.data(), .device = 0};
  for (uint64_t d = 0; d < 17; ++d) {
    view.shape.push_back(2);
    view.strides.push_back(uint64_t{3} << d);
  }
  EXPECT_THAT(queue_->CopyOut(view, 0, host.span()),
              IsError(ErrorCode::kUnimplemented, "17 dimensions"));
}

}  // namespace
}  // namespace cairn::cuda
