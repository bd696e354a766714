#pragma once
/// Loading in place: matches the leaves of a step with the leaves of a state, and plans the reads.

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

/// The reads of one load. Ownership: keeps the memory of `borrowed` alive; the caller keeps the
/// memory of all other targets alive.
struct Requests {
  std::vector<core::LoadRequest> list;
  std::vector<BorrowedTensor> borrowed;  // the leaf is the place in `list`
  /// Tensors of which this rank has a part. They refer to `shardings`.
  std::vector<core::ShardTarget> shards;
  std::deque<core::Sharding> shardings;
  /// By FQN, the ranks among which one tensor of `list` is read only once.
  std::map<std::string, std::shared_ptr<const core::DeviceMesh>> holders;

  /// Adds a box of a tensor, which begins at the origin if `offsets` is None. `target`: (dtype
  /// code, strides in elements, address, device) of the memory that it is read into. Elements of
  /// another dtype are cast (core::LoadRequest).
  void Add(nb::str fqn, nb::handle offsets, nb::handle sizes, nb::tuple target);
  /// Returns the devices that are loaded into, in ascending order; empty if all is host memory.
  std::vector<int> Devices() const;
  /// Raises Invalid if `storage.resize_` has freed memory of `borrowed`, which is called after the
  /// load.
  void CheckMemory() const;
  /// Returns (FQN, offsets, sizes, dtype code, strides in elements, address) of each box that
  /// `rank` reads. Requires targets in host memory. Raises Invalid for shards that do not fit.
  nb::list Targets(uint32_t rank) const;
  /// Returns the FQNs of `list`.
  nb::list WholeFqns() const;
  /// Sets the entry of `holders` for `fqn`.
  void SetHolders(nb::str fqn, const Mesh& mesh);
};

/// Returns a request for a complete tensor. Empty `strides` mean row-major.
core::LoadRequest WholeRequest(const core::TensorInfo& info, std::vector<uint64_t> strides,
                               std::byte* data, int device = core::kHostDevice);

/// Returns `fqn` without the names that wrappers of modules add to it, wherever they are: torch's
/// compile, DistributedDataParallel, FSDP and activation checkpointing.
std::string WithoutWrappers(std::string_view fqn);

/// The match between a state and the contents of a step.
///
/// Ownership: keeps the objects of the state alive; borrows the contents. Threads: any that holds
/// the GIL.
class LoadPlan {
 public:
  /// Ignores leaves of the state that `patterns` (a list of str) do not match. Leaves of the step
  /// in `skipped` (FQNs) are matched, but neither requested nor unexpected. Raises Invalid for
  /// states that cannot be walked, or in which two leaves have the same FQN.
  ///
  /// `strip_wrappers`: leaves whose FQNs are equal without the names of wrappers match, too. The
  /// patterns select FQNs without these names, and `contents` are complete.
  LoadPlan(const StepContents& contents, nb::handle state, nb::list patterns, nb::list skipped,
           bool strip_wrappers);

  /// Return the FQNs that only the state has, in its order, and the FQNs that only the step has, in
  /// the order of its leaves.
  nb::tuple Missing() const;
  nb::tuple Unexpected() const;
  /// Returns (node, leaf) of the leaves that both have.
  const std::vector<std::pair<uint32_t, uint32_t>>& matches() const { return matches_; }

  /// Requests all leaves that are read into row-major torch tensors of the same dtype and shape in
  /// memory that core can access. Returns (node, leaf) of the other leaves that both sides have,
  /// which the Python side plans or refuses.
  nb::list RequestContiguous();
  /// Requests a tensor leaf into memory of its dtype and shape. Returns false if that memory is
  /// already filled (tied tensors).
  /// `has_base`: see core::LoadRequest.
  bool RequestLeaf(uint32_t leaf, nb::handle strides, nb::handle address, int device,
                   bool has_base);
  /// Requests this rank's part of a tensor leaf into a local tensor. `sharding` has the form that
  /// ToSharding accepts; its global shape equals the leaf's.
  void RequestShard(uint32_t leaf, nb::handle shape, nb::handle strides, nb::handle address,
                    int device, nb::handle sharding);
  const Requests& requests() const { return requests_; }
  /// Returns (FQN, FQN of the request that fills its memory) of the leaves that have no request,
  /// because they are tied to others.
  nb::list Tied() const;
  /// Returns pairs of FQNs that are tied in the state and two tensors in the step, which must be
  /// equal there.
  nb::list Doubles() const;

  /// Returns the tensor subclasses of the state by node. The value of such a node is the dict that
  /// replaces the tensor.
  nb::dict Subclasses() const;

  /// Returns (value, key in its parent, index of the parent, node kind). The parent of the root is
  /// the root itself. Raises IndexError.
  nb::tuple ToPyNode(uint32_t node) const;

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  static constexpr uint32_t kSkipped = kNone - 1;

  void Match(uint32_t node);
  /// Sets leaf_of_node_.
  void MatchEscapedKeys();
  uint32_t FindLeaf(uint32_t node, const std::string& fqn);
  uint32_t FindEqualLeaf(uint32_t node, const std::string& fqn);
  uint32_t FindWrappedLeaf(const std::string& fqn);
  bool RequestIfContiguous(uint32_t node, uint32_t leaf);
  bool Request(uint32_t leaf, core::LoadRequest request);
  void AddTied(uint32_t leaf, uint32_t request);
  void CheckTied(uint32_t leaf, const std::byte* address);
  void AddIfDouble(uint32_t leaf, uint32_t other);

  const StepContents& contents_;
  TorchAccess torch_{TorchAccess::Reach::kDevices};
  Walk walk_;
  std::vector<uint32_t> node_of_leaf_;  // by leaf of the step; kNone: unexpected; kSkipped
  std::vector<std::pair<uint32_t, uint32_t>> matches_;            // (node, leaf), in order of nodes
  std::vector<std::string> missing_;                              // in order of nodes
  std::unordered_map<std::string_view, uint32_t> leaves_by_fqn_;  // filled when first needed
  bool strip_wrappers_;
  // Leaves by FQN without wrappers, filled when first needed.
  std::unordered_multimap<std::string, uint32_t> leaves_without_wrappers_;
  std::vector<uint32_t> leaf_of_node_;  // empty unless the state or the step has escaped keys
  Requests requests_;
  std::vector<uint32_t> leaf_of_request_;
  std::vector<std::pair<uint32_t, uint32_t>> tied_;     // leaf and the request that fills it
  std::vector<std::pair<uint32_t, uint32_t>> doubles_;  // leaves
  std::unordered_multimap<const std::byte*, uint32_t> request_by_address_;
  std::unordered_map<const std::byte*, uint32_t> leaf_by_local_address_;  // for shards
};

}  // namespace cairn::python
