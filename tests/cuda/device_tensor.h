#pragma once
/// Tensors in device memory, for tests.

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "core/tensor/tensor.h"
#include "cuda/backend.h"
#include "tests/cuda/runtime_kind.h"
#include "tests/support/result_matchers.h"
#include "tests/support/seeded_random.h"

/// First statement of a fixture's SetUp. A program on a real runtime skips its tests on a machine
/// without a GPU and states the reason; on the simulated runtime a missing GPU is a failure.
#define CAIRN_SKIP_WITHOUT_GPU()                                 \
  do {                                                           \
    const auto gpu = cairn::cuda::FindBackend();                 \
    if (!gpu && cairn::testing::kOnRealGpu) {                    \
      GTEST_SKIP() << "needs a GPU: " << gpu.error().ToString(); \
    }                                                            \
    CAIRN_ASSERT_OK(gpu);                                        \
  } while (false)

namespace cairn::testing {

inline std::vector<std::byte> RandomBytes(uint64_t count, uint64_t seed) {
  std::vector<std::byte> bytes(count);
  SeededRandom(seed).Fill(bytes);
  return bytes;
}

/// Bytes on the current device, filled from host memory. Ownership: the destructor frees them.
class DeviceBytes {
 public:
  explicit DeviceBytes(std::span<const std::byte> bytes) : length_bytes_(bytes.size()) {
    EXPECT_EQ(cudaMalloc(reinterpret_cast<void**>(&data_), bytes.size() + 1), cudaSuccess);
    Write(bytes);
  }
  ~DeviceBytes() { (void)cudaFree(data_); }
  DeviceBytes(DeviceBytes&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), length_bytes_(other.length_bytes_) {}
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;

  std::byte* data() const { return data_; }
  uint64_t length_bytes() const { return length_bytes_; }
  void Write(std::span<const std::byte> bytes, uint64_t at = 0) {
    EXPECT_EQ(cudaMemcpy(data_ + at, bytes.data(), bytes.size(), cudaMemcpyHostToDevice),
              cudaSuccess);
  }
  std::vector<std::byte> Read() const {
    std::vector<std::byte> bytes(length_bytes_);
    EXPECT_EQ(cudaMemcpy(bytes.data(), data_, bytes.size(), cudaMemcpyDeviceToHost), cudaSuccess);
    return bytes;
  }
  core::TensorView View(int device = 0) const {
    return {
        .dtype = core::DType::kUInt8, .shape = {length_bytes_}, .data = data_, .device = device};
  }

 private:
  std::byte* data_ = nullptr;
  uint64_t length_bytes_ = 0;
};

/// Page-locked host memory.
class PinnedBytes {
 public:
  explicit PinnedBytes(uint64_t length_bytes) : length_bytes_(length_bytes) {
    EXPECT_EQ(cudaHostAlloc(reinterpret_cast<void**>(&data_), length_bytes, 0), cudaSuccess);
  }
  ~PinnedBytes() { (void)cudaFreeHost(data_); }
  PinnedBytes(const PinnedBytes&) = delete;
  PinnedBytes& operator=(const PinnedBytes&) = delete;
  std::span<std::byte> span() const { return {data_, length_bytes_}; }

 private:
  std::byte* data_ = nullptr;
  uint64_t length_bytes_ = 0;
};

}  // namespace cairn::testing
