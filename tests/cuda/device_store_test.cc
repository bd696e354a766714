// Steps of tensors in device memory: what is saved comes back, and only what changed is moved.

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "core/async_save.h"
#include "core/checkpoint_store.h"
#include "core/strided_copy.h"
#include "cuda/backend.h"
#include "kv/digest.h"
#include "tests/cuda/device_tensor.h"
#include "tests/support/result_matchers.h"
#include "tests/support/scoped_temp_dir.h"

namespace cairn::cuda {
namespace {

using core::CheckpointStore;
using core::DType;
using core::LoadRequest;
using core::StateDict;
using core::TensorTarget;
using core::TensorView;
using testing::DeviceBytes;
using testing::RandomBytes;
using testing::ScopedTempDir;

// A tensor on the device and what it holds.
struct Held {
  TensorView view;  // on the device
  uint64_t storage = 0;
};

class DeviceStoreTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Register();
    auto backend = core::FindDeviceBackend();
    CAIRN_ASSERT_OK(backend);
    OpenStore();
  }
  void OpenStore() {
    store_.reset();
    CAIRN_ASSERT_OK_AND_ASSIGN(store_, CheckpointStore::Open(dir_.path(), kv::OpenMode::kWrite));
  }

  void Add(const std::string& name, uint64_t bytes, TensorView view) {
    host_.push_back(RandomBytes(bytes, host_.size() + 1));
    storages_.emplace_back(host_.back());
    view.data = storages_.back().data();
    view.device = 0;
    tensors_[name] = {.view = view, .storage = host_.size() - 1};
  }
  void AddPlain(const std::string& name, uint64_t bytes) {
    Add(name, bytes, {.dtype = DType::kUInt8, .shape = {bytes}});
  }
  /// Large, small, strided and empty tensors, some 13 MB.
  void AddModel() {
    AddPlain("large", (9 << 20) + 12345);
    AddPlain("pages", 40 * kv::kPageBytes);
    for (int i = 0; i < 300; ++i) AddPlain("small." + std::to_string(i), 1 + i * 13 % 5000);
    Add("strided.rows", 1 << 20,
        {.dtype = DType::kFloat32, .shape = {300, 200}, .strides = {512, 1}});
    Add("strided.columns", 1 << 20,
        {.dtype = DType::kBFloat16, .shape = {500, 700}, .strides = {1, 500}});
    Add("empty", 16, {.dtype = DType::kFloat32, .shape = {0, 7}});
    Add("scalar", 8, {.dtype = DType::kInt64, .shape = {}});
  }
  StateDict State() {
    StateDict state;
    for (const auto& [name, held] : tensors_) state.root().Tensor(name, held.view);
    state.root().Tensor(
        "on_host",
        {.dtype = DType::kUInt8, .shape = {host_tensor_.size()}, .data = host_tensor_.data()});
    state.root().Value("step", int64_t{1});
    return state;
  }
  void Write(const std::string& name, uint64_t at, std::span<const std::byte> bytes) {
    const uint64_t storage = tensors_.at(name).storage;
    std::copy(bytes.begin(), bytes.end(), host_[storage].begin() + static_cast<ptrdiff_t>(at));
    storages_[storage].Write(bytes, at);
  }
  std::vector<std::byte> Expected(const std::string& name) {
    TensorView view = tensors_.at(name).view;
    view.data = host_[tensors_.at(name).storage].data();
    std::vector<std::byte> bytes(*core::TensorBytes(view.dtype, view.shape));
    core::GatherBytes(view, 0, bytes);
    return bytes;
  }

  /// Loads all tensors of the step to host memory and compares.
  void ExpectStored(uint64_t step) {
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto snapshot, store_->kv().Latest());
    CAIRN_ASSERT_OK_AND_ASSIGN(const kv::StepInfo info, snapshot->FindStep(step));
    std::map<std::string, std::vector<std::byte>> read;
    std::vector<LoadRequest> requests;
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
    std::vector<LoadRequest> requests;
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
         .target = {.dtype = DType::kUInt8, .shape = {host.size()}, .data = host.data()}});
    CAIRN_ASSERT_OK(store_->Load(info, requests));
    EXPECT_TRUE(host == host_tensor_);
    for (const auto& [name, bytes] : read) {
      const std::vector<std::byte> payload = Expected(name);
      std::vector<std::byte> expected(bytes.length_bytes());
      const TensorView& view = tensors_.at(name).view;
      core::ScatterBytes(payload, {view.dtype, view.shape, view.strides, expected.data()}, 0);
      EXPECT_TRUE(bytes.Read() == expected) << name;
    }
  }

  const ScopedTempDir dir_;
  std::unique_ptr<CheckpointStore> store_;
  std::vector<std::vector<std::byte>> host_;  // what the storages hold
  std::vector<DeviceBytes> storages_;
  std::map<std::string, Held> tensors_;
  std::vector<std::byte> host_tensor_ = RandomBytes(3'000'000, 99);
};

TEST_F(DeviceStoreTest, WhatIsSavedComesBack) {
  AddModel();
  CAIRN_ASSERT_OK_AND_ASSIGN(const core::SaveReport report, store_->Save(1, State()));
  EXPECT_EQ(report.written_bytes, report.logical_bytes);
  ExpectStored(1);
  ExpectLoadsToDevice(1);
}

TEST_F(DeviceStoreTest, WritesNothingWhereNothingChanged) {
  AddModel();
  CAIRN_ASSERT_OK(store_->Save(1, State()));
  CAIRN_ASSERT_OK_AND_ASSIGN(core::SaveReport report, store_->Save(2, State()));
  EXPECT_EQ(report.written_bytes, 0u);
  EXPECT_EQ(report.chunks_reused, report.chunks);
  // A new process has no digests on the device: it compares with those that are stored.
  OpenStore();
  CAIRN_ASSERT_OK_AND_ASSIGN(report, store_->Save(3, State()));
  EXPECT_EQ(report.written_bytes, 0u);
  ExpectStored(3);
}

TEST_F(DeviceStoreTest, WritesThePagesThatChanged) {
  AddModel();
  CAIRN_ASSERT_OK(store_->Save(1, State()));
  const std::vector<std::byte> page = RandomBytes(kv::kPageBytes, 1234);
  Write("large", 20 * kv::kPageBytes, page);
  Write("pages", 3 * kv::kPageBytes + 7, std::span(page).first(1));
  Write("small.7", 0, std::span(page).first(3));
  Write("strided.rows", 4096, std::span(page).first(40));
  CAIRN_ASSERT_OK_AND_ASSIGN(core::SaveReport report, store_->Save(2, State()));
  // Three pages, of which the small tensor's is as long as itself.
  EXPECT_EQ(report.written_bytes, 3 * kv::kPageBytes + 1 + 7 * 13);
  ExpectStored(1 + 1);
  ExpectLoadsToDevice(2);
  // And again where the base's digests are those in the store.
  OpenStore();
  Write("large", 20 * kv::kPageBytes + 1, std::span(page).first(100));
  CAIRN_ASSERT_OK_AND_ASSIGN(report, store_->Save(3, State()));
  EXPECT_EQ(report.written_bytes, kv::kPageBytes);
  ExpectStored(3);
}

TEST_F(DeviceStoreTest, AsynchronousSavesKeepWhatWasThere) {
  AddModel();
  core::AsyncSaver saver(store_.get());
  cudaStream_t training = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&training, cudaStreamNonBlocking), cudaSuccess);
  for (const bool snapshot : {false, true}) {
    for (uint64_t round = 0; round < 3; ++round) {
      const uint64_t step = 1 + round + (snapshot ? 10 : 0);
      core::SaveOptions options;
      options.streams = {{.device = 0, .stream = training}};
      options.device_snapshot = snapshot;
      CAIRN_ASSERT_OK_AND_ASSIGN(const core::SaveHandle handle, saver.Save(step, State(), options));
      const std::vector<std::vector<std::byte>> saved = host_;
      // The training goes on as soon as its stream lets it, on the same tensors.
      if (!snapshot) CAIRN_ASSERT_OK(handle.HoldBack({.device = 0, .stream = training}));
      for (DeviceBytes& storage : storages_) {
        ASSERT_EQ(cudaMemsetAsync(storage.data(), static_cast<int>(step), storage.length_bytes(),
                                  training),
                  cudaSuccess);
      }
      CAIRN_ASSERT_OK(handle.Wait());
      ASSERT_EQ(cudaStreamSynchronize(training), cudaSuccess);
      ExpectStored(step);
      for (size_t i = 0; i < host_.size(); ++i) {
        std::fill(host_[i].begin(), host_[i].end(), static_cast<std::byte>(step));
      }
    }
  }
  ASSERT_EQ(cudaStreamDestroy(training), cudaSuccess);
}

}  // namespace
}  // namespace cairn::cuda
