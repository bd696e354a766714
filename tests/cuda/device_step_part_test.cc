// Parts of a step with tensors in device memory: several portions, ordered after the work of the
// caller's streams.

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/save/save_options.h"
#include "core/upkeep/step_part.h"
#include "tests/cuda/device_store_fixture.h"

namespace cairn::cuda {
namespace {

using testing::DeviceStoreTest;
using testing::RandomBytes;

class DeviceStepPartTest : public DeviceStoreTest {
 protected:
  std::unique_ptr<core::StepPart> Begin(uint64_t step) {
    auto ticket = core::StepPart::OpenSession(*store_, step, 1);
    EXPECT_TRUE(testing::IsOk(ticket));
    auto part = core::StepPart::Begin(*store_, *ticket, 0, {});
    EXPECT_TRUE(testing::IsOk(part));
    return part ? *std::move(part) : nullptr;
  }
  // The tensors of the model, about equally many per portion, mixed with others in host memory.
  std::vector<core::StateDict> Portions(size_t count) {
    std::vector<core::StateDict> portions(count);
    size_t next = 0;
    for (const auto& [name, held] : tensors_) {
      portions[next++ % count].root().Tensor(name, held.view);
    }
    for (size_t i = 0; i < count; ++i) {
      portions[i].root().Tensor("on_host." + std::to_string(i), {.dtype = core::DType::kUInt8,
                                                                 .shape = {host_tensor_.size() - i},
                                                                 .data = host_tensor_.data()});
    }
    return portions;
  }
  core::StateDict OnHost(const std::string& name) {
    core::StateDict state;
    state.root().Tensor(name, {.dtype = core::DType::kUInt8,
                               .shape = {host_tensor_.size()},
                               .data = host_tensor_.data()});
    return state;
  }
};

TEST_F(DeviceStepPartTest, TheMemoryOfAPortionIsTheCallersAgain) {
  AddModel();
  auto part = Begin(1);
  CAIRN_ASSERT_OK(part->Add(OnHost("first")));  // before any device is used
  for (core::StateDict& portion : Portions(3)) {
    std::vector<core::TensorView> views;
    for (const core::TensorView& view : portion.tensors) {
      if (view.device == 0) views.push_back(view);
    }
    CAIRN_ASSERT_OK(part->Add(std::move(portion)));
    for (const core::TensorView& view : views) {
      if (!view.strides.empty()) continue;  // storages with gaps
      ASSERT_EQ(cudaMemset(const_cast<std::byte*>(view.data), 0xee,
                           *core::TensorBytes(view.dtype, view.shape)),
                cudaSuccess);
    }
  }
  CAIRN_ASSERT_OK(part->Add(OnHost("last")));
  CAIRN_ASSERT_OK_AND_ASSIGN(const core::SaveReport report, part->Commit({}));
  EXPECT_EQ(report.written_bytes, report.logical_bytes);
  EXPECT_EQ(report.device_bytes, report.logical_bytes - 5 * host_tensor_.size() + 3);
  part.reset();
  ExpectStored(1);
}

TEST_F(DeviceStepPartTest, WhatTheBaseHasIsNotCopied) {
  AddModel();
  for (uint64_t step = 1; step <= 3; ++step) {
    if (step == 3) Write("large", 100, RandomBytes(10, 5));
    auto part = Begin(step);
    for (core::StateDict& portion : Portions(2)) CAIRN_ASSERT_OK(part->Add(std::move(portion)));
    CAIRN_ASSERT_OK_AND_ASSIGN(const core::SaveReport report, part->Commit({}));
    part.reset();
    const uint64_t expected[] = {report.logical_bytes, 0, kv::kPageBytes};
    EXPECT_EQ(report.written_bytes, expected[step - 1]);
    if (step > 1) {
      EXPECT_EQ(report.device_bytes, expected[step - 1]);
    }
    ExpectStored(step);
  }
}

TEST_F(DeviceStepPartTest, PortionsComeAfterWhatTheirStreamsHold) {
  AddPlain("a", 5 << 20);
  AddPlain("b", 5 << 20);
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  auto part = Begin(1);
  int value = 7;
  for (const std::string name : {"a", "b"}) {
    core::StateDict portion;
    const testing::Held& held = tensors_.at(name);
    portion.root().Tensor(name, held.view);
    ASSERT_EQ(cudaMemsetAsync(const_cast<std::byte*>(held.view.data), value, 5 << 20, stream),
              cudaSuccess);
    const core::DeviceStream streams[] = {{.device = 0, .stream = stream}};
    CAIRN_ASSERT_OK(part->Add(std::move(portion), streams));
    host_[held.storage].assign(5 << 20, static_cast<std::byte>(value++));
  }
  CAIRN_ASSERT_OK(part->Commit({}));
  part.reset();
  ExpectStored(1);
  ASSERT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

}  // namespace
}  // namespace cairn::cuda
