#pragma once
/// A store, tensors in device memory, and their expected contents.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/checkpoint_store.h"
#include "core/tensor/strided_copy.h"
#include "cuda/backend.h"
#include "kv/base/digest.h"
#include "tests/cuda/device_tensor.h"
#include "tests/cuda/runtime_kind.h"
#include "tests/support/result_matchers.h"
#include "tests/support/scoped_temp_dir.h"

namespace cairn::testing {

// A tensor on the device and its expected contents.
struct Held {
  core::TensorView view;  // on the device
  uint64_t storage = 0;
};

class DeviceStoreTest : public ::testing::Test {
 protected:
  void SetUp() override {
    CAIRN_SKIP_WITHOUT_GPU();
    cuda::Register();
    auto backend = core::FindDeviceBackend();
    CAIRN_ASSERT_OK(backend);
    OpenStore();
  }
  void OpenStore() {
    store_.reset();
    CAIRN_ASSERT_OK_AND_ASSIGN(store_,
                               core::CheckpointStore::Open(dir_.path(), kv::OpenMode::kWrite));
  }

  void Add(const std::string& name, uint64_t bytes, core::TensorView view) {
    host_.push_back(RandomBytes(bytes, host_.size() + 1));
    storages_.emplace_back(host_.back());
    view.data = storages_.back().data();
    view.device = 0;
    tensors_[name] = {.view = view, .storage = host_.size() - 1};
  }
  void AddPlain(const std::string& name, uint64_t bytes) {
    Add(name, bytes, {.dtype = core::DType::kUInt8, .shape = {bytes}});
  }
  /// Large, small, strided and empty tensors, about 13 MB.
  void AddModel() {
    AddPlain("large", (9 << 20) + 12345);
    AddPlain("pages", 40 * kv::kPageBytes);
    for (int i = 0; i < 300; ++i) AddPlain("small." + std::to_string(i), 1 + i * 13 % 5000);
    Add("strided.rows", 1 << 20,
        {.dtype = core::DType::kFloat32, .shape = {300, 200}, .strides = {512, 1}});
    Add("strided.columns", 1 << 20,
        {.dtype = core::DType::kBFloat16, .shape = {500, 700}, .strides = {1, 500}});
    Add("empty", 16, {.dtype = core::DType::kFloat32, .shape = {0, 7}});
    Add("scalar", 8, {.dtype = core::DType::kInt64, .shape = {}});
  }
  core::StateDict State() {
    core::StateDict state;
    for (const auto& [name, held] : tensors_) state.root().Tensor(name, held.view);
    state.root().Tensor("on_host", {.dtype = core::DType::kUInt8,
                                    .shape = {host_tensor_.size()},
                                    .data = host_tensor_.data()});
    state.root().Value("step", int64_t{1});
    return state;
  }
  void Write(const std::string& name, uint64_t at, std::span<const std::byte> bytes) {
    const uint64_t storage = tensors_.at(name).storage;
    std::copy(bytes.begin(), bytes.end(), host_[storage].begin() + static_cast<ptrdiff_t>(at));
    storages_[storage].Write(bytes, at);
  }
  std::vector<std::byte> Expected(const std::string& name) {
    core::TensorView view = tensors_.at(name).view;
    view.data = host_[tensors_.at(name).storage].data();
    std::vector<std::byte> bytes(*core::TensorBytes(view.dtype, view.shape));
    core::GatherBytes(view, 0, bytes);
    return bytes;
  }

  /// Creates as many tensors as `storage` has bytes. More than 65,536 need two segments.
  static core::StateDict OneByteTensors(const DeviceBytes& storage) {
    core::StateDict state;
    for (uint64_t i = 0; i < storage.length_bytes(); ++i) {
      state.root().Tensor(
          std::to_string(i),
          {.dtype = core::DType::kUInt8, .shape = {1}, .data = storage.data() + i, .device = 0});
    }
    return state;
  }

  /// Loads all tensors of the step to host memory and compares.
  void ExpectStored(uint64_t step) {
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto snapshot, store_->kv().Latest());
    CAIRN_ASSERT_OK_AND_ASSIGN(const kv::StepInfo info, snapshot->FindStep(step));
    std::map<std::string, std::vector<std::byte>> read;
    std::vector<core::LoadRequest> requests;
    for (const auto& [name, held] : tensors_) {
      std::vector<std::byte>& bytes = read[name];
      bytes.resize(*core::TensorBytes(held.view.dtype, held.view.shape));
      requests.push_back(
          {.fqn = name,
           .box = core::WholeBox(held.view.shape),
           .target = {.dtype = held.view.dtype, .shape = held.view.shape, .data = bytes.data()}});
    }
    CAIRN_ASSERT_OK(store_->Load(info, requests));
    for (const auto& [name, bytes] : read) EXPECT_TRUE(bytes == Expected(name)) << name;
    uint64_t damaged = 0;
    CAIRN_ASSERT_OK(store_->Verify(step, [&](const kv::Damage& damage) {
      ++damaged;
      ADD_FAILURE() << damage.error.ToString();
    }));
    EXPECT_EQ(damaged, 0u);
  }
  /// Loads all tensors of the step to device memory, strided as they were saved, and compares.
  void ExpectLoadsToDevice(uint64_t step) {
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto snapshot, store_->kv().Latest());
    CAIRN_ASSERT_OK_AND_ASSIGN(const kv::StepInfo info, snapshot->FindStep(step));
    std::map<std::string, DeviceBytes> read;
    std::vector<core::LoadRequest> requests;
    for (const auto& [name, held] : tensors_) {
      const std::vector<std::byte> zeros(host_[held.storage].size());
      const DeviceBytes& bytes = read.emplace(name, zeros).first->second;
      requests.push_back(
          {.fqn = name,
           .box = core::WholeBox(held.view.shape),
           .target = {held.view.dtype, held.view.shape, held.view.strides, bytes.data(), 0}});
    }
    std::vector<std::byte> host(host_tensor_.size());
    requests.push_back(
        {.fqn = "on_host",
         .box = core::WholeBox(std::vector<uint64_t>{host.size()}),
         .target = {.dtype = core::DType::kUInt8, .shape = {host.size()}, .data = host.data()}});
    CAIRN_ASSERT_OK(store_->Load(info, requests));
    EXPECT_TRUE(host == host_tensor_);
    for (const auto& [name, bytes] : read) {
      const std::vector<std::byte> payload = Expected(name);
      std::vector<std::byte> expected(bytes.length_bytes());
      const core::TensorView& view = tensors_.at(name).view;
      core::ScatterBytes(payload, {view.dtype, view.shape, view.strides, expected.data()}, 0);
      EXPECT_TRUE(bytes.Read() == expected) << name;
    }
  }

  const ScopedTempDir dir_;
  std::unique_ptr<core::CheckpointStore> store_;
  std::vector<std::vector<std::byte>> host_;  // the expected contents of the storages
  std::vector<DeviceBytes> storages_;
  std::map<std::string, Held> tensors_;
  std::vector<std::byte> host_tensor_ = RandomBytes(3'000'000, 99);
};

}  // namespace cairn::testing
