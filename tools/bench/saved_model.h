#pragma once
/// A model in memory, and a store that has it as step 1.

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "core/checkpoint_store.h"
#include "tools/bench/model_state.h"
#include "tools/bench/verbs.h"
#include "tools/common/progress.h"

namespace cairn::tools {

/// A directory below --dir that exists as long as this object.
class ScratchStore {
 public:
  /// Only chooses the name, DIRECTORY/cairn-bench-VERB-PID, or a longer one if that exists.
  ScratchStore(const std::string& directory, std::string_view verb);
  ~ScratchStore() { Remove(); }
  ScratchStore(const ScratchStore&) = delete;
  ScratchStore& operator=(const ScratchStore&) = delete;

  std::string path() const { return path_.string(); }
  /// Removes the directory. A failure is ignored: the user sees the directory, and the measurement
  /// is valid.
  void Remove() const;

 private:
  std::filesystem::path path_;
};

using StorePointer = std::unique_ptr<core::CheckpointStore>;

Result<StorePointer> OpenForWriting(const ScratchStore& scratch);

/// Returns memory for a model of `options.bytes` bytes, or for `options.tensors` equal tensors of
/// that size together. The contents are zeros.
Result<ModelMemory> MakeModel(const BenchOptions& options);

/// Options of a save that writes every byte.
core::SaveOptions FullSave(ProgressLine& progress);

/// Saves a model as step 1 of a new store, closes the store, calls `use` with its directory and the
/// model, and removes the store.
Result<void> WithSavedModel(
    const BenchOptions& options, const char* verb,
    const std::function<Result<void>(const std::string&, ModelMemory&)>& use);

}  // namespace cairn::tools
