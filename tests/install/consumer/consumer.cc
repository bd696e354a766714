// Saves a tensor, opens the store anew and reads it back: the C++ example of README.md, checked.

#include <cstdio>
#include <span>
#include <vector>

#include "core/checkpoint_store.h"
#include "core/device/device.h"
#ifdef CONSUMER_HAS_CUDA
#include "cuda/backend.h"
#endif

namespace core = cairn::core;
namespace kv = cairn::kv;

cairn::Result<void> SaveAndLoad(const std::string& address) {
  const std::vector<float> weights = {1.5f, -2.0f, 0.25f, 8.0f, 16.0f, -32.0f};

  core::StateDict state;
  auto model = state.root().Map("model");
  model.Tensor("weight", {.dtype = core::DType::kFloat32,
                          .shape = {2, 3},
                          .data = std::as_bytes(std::span(weights)).data()});
  state.root().Value("step", int64_t{100});

  CAIRN_TRY_ASSIGN(auto writer, core::CheckpointStore::Open(address, kv::OpenMode::kWrite));
  CAIRN_TRY_ASSIGN(const core::SaveReport saved, writer->Save(100, state));
  CAIRN_TRY(writer->Close());

  CAIRN_TRY_ASSIGN(auto reader, core::CheckpointStore::Open(address, kv::OpenMode::kRead));
  CAIRN_TRY_ASSIGN(const core::Contents contents, reader->List(std::nullopt));
  std::vector<float> loaded(weights.size());
  const core::LoadRequest request = {
      .fqn = "model.weight",
      .box = core::WholeBox(contents.tensors.at(0).shape),
      .target = {.dtype = core::DType::kFloat32,
                 .shape = {2, 3},
                 .data = std::as_writable_bytes(std::span(loaded)).data()}};
  CAIRN_TRY(reader->Load(contents.step, std::span(&request, 1)));

  if (loaded != weights) {
    return cairn::Fail(cairn::ErrorCode::kDataLoss, "what was read is not what was saved");
  }
  std::printf("step %llu, %llu bytes written, read back the same\n",
              static_cast<unsigned long long>(contents.step.step),
              static_cast<unsigned long long>(saved.written_bytes));
  return {};
}

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: consumer STORE\n");
    return 2;
  }
  if (const auto result = SaveAndLoad(argv[1]); !result) {
    std::fprintf(stderr, "%s\n", result.error().ToString().c_str());
    return 1;
  }
#ifdef CONSUMER_HAS_CUDA
  cairn::cuda::Register();
#endif
  const auto gpus = core::FindDeviceBackend();
  std::printf("GPUs: %s\n", gpus ? "found" : gpus.error().message.c_str());
  return 0;
}
