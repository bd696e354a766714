// Host memory of states, in one process and shared by two.

#include "core/state_dict/host_state.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "tests/support/result_matchers.h"

namespace cairn::core {
namespace {

using cairn::testing::IsError;

StateDict SmallState() {
  StateDict state;
  auto model = state.root().Map("model");
  model.Tensor("weight", {.dtype = DType::kFloat32, .shape = {3, 5}});
  model.Tensor("empty", {.dtype = DType::kFloat32, .shape = {0, 5}});
  model.Tensor("scalar", {.dtype = DType::kInt64, .shape = {}});
  state.root().Value("step", int64_t{7});
  return state;
}

TEST(HostStateTest, TensorsLieAlignedZeroedAndApart) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const HostState host, HostState::Allocate(SmallState()));
  const auto& tensors = host.state().tensors;
  for (const size_t i : {0, 2}) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tensors[i].data) % HostState::kAlignmentBytes, 0u);
  }
  EXPECT_TRUE(std::all_of(tensors[0].data, tensors[0].data + 60,
                          [](std::byte b) { return b == std::byte{0}; }));
  EXPECT_EQ(tensors[1].data, nullptr);
  EXPECT_EQ(tensors[2].data, tensors[0].data + HostState::kAlignmentBytes);
}

TEST(HostStateTest, OnlyOwnedTensorsGetMemory) {
  std::array<std::byte, 60> memory{};
  StateDict state = SmallState();
  state.tensors[0].data = memory.data();
  const std::vector<bool> owned = {false, true, true};
  CAIRN_ASSERT_OK_AND_ASSIGN(const HostState host, HostState::Allocate(state, {}, &owned));
  EXPECT_EQ(host.state().tensors[0].data, memory.data());
  EXPECT_NE(host.state().tensors[2].data, nullptr);
}

TEST(HostStateTest, EachPartHasMemory) {
  StateDict state;
  Sharding sharding{.global_shape = {4}, .mesh = nullptr, .placements = {}, .parts = {}};
  sharding.parts = {{.box = {{0}, {1}}, .view = {.dtype = DType::kUInt8, .shape = {1}}},
                    {.box = {{3}, {1}}, .view = {.dtype = DType::kUInt8, .shape = {1}}}};
  state.root().Sharded("boxes", {.dtype = DType::kUInt8, .shape = {}}, sharding);
  CAIRN_ASSERT_OK_AND_ASSIGN(const HostState host, HostState::Allocate(state));
  const auto& parts = host.state().shardings.at(0).parts;
  EXPECT_EQ(parts[1].view.data - parts[0].view.data, 512);
  EXPECT_EQ(host.state().tensors[0].data, nullptr);
}

TEST(HostStateTest, SizesThatHaveNoEndAreRefusedByKey) {
  StateDict state;
  const uint64_t huge = std::numeric_limits<uint64_t>::max() / 2;
  state.root().Map("a").Tensor("huge", {.dtype = DType::kFloat64, .shape = {huge}});
  EXPECT_THAT(HostState::Allocate(state), IsError(ErrorCode::kInvalidArgument, "a.huge"));
  StateDict many;
  many.root().Tensor("first", {.dtype = DType::kUInt8, .shape = {huge / 2}});
  many.root().Tensor("second", {.dtype = DType::kUInt8, .shape = {huge / 2}});
  EXPECT_THAT(HostState::Allocate(many), IsError(ErrorCode::kInvalidArgument, "second"));
  StateDict large;
  large.root().Tensor("large", {.dtype = DType::kUInt8, .shape = {huge / 4}});
  EXPECT_THAT(HostState::Allocate(large), IsError(ErrorCode::kResourceExhausted, "host memory"));
}

TEST(HostStateTest, PinnedMemoryNeedsTheCudaLayer) {
  EXPECT_THAT(HostState::Allocate(SmallState(), {.pinned = true}),
              IsError(ErrorCode::kUnimplemented, "pinned host memory needs a device"));
}

}  // namespace
}  // namespace cairn::core
