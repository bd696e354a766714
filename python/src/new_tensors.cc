// Arenas for small tensors, separate blocks for large ones.

#include "python/src/new_tensors.h"

#include <nanobind/stl/shared_ptr.h>

#include <map>
#include <memory>
#include <new>
#include <optional>
#include <unordered_set>
#include <vector>

#include "core/device/device.h"
#include "core/step/contents.h"
#include "python/src/collection_pause.h"
#include "python/src/convert.h"
#include "python/src/errors.h"
#include "python/src/fresh_memory.h"
#include "python/src/gil.h"
#include "python/src/torch_access.h"

namespace cairn::python {
namespace {

constexpr uint64_t kAlignmentBytes = 64;  // as of torch's allocator, and of values in segments

constexpr uint64_t kMaxBlockBytes = uint64_t{1} << 60;

constexpr uint64_t Aligned(uint64_t bytes) {
  return (bytes + kAlignmentBytes - 1) / kAlignmentBytes * kAlignmentBytes;
}

// Returns the leaves that are torch tensors without shared memory, in key order.
std::vector<uint32_t> UnsharedTensorLeaves(const StepContents& contents, const TorchAccess& torch) {
  std::unordered_set<std::string_view> shared;
  for (const core::TensorInfo& info : contents.tensors()) {
    if (info.alias_of) shared.insert(*info.alias_of);
  }
  constexpr uint32_t kNone = UINT32_MAX;
  std::vector<uint32_t> leaf_of_tensor(contents.tensors().size(), kNone);
  for (uint32_t leaf = 0; leaf < contents.leaf_count(); ++leaf) {
    if (contents.kind(leaf) != core::NodeKind::kTensor) continue;
    const core::TensorInfo& info = contents.tensor(leaf);
    if (info.nbytes == 0 || info.alias_of || shared.contains(info.fqn)) continue;
    if (!torch.CanWrap(info.dtype)) continue;
    leaf_of_tensor[static_cast<size_t>(&info - contents.tensors().data())] = leaf;
  }
  std::erase(leaf_of_tensor, kNone);
  return leaf_of_tensor;
}

bool HasTorchTensor(const StepContents& contents) {
  for (size_t leaf = 0; leaf < contents.leaf_count(); ++leaf) {
    if (contents.kind(leaf) == core::NodeKind::kTensor) return true;
  }
  return false;
}

uint64_t TotalBytes(const std::vector<uint64_t>& blocks_bytes) {
  uint64_t total_bytes = 0;
  for (const uint64_t bytes : blocks_bytes) {
    // A damaged record may say anything; far from overflow, the mapping itself fails.
    if (bytes > kMaxBlockBytes || total_bytes > kMaxBlockBytes) throw std::bad_alloc();
    total_bytes += FreshMemory::BlockBytes(bytes);
  }
  return total_bytes;
}

// Memory for tensors of these sizes, in this order: blocks of fresh memory, or parts of one that
// small tensors share.
std::vector<std::shared_ptr<std::byte>> Allocate(const std::vector<uint64_t>& sizes_bytes) {
  struct Position {
    size_t block;
    uint64_t offset_bytes;
  };
  std::vector<uint64_t> blocks_bytes;
  std::vector<Position> positions;
  positions.reserve(sizes_bytes.size());
  std::optional<size_t> arena;
  for (const uint64_t bytes : sizes_bytes) {
    if (bytes >= kOwnMemoryBytes) {
      positions.push_back({blocks_bytes.size(), 0});
      blocks_bytes.push_back(bytes);
      continue;
    }
    if (!arena || blocks_bytes[*arena] + Aligned(bytes) > kArenaBytes) {
      arena = blocks_bytes.size();
      blocks_bytes.push_back(0);
    }
    positions.push_back({*arena, blocks_bytes[*arena]});
    blocks_bytes[*arena] += Aligned(bytes);
  }
  FreshMemory fresh(TotalBytes(blocks_bytes));
  std::vector<std::shared_ptr<std::byte>> blocks;
  for (const uint64_t bytes : blocks_bytes) blocks.push_back(fresh.Take(bytes));
  std::vector<std::shared_ptr<std::byte>> memory;
  memory.reserve(positions.size());
  for (const auto& [block, offset_bytes] : positions) {
    memory.emplace_back(blocks[block], blocks[block].get() + offset_bytes);
  }
  return memory;
}

// The leaves for which C++ creates tensors.
struct NewTensorLeaves {
  std::vector<uint32_t> leaves;  // torch tensors without shared memory, in key order
  nb::list tensors;              // None for each leaf of the step
};

// Raises Invalid if there is a torch tensor, but torch is missing.
NewTensorLeaves FindNewTensorLeaves(const StepContents& contents) {
  NewTensorLeaves found;
  for (size_t leaf = 0; leaf < contents.leaf_count(); ++leaf) found.tensors.append(nb::none());
  if (!HasTorchTensor(contents)) return found;
  nb::module_::import_("cairn._base.dtypes").attr("require_torch")();
  found.leaves = UnsharedTensorLeaves(contents, TorchAccess());
  return found;
}

}  // namespace

nb::list RequestNewTensors(const StepContents& contents, Requests& requests) {
  const CollectionPause pause;
  auto [leaves, tensors] = FindNewTensorLeaves(contents);
  const TorchAccess torch;
  std::vector<uint64_t> sizes_bytes;
  sizes_bytes.reserve(leaves.size());
  for (const uint32_t leaf : leaves) sizes_bytes.push_back(contents.tensor(leaf).nbytes);
  const std::vector<std::shared_ptr<std::byte>> memory = Allocate(sizes_bytes);
  requests.list.reserve(requests.list.size() + leaves.size());
  for (size_t i = 0; i < leaves.size(); ++i) {
    const core::TensorInfo& info = contents.tensor(leaves[i]);
    tensors[leaves[i]] = torch.Wrap(memory[i], info.dtype, info.shape);
    requests.list.push_back(WholeRequest(info, {}, memory[i].get()));
  }
  return tensors;
}

nb::list RequestNewDeviceTensors(const StepContents& contents, Requests& requests,
                                 nb::handle device) {
  const CollectionPause pause;
  auto [leaves, tensors] = FindNewTensorLeaves(contents);
  if (leaves.empty()) return tensors;
  const nb::object torch_dtype = nb::module_::import_("cairn._base.dtypes").attr("torch_dtype");
  const nb::object empty = nb::module_::import_("torch").attr("empty");
  const TorchAccess torch(TorchAccess::Reach::kDevices);
  std::map<core::DType, nb::object> dtypes;
  requests.list.reserve(requests.list.size() + leaves.size());
  for (const uint32_t leaf : leaves) {
    const core::TensorInfo& info = contents.tensor(leaf);
    nb::object& dtype = dtypes[info.dtype];
    if (!dtype.is_valid()) dtype = torch_dtype(static_cast<int>(info.dtype));
    nb::object made =
        empty(ToPyNumbers(info.shape), nb::arg("dtype") = dtype, nb::arg("device") = device);
    const std::optional<TensorMemory> memory = torch.FindMemory(made);
    if (!memory) continue;  // the Python side knows what to do
    requests.list.push_back(WholeRequest(info, {}, memory->data, memory->device));
    tensors[leaf] = std::move(made);
  }
  return tensors;
}

nb::tuple MapNewTensors(const StoreBinding& store, const StepContents& contents) {
  auto [leaves, tensors] = FindNewTensorLeaves(contents);
  if (leaves.empty()) return nb::make_tuple(tensors, nb::none());
  std::vector<std::string> fqns;
  fqns.reserve(leaves.size());
  for (const uint32_t leaf : leaves) fqns.push_back(contents.fqn(leaf));
  core::UncheckedMap mapped = store.MapBytes(contents.step(), fqns);
  const TorchAccess torch;
  const CollectionPause pause;
  for (size_t i = 0; i < leaves.size(); ++i) {
    if (!mapped.tensors[i]) continue;
    tensors[leaves[i]] =
        WrapMapped(*std::move(mapped.tensors[i]), contents.tensor(leaves[i]), torch);
  }
  return nb::make_tuple(tensors, std::const_pointer_cast<core::MapCheck>(mapped.check));
}

void RunMapCheck(const core::MapCheck& check) {
  SignalWatch watch;
  const auto result = [&] {
    const GilRelease no_gil;
    return check.Run(watch.AsProgress());
  }();
  watch.Rethrow();
  Unwrap(Result<void>(result));
}

nb::object NewLargeTensor(uint8_t dtype, nb::handle shape) {
  const auto code = static_cast<core::DType>(dtype);
  const std::vector<uint64_t> sizes = FromPyNumbers(shape);
  const auto bytes = core::TensorBytes(code, sizes);
  if (!bytes || *bytes < kOwnMemoryBytes) return nb::none();
  const TorchAccess torch;
  if (!torch.CanWrap(code)) return nb::none();
  return torch.Wrap(Allocate({*bytes}).front(), code, sizes);
}

nb::object NewPinnedTensor(uint8_t dtype, nb::handle shape) {
  const auto code = static_cast<core::DType>(dtype);
  const std::vector<uint64_t> sizes = FromPyNumbers(shape);
  const uint64_t bytes = Unwrap(core::TensorBytes(code, sizes));
  const TorchAccess torch;
  if (!torch.CanWrap(code)) return nb::none();
  auto memory = Unwrap([&] {
    const GilRelease no_gil;  // page-locking is slow
    return core::HostMemory::Allocate(bytes, {.pinned = true});
  }());
  const auto owner = std::make_shared<core::HostMemory>(std::move(memory));
  return torch.Wrap({owner, owner->bytes().data()}, code, sizes);
}

}  // namespace cairn::python
