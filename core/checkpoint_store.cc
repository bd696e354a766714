// The front door: finds snapshot and step, serialises writers, hands the work to internal/.

#include "core/checkpoint_store.h"

#include <fmt/format.h>

#include <mutex>

#include "core/internal/list.h"
#include "core/internal/load.h"
#include "core/internal/lookup.h"
#include "core/internal/save.h"
#include "core/internal/verify.h"
#include "core/internal/worker_pool.h"

namespace cairn::core {

class CheckpointStore::Impl {
 public:
  explicit Impl(std::unique_ptr<kv::Store> store) : store_(std::move(store)) {}

  kv::Store& store() const { return *store_; }

  Result<SaveReport> Save(uint64_t step, const StateDict& state, const SaveOptions& options) {
    CAIRN_TRY_ASSIGN(const internal::SavePlan plan, internal::PlanSave(state, options));
    return SavePlanned(step, plan, options, nullptr);
  }

  Result<SaveReport> SavePlanned(uint64_t step, const internal::SavePlan& plan,
                                 const SaveOptions& options, internal::SavedChunks* saved) {
    const std::lock_guard lock(writing_);
    if (!pool_) {
      pool_ = std::make_unique<internal::WorkerPool>(internal::WorkerPool::DefaultThreadCount());
    }
    return internal::RunSave(*store_, step, plan, options, *pool_, saved);
  }

  Result<kv::Store::DeleteReport> Delete(std::span<const uint64_t> steps, bool dry_run) {
    const std::lock_guard lock(writing_);
    return store_->Delete(steps, dry_run);
  }

  Result<void> Close() {
    const std::lock_guard lock(writing_);
    return store_->Close();
  }

 private:
  std::unique_ptr<kv::Store> store_;
  std::mutex writing_;                          // held for all of a save, a deletion, the closing
  std::unique_ptr<internal::WorkerPool> pool_;  // guarded by writing_; made by the first save
};

CheckpointStore::CheckpointStore(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
CheckpointStore::~CheckpointStore() = default;

Result<std::unique_ptr<CheckpointStore>> CheckpointStore::Open(const std::string& address,
                                                               kv::OpenMode mode,
                                                               kv::StoreOptions options) {
  constexpr std::string_view kFile = "file:";
  if (address.starts_with("rados:") || address.find("://") != std::string::npos) {
    return Fail(ErrorCode::kUnimplemented,
                fmt::format("'{}': this build opens stores in directories only", address));
  }
  std::string directory = address.starts_with(kFile) ? address.substr(kFile.size()) : address;
  if (directory.empty()) {
    return Fail(ErrorCode::kInvalidArgument, "the store's address is empty; give a directory");
  }
  CAIRN_TRY_ASSIGN(auto store, kv::Store::Open(directory, mode, options));
  return std::unique_ptr<CheckpointStore>(
      new CheckpointStore(std::make_unique<Impl>(std::move(store))));
}

kv::Store& CheckpointStore::kv() const { return impl_->store(); }

Result<std::vector<kv::StepInfo>> CheckpointStore::Steps() const {
  CAIRN_TRY_ASSIGN(const auto snapshot, kv().Latest());
  return snapshot->steps();
}

Result<SaveReport> CheckpointStore::Save(uint64_t step, const StateDict& state,
                                         const SaveOptions& options) {
  return impl_->Save(step, state, options);
}

Result<SaveReport> CheckpointStore::SavePlanned(uint64_t step, const internal::SavePlan& plan,
                                                const SaveOptions& options,
                                                internal::SavedChunks* saved) {
  return impl_->SavePlanned(step, plan, options, saved);
}

Result<Contents> CheckpointStore::List(std::optional<uint64_t> step,
                                       const KeyPatterns& patterns) const {
  CAIRN_TRY_ASSIGN(const auto snapshot, kv().Latest());
  CAIRN_TRY_ASSIGN(const kv::StepInfo info, snapshot->FindStep(step));
  return internal::RunList({.snapshot = snapshot, .step = info, .directory = kv().directory()},
                           patterns);
}

Result<TensorInfo> CheckpointStore::FindTensor(const kv::StepInfo& step,
                                               const std::string& fqn) const {
  CAIRN_TRY_ASSIGN(const auto view, internal::ViewStep(kv(), step));
  return internal::FindTensor(view, fqn);
}

Result<std::vector<ChunkInfo>> CheckpointStore::Chunks(const kv::StepInfo& step,
                                                       const std::string& fqn) const {
  CAIRN_TRY_ASSIGN(const auto view, internal::ViewStep(kv(), step));
  CAIRN_TRY_ASSIGN(const TensorInfo tensor, internal::FindTensor(view, fqn));
  std::vector<ChunkInfo> chunks;
  CAIRN_TRY(internal::ForEachChunk(view, tensor, [&](ChunkInfo chunk) -> Result<void> {
    chunks.push_back(std::move(chunk));
    return {};
  }));
  return chunks;
}

Result<LoadReport> CheckpointStore::Load(const kv::StepInfo& step,
                                         std::span<const LoadRequest> requests,
                                         const Progress& progress) const {
  return internal::WithStep(kv(), step, [&](const internal::StepView& view) {
    return internal::RunLoad(view, requests, progress);
  });
}

Result<std::vector<std::optional<MappedTensor>>> CheckpointStore::Map(
    const kv::StepInfo& step, std::span<const std::string> fqns, bool verify,
    const Progress& progress) const {
  return internal::WithStep(kv(), step, [&](const internal::StepView& view) {
    return internal::RunMap(view, fqns, verify, progress);
  });
}

Result<Diff> CheckpointStore::Compare(uint64_t step_a, uint64_t step_b,
                                      const KeyPatterns& patterns) const {
  CAIRN_TRY_ASSIGN(const auto snapshot, kv().Latest());
  CAIRN_TRY_ASSIGN(const kv::StepInfo a, snapshot->FindStep(step_a));
  CAIRN_TRY_ASSIGN(const kv::StepInfo b, snapshot->FindStep(step_b));
  return internal::RunCompare({.snapshot = snapshot, .step = a, .directory = kv().directory()},
                              {.snapshot = snapshot, .step = b, .directory = kv().directory()},
                              patterns);
}

Result<kv::Store::DeleteReport> CheckpointStore::Delete(std::span<const uint64_t> steps,
                                                        bool dry_run) {
  return impl_->Delete(steps, dry_run);
}

Result<uint64_t> CheckpointStore::Verify(std::optional<uint64_t> step,
                                         const std::function<void(const kv::Damage&)>& damage,
                                         const Progress& progress) const {
  return internal::RunVerify(kv(), step, damage, progress);
}

Result<void> CheckpointStore::Close() { return impl_->Close(); }

}  // namespace cairn::core
