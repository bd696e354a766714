// Torch tensors for what is read: in new memory, or over mapped bytes.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/load/map.h"
#include "core/step/contents.h"
#include "kv/base/div.h"
#include "kv/base/mapping.h"
#include "python/src/bindings.h"
#include "python/src/convert.h"
#include "python/src/errors.h"
#include "python/src/gil.h"
#include "python/src/loading.h"
#include "python/src/step_contents.h"
#include "python/src/store_binding.h"
#include "python/src/torch_access.h"

namespace cairn::python {
namespace {

using TorchBytes = nb::ndarray<nb::pytorch, uint8_t, nb::ndim<1>>;
using NumpyBytes = nb::ndarray<nb::numpy, const uint8_t, nb::ndim<1>>;

// Tensors of at least this size have separate memory; smaller ones share arenas.
constexpr uint64_t kOwnMemoryBytes = uint64_t{1} << 20;
// Limit of an arena. It is freed with its last tensor, so this is the most that one small tensor
// can keep allocated.
constexpr uint64_t kArenaBytes = uint64_t{32} << 20;
constexpr uint64_t kAlignmentBytes = 64;  // as of torch's allocator, and of values in segments
constexpr uint64_t kMaxBlockBytes = uint64_t{1} << 60;

// Zeroed memory in one mapping, divided into blocks that are freed separately.
//
// Uses huge pages if the system has them: touching new memory in pages of 4 KiB costs several times
// as much as the copy into it. One mapping per block would have small pages at its end, and only
// small pages if it is below 4 MiB; and the number of mappings of a process is limited.
//
// Ownership: blocks own their pages and may outlive this object. Threads: one at a time; blocks may
// be freed on any thread.
class FreshMemory {
 public:
  // Returns the memory that a block takes: `bytes` rounded up to a multiple of the page size.
  static uint64_t BlockBytes(uint64_t bytes) {
    static const auto page_bytes = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
    return RoundUp(bytes, page_bytes);
  }

  // Maps `total_bytes`, the sum of BlockBytes of all blocks. Throws std::bad_alloc.
  explicit FreshMemory(uint64_t total_bytes) : left_bytes_(total_bytes) {
    if (total_bytes == 0) return;
    next_ = kv::MapAligned(total_bytes, kv::kHugePageBytes);
    if (next_ == nullptr) throw std::bad_alloc();
    (void)madvise(next_, total_bytes, MADV_HUGEPAGE);  // only advice: without it, memory is slower
  }
  // Unmaps what was not taken.
  ~FreshMemory() {
    if (left_bytes_ > 0) (void)munmap(next_, left_bytes_);
  }
  FreshMemory(const FreshMemory&) = delete;
  FreshMemory& operator=(const FreshMemory&) = delete;

  // Returns the next block, which begins at a page boundary, as direct reads require. It is
  // unmapped with its last reference. Requires that BlockBytes(bytes) of the total are left.
  std::shared_ptr<std::byte> Take(uint64_t bytes) {
    const uint64_t taken_bytes = BlockBytes(bytes);
    CAIRN_CHECK(taken_bytes <= left_bytes_);
    std::byte* begin = next_;
    next_ += taken_bytes;
    left_bytes_ -= taken_bytes;
    return {begin, [taken_bytes](std::byte* block) { (void)munmap(block, taken_bytes); }};
  }

 private:
  std::byte* next_ = nullptr;
  uint64_t left_bytes_ = 0;
};

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
    if (!arena || blocks_bytes[*arena] + RoundUp(bytes, kAlignmentBytes) > kArenaBytes) {
      arena = blocks_bytes.size();
      blocks_bytes.push_back(0);
    }
    positions.push_back({*arena, blocks_bytes[*arena]});
    blocks_bytes[*arena] += RoundUp(bytes, kAlignmentBytes);
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
  bool has_torch_tensor = false;
  for (size_t leaf = 0; leaf < contents.leaf_count(); ++leaf) {
    found.tensors.append(nb::none());
    has_torch_tensor |= contents.kind(leaf) == core::NodeKind::kTensor;
  }
  if (!has_torch_tensor) return found;
  nb::module_::import_("cairn._base.dtypes").attr("require_torch")();
  found.leaves = UnsharedTensorLeaves(contents, TorchAccess());
  return found;
}

// Memory for the leaves that are torch tensors without shared memory. The tensors are created after
// the load: they need more memory than what the load needs, and can reuse that.
//
// Small tensors are in arenas in key order, as they are in segments, so that adjacent reads have
// adjacent targets. The storage of each tensor has the size of the tensor.
struct NewTensors {
  NewTensorLeaves leaves;
  std::vector<std::shared_ptr<std::byte>> memory;  // by element of leaves.leaves
};

// Adds the reads into the memory to `requests`. Raises Invalid if torch is missing.
NewTensors RequestNewTensors(const StepContents& contents, Requests& requests) {
  NewTensors made{.leaves = FindNewTensorLeaves(contents), .memory = {}};
  const std::vector<uint32_t>& leaves = made.leaves.leaves;
  std::vector<uint64_t> sizes_bytes;
  sizes_bytes.reserve(leaves.size());
  for (const uint32_t leaf : leaves) sizes_bytes.push_back(contents.tensor(leaf).nbytes);
  made.memory = Allocate(sizes_bytes);
  requests.list.reserve(requests.list.size() + leaves.size());
  for (size_t i = 0; i < leaves.size(); ++i) {
    requests.list.push_back(WholeRequest(contents.tensor(leaves[i]), {}, made.memory[i].get()));
  }
  return made;
}

// Returns the tensors, by leaf, and None for all other leaves, which the Python side creates. Call
// once.
nb::list MakeTensors(NewTensors& self, const StepContents& contents) {
  const CollectionPause pause;
  const TorchAccess torch;
  for (size_t i = 0; i < self.memory.size(); ++i) {
    const core::TensorInfo& info = contents.tensor(self.leaves.leaves[i]);
    self.leaves.tensors[self.leaves.leaves[i]] =
        torch.Wrap(std::move(self.memory[i]), info.dtype, info.shape);
  }
  return self.leaves.tensors;
}

// Returns the leaves that the Python side creates.
nb::list OtherLeaves(const NewTensors& self) {
  std::vector<bool> is_new(self.leaves.tensors.size());
  for (const uint32_t leaf : self.leaves.leaves) is_new[leaf] = true;
  nb::list others;
  for (size_t leaf = 0; leaf < is_new.size(); ++leaf) {
    if (!is_new[leaf]) others.append(leaf);
  }
  return others;
}

// Returns new tensors, by leaf, on `device`, which C++ must be able to access, and None for all
// other leaves. Adds the reads into the tensors to `requests`.
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

// A mapped tensor. The arrays created from it keep it, and so the mapping, alive.
struct Mapped {
  core::MappedTensor tensor;
};

// torch has no read-only tensors; the mapping is private, so that a write stays in this process.
TorchBytes AsTorchBytes(nb::handle_t<Mapped> self) {
  const auto bytes = nb::cast<const Mapped&>(self).tensor.bytes;
  return TorchBytes(const_cast<std::byte*>(bytes.data()), {bytes.size()}, self);
}

NumpyBytes AsNumpyBytes(nb::handle_t<Mapped> self) {
  const auto bytes = nb::cast<const Mapped&>(self).tensor.bytes;
  return NumpyBytes(bytes.data(), {bytes.size()}, self);
}

core::UncheckedMap MapBytes(const StoreBinding& store, const kv::StepInfo& step,
                            const std::vector<std::string>& fqns) {
  return store.Use([&](core::CheckpointStore& opened) { return opened.MapUnchecked(step, fqns); });
}

// Returns a list and a MapCheck. The list has for each TensorInfo of `tensors` a Mapped, or None if
// its bytes cannot be mapped.
nb::tuple MapTensors(const StoreBinding& store, const kv::StepInfo& step, nb::list tensors) {
  std::vector<std::string> fqns;
  for (nb::handle info : tensors) fqns.push_back(nb::cast<const core::TensorInfo&>(info).fqn);
  core::UncheckedMap mapped = MapBytes(store, step, fqns);
  nb::list wrapped;
  for (auto& tensor : mapped.tensors) {
    wrapped.append(tensor ? nb::cast(Mapped{*std::move(tensor)}) : nb::none());
  }
  return nb::make_tuple(wrapped, std::const_pointer_cast<core::MapCheck>(mapped.check));
}

// Returns a list and the MapCheck of its tensors, or None. The list has, by leaf, a mapped tensor
// for each leaf that is a torch tensor without shared memory and can be mapped, and None for all
// other leaves, which the Python side creates.
nb::tuple MapNewTensors(const StoreBinding& store, const StepContents& contents) {
  auto [leaves, tensors] = FindNewTensorLeaves(contents);
  if (leaves.empty()) return nb::make_tuple(tensors, nb::none());
  std::vector<std::string> fqns;
  fqns.reserve(leaves.size());
  for (const uint32_t leaf : leaves) fqns.push_back(contents.fqn(leaf));
  core::UncheckedMap mapped = MapBytes(store, contents.step(), fqns);
  const TorchAccess torch;
  const CollectionPause pause;
  for (size_t i = 0; i < leaves.size(); ++i) {
    if (!mapped.tensors[i]) continue;
    auto& [mapping, bytes] = *mapped.tensors[i];
    const core::TensorInfo& info = contents.tensor(leaves[i]);
    tensors[leaves[i]] = torch.Wrap({std::move(mapping), const_cast<std::byte*>(bytes.data())},
                                    info.dtype, info.shape);
  }
  return nb::make_tuple(tensors, std::const_pointer_cast<core::MapCheck>(mapped.check));
}

// Checks mapped tensors, without the GIL. Raises Corrupt if bytes do not match their digests.
void RunMapCheck(const core::MapCheck& check) {
  SignalWatch watch;
  auto result = OutsideGil([&] { return check.Run(watch.AsProgress()); });
  watch.Rethrow();
  Unwrap(std::move(result));
}

// Returns a new row-major tensor with separate memory; or None if the caller should use
// torch.empty: for small tensors, and for dtypes and versions of torch that TorchAccess cannot
// wrap.
nb::object NewLargeTensor(uint8_t dtype, nb::handle shape) {
  const auto code = static_cast<core::DType>(dtype);
  const std::vector<uint64_t> sizes = FromPyNumbers(shape);
  const auto bytes = core::TensorBytes(code, sizes);
  if (!bytes || *bytes < kOwnMemoryBytes) return nb::none();
  const TorchAccess torch;
  if (!torch.CanWrap(code)) return nb::none();
  return torch.Wrap(Allocate({*bytes}).front(), code, sizes);
}

}  // namespace

void BindNewTensors(nb::module_& m, nb::class_<StoreBinding>& store) {
  nb::class_<core::MapCheck>(m, "MapCheck").def("run", &RunMapCheck);
  nb::class_<Mapped>(m, "Mapped")
      .def("torch_bytes", &AsTorchBytes)
      .def("numpy_bytes", &AsNumpyBytes);
  store.def("map", &MapTensors).def("map_new_tensors", &MapNewTensors);
  nb::class_<NewTensors>(m, "NewTensors")
      .def("others", &OtherLeaves)
      .def("make", &MakeTensors, nb::arg("contents"));
  m.def("request_new_tensors", &RequestNewTensors, nb::arg("contents"), nb::arg("requests"));
  m.def("request_new_device_tensors", &RequestNewDeviceTensors, nb::arg("contents"),
        nb::arg("requests"), nb::arg("device"));
  m.def("new_large_tensor", &NewLargeTensor, nb::arg("dtype"), nb::arg("shape"));
}

}  // namespace cairn::python
