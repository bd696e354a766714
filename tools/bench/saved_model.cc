// A model in memory, and a store that has it as step 1.

#include "tools/bench/saved_model.h"

#include <fmt/format.h>
#include <unistd.h>

#include <system_error>

namespace cairn::tools {

ScratchStore::ScratchStore(const std::string& directory, std::string_view verb)
    : path_(std::filesystem::path(directory) / fmt::format("cairn-bench-{}-{}", verb, getpid())) {
  std::error_code ignored;
  while (std::filesystem::exists(path_, ignored)) path_ += "x";  // existing files are not ours
}

void ScratchStore::Remove() const {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

Result<StorePointer> OpenForWriting(const ScratchStore& scratch) {
  return core::CheckpointStore::Open(scratch.path(), kv::OpenMode::kWrite);
}

Result<ModelMemory> MakeModel(const BenchOptions& options) {
  CAIRN_TRY_ASSIGN(auto tensors, options.tensors > 0
                                     ? PlanEqualTensors(options.bytes, options.tensors)
                                     : PlanModel(options.bytes));
  return ModelMemory::Allocate(std::move(tensors));
}

core::SaveOptions FullSave(ProgressLine& progress) {
  return {.incremental = false, .progress = progress.callback()};
}

Result<void> WithSavedModel(
    const BenchOptions& options, const char* verb,
    const std::function<Result<void>(const std::string&, ModelMemory&)>& use) {
  const ScratchStore scratch(options.directory, verb);
  CAIRN_TRY_ASSIGN(ModelMemory model, MakeModel(options));
  model.FillAll(1);
  {
    ProgressLine progress("preparing the store");
    CAIRN_TRY_ASSIGN(const StorePointer store, OpenForWriting(scratch));
    const core::StateDict state = model.State();
    CAIRN_TRY(store->Save(1, state, FullSave(progress)));
    CAIRN_TRY(store->Close());
  }
  return use(scratch.path(), model);
}

}  // namespace cairn::tools
