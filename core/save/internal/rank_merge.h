#pragma once
/// Merges what all ranks wrote to one step, and checks that it is consistent. Runs on rank 0.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/save/internal/save_plan.h"
#include "core/state_dict/internal/tree_merge.h"
#include "core/state_dict/state_dict.h"
#include "core/step/contents.h"
#include "core/tensor/tiling.h"
#include "kv/base/key.h"
#include "kv/base/step_info.h"

namespace cairn::core::internal {

/// A step that all ranks have written together.
struct MergedStep {
  std::vector<TensorInfo> tensors;  // key order
  std::vector<NamedRecord> values;  // key order
  StateTree tree;
  uint64_t tensor_count = 0;  // leaves; hidden tensors are not counted
  uint64_t logical_bytes = 0;
};

/// Memory: the records of the distinct states, and 16 bytes per chunk and dimension. Threads: one.
class RankMerge final : public kv::RankRecords {
 public:
  /// Adds rank 0's own state and chunks, in one plan or in several without a common tensor.
  /// Requires that this precedes the records of all other ranks. kInvalidArgument: a common tensor.
  Result<void> AddOwn(const SavePlan& plan);
  /// Adds a shared record of another rank. kDataLoss: the record is damaged. Disagreements between
  /// ranks are reported by Finish, which can name their boxes.
  Result<void> AddShared(uint32_t rank, kv::Column column, std::string_view key,
                         std::span<const std::byte> record) override;
  /// Adds a chunk of another rank. Requires that the record of its tensor was added before.
  /// kDataLoss: it was not, or the chunk cannot be one of this tensor.
  Result<void> AddChunk(const kv::RankChunk& chunk) override;
  /// Returns the merged step. Call once. If ranks have different values under one key, the lowest
  /// rank's value is taken. kInvalidArgument: ranks disagree about the dtype or shape of a tensor
  /// or about what a leaf is, or an element was written by no rank or by several; names key, ranks
  /// and boxes.
  Result<MergedStep> Finish();

 private:
  struct Tensor {
    explicit Tensor(TensorInfo info_in) : info(std::move(info_in)), boxes(info.shape.size()) {}
    TensorInfo info;
    uint32_t rank = 0;                   // the first that has the tensor
    BoxList boxes;                       // boxes of the chunks
    std::vector<uint32_t> box_ranks;     // the rank of each box
    std::optional<uint32_t> alias_rank;  // the first on which it shares memory
  };
  /// A tensor that `rank` holds differently from the ranks before it.
  struct Disagreement {
    size_t tensor = 0;
    uint32_t rank = 0;
    TensorInfo info;
    std::optional<Box> box;  // the first of `rank`
  };

  void AddTensor(uint32_t rank, TensorInfo info);
  Result<void> AddTree(const StateTree& tree);
  Result<void> CheckNames() const;
  /// Sets last_ to the tensor, and returns whether there is one.
  bool FindTensor(std::string_view fqn);
  Error Describe(const Disagreement& disagreement) const;
  Result<void> CheckTensor(const Tensor& tensor) const;
  Result<void> CheckLeaves(const StateTree& tree) const;
  std::string NameBox(const Tensor& tensor, size_t i) const;

  std::vector<Tensor> tensors_;  // in the order in which they were added
  std::unordered_map<std::string, size_t> by_fqn_;
  size_t last_ = 0;                           // the tensor of the last chunk
  std::optional<Disagreement> disagreement_;  // the first
  std::optional<Error> tree_error_;
  std::unordered_map<std::string, std::vector<std::byte>> values_;
  TreeMerge tree_;
};

}  // namespace cairn::core::internal
