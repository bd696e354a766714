#pragma once
/// Rank 0's part of a save by several ranks: what they wrote, put together and checked.

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
#include "kv/key.h"

namespace cairn::core::internal {

/// A step as all ranks together hold it.
struct MergedStep {
  std::vector<TensorInfo> tensors;                                     // key order
  std::vector<std::pair<std::string, std::vector<std::byte>>> values;  // key order; records
  StateTree tree;
  uint64_t tensor_count = 0;  // leaves
  uint64_t logical_bytes = 0;
};

/// Memory: the records of the distinct states, and 16 bytes a chunk and dimension. Threads: one.
class RankMerge {
 public:
  /// Rank 0's own state and chunks, or a portion of it with tensors of its own; before all others.
  Result<void> AddOwn(const SavePlan& plan);
  /// A record of another rank; a tensor before its chunks. kDataLoss: it is damaged. What ranks
  /// disagree about is left to Finish, so that it can name their boxes.
  Result<void> Add(uint32_t rank, kv::Column column, std::string_view key,
                   std::span<const std::byte> record);
  /// kInvalidArgument, naming key, ranks and boxes: ranks disagree about a tensor's dtype or shape,
  /// or about what the leaf is; an element that no rank wrote, or more than one. Of a plain value
  /// that ranks have differently, the lowest rank's is taken.
  Result<MergedStep> Finish();

 private:
  struct Tensor {
    explicit Tensor(TensorInfo info_in) : info(std::move(info_in)), boxes(info.shape.size()) {}
    TensorInfo info;
    uint32_t rank = 0;  // that told it first
    BoxList boxes;      // of chunks
    std::vector<uint32_t> box_ranks;
    std::optional<uint32_t> alias_rank;  // that said it shares memory
  };
  struct Disagreement {
    size_t tensor = 0;
    uint32_t rank = 0;
    TensorInfo info;
    std::optional<Box> box;  // of `rank`
  };

  void AddTensor(uint32_t rank, TensorInfo info);
  Result<void> AddTree(const StateTree& tree);
  Result<void> AddChunk(uint32_t rank, std::string_view key, std::span<const std::byte> record);
  Error Describe(const Disagreement& disagreement) const;
  Result<void> CheckTensor(const Tensor& tensor) const;
  Result<void> CheckLeaves(const StateTree& tree) const;
  std::string NameBox(const Tensor& tensor, size_t i) const;

  std::vector<Tensor> tensors_;  // in the order of arrival
  std::unordered_map<std::string, size_t> by_fqn_;
  size_t last_ = 0;                           // the tensor of the last chunk
  std::optional<Disagreement> disagreement_;  // the first
  std::optional<Error> tree_error_;
  std::unordered_map<std::string, std::vector<std::byte>> values_;
  TreeMerge tree_;
};

}  // namespace cairn::core::internal
