// Lays out the tensors of each device in one region, in the order of the tensors.

#include "core/state_dict/host_state.h"

#include <fmt/format.h>

#include <map>

#include "core/state_dict/internal/leaves.h"

namespace cairn::core {
namespace {

// The layout follows the order of `state.tensors`, so that states with the same structure have the
// same layout.
class Layout {
 public:
  Result<void> Add(TensorView& view) {
    CAIRN_TRY_ASSIGN(const uint64_t length_bytes, TensorBytes(view.dtype, view.shape));
    view.strides.clear();
    view.data = nullptr;
    if (length_bytes == 0) return {};
    constexpr uint64_t kUnit = HostState::kAlignmentBytes;
    const uint64_t begin = (end_bytes_ + kUnit - 1) / kUnit * kUnit;
    // Lengths are less than 2^63, so that the sum cannot overflow before it is compared.
    if (begin + length_bytes > uint64_t{1} << 62) {
      return Fail(ErrorCode::kInvalidArgument, "the tensors together have more bytes than 2^62");
    }
    views_.push_back({&view, begin});
    end_bytes_ = begin + length_bytes;
    return {};
  }

  uint64_t length_bytes() const { return end_bytes_; }

  void PointInto(std::byte* memory) const {
    for (const auto& [view, begin] : views_) view->data = memory + begin;
  }

 private:
  std::vector<std::pair<TensorView*, uint64_t>> views_;
  uint64_t end_bytes_ = 0;
};

std::string KeyOf(const StateDict& state, uint32_t tensor) {
  const auto leaves = FlattenTree(state.tree);
  for (size_t i = 0; leaves && i < leaves->size() && i < state.slot.size(); ++i) {
    const Leaf& leaf = (*leaves)[i];
    if (IsTensor(state.tree.nodes[leaf.node].kind) && state.slot[i] == tensor) return leaf.fqn;
  }
  return {};
}

// Returns the layouts by device; there is always one for the host.
Result<std::map<int, Layout>> LayOut(StateDict& state, const std::vector<bool>* owned) {
  CAIRN_CHECK(owned == nullptr || owned->size() == state.tensors.size());
  std::map<int, Layout> layouts;
  layouts[kHostDevice];
  for (uint32_t i = 0; i < state.tensors.size(); ++i) {
    if (owned != nullptr && !(*owned)[i]) continue;
    Result<void> added;
    internal::ForEachMemory(state, i, [&](TensorView& view) {
      if (added) added = layouts[view.device].Add(view);
    });
    if (!added) return Fail(std::move(added).error().WithKey(KeyOf(state, i)));
  }
  return layouts;
}

}  // namespace

Result<HostState> HostState::Allocate(StateDict state, const HostMemoryOptions& options,
                                      const std::vector<bool>* owned) {
  HostState result;
  result.state_ = std::move(state);
  CAIRN_TRY_ASSIGN(const auto layouts, LayOut(result.state_, owned));
  for (const auto& [device, layout] : layouts) {
    if (device == kHostDevice) {
      CAIRN_TRY_ASSIGN(result.memory_, HostMemory::Allocate(layout.length_bytes(), options));
      layout.PointInto(result.memory_.bytes().data());
    } else if (layout.length_bytes() > 0) {
      CAIRN_TRY_ASSIGN(DeviceBackend* const backend, FindDeviceBackend());
      CAIRN_TRY_ASSIGN(auto memory, backend->Allocate(device, layout.length_bytes()));
      layout.PointInto(memory.data());
      result.device_memory_.push_back(std::move(memory));
    }
  }
  return result;
}

}  // namespace cairn::core
