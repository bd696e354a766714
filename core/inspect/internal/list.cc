#include "core/inspect/internal/list.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "core/state_dict/key_name.h"
#include "kv/base/key.h"

namespace cairn::core::internal {
namespace {

// Tensors for which memory is reserved if a step states that it has as many, which may be damaged.
constexpr uint64_t kMaxReserved = 1 << 16;

// Calls `visit(fqn, record)` for the tensors that the patterns select, in key order.
Result<void> ScanTensors(
    const StepView& view, const KeyPatterns& patterns,
    const std::function<Result<void>(std::string_view, std::span<const std::byte>)>& visit) {
  for (const std::string& prefix : patterns.ScanPrefixes()) {
    CAIRN_TRY(view.snapshot->Scan(
        kv::Column::kTensors, view.step, prefix,
        [&](std::string_view key, std::span<const std::byte> record) -> Result<bool> {
          CAIRN_TRY_ASSIGN(const kv::ParsedKey parsed, kv::ParseKey(key));
          if (patterns.Matches(parsed.fqn)) CAIRN_TRY(visit(parsed.fqn, record));
          return true;
        }));
  }
  return {};
}

// Returns the tree with only the leaves that the patterns select.
StateTree Prune(const StateTree& tree, const std::vector<Leaf>& leaves,
                const KeyPatterns& patterns) {
  std::vector<bool> keep(leaves.size());
  for (size_t i = 0; i < leaves.size(); ++i) keep[i] = patterns.Matches(leaves[i].fqn);
  return PruneTree(tree, keep);
}

// Adds the step's tree with only the leaves that the patterns select.
Result<void> SelectTree(const StepView& view, const KeyPatterns& patterns, Contents& contents) {
  CAIRN_TRY_ASSIGN(const std::vector<std::byte> record, FindStructure(view));
  CAIRN_TRY_ASSIGN(contents.tree, DecodeTree(record));
  if (patterns.matches_everything()) return {};
  CAIRN_TRY_ASSIGN(const std::vector<Leaf> leaves, FlattenTree(contents.tree));
  contents.may_lack_equal_texts = HasForms(contents.tree);
  contents.tree = Prune(contents.tree, leaves, patterns);
  return {};
}

// Returns the owners of `aliases`, in key order, and checks that all aliases are inside of them:
// callers make views of them.
Result<std::vector<TensorInfo>> FindCheckedOwners(const StepView& view,
                                                  std::span<const TensorInfo> aliases) {
  CAIRN_TRY_ASSIGN(std::vector<TensorInfo> owners, FindOwners(view, aliases));
  for (const TensorInfo& alias : aliases) {
    CAIRN_TRY(CheckAlias(alias, ByName(owners, *alias.alias_of)));
  }
  return owners;
}

// Adds the hidden tensors that own the bytes of selected ones, and checks all aliases. Requires
// `tensors` in key order.
Result<void> AddHiddenOwners(const StepView& view, std::vector<TensorInfo>& tensors) {
  std::vector<TensorInfo> selected;  // aliases whose owner is not in `tensors`
  for (const TensorInfo& tensor : tensors) {
    if (!tensor.alias_of) continue;
    const TensorInfo* const owner = FindByName(tensors, *tensor.alias_of);
    if (owner == nullptr) {
      selected.push_back(tensor);
    } else {
      CAIRN_TRY(CheckAlias(tensor, *owner));
    }
  }
  if (selected.empty()) return {};
  CAIRN_TRY_ASSIGN(std::vector<TensorInfo> owners, FindCheckedOwners(view, selected));
  for (TensorInfo& owner : owners) {
    if (owner.hidden) tensors.push_back(std::move(owner));
  }
  std::ranges::sort(tensors, {}, &TensorInfo::fqn);
  return {};
}

// Hidden tensors are selected by their aliases or by the values whose bytes they have.
Result<void> AddTensor(Contents& contents, std::vector<TensorInfo>& hidden, std::string_view fqn,
                       std::span<const std::byte> record) {
  CAIRN_TRY_ASSIGN(TensorInfo info, DecodeTensor(fqn, record));
  (info.hidden ? hidden : contents.tensors).push_back(std::move(info));
  return {};
}

Result<void> AddValue(Contents& contents, std::string_view fqn, std::span<const std::byte> record) {
  auto value = DecodeValue(record);
  if (!value) return Fail(std::move(value).error().WithKey(fqn));
  contents.values.push_back({std::string(fqn), *std::move(value)});
  return {};
}

// Adds the values that the patterns select, in key order. The structure, which can be large, is the
// next record after the last value, so the scan must not reach it.
Result<void> AddValues(const StepView& view, const KeyPatterns& patterns, Contents& contents) {
  uint64_t left = view.step.value_count;
  for (const std::string& prefix : patterns.ScanPrefixes()) {
    if (left == 0) break;
    CAIRN_TRY(view.snapshot->Scan(
        kv::Column::kValues, view.step, prefix,
        [&](std::string_view key, std::span<const std::byte> record) -> Result<bool> {
          CAIRN_TRY_ASSIGN(const kv::ParsedKey parsed, kv::ParseKey(key));
          if (patterns.Matches(parsed.fqn)) CAIRN_TRY(AddValue(contents, parsed.fqn, record));
          return --left > 0;
        }));
  }
  return {};
}

// Adds those of `hidden` that have the bytes of selected values, and checks them. Both are in key
// order.
Result<void> AddBytesOfValues(const StepView& view, std::span<const TensorInfo> hidden,
                              Contents& contents) {
  const size_t count_before = contents.tensors.size();
  for (const ValueInfo& info : contents.values) {
    if (!std::holds_alternative<ChunkedValue>(info.value)) continue;
    const TensorInfo* const found = FindByName(hidden, info.fqn);
    CAIRN_TRY(CheckBytes(view, info, found));
    contents.tensors.push_back(*found);
  }
  if (contents.tensors.size() > count_before) {
    std::ranges::sort(contents.tensors, {}, &TensorInfo::fqn);
  }
  return {};
}

// Lists the keys that patterns without wildcards select, without decoding all others.
Result<Contents> ListLiterals(const StepView& view, const KeyPatterns& patterns,
                              const LiteralKeys& literals, TreeCache& trees) {
  CAIRN_TRY_ASSIGN(const auto stored, trees.Find(view));
  StateTree tree = stored->Select(literals);
  CAIRN_TRY_ASSIGN(std::vector<Leaf> leaves, FlattenTree(tree));
  const auto is_selected = [&](const Leaf& leaf) { return patterns.Matches(leaf.fqn); };
  if (!std::ranges::all_of(leaves, is_selected)) {
    tree = Prune(tree, leaves, patterns);
    CAIRN_TRY_ASSIGN(leaves, FlattenTree(tree));
  }
  // Scans are faster if there are many leaves below each literal. They take four seeks per literal.
  const bool are_exact = leaves.size() <= 4 * literals.size();
  std::vector<std::string> fqns;
  for (Leaf& leaf : leaves) fqns.push_back(std::move(leaf.fqn));
  std::ranges::sort(fqns);
  auto contents = are_exact ? FindLeaves(view, {}, fqns) : ListLeaves(view, patterns);
  if (contents) {
    contents->tree = std::move(tree);
    contents->may_lack_equal_texts = stored->has_forms();
  }
  return contents;
}

}  // namespace

Result<std::optional<std::vector<std::byte>>> FindExtension(const StepView& view,
                                                            std::string_view name) {
  CAIRN_TRY_ASSIGN(const std::vector<std::byte> record, FindStructure(view));
  return DecodeExtension(record, name);
}

Result<Contents> ListLeaves(const StepView& view, const KeyPatterns& patterns) {
  Contents contents{.step = view.step};
  if (patterns.matches_everything()) {
    contents.tensors.reserve(std::min(view.step.tensor_count, kMaxReserved));
  }
  std::vector<TensorInfo> hidden;
  CAIRN_TRY(ScanTensors(view, patterns,
                        std::bind_front(AddTensor, std::ref(contents), std::ref(hidden))));
  CAIRN_TRY(AddHiddenOwners(view, contents.tensors));
  CAIRN_TRY(AddValues(view, patterns, contents));
  CAIRN_TRY(AddBytesOfValues(view, hidden, contents));
  return contents;
}

Result<void> RunForEachKey(const StepView& view, const KeyPatterns& patterns,
                           const TensorVisitor& on_tensor, const ValueVisitor& on_value) {
  Contents contents{.step = view.step};
  CAIRN_TRY(AddValues(view, patterns, contents));
  auto value = contents.values.begin();
  std::vector<TensorInfo> aliases;
  CAIRN_TRY(ScanTensors(
      view, patterns, [&](std::string_view fqn, std::span<const std::byte> record) -> Result<void> {
        CAIRN_TRY_ASSIGN(TensorInfo tensor, DecodeTensor(fqn, record));
        for (; value != contents.values.end() && value->fqn < fqn; ++value) {
          CAIRN_TRY(on_value(*value));
        }
        if (tensor.hidden) return {};
        CAIRN_TRY(on_tensor(tensor));
        if (tensor.alias_of) aliases.push_back(std::move(tensor));
        return {};
      }));
  for (; value != contents.values.end(); ++value) CAIRN_TRY(on_value(*value));
  CAIRN_TRY_ASSIGN(const std::vector<TensorInfo> owners, FindCheckedOwners(view, aliases));
  for (const TensorInfo& owner : owners) {
    if (owner.hidden) CAIRN_TRY(on_tensor(owner));
  }
  return {};
}

Result<Contents> FindLeaves(const StepView& view, const KeyPatterns& patterns,
                            std::span<const std::string> fqns) {
  Contents contents{.step = view.step};
  std::vector<TensorInfo> hidden;
  for (const std::string& fqn : fqns) {
    if (!patterns.Matches(fqn)) continue;
    const std::string key = kv::FqnKey(fqn);
    CAIRN_TRY_ASSIGN(const auto tensor, view.snapshot->Get(kv::Column::kTensors, view.step, key));
    if (tensor) {
      const size_t hidden_count = hidden.size();
      CAIRN_TRY(AddTensor(contents, hidden, fqn, *tensor));
      // Not a value, unless it is hidden. If a step has no values, looking for one decompresses the
      // structure, which is the next record and can be large.
      if (hidden.size() == hidden_count) continue;
    }
    CAIRN_TRY_ASSIGN(const auto value, view.snapshot->Get(kv::Column::kValues, view.step, key));
    if (value) CAIRN_TRY(AddValue(contents, fqn, *value));
  }
  CAIRN_TRY(AddHiddenOwners(view, contents.tensors));
  CAIRN_TRY(AddBytesOfValues(view, hidden, contents));
  return contents;
}

Result<Contents> RunList(const StepView& view, const KeyPatterns& patterns, TreeCache& trees) {
  if (const LiteralKeys* const literals = patterns.literal_includes()) {
    return ListLiterals(view, patterns, *literals, trees);
  }
  CAIRN_TRY_ASSIGN(Contents contents, ListLeaves(view, patterns));
  CAIRN_TRY(SelectTree(view, patterns, contents));
  return contents;
}

}  // namespace cairn::core::internal
