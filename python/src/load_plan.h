#pragma once
/// Loading in place: which leaf of a step goes to which leaf of a state, and what is read for it.

#include <nanobind/nanobind.h>

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/load/load_options.h"
#include "core/step/contents.h"
#include "python/src/placements.h"
#include "python/src/step_contents.h"
#include "python/src/torch_access.h"
#include "python/src/walk.h"

namespace cairn::python {

namespace nb = nanobind;

/// What one load reads. The memory stays the caller's, who keeps it alive.
struct Requests {
  std::vector<core::LoadRequest> list;
  /// Of tensors of which this rank has a part; they refer to `shardings`.
  std::vector<core::ShardTarget> shards;
  std::deque<core::Sharding> shardings;
  /// Tensors in `list` that only the ranks of a mesh read for each other, by FQN.
  std::map<std::string, std::shared_ptr<const core::DeviceMesh>> holders;

  /// A box (offsets None: from the origin) of a tensor into strided memory.
  void Add(nb::str fqn, nb::handle offsets, nb::handle sizes, uint8_t dtype, nb::handle strides,
           nb::handle address, int device);
  /// The devices that are loaded into, ascending; none if all is host memory.
  std::vector<int> Devices() const;
  /// FQNs of `list`.
  nb::list WholeFqns() const;
  void SetHolders(nb::str fqn, const Mesh& mesh);
};

/// A request for all of a tensor. Empty `strides` mean row-major.
core::LoadRequest WholeRequest(const core::TensorInfo& info, std::vector<uint64_t> strides,
                               std::byte* data, int device = core::kHostDevice);

/// A state against the contents of a step.
///
/// Ownership: keeps the state's objects alive; borrows the contents. Threads: any that holds the
/// GIL.
class LoadPlan {
 public:
  /// Leaves of the state that `patterns` (a list of str) do not take are passed over. Raises
  /// Invalid for states that cannot be walked, or of which two leaves have one name.
  LoadPlan(const StepContents& contents, nb::handle state, nb::list patterns);

  /// FQNs that only the state has, and that only the step has; each in its own order.
  nb::tuple Missing() const;
  nb::tuple Unexpected() const;

  /// Requests what goes into row-major torch tensors of the same dtype and shape that core reaches.
  /// Returns (node, leaf) of all other leaves that both sides have, for the Python side to plan or
  /// refuse. Raises Invalid as RequestLeaf.
  nb::list RequestPlain();
  /// Requests a tensor leaf into memory of its dtype and shape. False if that memory is filled from
  /// the same place of the step already: tied tensors. Raises Invalid if from another one.
  bool RequestLeaf(uint32_t leaf, nb::handle strides, nb::handle address, int device);
  /// Requests this rank's part of a tensor leaf into a local tensor; `sharding` as ToSharding takes
  /// it, whose global shape is the leaf's. Raises Invalid as RequestLeaf.
  void RequestShard(uint32_t leaf, nb::handle shape, nb::handle strides, nb::handle address,
                    int device, nb::handle sharding);
  const Requests& requests() const { return requests_; }

  /// (value, key in its parent, index of the parent, node kind); the root's parent is itself.
  nb::tuple ToPyNode(uint32_t node) const;

 private:
  static constexpr uint32_t kNone = UINT32_MAX;

  void Match(uint32_t node);
  uint32_t FindLeaf(const std::string& fqn);
  bool RequestIfPlain(uint32_t node, uint32_t leaf);
  bool Request(uint32_t leaf, core::LoadRequest request);
  void CheckTied(uint32_t leaf, const std::byte* address);
  [[noreturn]] void ThrowTied(uint32_t leaf, uint32_t other) const;

  const StepContents& contents_;
  TorchAccess torch_{TorchAccess::Reach::kDevices};
  Walk walk_;
  std::vector<uint32_t> node_of_leaf_;  // by leaf of the step; kNone for unexpected ones
  std::vector<std::pair<uint32_t, uint32_t>> matches_;            // (node, leaf), in order of nodes
  std::vector<std::string> missing_;                              // in order of nodes
  std::unordered_map<std::string_view, uint32_t> leaves_by_fqn_;  // made when first needed
  Requests requests_;
  std::vector<uint32_t> leaf_of_request_;
  std::unordered_multimap<const std::byte*, uint32_t> request_by_address_;
  std::unordered_map<const std::byte*, uint32_t> leaf_by_local_address_;  // of shards
};

}  // namespace cairn::python
