// Calls of a store without the GIL, with signals watched.

#include "python/src/store_binding.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <string_view>
#include <type_traits>
#include <utility>

#include "core/inspect/compare.h"
#include "core/inspect/stored_statistics.h"
#include "core/load/map.h"
#include "core/upkeep/damaged_tensors.h"
#include "kv/base/retention.h"
#include "kv/copy_steps.h"
#include "kv/read/snapshot.h"
#include "python/src/collection_pause.h"
#include "python/src/convert.h"
#include "python/src/copy_progress.h"
#include "python/src/errors.h"
#include "python/src/gil.h"

namespace cairn::python {
namespace {

// Returns a torch tensor if `torch` is given and supports the dtype.
nb::object ToPyMapped(std::optional<core::MappedTensor> mapped, const core::TensorInfo& info,
                      const TorchAccess* torch) {
  if (!mapped) return nb::none();
  if (torch == nullptr || !torch->CanWrap(info.dtype)) {
    return nb::cast(MappedBinding(*std::move(mapped)));
  }
  return WrapMapped(*std::move(mapped), info, *torch);
}

template <typename T>
constexpr bool kIsResult = false;
template <typename T>
constexpr bool kIsResult<Result<T>> = true;

// Raises Invalid. Requires the GIL.
kv::RetentionPolicy ToPolicy(uint64_t keep_last, uint64_t keep_every,
                             const std::vector<std::string>& keep_best) {
  kv::RetentionPolicy policy{.keep_last = keep_last, .keep_every = keep_every, .keep_best = {}};
  for (const std::string& text : keep_best) {
    policy.keep_best.push_back(Unwrap(kv::ParseKeepBest(text)));
  }
  return policy;
}

}  // namespace

nb::object WrapMapped(core::MappedTensor mapped, const core::TensorInfo& info,
                      const TorchAccess& torch) {
  // torch has no read-only tensors; the mapping is private, so that a write stays in this process.
  auto* const data = const_cast<std::byte*>(mapped.bytes.data());
  return torch.Wrap({std::move(mapped.mapping), data}, info.dtype, info.shape);
}

template <typename Work>
auto StoreBinding::Use(const Work& work) const {
  process_.Check();
  const GilRelease no_gil;
  return UseWithoutGil(work);
}

template <typename Work>
auto StoreBinding::UseWithoutGil(const Work& work) const {
  using Returned = decltype(work(*store_));
  const auto closed = [] {
    return Returned(Fail(ErrorCode::kFailedPrecondition, "the store is closed; open it again"));
  };
  if (closing_count_ > 0) return closed();
  const ReaderMutexLock open(close_mutex_);
  if (!store_) return closed();
  return work(*store_);
}

template <typename Work>
auto StoreBinding::AskLatest(const Work& work) const {
  using Returned = std::invoke_result_t<Work, const kv::Snapshot&>;
  using Asked = std::conditional_t<kIsResult<Returned>, Returned, Result<Returned>>;
  return Unwrap(Use([&](core::CheckpointStore& store) -> Asked {
    CAIRN_TRY_ASSIGN(const auto snapshot, store.kv().Latest());
    return work(std::as_const(*snapshot));
  }));
}

StoreBinding::StoreBinding(const std::string& address, bool writable,
                           std::shared_ptr<CommunicatorBinding> communicator,
                           const kv::StoreOptions& options)
    : communicator_(std::move(communicator)) {
  LetForkedChildrenExit();
  SignalWatch watch;
  const kv::OpenMode mode = writable ? kv::OpenMode::kWrite : kv::OpenMode::kRead;
  auto store = [&] {
    const GilRelease no_gil;
    if (!communicator_) return core::CheckpointStore::Open(address, mode, options);
    return communicator_->UseWatched(watch, [&](core::Communicator& ranks) {
      return core::CheckpointStore::OpenShared(address, mode, ranks, options);
    });
  }();
  watch.Rethrow();
  store_ = Unwrap(std::move(store));
}

StoreBinding::~StoreBinding() {
  if (!process_.is_same_process()) {
    // The threads that the destructors would join, the lease and the files belong to the parent.
    (void)saver_.release();
    (void)new std::shared_ptr(std::move(store_));
    return;
  }
  const GilRelease no_gil;
  saver_.reset();
  store_.reset();
}

core::SaveReport StoreBinding::Save(uint64_t step, const Batch& batch, core::SaveOptions options) {
  SignalWatch watch;
  options.progress = watch.AsProgress();
  options.check_memory = batch.MemoryCheck(batch.state.tree);
  auto report =
      Use([&](core::CheckpointStore& store) { return store.Save(step, batch.state, options); });
  watch.Rethrow();
  return Unwrap(std::move(report));
}

SaveHandleBinding StoreBinding::SaveAsync(uint64_t step, const Batch& batch,
                                          core::SaveOptions options) {
  const auto progress = std::make_shared<BackgroundProgress>();
  options.progress = Recorder(progress);
  options.check_memory = batch.MemoryCheck(batch.state.tree);
  auto handle = Use([&](core::CheckpointStore& store) {
    const MutexLock one_caller(saver_mutex_);
    if (!saver_) saver_ = std::make_unique<core::AsyncSaver>(&store);
    return saver_->Save(step, batch.state, options);
  });
  return {Unwrap(std::move(handle)), progress};
}

std::vector<uint64_t> StoreBinding::Steps() const {
  return Unwrap(Use([](core::CheckpointStore& store) { return store.StepNumbers(); }));
}

std::string StoreBinding::Uuid() const {
  return Unwrap(Use([](auto& store) -> Result<std::string> { return store.kv().uuid(); }));
}

std::vector<kv::CopiedStep> StoreBinding::CopyFrom(const StoreBinding& source,
                                                   kv::CopyOptions options, nb::object progress) {
  process_.Check();
  source.process_.Check();
  if (&source == this) ThrowInvalid("the source and the target of a copy are the same store");
  SignalWatch watch;
  CopyProgressFunction function(std::move(progress), watch);
  options.progress = function.AsProgress();
  using Returned = Result<kv::CopyReport>;
  auto report = [&] {
    const GilRelease no_gil;
    // In the order of addresses, so that two copies in opposite directions and two closes cannot
    // wait for each other.
    const bool source_first = &source < this;
    const StoreBinding& first = source_first ? source : *this;
    const StoreBinding& second = source_first ? *this : source;
    return first.UseWithoutGil([&](core::CheckpointStore& a) -> Returned {
      return second.UseWithoutGil([&](core::CheckpointStore& b) -> Returned {
        return source_first ? kv::CopySteps(a.kv(), b.kv(), options)
                            : kv::CopySteps(b.kv(), a.kv(), options);
      });
    });
  }();
  function.Rethrow();
  watch.Rethrow();
  return Unwrap(std::move(report)).steps;
}

StepContents StoreBinding::List(std::optional<uint64_t> step, nb::list patterns) const {
  const core::KeyPatterns parsed = ParsePatterns(patterns);
  return StepContents(
      Unwrap(Use([&](core::CheckpointStore& store) { return store.List(step, parsed); })));
}

nb::dict StoreBinding::FindStatistics(const StepContents& contents) const {
  return contents.ToPyStatistics(Unwrap(Use([&](core::CheckpointStore& store) {
    return core::FindStatistics(store.kv(), contents.step(), contents.tensors());
  })));
}

void StoreBinding::CheckChunks(const kv::StepInfo& step, nb::str fqn) const {
  const std::string text = FromPyText(fqn);
  Unwrap(Use([&](core::CheckpointStore& store) { return store.Chunks(step, text); }));
}

std::vector<Error> StoreBinding::FindDamaged(const StepContents& contents) const {
  SignalWatch watch;
  auto result = Use([&](core::CheckpointStore& store) {
    return core::FindDamagedTensors(store, contents.step(), contents.tensors(), watch.AsProgress());
  });
  watch.Rethrow();
  return Unwrap(std::move(result));
}

std::unique_ptr<core::BackgroundScrub> StoreBinding::Scrub(uint64_t max_bytes_per_second,
                                                           double every_seconds) const {
  const core::ScrubOptions options{.max_bytes_per_second = max_bytes_per_second,
                                   .every = std::chrono::ceil<std::chrono::milliseconds>(
                                       std::chrono::duration<double>(every_seconds))};
  return Unwrap(Use(
      [&](core::CheckpointStore& store) { return core::BackgroundScrub::Start(store, options); }));
}

nb::object StoreBinding::FindExtension(const kv::StepInfo& step, nb::str name) const {
  const std::string text = FromPyText(name);
  const auto extension =
      Unwrap(Use([&](core::CheckpointStore& store) { return store.FindExtension(step, text); }));
  if (!extension) return nb::none();
  return nb::bytes(extension->data(), extension->size());
}

core::LoadReport StoreBinding::Load(const kv::StepInfo& step, const Requests& requests,
                                    bool read_once, const DeviceTransfer& transfer,
                                    const StepContents* contents) const {
  SignalWatch watch;
  std::span<const core::TensorInfo> known;
  if (contents != nullptr) known = contents->tensors();
  auto result = Use([&](core::CheckpointStore& store) {
    if (requests.shards.empty() && !read_once) {
      return store.Load(step, requests.list, watch.AsProgress(), transfer.streams, known);
    }
    return LoadShards(store, step, requests, read_once, transfer, watch);
  });
  watch.Rethrow();
  const core::LoadReport report = Unwrap(std::move(result));
  requests.CheckMemory();
  return report;
}

Result<core::LoadReport> StoreBinding::LoadShards(core::CheckpointStore& store,
                                                  const kv::StepInfo& step,
                                                  const Requests& requests, bool read_once,
                                                  const DeviceTransfer& transfer,
                                                  SignalWatch& watch) const {
  // Requests of a load in place are for complete tensors.
  std::vector<core::ShardTarget> targets = requests.shards;
  std::deque<core::Sharding> replicas;
  for (const core::LoadRequest& request : requests.list) {
    const auto found = requests.holders.find(request.fqn);
    const core::Sharding* sharding = nullptr;
    if (found != requests.holders.end()) {
      sharding = &replicas.emplace_back(core::Sharding{.global_shape = request.target.shape,
                                                       .mesh = found->second,
                                                       .placements = {core::Placement::Replicate()},
                                                       .parts = {}});
    }
    targets.push_back({.fqn = request.fqn, .sharding = sharding, .local = request.target});
  }
  // In the same order on every rank, independent of its shards; first what all ranks have.
  std::ranges::stable_sort(targets, {}, [&](const core::ShardTarget& target) {
    return std::pair(requests.holders.contains(target.fqn), std::string_view(target.fqn));
  });
  core::ShardLoadOptions options{
      .read_once = read_once, .progress = {}, .streams = transfer.streams};
  if (!read_once || !communicator_) {
    options.progress = watch.AsProgress();
    return store.LoadShards(step, targets, options);
  }
  const auto progress = std::make_shared<BackgroundProgress>();
  options.progress = Recorder(progress);
  watch.Follow(progress);
  return communicator_->UseWatched(watch, [&](core::Communicator&) -> Result<core::LoadReport> {
    CAIRN_TRY_ASSIGN(options.tensor_communicator,
                     communicator_->TensorCommunicator(transfer.by_nccl));
    return store.LoadShards(step, targets, options);
  });
}

core::UpdateReport StoreBinding::Update(const kv::StepInfo& base, const kv::StepInfo& step,
                                        const Requests& requests, bool all_shards,
                                        const DeviceTransfer& transfer) const {
  SignalWatch watch;
  auto result = Use([&](core::CheckpointStore& store) -> Result<core::UpdateReport> {
    CAIRN_TRY_ASSIGN(core::UpdateReport report,
                     store.Update(base, step, requests.list, watch.AsProgress(), transfer.streams));
    if (requests.shards.empty()) return report;
    CAIRN_TRY_ASSIGN(const core::Diff diff, core::CompareSteps(store.kv(), base.step, step.step));
    std::vector<core::ShardTarget> targets;
    for (const core::ShardTarget& shard : requests.shards) {
      const bool differs =
          std::ranges::binary_search(diff.changes, shard.fqn, {}, &core::KeyChange::fqn);
      if (differs) report.changed.push_back(shard.fqn);
      if (differs || all_shards) targets.push_back(shard);
    }
    if (targets.empty()) return report;
    const core::ShardLoadOptions options{.progress = watch.AsProgress(),
                                         .streams = transfer.streams};
    CAIRN_TRY_ASSIGN(const core::LoadReport loaded, store.LoadShards(step, targets, options));
    report.bytes_read += loaded.bytes_read;
    report.seconds += loaded.seconds;
    return report;
  });
  watch.Rethrow();
  core::UpdateReport report = Unwrap(std::move(result));
  requests.CheckMemory();
  return report;
}

bool StoreBinding::AwaitChange(double seconds) const {
  using Clock = std::chrono::steady_clock;
  const auto timeout = std::chrono::ceil<std::chrono::milliseconds>(std::chrono::duration<double>(
      std::clamp(seconds, 0.0, std::chrono::duration<double>(kMaxAwait).count())));
  SignalWatch watch;
  const auto is_early = Use([&](core::CheckpointStore& store) -> Result<bool> {
    const auto begin = Clock::now();
    store.kv().AwaitChange(timeout);
    watch.Check();
    return Clock::now() - begin < timeout;
  });
  watch.Rethrow();
  return Unwrap(Result<bool>(is_early));
}

nb::tuple StoreBinding::Map(const kv::StepInfo& step, nb::list tensors, nb::list as_torch) const {
  std::vector<std::string> fqns;
  for (nb::handle info : tensors) fqns.push_back(nb::cast<const core::TensorInfo&>(info).fqn);
  core::UncheckedMap mapped = MapBytes(step, fqns);
  const TorchAccess torch;
  const CollectionPause pause;
  nb::list wrapped;
  for (size_t i = 0; i < mapped.tensors.size(); ++i) {
    wrapped.append(ToPyMapped(std::move(mapped.tensors[i]),
                              nb::cast<const core::TensorInfo&>(tensors[i]),
                              nb::cast<bool>(as_torch[i]) ? &torch : nullptr));
  }
  return nb::make_tuple(wrapped, std::const_pointer_cast<core::MapCheck>(mapped.check));
}

core::UncheckedMap StoreBinding::MapBytes(const kv::StepInfo& step,
                                          std::span<const std::string> fqns) const {
  return Unwrap(Use([&](core::CheckpointStore& store) { return store.MapUnchecked(step, fqns); }));
}

core::Diff StoreBinding::Compare(uint64_t step_a, uint64_t step_b, nb::list patterns) const {
  const core::KeyPatterns parsed = ParsePatterns(patterns);
  return Unwrap(Use([&](core::CheckpointStore& store) {
    return core::CompareSteps(store.kv(), step_a, step_b, parsed);
  }));
}

void StoreBinding::BindVersions(nb::class_<StoreBinding>& store) {
  using Self = StoreBinding;
  using Store = core::CheckpointStore;
  using Texts = std::vector<std::string>;
  store
      .def("delete",
           [](const Self& self, nb::handle steps, bool dry_run) {
             const std::vector<uint64_t> numbers = FromPyNumbers(steps);
             return Unwrap(self.Use([&](Store& store) { return store.Delete(numbers, dry_run); }));
           })
      .def("tags",
           [](const Self& self) {
             nb::dict by_name;
             for (const auto& [name, step] : self.AskLatest([](auto& now) { return now.tags(); })) {
               by_name[ToPyText(name)] = step;
             }
             return by_name;
           })
      .def("find_tag",
           [](const Self& self, const std::string& name) {
             return self.AskLatest([&](auto& now) { return now.FindTag(name); });
           })
      .def(
          "change_tag",
          [](const Self& self, const std::string& name, std::optional<uint64_t> step) {
            Unwrap(self.Use([&](Store& store) { return store.kv().ChangeTags({{name, step}}); }));
          },
          nb::arg("name"), nb::arg("step").none())
      .def("step_info",
           [](const Self& self, uint64_t step) {
             return self.AskLatest([&](auto& now) -> Result<TaggedStep> {
               CAIRN_TRY_ASSIGN(kv::StepInfo info, now.FindStep(step));
               TaggedStep found{std::move(info), {}};
               for (const auto& [name, tagged] : now.tags()) {
                 if (tagged == step) found.tags.push_back(name);
               }
               return found;
             });
           })
      .def("retention",
           [](const Self& self) {
             return self.AskLatest([](auto& now) { return now.retention(); });
           })
      .def("set_retention",
           [](const Self& self, uint64_t keep_last, uint64_t keep_every, const Texts& keep_best) {
             const auto policy = ToPolicy(keep_last, keep_every, keep_best);
             Unwrap(self.Use([&](Store& store) { return store.kv().SetRetention(policy); }));
           })
      .def("compresses_saves",
           [](const Self& self) {
             return self.AskLatest([](auto& now) { return now.compresses_saves(); });
           })
      .def("set_compression",
           [](const Self& self, bool compress) {
             Unwrap(self.Use([&](Store& store) { return store.kv().SetCompression(compress); }));
           })
      .def("keep_steps",
           [](const Self& self, const std::vector<uint64_t>& steps) {
             Unwrap(self.Use([&](Store& store) -> Result<void> {
               store.kv().KeepSteps(steps);
               return {};
             }));
           })
      .def(
          "steps_to_delete",
          [](const Self& self, uint64_t keep_last, uint64_t keep_every, const Texts& keep_best,
             std::optional<uint64_t> newest) {
            const auto policy = ToPolicy(keep_last, keep_every, keep_best);
            return self.AskLatest([&](auto& now) -> Result<std::vector<uint64_t>> {
              CAIRN_TRY_ASSIGN(const auto steps, now.Steps());
              return kv::StepsToDelete(policy, steps, now.tags(), newest);
            });
          },
          nb::arg("keep_last"), nb::arg("keep_every"), nb::arg("keep_best"),
          nb::arg("newest").none())
      .def(
          "compact",
          [](const Self& self, double max_dead, bool fold, bool compress,
             std::optional<uint64_t> max_rate, bool dry_run) {
            SignalWatch watch;
            kv::CompactOptions options{.max_dead = max_dead,
                                       .max_bytes_per_second = max_rate.value_or(0),
                                       .dry_run = dry_run,
                                       .fold_all = fold};
            options.progress = [follow = watch.AsProgress()](const kv::CompactProgress& now) {
              return follow(now.done_bytes, now.total_bytes);
            };
            auto done = self.Use([&](Store& store) { return store.Compact(options, compress); });
            watch.Rethrow();
            return Unwrap(std::move(done));
          },
          nb::kw_only(), nb::arg("max_dead"), nb::arg("fold"), nb::arg("compress"),
          nb::arg("max_rate").none(), nb::arg("dry_run"))
      .def(
          "edit",
          [](const Self& self, uint64_t source, uint64_t into, Texts drop,
             std::vector<std::pair<std::string, std::string>> rename,
             std::optional<uint64_t> graft_from, Texts graft, std::string under, bool overwrite) {
            SignalWatch watch;
            core::StepEdit edit{.drop = std::move(drop),
                                .rename = std::move(rename),
                                .overwrite = overwrite,
                                .progress = watch.AsProgress()};
            if (graft_from) {
              edit.graft = core::Graft{
                  .step = *graft_from, .patterns = std::move(graft), .under = std::move(under)};
            }
            auto made = self.Use([&](Store& store) { return store.Edit(source, into, edit); });
            watch.Rethrow();
            Unwrap(std::move(made));
          },
          nb::arg("source"), nb::kw_only(), nb::arg("into"), nb::arg("drop"), nb::arg("rename"),
          nb::arg("graft_from").none(), nb::arg("graft"), nb::arg("under"), nb::arg("overwrite"))
      .def(
          "merge",
          [](const Self& self, const std::vector<uint64_t>& steps, uint64_t into,
             std::vector<double> weights, bool overwrite) {
            SignalWatch watch;
            const core::MergeOptions options{.weights = std::move(weights),
                                             .overwrite = overwrite,
                                             .progress = watch.AsProgress()};
            auto made = self.Use([&](Store& store) { return store.Merge(steps, into, options); });
            watch.Rethrow();
            return MergedStep(Unwrap(std::move(made)));
          },
          nb::arg("steps"), nb::kw_only(), nb::arg("into"), nb::arg("weights"),
          nb::arg("overwrite"));
}

void StoreBinding::Close() {
  process_.Check();
  SignalWatch watch;
  Result<void> result = [&]() -> Result<void> {
    const GilRelease no_gil;
    ++closing_count_;
    const WriterMutexLock alone(close_mutex_);
    --closing_count_;
    const MutexLock no_caller(saver_mutex_);
    if (!store_) return {};
    saver_.reset();  // waits for a running save
    core::CheckpointStore& store = *store_;
    const bool needs_ranks = communicator_ != nullptr && !has_met_ranks_;
    auto closed =
        !needs_ranks ? store.Close() : communicator_->UseWatched(watch, [&](core::Communicator&) {
          has_met_ranks_ = true;
          return store.Close();
        });
    // After a failure the store remains, so that a repeated close tries again to remove the lease;
    // but not if this rank has left the others, whom it would wait for.
    if (closed || (communicator_ != nullptr && !has_met_ranks_)) store_.reset();
    return closed;
  }();
  watch.Rethrow();
  Unwrap(std::move(result));
}

void StoreBinding::Abandon() {
  process_.Check();
  {
    const GilRelease no_gil;
    ++closing_count_;
    const WriterMutexLock alone(close_mutex_);
    --closing_count_;
    const MutexLock no_caller(saver_mutex_);
    saver_.reset();  // waits for a running save
    store_.reset();
  }
  if (communicator_) communicator_->Leave();
}

}  // namespace cairn::python
