// Requests, and the loads and updates that execute them.

#include "python/src/loading.h"

#include <nanobind/stl/vector.h>

#include <algorithm>
#include <ranges>
#include <set>
#include <span>
#include <string_view>
#include <utility>

#include "core/inspect/compare.h"
#include "python/src/bindings.h"
#include "python/src/convert.h"
#include "python/src/errors.h"
#include "python/src/placements.h"
#include "python/src/step_contents.h"
#include "python/src/store_binding.h"

namespace cairn::python {
namespace {

// Adds a box of a tensor, which begins at the origin if `offsets` is None. `target`: (dtype code,
// strides in elements, address, device) of the memory that it is read into. Elements of another
// dtype are cast (core::LoadRequest).
void AddRequest(Requests& self, nb::str fqn, nb::handle offsets, nb::handle sizes,
                nb::tuple target) {
  if (target.size() != 4) ThrowInvalid("a target is (dtype, strides, address, device)");
  core::LoadRequest& request = self.list.emplace_back();
  request.fqn = FromPyText(fqn);
  request.box.sizes = FromPyNumbers(sizes);
  request.box.offsets =
      offsets.is_none() ? std::vector<uint64_t>(request.box.sizes.size()) : FromPyNumbers(offsets);
  request.target.dtype = static_cast<core::DType>(nb::cast<uint8_t>(target[0]));
  request.target.shape = request.box.sizes;
  request.target.strides = FromPyNumbers(target[1]);
  request.target.data = FromPyAddress(target[2]);
  request.target.device = nb::cast<int>(target[3]);
  request.cast = true;
}

// Returns (FQN, offsets, sizes, dtype code, strides in elements, address) of each box that the rank
// of the store reads. Requires targets in host memory. Raises Invalid for shards that do not fit.
nb::list TargetsOf(const Requests& self, const StoreBinding& store) {
  const auto opened = store.Share();
  const uint32_t rank = opened ? opened->rank() : 0;
  nb::list targets;
  const auto add = [&](const std::string& fqn, const core::Box& box, core::DType dtype,
                       const std::vector<uint64_t>& strides, const std::byte* data) {
    targets.append(
        nb::make_tuple(ToPyText(fqn), ToPyNumbers(box.offsets), ToPyNumbers(box.sizes),
                       static_cast<uint8_t>(dtype),
                       ToPyNumbers(strides.empty() ? core::RowMajorStrides(box.sizes) : strides),
                       reinterpret_cast<uintptr_t>(data)));
  };
  for (const core::LoadRequest& request : self.list) {
    add(request.fqn, request.box, request.target.dtype, request.target.strides,
        request.target.data);
  }
  for (const core::ShardTarget& shard : self.shards) {
    // A rank that is not on the mesh holds nothing of the tensor.
    if (shard.sharding->mesh != nullptr && !shard.sharding->mesh->CoordinateOf(rank)) continue;
    const core::TensorView local{shard.local.dtype, shard.local.shape, shard.local.strides,
                                 shard.local.data, shard.local.device};
    for (const core::ShardView& part : Unwrap(core::ShardViewsOf(*shard.sharding, local, rank))) {
      add(shard.fqn, part.box, part.view.dtype, part.view.strides, part.view.data);
    }
  }
  return targets;
}

// Returns the devices that are loaded into, in ascending order; empty if all is host memory.
std::vector<int> DevicesOf(const Requests& self) {
  std::set<int> devices;
  for (const core::LoadRequest& request : self.list) devices.insert(request.target.device);
  for (const core::ShardTarget& shard : self.shards) devices.insert(shard.local.device);
  for (const core::Sharding& sharding : self.shardings) {
    for (const core::ShardView& part : sharding.parts) devices.insert(part.view.device);
  }
  devices.erase(core::kHostDevice);
  return {devices.begin(), devices.end()};
}

// Raises Invalid if `storage.resize_` has freed memory of `borrowed`. Called after the load.
void CheckMemory(const Requests& self) {
  const TorchAccess torch;
  for (const BorrowedTensor& one : self.borrowed) {
    if (!torch.HasMoved(one)) continue;
    ThrowInvalid(
        "the storage of a tensor was resized while it was loaded: resize no storage "
        "before the load has ended, and load the state again",
        self.list[one.leaf].fqn);
  }
}

// Loads requests of which some are for parts of tensors. `ranks`: read each byte once and exchange
// them, over NCCL if `by_nccl`; null: this rank reads alone.
Result<core::LoadReport> LoadShards(core::CheckpointStore& store, const kv::StepInfo& step,
                                    const Requests& requests, const Streams& streams,
                                    CommunicatorBinding* ranks, bool by_nccl, SignalWatch& watch) {
  // Requests of a load in place are for complete tensors.
  std::vector<core::ShardTarget> targets = requests.shards;
  std::deque<core::Sharding> replicas;
  for (const core::LoadRequest& request : requests.list) {
    const auto found = requests.holders.find(request.fqn);
    const core::Sharding* sharding = nullptr;
    if (found != requests.holders.end()) {
      sharding = &replicas.emplace_back(core::Sharding{.global_shape = request.target.shape,
                                                       .mesh = found->second,
                                                       .placements = {core::Placement::Replicate()},
                                                       .parts = {}});
    }
    targets.push_back({.fqn = request.fqn, .sharding = sharding, .local = request.target});
  }
  // In the same order on every rank, independent of its shards; first what all ranks have.
  std::ranges::stable_sort(targets, {}, [&](const core::ShardTarget& target) {
    return std::pair(requests.holders.contains(target.fqn), std::string_view(target.fqn));
  });
  core::ShardLoadOptions options{.read_once = ranks != nullptr, .streams = ToStreams(streams)};
  if (ranks == nullptr || ranks->world_size() == 1) {
    options.progress = watch.AsProgress();
    return store.LoadShards(step, targets, options);
  }
  options.progress = watch.AsProgressOfWorker();
  return ranks->UseWatched(watch, [&](core::Communicator&) -> Result<core::LoadReport> {
    CAIRN_TRY_ASSIGN(options.tensor_communicator, ranks->TensorCommunicator(by_nccl));
    return store.LoadShards(step, targets, options);
  });
}

// Executes `requests`. `streams`: of the devices that are loaded into. `contents`, if not null, are
// those of `step`; the records of their tensors are not read again. `read_once`: the ranks read
// each byte once and exchange them (core::ShardLoadOptions), over NCCL if `by_nccl`, which is equal
// on all ranks; only for a multi-rank store.
core::LoadReport Load(const StoreBinding& self, const kv::StepInfo& step, const Requests& requests,
                      const Streams& streams, const StepContents* contents, bool read_once,
                      bool by_nccl) {
  std::span<const core::TensorInfo> known;
  if (contents != nullptr) known = contents->tensors();
  const auto report = self.UseWatched([&](core::CheckpointStore& store, SignalWatch& watch) {
    if (requests.shards.empty() && !read_once) {
      return store.Load(step, requests.list, watch.AsProgress(), ToStreams(streams), known);
    }
    CommunicatorBinding* const ranks = read_once ? self.communicator() : nullptr;
    return LoadShards(store, step, requests, streams, ranks, by_nccl, watch);
  });
  CheckMemory(requests);
  return report;
}

// Updates memory that contains the step `base` to `step` (core::CheckpointStore::Update). Parts of
// tensors are read if their tensors differ, or all of them with `all_shards`.
core::UpdateReport Update(const StoreBinding& self, const kv::StepInfo& base,
                          const kv::StepInfo& step, const Requests& requests,
                          const Streams& streams, bool all_shards) {
  const std::vector<core::DeviceStream> device_streams = ToStreams(streams);
  auto report = self.UseWatched([&](core::CheckpointStore& store,
                                    SignalWatch& watch) -> Result<core::UpdateReport> {
    CAIRN_TRY_ASSIGN(core::UpdateReport report,
                     store.Update(base, step, requests.list, watch.AsProgress(), device_streams));
    if (requests.shards.empty()) return report;
    CAIRN_TRY_ASSIGN(const core::Diff diff, core::CompareSteps(store.kv(), base.step, step.step));
    std::vector<core::ShardTarget> targets;
    for (const core::ShardTarget& shard : requests.shards) {
      const bool differs =
          std::ranges::binary_search(diff.changes, shard.fqn, {}, &core::KeyChange::fqn);
      if (differs) report.changed.push_back(shard.fqn);
      if (differs || all_shards) targets.push_back(shard);
    }
    if (targets.empty()) return report;
    const core::ShardLoadOptions options{.progress = watch.AsProgress(), .streams = device_streams};
    CAIRN_TRY_ASSIGN(const core::LoadReport loaded, store.LoadShards(step, targets, options));
    report.bytes_read += loaded.bytes_read;
    report.seconds += loaded.seconds;
    return report;
  });
  CheckMemory(requests);
  return report;
}

// Returns the Python object, or the Pickle, of each of at least one LongValue of a step, which have
// different FQNs. Raises Corrupt.
nb::list LoadValues(const nb::list& values) {
  std::vector<core::ValueInfo> infos;
  for (const nb::handle value : values) infos.push_back(nb::cast<const LongValue&>(value).info);
  const auto& first = nb::cast<const LongValue&>(values[0]);
  nb::cast<const StoreBinding&>(first.store)
      .UseWatched([&](core::CheckpointStore& store, SignalWatch& watch) {
        return store.LoadValues(first.step, infos, watch.AsProgress());
      });
  nb::list loaded;
  for (core::ValueInfo& info : infos) {
    loaded.append(ToPyValue(info.value));
    info.value = std::monostate();  // so that few are in memory twice
  }
  return loaded;
}

}  // namespace

core::LoadRequest WholeRequest(const core::TensorInfo& info, std::vector<uint64_t> strides,
                               std::byte* data, int device) {
  return core::LoadRequest{.fqn = info.fqn,
                           .box = core::WholeBox(info.shape),
                           .target = {.dtype = info.dtype,
                                      .shape = info.shape,
                                      .strides = std::move(strides),
                                      .data = data,
                                      .device = device}};
}

void BindLoading(nb::module_& m, nb::class_<StoreBinding>& store) {
  nb::class_<Requests>(m, "Requests")
      .def(nb::init<>())
      .def("__len__", [](const Requests& self) { return self.list.size(); })
      .def("add", &AddRequest, nb::arg("fqn"), nb::arg("offsets").none(), nb::arg("sizes"),
           nb::arg("target"))
      .def("devices", &DevicesOf)
      .def("check_memory", &CheckMemory)
      // The torch tensors that are filled, without those of requests that were added.
      .def("tensors",
           [](const Requests& self) {
             nb::list tensors;
             for (const BorrowedTensor& one : self.borrowed) tensors.append(one.tensor);
             return tensors;
           })
      .def("targets", &TargetsOf)
      .def("whole_fqns",
           [](const Requests& self) {
             return ToPyTexts(self.list | std::views::transform(&core::LoadRequest::fqn));
           })
      .def("set_holders", [](Requests& self, nb::str fqn, const Mesh& mesh) {
        self.holders[FromPyText(fqn)] = mesh.mesh;
      });
  store
      .def("load", &Load, nb::arg("step"), nb::arg("requests"), nb::arg("streams"),
           nb::arg("contents").none() = nb::none(), nb::arg("read_once") = false,
           nb::arg("by_nccl") = false)
      .def("update", &Update, nb::arg("base"), nb::arg("step"), nb::arg("requests"),
           nb::arg("streams"), nb::arg("all_shards"));
  m.def("load_values", &LoadValues, nb::arg("values"));
}
}  // namespace cairn::python
