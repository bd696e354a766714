// An edit, step by step:
//
// 1. The tree of the source is changed (edited_tree.h), which yields for each leaf of the new step
//    the step and the key that it is from.
// 2. For each source, the tensors that hold the bytes of these leaves are determined. If a leaf is
//    an alias and its owner is not in the new step, an alias with the owner's dtype and shape that
//    covers it becomes the owner; if there is none, the owner remains as a hidden tensor. Hidden
//    tensors with the bytes of long values remain.
// 3. Chunk records are added under the new keys, with their extents and deltas, then the records of
//    tensors, values and structure. The commit fails if a source was deleted or replaced.

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/base/internal/progress_meter.h"
#include "core/inspect/internal/list.h"
#include "core/rewrite/internal/edited_tree.h"
#include "core/rewrite/internal/rewrite.h"
#include "core/state_dict/state_dict.h"
#include "core/state_dict/value.h"
#include "core/step/application_records.h"
#include "core/step/internal/lookup.h"
#include "core/step/internal/tensor_records.h"
#include "kv/base/key.h"
#include "kv/base/options.h"
#include "kv/base/step_info.h"

namespace cairn::core::internal {
namespace {

// One step whose records are used, and the new names of its leaves.
struct Source {
  StepView view;
  Contents contents;
  std::map<std::string, std::string> new_names;
};

Result<Source> ReadSource(const kv::Store& store, const std::shared_ptr<const kv::Snapshot>& at,
                          uint64_t step) {
  CAIRN_TRY_ASSIGN(const kv::StepInfo info, at->FindStep(step));
  Source source{.view = {.snapshot = at, .step = info, .directory = store.directory()}};
  TreeCache trees;
  CAIRN_TRY_ASSIGN(source.contents, RunList(source.view, {}, trees));
  return source;
}

// Adds the records of the leaves of one source.
class RecordMover {
 public:
  RecordMover(const Source& source, kv::StepWriter& writer, std::set<std::string>& names,
              kv::StepSummary& summary, ProgressMeter& progress)
      : source_(source), writer_(writer), names_(names), summary_(summary), progress_(progress) {}

  Result<void> Run() {
    CAIRN_TRY(NameOwners());
    CAIRN_TRY(MoveChunks());
    CAIRN_TRY(MoveTensors());
    return MoveValues();
  }

 private:
  struct Owner {
    std::string new_fqn;
    bool hidden = false;
    const TensorInfo* promoted = nullptr;  // the alias that becomes the owner
  };

  const std::string* NewName(const std::string& fqn) const {
    const auto found = source_.new_names.find(fqn);
    return found == source_.new_names.end() ? nullptr : &found->second;
  }

  Result<void> NameOwners() {
    std::map<std::string, std::vector<const TensorInfo*>> orphans;  // by owner
    for (const TensorInfo& tensor : source_.contents.tensors) {
      const std::string* const name = tensor.hidden ? nullptr : NewName(tensor.fqn);
      if (name == nullptr) continue;
      if (!tensor.alias_of) {
        owners_[tensor.fqn] = {.new_fqn = *name};
      } else if (NewName(*tensor.alias_of) == nullptr) {
        orphans[*tensor.alias_of].push_back(&tensor);
      }
    }
    for (const ValueInfo& value : source_.contents.values) {
      const std::string* const name = NewName(value.fqn);
      if (name == nullptr || !std::holds_alternative<ChunkedValue>(value.value)) continue;
      owners_[value.fqn] = {.new_fqn = *name, .hidden = true};
    }
    for (auto& [fqn, aliases] : orphans) {
      const TensorInfo* const owner = FindByName(source_.contents.tensors, fqn);
      if (owner == nullptr) {
        return Fail(
            Error{.code = ErrorCode::kDataLoss,
                  .message = "the step has no tensor of this name, whose bytes others share",
                  .key = fqn,
                  .step = source_.view.step.step});
      }
      owners_[fqn] = ReplaceOwner(*owner, aliases);
    }
    return {};
  }

  Owner ReplaceOwner(const TensorInfo& owner, std::vector<const TensorInfo*>& aliases) {
    std::ranges::sort(aliases, {}, [&](const TensorInfo* alias) { return *NewName(alias->fqn); });
    for (const TensorInfo* alias : aliases) {
      if (IsWholeOwner(*alias, owner)) {
        return {.new_fqn = *NewName(alias->fqn), .hidden = false, .promoted = alias};
      }
    }
    std::string name = *NewName(aliases.front()->fqn) + ".__storage__";
    while (!names_.insert(name).second) name += "_";
    return {.new_fqn = name, .hidden = true};
  }

  Result<void> MoveChunks() {
    std::vector<TensorInfo> tensors;  // in key order, as in Contents
    for (const TensorInfo& tensor : source_.contents.tensors) {
      if (owners_.contains(tensor.fqn)) tensors.push_back(tensor);
    }
    return ForEachChunkOf(source_.view, tensors, [&](size_t i, ChunkInfo chunk) -> Result<void> {
      CAIRN_TRY(progress_.Add(1));
      const std::string key = kv::ChunkKey(owners_.at(tensors[i].fqn).new_fqn, chunk.box.offsets);
      return writer_.AddChunk(key, chunk.entry(), /*reused=*/true);
    });
  }

  Result<void> MoveTensors() {
    for (const TensorInfo& tensor : source_.contents.tensors) {
      CAIRN_TRY(progress_.Add(1));
      const auto owner = owners_.find(tensor.fqn);
      if (owner != owners_.end()) {
        TensorInfo moved = tensor;
        moved.fqn = owner->second.new_fqn;
        moved.hidden = owner->second.hidden;
        summary_.logical_bytes += moved.nbytes;
        summary_.tensor_count += moved.hidden ? 0 : 1;
        CAIRN_TRY(AddTensor(moved));
      }
      const std::string* const name = tensor.hidden ? nullptr : NewName(tensor.fqn);
      if (name == nullptr || !tensor.alias_of) continue;
      const auto found = owners_.find(*tensor.alias_of);
      if (found == owners_.end()) {
        return Fail(
            Error{.code = ErrorCode::kDataLoss,
                  .message = fmt::format("{} is not a tensor that others share", *tensor.alias_of),
                  .key = tensor.fqn,
                  .step = source_.view.step.step});
      }
      const Owner& of = found->second;
      if (of.promoted == &tensor) continue;
      TensorInfo moved = tensor;
      moved.fqn = *name;
      moved.alias_of = of.new_fqn;
      ++summary_.tensor_count;
      CAIRN_TRY(AddTensor(moved));
    }
    return {};
  }

  Result<void> AddTensor(const TensorInfo& tensor) {
    return writer_.AddRecord(kv::Column::kTensors, kv::FqnKey(tensor.fqn), EncodeTensor(tensor));
  }

  Result<void> MoveValues() {
    for (const ValueInfo& value : source_.contents.values) {
      const std::string* const name = NewName(value.fqn);
      if (name == nullptr) continue;
      CAIRN_TRY_ASSIGN(const std::vector<std::byte> record, EncodeValue(value.value));
      CAIRN_TRY(writer_.AddRecord(kv::Column::kValues, kv::FqnKey(*name), record));
      ++summary_.value_count;
    }
    return {};
  }

  const Source& source_;
  kv::StepWriter& writer_;
  std::set<std::string>& names_;  // names of all tensors of the new step
  kv::StepSummary& summary_;
  ProgressMeter& progress_;
  std::map<std::string, Owner> owners_;  // by FQN in the source
};

Result<EditedTree::Finished> EditTree(const std::vector<Source>& sources, const StepEdit& edit) {
  const Contents& contents = sources.front().contents;
  if (edit.keeps_all_keys()) {  // also a step that is one leaf, which an EditedTree cannot be
    EditedTree::Finished same{.tree = contents.tree, .leaves = {}};
    CAIRN_TRY_ASSIGN(const std::vector<Leaf> leaves, FlattenTree(contents.tree));
    for (const Leaf& leaf : leaves) {
      same.leaves.push_back({.fqn = leaf.fqn, .from_fqn = leaf.fqn});
    }
    return same;
  }
  CAIRN_TRY_ASSIGN(EditedTree edited, EditedTree::Make(contents.tree));
  if (!edit.drop.empty()) CAIRN_TRY(edited.Drop(edit.drop));
  if (!edit.rename.empty()) CAIRN_TRY(edited.Rename(edit.rename));
  if (edit.graft) CAIRN_TRY(edited.AddGraft(sources.back().contents.tree, *edit.graft));
  return edited.Finish();
}

}  // namespace

Result<kv::StepInfo> RunEdit(kv::Store& store, uint64_t source_step, uint64_t into,
                             const StepEdit& edit) {
  for (const auto& [name, data] : edit.records) {
    if (data) CAIRN_TRY(CheckApplicationRecord(name, *data));
  }
  kv::BeginOptions begin{.overwrite = edit.overwrite, .parent = source_step, .is_derived = true};
  // A copy, and a step that only gets other records, have the same state, and so its description.
  const bool is_copy = edit.records.empty();
  if (edit.keeps_all_keys() && (is_copy || source_step == into)) {
    CAIRN_TRY_ASSIGN(const std::shared_ptr<const kv::Snapshot> before, store.Latest());
    CAIRN_TRY_ASSIGN(const kv::StepInfo source, before->FindStep(source_step));
    begin.metrics = source.metrics;
    begin.note = source.note;
  }
  // Before anything is read: it refuses a store that is open for reading, and a step that exists.
  CAIRN_TRY_ASSIGN(const auto writer, store.Begin(into, begin));
  CAIRN_TRY_ASSIGN(const std::shared_ptr<const kv::Snapshot> snapshot, store.Latest());
  if (edit.keeps_all_keys() && is_copy) {
    CAIRN_TRY_ASSIGN(const kv::StepInfo same, snapshot->FindStep(source_step));
    return writer->CommitSame(same);
  }
  std::vector<Source> sources;
  CAIRN_TRY_ASSIGN(Source source, ReadSource(store, snapshot, source_step));
  sources.push_back(std::move(source));
  if (edit.graft) {
    CAIRN_TRY_ASSIGN(Source other, ReadSource(store, snapshot, edit.graft->step));
    sources.push_back(std::move(other));
  }
  CAIRN_TRY_ASSIGN(const EditedTree::Finished edited, EditTree(sources, edit));
  std::set<std::string> names;
  for (const EditedLeaf& leaf : edited.leaves) {
    names.insert(leaf.fqn);
    sources[leaf.grafted ? 1 : 0].new_names[leaf.from_fqn] = leaf.fqn;
  }
  kv::StepSummary summary{.base_step = source_step};
  uint64_t records = 0;
  for (const Source& one : sources) {
    records += one.view.step.chunk_count + one.contents.tensors.size();
  }
  ProgressMeter progress(edit.progress, records);
  for (const Source& one : sources) {
    writer->ReferTo(one.view.step);
    CAIRN_TRY(RecordMover(one, *writer, names, summary, progress).Run());
  }
  const StepView& view = sources.front().view;
  CAIRN_TRY(MoveApplicationRecords(*snapshot, view.step, edit.records, *writer));
  if (edit.keeps_all_keys()) {
    CAIRN_TRY_ASSIGN(const auto structure, FindStructure(view));
    CAIRN_TRY(writer->SetStructure(structure));
  } else {
    CAIRN_TRY(writer->SetStructure(EncodeTree(edited.tree)));
  }
  return writer->Commit(summary);
}

}  // namespace cairn::core::internal
