// The front door: finds snapshot and step, serialises writers, hands the work to internal/.

#include "core/checkpoint_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <mutex>

#include "core/base/internal/catch_bad_alloc.h"
#include "core/base/internal/worker_pool.h"
#include "core/inspect/internal/compare.h"
#include "core/inspect/internal/list.h"
#include "core/inspect/internal/verify.h"
#include "core/load/internal/load.h"
#include "core/load/internal/map.h"
#include "core/load/internal/shard_load.h"
#include "core/ranks/internal/open_together.h"
#include "core/save/internal/device_save.h"
#include "core/save/internal/save.h"
#include "core/save/internal/save_queue.h"
#include "core/save/internal/saved_chunks.h"
#include "core/step/internal/lookup.h"

namespace cairn::core {

class CheckpointStore::Impl {
 public:
  Impl(std::unique_ptr<kv::Store> store, Communicator* communicator)
      : store_(std::move(store)), communicator_(communicator) {
    if (communicator == nullptr) return;
    place_ = {.rank = static_cast<uint32_t>(communicator->rank()),
              .world_size = static_cast<uint32_t>(communicator->world_size())};
  }

  kv::Store& store() const { return *store_; }
  const internal::RankInWorld& place() const { return place_; }
  Communicator* communicator() const { return communicator_; }

  internal::SaveAttempt NextAttempt(uint64_t step, const SaveOptions& options) {
    internal::SaveAttempt attempt{.step = step, .name = {}};
    if (place_.world_size == 1) return attempt;
    attempt.turn = turns_.Take([&] { attempt.name = store_->NextAttempt(step); });
    const auto now = std::chrono::steady_clock::now();
    const auto most = std::chrono::floor<std::chrono::milliseconds>(
        std::chrono::steady_clock::time_point::max() - now);
    const auto deadline = std::clamp(options.deadline, std::chrono::milliseconds(0), most / 2);
    attempt.deadline = now + deadline;
    attempt.decision_deadline = attempt.deadline + deadline / 4 + std::chrono::seconds(1);
    return attempt;
  }

  Error Abort(const internal::SaveAttempt& attempt, Error error) {
    if (attempt.name.empty()) return error;
    // If not even this can be written, the others find out by their deadline.
    (void)store_->FailAttempt(attempt.name, place_.rank, error);
    turns_.End(attempt.turn);
    return error;
  }

  Result<SaveReport> SavePlanned(const internal::SaveAttempt& attempt, internal::SavePlan& plan,
                                 const SaveOptions& options, internal::SavedChunks* saved,
                                 internal::DeviceSave* device) {
    if (!attempt.name.empty()) turns_.Await(attempt.turn);
    const std::lock_guard lock(writing_);
    auto report = internal::CatchBadAlloc("the records of a save", [&] {
      if (!pool_) {
        pool_ = std::make_unique<internal::WorkerPool>(internal::WorkerPool::DefaultThreadCount());
      }
      return internal::RunSave(*store_, attempt, plan, place_, options, *pool_, saved, device);
    });
    if (!report) return Fail(Abort(attempt, std::move(report).error()));
    if (!attempt.name.empty()) turns_.End(attempt.turn);
    return report;
  }

  /// What the last Save with tensors in device memory wrote; only for SavePlanned.
  internal::SavedChunks* last_device_save() { return &last_device_save_; }

  Result<kv::Store::DeleteReport> Delete(std::span<const uint64_t> steps, bool dry_run) {
    const std::lock_guard lock(writing_);
    return store_->Delete(steps, dry_run);
  }

  Result<void> Close() {
    const std::lock_guard lock(writing_);
    // Rank 0 last: it takes away what tells the others how their last save ended.
    Result<void> together = {};
    if (communicator_ != nullptr && !closed_) together = communicator_->Barrier();
    closed_ = true;
    Result<void> closed = store_->Close();
    return closed ? together : closed;
  }

 private:
  std::unique_ptr<kv::Store> store_;
  Communicator* const communicator_;  // null for one process alone
  internal::RankInWorld place_;
  internal::SaveQueue turns_;                   // several ranks
  bool closed_ = false;                         // guarded by writing_
  std::mutex writing_;                          // held for all of a save, a deletion, the closing
  internal::SavedChunks last_device_save_;  // guarded by writing_
  std::unique_ptr<internal::WorkerPool> pool_;  // guarded by writing_; made by the first save
};

CheckpointStore::CheckpointStore(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
CheckpointStore::~CheckpointStore() = default;

namespace {

Result<std::string> DirectoryOf(const std::string& address) {
  constexpr std::string_view kFile = "file:";
  if (address.starts_with("rados:") || address.find("://") != std::string::npos) {
    return Fail(ErrorCode::kUnimplemented,
                fmt::format("'{}': this build opens stores in directories only", address));
  }
  std::string directory = address.starts_with(kFile) ? address.substr(kFile.size()) : address;
  if (directory.empty()) {
    return Fail(ErrorCode::kInvalidArgument, "the store's address is empty; give a directory");
  }
  return directory;
}

}  // namespace

Result<std::unique_ptr<CheckpointStore>> CheckpointStore::Open(const std::string& address,
                                                               kv::OpenMode mode,
                                                               kv::StoreOptions options) {
  CAIRN_TRY_ASSIGN(const std::string directory, DirectoryOf(address));
  CAIRN_TRY_ASSIGN(auto store, kv::Store::Open(directory, mode, std::move(options)));
  return std::unique_ptr<CheckpointStore>(
      new CheckpointStore(std::make_unique<Impl>(std::move(store), nullptr)));
}

Result<std::unique_ptr<CheckpointStore>> CheckpointStore::OpenShared(const std::string& address,
                                                                     kv::OpenMode mode,
                                                                     Communicator& communicator,
                                                                     kv::StoreOptions options) {
  CAIRN_TRY_ASSIGN(auto store, internal::OpenTogether([&]() { return DirectoryOf(address); }, mode,
                                                      communicator, std::move(options)));
  return std::unique_ptr<CheckpointStore>(
      new CheckpointStore(std::make_unique<Impl>(std::move(store), &communicator)));
}

uint32_t CheckpointStore::rank() const { return impl_->place().rank; }
uint32_t CheckpointStore::world_size() const { return impl_->place().world_size; }
internal::RankInWorld CheckpointStore::place() const { return impl_->place(); }

internal::SaveAttempt CheckpointStore::NextAttempt(uint64_t step, const SaveOptions& options) {
  return impl_->NextAttempt(step, options);
}

Error CheckpointStore::Abort(const internal::SaveAttempt& attempt, Error error) {
  return impl_->Abort(attempt, std::move(error));
}

kv::Store& CheckpointStore::kv() const { return impl_->store(); }

Result<std::vector<kv::StepInfo>> CheckpointStore::Steps() const {
  CAIRN_TRY_ASSIGN(const auto snapshot, kv().Latest());
  return snapshot->steps();
}

Result<SaveReport> CheckpointStore::Save(uint64_t step, const StateDict& state,
                                         const SaveOptions& options) {
  const internal::SaveAttempt attempt = NextAttempt(step, options);
  auto plan = internal::CatchBadAlloc("the plan of a save",
                                      [&] { return internal::PlanSave(state, options, place()); });
  if (!plan) return Fail(Abort(attempt, std::move(plan).error()));
  if (!internal::DeviceSave::IsNeeded(*plan)) {
    return SavePlanned(attempt, *plan, options, nullptr, nullptr);
  }
  auto device = internal::DeviceSave::Begin(*plan, options.streams);
  if (!device) return Fail(Abort(attempt, std::move(device).error()));
  (*device)->WriteFilesDirectly();
  return SavePlanned(attempt, *plan, options, impl_->last_device_save(), device->get());
}

Result<SaveReport> CheckpointStore::SavePlanned(const internal::SaveAttempt& attempt,
                                                internal::SavePlan& plan,
                                                const SaveOptions& options,
                                                internal::SavedChunks* saved,
                                                internal::DeviceSave* device) {
  return impl_->SavePlanned(attempt, plan, options, saved, device);
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

Result<std::optional<std::vector<std::byte>>> CheckpointStore::FindExtension(
    const kv::StepInfo& step, std::string_view name) const {
  CAIRN_TRY_ASSIGN(const auto view, internal::ViewStep(kv(), step));
  return internal::FindExtension(view, name);
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
                                         const Progress& progress,
                                         std::span<const DeviceStream> streams) const {
  return internal::WithStep(kv(), step, [&](const internal::StepView& view) {
    return internal::RunLoad(view, requests, progress, streams);
  });
}

Result<LoadReport> CheckpointStore::LoadShards(const kv::StepInfo& step,
                                               std::span<const ShardTarget> targets,
                                               const ShardLoadOptions& options) const {
  if (!options.read_once || world_size() == 1) {
    return internal::WithStep(kv(), step, [&](const internal::StepView& view) {
      return internal::LoadOwnShards(view, targets, rank(), options);
    });
  }
  return internal::LoadShardsOnce([&] { return internal::ViewStep(kv(), step); }, targets,
                                  *impl_->communicator(), options);
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
