// Digests of what ranks should hold in equal form, and of the layout of what they hold.

#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/device/device.h"
#include "core/tensor/strided_copy.h"
#include "kv/base/digest.h"
#include "python/src/bindings.h"
#include "python/src/convert.h"
#include "python/src/errors.h"
#include "python/src/flatten.h"
#include "python/src/gil.h"
#include "schema/dtype.h"

namespace cairn::python {
namespace {

constexpr uint64_t kMaxRuns = 64;
constexpr uint64_t kRunElements = 16;
constexpr uint64_t kElementsPerRun = 8192;
constexpr uint64_t kTurns = 8;             // steps in which each smaller tensor is compared once
constexpr uint64_t kAlwaysComplete = 64;   // elements
constexpr uint64_t kMaxElementBytes = 16;  // complex128

/// Runs of elements of a tensor, in row-major order.
struct Runs {
  uint64_t first = 0;
  uint64_t distance = 0;  // between the first elements of two runs
  uint64_t run_count = 1;
  uint64_t run_elements = 0;

  uint64_t element_count() const { return run_count * run_elements; }
};

Runs SampledRuns(uint64_t element_count, uint64_t shift, bool complete) {
  if (element_count <= (complete ? kMaxRuns * kRunElements : kAlwaysComplete)) {
    return {.run_elements = element_count};
  }
  const uint64_t wanted = complete ? kMaxRuns : element_count / kElementsPerRun;
  Runs runs{.run_count = std::clamp<uint64_t>(wanted, 1, kMaxRuns), .run_elements = kRunElements};
  runs.distance = element_count / runs.run_count;
  runs.first = shift * kRunElements % (runs.distance - kRunElements + 1);
  return runs;
}

/// Calls `copy(begin_bytes, target)` for each run; `target` is the next part of `memory`.
template <typename Copy>
Result<void> ForEachRun(const Runs& runs, uint64_t element_bytes, std::span<std::byte> memory,
                        const Copy& copy) {
  const uint64_t run_bytes = runs.run_elements * element_bytes;
  for (uint64_t i = 0; i < runs.run_count; ++i) {
    CAIRN_TRY(copy((runs.first + i * runs.distance) * element_bytes,
                   memory.subspan(i * run_bytes, run_bytes)));
  }
  return {};
}

/// Returns the digest of these elements of a tensor in host memory.
uint64_t DigestOf(const core::TensorView& tensor, const Runs& runs) {
  const uint64_t element_bytes = schema::ElementBytes(tensor.dtype);
  // The common case of states with many tensors: a copy of each costs a third more.
  if (runs.run_count == 1 && tensor.strides.empty()) {
    return kv::Checksum64(
        {tensor.data + runs.first * element_bytes, runs.run_elements * element_bytes});
  }
  std::array<std::byte, kMaxRuns * kRunElements * kMaxElementBytes> memory;
  const auto sample = std::span(memory).first(runs.element_count() * element_bytes);
  (void)ForEachRun(runs, element_bytes, sample,
                   [&](uint64_t begin_bytes, std::span<std::byte> target) -> Result<void> {
                     core::GatherBytes(tensor, begin_bytes, target);
                     return {};
                   });
  return kv::Checksum64(sample);
}

/// A tensor in device memory that is compared.
struct DeviceSample {
  size_t leaf = 0;
  const core::TensorView* tensor = nullptr;
  Runs runs;
  uint64_t offset_bytes = 0;  // in the memory of all samples

  uint64_t length_bytes() const {
    return runs.element_count() * schema::ElementBytes(tensor->dtype);
  }
};

/// Opens the queue of a device, after the work of `streams`.
Result<std::shared_ptr<core::DeviceQueue>> OpenQueue(int device,
                                                     std::span<const core::DeviceStream> streams) {
  CAIRN_TRY_ASSIGN(core::DeviceBackend* const backend, core::FindDeviceBackend());
  CAIRN_TRY_ASSIGN(auto queue, backend->OpenQueue(device));
  for (const core::DeviceStream& stream : streams) {
    if (stream.device == device) CAIRN_TRY(queue->WaitForStream(stream.stream));
  }
  return queue;
}

/// Copies all samples to host memory, packed on the devices and with one wait for each.
Result<core::HostMemory> ReadSamples(std::span<const DeviceSample> samples,
                                     std::span<const core::DeviceStream> streams) {
  const uint64_t total_bytes = samples.back().offset_bytes + samples.back().length_bytes();
  CAIRN_TRY_ASSIGN(core::HostMemory memory,
                   core::HostMemory::Allocate(total_bytes, {.pinned = true}));
  std::map<int, std::shared_ptr<core::DeviceQueue>> queues;  // destroyed before the memory
  for (const DeviceSample& sample : samples) {
    auto& queue = queues[sample.tensor->device];
    if (queue == nullptr) {
      CAIRN_TRY_ASSIGN(queue, OpenQueue(sample.tensor->device, streams));
    }
    CAIRN_TRY(ForEachRun(sample.runs, schema::ElementBytes(sample.tensor->dtype),
                         memory.bytes().subspan(sample.offset_bytes, sample.length_bytes()),
                         [&](uint64_t begin_bytes, std::span<std::byte> target) {
                           return queue->CopyOut(*sample.tensor, begin_bytes, target);
                         }));
  }
  for (const auto& [device, queue] : queues) {
    CAIRN_TRY_ASSIGN(const auto fence, queue->Flush());
    CAIRN_TRY(fence->Await());
  }
  return memory;
}

/// Returns the digest of the FQN of each leaf.
std::vector<uint64_t> NameDigests(const core::StateTree& tree) {
  struct Container {
    size_t fqn_bytes = 0;
    uint32_t left_count = 0;
  };
  std::vector<Container> path;
  std::vector<uint64_t> digests;
  digests.reserve(tree.nodes.size());
  std::string fqn;
  for (const core::Node& node : tree.nodes) {
    while (!path.empty() && path.back().left_count == 0) path.pop_back();
    if (!path.empty()) {
      --path.back().left_count;
      fqn.resize(path.back().fqn_bytes);
      if (path.size() > 1) fqn += '.';
      core::AppendName(node, fqn);
    }
    if (core::IsContainer(node.kind)) {
      path.push_back({.fqn_bytes = fqn.size(), .left_count = node.child_count});
    } else {
      digests.push_back(kv::Checksum64(std::as_bytes(std::span(fqn))));
    }
  }
  return digests;
}

/// Returns a sample, which is never 0, of a leaf with this name and contents (the finalizer of
/// SplitMix64; Steele, Lea and Flood: Fast splittable pseudorandom number generators, 2014).
uint64_t SampleOf(uint64_t name, uint64_t digest) {
  uint64_t mixed = name ^ std::rotl(digest, 32);
  mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9;
  mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111eb;
  return std::max<uint64_t>(1, mixed ^ (mixed >> 31));
}

// Returns a digest of what the layout of a batch returns, in hexadecimal digits.
std::string LayoutDigest(Batch& batch) {
  const core::StateDict& state = batch.state;
  const std::vector<uint64_t>& names = batch.names = NameDigests(state.tree);
  std::vector<uint64_t> words;
  words.reserve(8 * names.size());
  std::vector<const core::DeviceMesh*> meshes;  // in the order of their first use
  size_t leaf = 0;
  for (const core::Node& node : state.tree.nodes) {
    if (core::IsContainer(node.kind)) continue;
    words.push_back(names[leaf]);
    words.push_back(core::IsTensor(node.kind));
    const uint32_t slot = state.slot[leaf++];
    if (!core::IsTensor(node.kind)) continue;
    const auto found = state.shardings.empty() ? state.shardings.end() : state.shardings.find(slot);
    const bool is_sharded = found != state.shardings.end();
    const core::Shape& shape = is_sharded ? found->second.global_shape : state.tensors[slot].shape;
    words.push_back(shape.size());
    words.insert(words.end(), shape.begin(), shape.end());
    if (!is_sharded) continue;
    const core::Sharding& sharding = found->second;
    words.push_back(sharding.placements.size());
    for (const core::Placement& placement : sharding.placements) {
      words.push_back(static_cast<uint64_t>(placement.kind));
      words.push_back(uint64_t{placement.dim} << 32 | placement.split_factor);
    }
    const auto known = std::ranges::find(meshes, sharding.mesh.get());
    words.push_back(static_cast<uint64_t>(known - meshes.begin()));
    if (known == meshes.end()) meshes.push_back(sharding.mesh.get());
  }
  for (const core::DeviceMesh* mesh : meshes) {
    if (mesh == nullptr) continue;
    words.push_back(mesh->dims().size());
    for (const core::DeviceMesh::Dim& dim : mesh->dims()) words.push_back(dim.size);
    words.insert(words.end(), mesh->ranks().begin(), mesh->ranks().end());
  }
  return kv::Checksum128(std::as_bytes(std::span(words))).ToHex();
}

// Sets the samples of a batch, of values and of tensors if they are wanted. Up to 64 elements are
// digested completely, otherwise runs of 16 elements, in row-major order: one per 8,192 elements,
// at least one and at most 64, which `shift` moves. Of tensors of less than 8,192 elements, `shift`
// selects an eighth. If `complete`, up to 1,024 elements are digested completely, and 64 runs of
// all others. Device memory is read after the work of `streams`.
void TakeSamples(Batch& batch, uint64_t shift, bool complete, bool values, bool tensors,
                 const Streams& streams) {
  const core::StateDict& state = batch.state;
  std::vector<uint64_t>& names = batch.names;
  std::vector<uint64_t>& samples = batch.samples;
  if (names.size() != state.slot.size()) names = NameDigests(state.tree);
  samples.assign(names.size(), 0);
  std::vector<DeviceSample> on_devices;
  uint64_t device_bytes = 0;
  size_t leaf = 0;
  for (const core::Node& node : state.tree.nodes) {
    if (core::IsContainer(node.kind)) continue;
    const size_t i = leaf++;
    const uint32_t slot = state.slot[i];
    if (!core::IsTensor(node.kind)) {
      if (!values) continue;
      const core::Value& value = state.values[slot];
      samples[i] = SampleOf(names[i], core::IsLong(value)
                                          ? kv::Checksum64(core::BytesOf(value))
                                          : kv::Checksum64(Unwrap(core::EncodeValue(value))));
    } else if (tensors && (state.shardings.empty() || !state.shardings.contains(slot))) {
      const core::TensorView& tensor = state.tensors[slot];
      const uint64_t count = core::ElementCount(tensor.shape).value_or(0);
      if (!complete && count > kAlwaysComplete && count < kElementsPerRun &&
          (names[i] + shift) % kTurns != 0) {
        continue;
      }
      const Runs runs = SampledRuns(count, shift, complete);
      if (tensor.device == core::kHostDevice || runs.element_count() == 0) {
        samples[i] = SampleOf(names[i], DigestOf(tensor, runs));
        continue;
      }
      on_devices.push_back(
          {.leaf = i, .tensor = &tensor, .runs = runs, .offset_bytes = device_bytes});
      device_bytes += (on_devices.back().length_bytes() + 63) / 64 * 64;
    }
  }
  if (on_devices.empty()) return;
  const core::HostMemory memory =
      Unwrap(OutsideGil([&] { return ReadSamples(on_devices, ToStreams(streams)); }));
  for (const DeviceSample& sample : on_devices) {
    const auto bytes = memory.bytes().subspan(sample.offset_bytes, sample.length_bytes());
    samples[sample.leaf] = SampleOf(names[sample.leaf], kv::Checksum64(bytes));
  }
}

// Returns, for each group of leaves, the sum of the samples of its values and that of its tensors.
// `groups` has the number of the group of each leaf in 32 bits; leaves with a higher number than
// `group_count` are ignored. Empty: all leaves are in group 0.
nb::list SampleSums(const Batch& batch, nb::bytes groups, size_t group_count) {
  std::vector<uint32_t> group_of(batch.samples.size(), 0);
  if (groups.size() != 0) {
    if (groups.size() != group_of.size() * sizeof(uint32_t)) {
      ThrowInvalid("the number of groups differs from that of the leaves");
    }
    std::memcpy(group_of.data(), groups.c_str(), groups.size());
  }
  std::vector<std::array<uint64_t, 2>> sums(group_count);
  size_t leaf = 0;
  for (const core::Node& node : batch.state.tree.nodes) {
    if (core::IsContainer(node.kind)) continue;
    const size_t i = leaf++;
    if (group_of[i] < group_count) sums[group_of[i]][core::IsTensor(node.kind)] += batch.samples[i];
  }
  nb::list result;
  for (const auto& [of_values, of_tensors] : sums) {
    result.append(nb::make_tuple(of_values, of_tensors));
  }
  return result;
}

// Returns, in tree order, (FQN, whether it is a tensor, whether it is always digested completely,
// sample).
nb::list Samples(const Batch& batch) {
  const core::StateDict& state = batch.state;
  nb::list list;
  size_t leaf = 0;
  ForEachLeaf(state, [&](const std::string& fqn, bool is_tensor, uint32_t slot) {
    const bool is_complete =
        !is_tensor || core::ElementCount(state.tensors[slot].shape).value_or(0) <= kAlwaysComplete;
    list.append(nb::make_tuple(ToPyText(fqn), is_tensor, is_complete, batch.samples[leaf++]));
  });
  return list;
}

}  // namespace

void BindRankSamples(nb::class_<Batch>& batch) {
  batch.def("layout_digest", &LayoutDigest)
      .def("take_samples", &TakeSamples, nb::arg("shift"), nb::arg("complete"), nb::arg("values"),
           nb::arg("tensors"), nb::arg("streams"))
      .def("sample_sums", &SampleSums, nb::arg("groups"), nb::arg("group_count"))
      .def("samples", &Samples);
}

}  // namespace cairn::python
