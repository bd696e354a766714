// Calls of a store without the GIL, with signals watched.

#include "python/src/store_binding.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <mutex>
#include <optional>

#include "core/inspect/compare.h"
#include "core/inspect/stored_statistics.h"
#include "core/rewrite/step_edit.h"
#include "core/rewrite/step_merge.h"
#include "core/upkeep/file_order.h"
#include "core/upkeep/scrub.h"
#include "kv/base/retention.h"
#include "kv/copy_steps.h"
#include "kv/maintain/compact_options.h"
#include "python/src/convert.h"
#include "python/src/flatten.h"
#include "python/src/keyword_arguments.h"
#include "python/src/progress_function.h"
#include "python/src/reports.h"
#include "python/src/step_contents.h"

namespace cairn::python {
namespace {

// Raises Invalid. Requires the GIL.
kv::RetentionPolicy ToPolicy(uint64_t keep_last, uint64_t keep_every,
                             const std::vector<std::string>& keep_best) {
  kv::RetentionPolicy policy{.keep_last = keep_last, .keep_every = keep_every, .keep_best = {}};
  for (const std::string& text : keep_best) {
    policy.keep_best.push_back(Unwrap(kv::ParseKeepBest(text)));
  }
  return policy;
}

// Returns the steps of `self` and `others`, without `base`, on the line of `end`, by default the
// latest one.
std::vector<uint64_t> LineWith(const StoreBinding& self,
                               const std::vector<const StoreBinding*>& others,
                               std::optional<uint64_t> end, std::optional<uint64_t> base) {
  std::map<uint64_t, kv::StepInfo> found;
  const auto add = [&](const kv::Snapshot& now) -> Result<void> {
    CAIRN_TRY_ASSIGN(const std::vector<kv::StepInfo> steps, now.Steps());
    for (const kv::StepInfo& step : steps) {
      kv::StepInfo& known = found.try_emplace(step.step, step).first->second;
      if (step.created_unix_ns > known.created_unix_ns) known = step;
    }
    return {};
  };
  self.AskLatest(add);
  for (const StoreBinding* other : others) other->AskLatest(add);
  if (base) found.erase(*base);
  std::vector<kv::StepInfo> steps;
  for (auto& [number, step] : found) steps.push_back(std::move(step));
  if (!end) end = kv::LatestOf(steps);
  return end ? kv::LineOf(steps, *end) : std::vector<uint64_t>();
}

// An asynchronous save. Threads: any; each waits without the GIL. Raises Invalid in a forked child.
class SaveHandle {
 public:
  SaveHandle(core::SaveHandle handle, std::shared_ptr<const BackgroundProgress> progress)
      : handle_(std::move(handle)), progress_(std::move(progress)) {}
  // Waits until the caller may change its tensors.
  void WaitStaged() const {
    process_.Check();
    const GilRelease no_gil;
    handle_.WaitStaged();
  }
  // Makes work that is enqueued from now on, on the stream with that address on `device`, run after
  // the copies from that device. Waits until the copies are enqueued.
  void MakeStreamWait(int device, uintptr_t stream) const {
    process_.Check();
    Unwrap(OutsideGil([&] {
      return handle_.MakeStreamWait({.device = device, .stream = reinterpret_cast<void*>(stream)});
    }));
  }
  // Waits until the save has ended, at most `timeout_seconds` if given. Returns true if it has
  // ended. In the meantime, runs signal handlers and calls the ProgressFunction of the thread. If
  // that returns False, raises Unavailable; the save continues.
  bool Wait(std::optional<double> timeout_seconds) const {
    using Clock = std::chrono::steady_clock;
    using std::chrono::milliseconds;
    process_.Check();
    // A year is indefinite in practice, and does not overflow the clock.
    const double given = timeout_seconds.value_or(3e7);
    if (std::isnan(given)) ThrowInvalid("a timeout is a number of seconds");
    const double seconds = std::clamp(given, 0.0, 3e7);
    const auto deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                             std::chrono::duration<double>(seconds));
    SignalWatch watch;
    const auto may_continue = [&] {
      const uint64_t total = progress_->total_bytes.load(std::memory_order_relaxed);
      if (total == 0) return watch.Check();
      return watch.Report(progress_->done_bytes.load(std::memory_order_relaxed), total);
    };
    bool ended = false;
    bool is_stopped = false;
    {
      const GilRelease no_gil;
      while (!is_stopped) {  // in slices, so that Ctrl-C ends the wait (and not the save)
        const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now());
        ended = handle_.WaitFor(std::clamp(left, milliseconds(0), WaitSlice()));
        if (ended || left <= milliseconds(0)) break;
        is_stopped = !may_continue();
      }
    }
    watch.Rethrow();
    if (is_stopped) {
      Throw(Error{.code = ErrorCode::kCancelled,
                  .message = "the wait was stopped, because progress= returned False; the save "
                             "continues in the background"});
    }
    return ended;
  }
  bool done() const {
    process_.Check();
    return handle_.done();
  }
  // Waits until the save has ended. Returns its report, or raises its error.
  core::SaveReport Report() const {
    process_.Check();
    return Unwrap(OutsideGil([&] { return handle_.Wait(); }));
  }

 private:
  core::SaveHandle handle_;
  std::shared_ptr<const BackgroundProgress> progress_;
  ProcessGuard process_;
};

}  // namespace

StoreBinding::StoreBinding(const std::string& address, bool writable,
                           std::shared_ptr<CommunicatorBinding> communicator,
                           const kv::StoreOptions& options)
    : communicator_(std::move(communicator)) {
  LetForkedChildrenExit();
  SignalWatch watch;
  const kv::OpenMode to_write =
      options.session.empty() ? kv::OpenMode::kWrite : kv::OpenMode::kJoinSession;
  const kv::OpenMode mode = writable ? to_write : kv::OpenMode::kRead;
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

std::vector<kv::CopiedStep> StoreBinding::CopyFrom(const StoreBinding& source, nb::object progress,
                                                   nb::kwargs arguments) {
  process_.Check();
  source.process_.Check();
  if (&source == this) ThrowInvalid("the source and the target of a copy are the same store");
  kv::CopyOptions options = ToCopyOptions(arguments);
  SignalWatch watch;
  watch.MakeDue();
  options.progress = [&](const kv::CopyProgress& now) {
    return watch.ReportTo([&] {
      if (progress.is_none()) return true;
      const auto call = [&] { return progress(now.step, now.done_bytes, now.total_bytes); };
      return RunPython(call).ptr() != Py_False;
    });
  };
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
  watch.Rethrow();
  return Unwrap(std::move(report)).steps;
}

nb::class_<StoreBinding> StoreBinding::Bind(nb::module_& m) {
  using Self = StoreBinding;
  using Store = core::CheckpointStore;
  using Texts = std::vector<std::string>;
  nb::class_<SaveHandle>(m, "SaveHandle")
      .def("wait_staged", &SaveHandle::WaitStaged)
      .def("make_stream_wait", &SaveHandle::MakeStreamWait, nb::arg("device"), nb::arg("stream"))
      .def("wait", &SaveHandle::Wait, nb::arg("timeout") = nb::none())
      .def("done", &SaveHandle::done)
      .def("report", &SaveHandle::Report);
  nb::class_<Self> store(m, "Store");
  store
      .def(
          "__init__",
          [](Self* self, nb::str address, bool writable,
             std::shared_ptr<CommunicatorBinding> communicator, nb::kwargs options) {
            new (self) Self(FromPyText(address), writable, std::move(communicator),
                            ToStoreOptions(options));
          },
          nb::arg("address"), nb::arg("writable"), nb::arg("communicator").none(),
          nb::arg("options"))
      .def("uuid",
           [](const Self& self) {
             return self.Use([](auto& store) -> Result<std::string> { return store.kv().uuid(); });
           })
      .def("close", &Self::Close)
      .def("abandon", &Self::Abandon);
  // Saves.
  store
      .def(
          "save",
          [](const Self& self, uint64_t step, const Batch& batch, nb::kwargs arguments) {
            core::SaveOptions options = ToSaveOptions(arguments);
            options.check_memory = batch.MemoryCheck(batch.state.tree);
            return self.UseWatched([&](Store& store, SignalWatch& watch) {
              options.progress = watch.AsProgress();
              return store.Save(step, batch.state, options);
            });
          },
          nb::arg("step"), nb::arg("batch"), nb::arg("options"))
      .def(
          "save_async",
          [](Self& self, uint64_t step, Batch& batch, nb::kwargs arguments) {
            const auto progress = std::make_shared<BackgroundProgress>();
            core::SaveOptions options = ToSaveOptions(arguments);
            options.progress = Recorder(progress);
            if (!batch.is_held) {
              options.hold_memory = [&](auto addresses) { return batch.Hold(addresses); };
            }
            options.check_memory = batch.MemoryCheck(batch.state.tree);
            using Handle = std::optional<core::SaveHandle>;
            Handle handle = self.Use([&](Store& store) -> Result<Handle> {
              const MutexLock one_caller(self.saver_mutex_);
              if (!self.saver_) self.saver_ = std::make_unique<core::AsyncSaver>(&store);
              auto saved = self.saver_->Save(step, batch.state, options);
              if (!saved && batch.is_outdated) return Handle();
              return saved;
            });
            using Returned = std::optional<SaveHandle>;
            return handle ? Returned(SaveHandle(*std::move(handle), progress)) : Returned();
          },
          nb::arg("step"), nb::arg("batch"), nb::arg("options"));
  // What a step contains.
  store
      .def(
          "contents",
          [](const Self& self, std::optional<uint64_t> step, nb::list patterns) {
            const core::KeyPatterns parsed = ParsePatterns(patterns);
            return StepContents(self.Use([&](Store& store) { return store.List(step, parsed); }),
                                nb::find(self));
          },
          nb::arg("step").none(), nb::arg("patterns"))
      .def(
          "statistics",
          [](const Self& self, const StepContents& contents) {
            return contents.ToPyStatistics(self.Use([&](Store& store) {
              return core::FindStatistics(store.kv(), contents.step(), contents.tensors());
            }));
          },
          nb::arg("contents"), "The statistics of the tensors that have some, by FQN.")
      .def(
          "file_order",
          [](const Self& self, const StepContents& contents) {
            return contents.LeavesOf(self.Use([&](Store& store) {
              return core::FileOrder(store, contents.step(), contents.tensors());
            }));
          },
          nb::arg("contents"), "The leaves that are tensors, in the order of their bytes.")
      .def(
          "extension",
          [](const Self& self, const kv::StepInfo& step, nb::str name) -> nb::object {
            const std::string text = FromPyText(name);
            const auto found =
                self.Use([&](Store& store) { return store.FindExtension(step, text); });
            if (!found) return nb::none();
            return nb::bytes(found->data(), found->size());
          },
          nb::arg("step"), nb::arg("name"),
          "The bytes that a front end has stored with the step, or None.")
      .def(
          "records",
          [](const Self& self, uint64_t step) {
            const kv::StepInfo info = self.AskLatest([&](auto& now) { return now.FindStep(step); });
            return self.Use([&](Store& store) { return store.ListRecords(info); });
          },
          nb::arg("step"))
      .def(
          "record",
          [](const Self& self, uint64_t step, const std::string& name) {
            const kv::StepInfo info = self.AskLatest([&](auto& now) { return now.FindStep(step); });
            const auto data = self.Use([&](Store& store) { return store.ReadRecord(info, name); });
            return nb::bytes(data.data(), data.size());
          },
          nb::arg("step"), nb::arg("name"))
      .def(
          "check_chunks",
          [](const Self& self, const kv::StepInfo& step, nb::str fqn) {
            const std::string text = FromPyText(fqn);
            self.Use([&](Store& store) { return store.Chunks(step, text); });
          },
          nb::arg("step"), nb::arg("fqn"),
          "Raises Corrupt if the chunks of the tensor are not what its record states.")
      .def("compare",
           [](const Self& self, uint64_t step_a, uint64_t step_b, nb::list patterns) {
             const core::KeyPatterns parsed = ParsePatterns(patterns);
             return self.Use([&](Store& store) {
               return core::CompareSteps(store.kv(), step_a, step_b, parsed);
             });
           })
      .def(
          "scrub",
          [](const Self& self, uint64_t max_bytes_per_second, double every_seconds) {
            const core::ScrubOptions options{.max_bytes_per_second = max_bytes_per_second,
                                             .every = std::chrono::ceil<std::chrono::milliseconds>(
                                                 std::chrono::duration<double>(every_seconds))};
            return self.Use(
                [&](Store& store) { return core::BackgroundScrub::Start(store, options); });
          },
          nb::arg("max_bytes_per_second"), nb::arg("every_seconds"))
      .def(
          "await_change",
          [](const Self& self, double seconds) {
            using Clock = std::chrono::steady_clock;
            constexpr double kLongest = 0.2;  // so that Ctrl-C and a close are not delayed
            const auto timeout = std::chrono::ceil<std::chrono::milliseconds>(
                std::chrono::duration<double>(std::clamp(seconds, 0.0, kLongest)));
            return self.UseWatched([&](Store& store, SignalWatch& watch) -> Result<bool> {
              const auto begin = Clock::now();
              store.kv().AwaitChange(timeout);
              watch.Check();
              return Clock::now() - begin < timeout;
            });
          },
          nb::arg("seconds"),
          "Waits until a step may have been committed or deleted. Returns True if the storage has "
          "announced a change.");
  // The steps of the store.
  store
      .def("steps",
           [](const Self& self) {
             return self.Use([](Store& store) { return store.StepNumbers(); });
           })
      .def(
          "latest",
          [](const Self& self) {
            return self.AskLatest([](auto& now) -> Result<std::optional<uint64_t>> {
              if (now.step_numbers().empty()) return std::nullopt;
              CAIRN_TRY_ASSIGN(const kv::StepInfo step, now.FindStep({}));
              return step.step;
            });
          },
          "The latest step, which is the last one on the line of the latest save.")
      .def("line", &LineWith, nb::arg("others"), nb::kw_only(), nb::arg("end").none(),
           nb::arg("base").none(),
           "The steps on the line of `end`, by default the latest one, which is the first, without "
           "`base`. Of several stores, one that was saved later replaces one with the same number.")
      .def("copy_from", &Self::CopyFrom, nb::arg("source"), nb::arg("progress").none(),
           nb::arg("options"))
      .def("delete",
           [](const Self& self, nb::handle steps, bool dry_run) {
             const std::vector<uint64_t> numbers = FromPyNumbers(steps);
             const auto done =
                 self.Use([&](Store& store) { return store.Delete(numbers, dry_run); });
             return nb::make_tuple(done.segments, done.freed_bytes, done.waiting_bytes);
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
            self.Use([&](Store& store) { return store.kv().ChangeTags({{name, step}}); });
          },
          nb::arg("name"), nb::arg("step").none())
      .def(
          "step_info",
          [](const Self& self, std::optional<uint64_t> step) {
            return self.AskLatest([&](auto& now) -> Result<TaggedStep> {
              CAIRN_TRY_ASSIGN(kv::StepInfo info, now.FindStep(step));
              TaggedStep found{std::move(info), {}};
              for (const auto& [name, tagged] : now.tags()) {
                if (tagged == found.step) found.tags.push_back(name);
              }
              return found;
            });
          },
          nb::arg("step").none())
      .def("retention",
           [](const Self& self) {
             const kv::RetentionPolicy policy =
                 self.AskLatest([](auto& now) { return now.retention(); });
             nb::list best;
             for (const kv::KeepBest& one : policy.keep_best) best.append(kv::FormatKeepBest(one));
             return nb::make_tuple(policy.keep_last, policy.keep_every, nb::tuple(best));
           })
      .def("set_retention",
           [](const Self& self, uint64_t keep_last, uint64_t keep_every, const Texts& keep_best) {
             const auto policy = ToPolicy(keep_last, keep_every, keep_best);
             self.Use([&](Store& store) { return store.kv().SetRetention(policy); });
           })
      .def("compresses_saves",
           [](const Self& self) {
             return self.AskLatest([](auto& now) { return now.compresses_saves(); });
           })
      .def("set_compression",
           [](const Self& self, bool compress) {
             self.Use([&](Store& store) { return store.kv().SetCompression(compress); });
           })
      .def("continue_from",
           [](const Self& self, const kv::StepInfo& step) {
             self.Use([&](Store& store) { return store.kv().ContinueFrom(step), Result<void>(); });
           })
      // Whether the store has the step; None if the next one continues from another one.
      .def("has_continued",
           [](const Self& self, const kv::StepInfo& step) {
             return self.Use([&](Store& store) -> Result<std::optional<bool>> {
               const auto continued = store.kv().continuation().step;
               if (!continued || continued->attempt != step.attempt) return std::nullopt;
               CAIRN_TRY_ASSIGN(const auto snapshot, store.kv().Latest());
               const auto found = snapshot->FindStep(step.step);
               return found && found->attempt == step.attempt;
             });
           })
      .def("has_loaded",
           [](const Self& self) {
             return self.Use([&](Store& store) -> Result<bool> {
               return store.kv().continuation().load_count > 0;
             });
           })
      .def("keep_steps",
           [](const Self& self, const std::vector<uint64_t>& steps) {
             self.Use([&](Store& store) -> Result<void> {
               store.kv().KeepSteps(steps);
               return {};
             });
           })
      .def(
          "steps_to_delete",
          [](const Self& self, uint64_t keep_last, uint64_t keep_every, const Texts& keep_best,
             std::optional<uint64_t> newest) {
            const auto policy = ToPolicy(keep_last, keep_every, keep_best);
            return self.AskLatest([&](auto& now) { return now.StepsToDelete(policy, newest); });
          },
          nb::arg("keep_last"), nb::arg("keep_every"), nb::arg("keep_best"),
          nb::arg("newest").none())
      .def(
          "compact",
          [](const Self& self, double max_dead, bool fold, bool compress,
             std::optional<uint64_t> max_rate, bool dry_run) {
            kv::CompactOptions options{.max_dead = max_dead,
                                       .max_bytes_per_second = max_rate.value_or(0),
                                       .dry_run = dry_run,
                                       .fold_all = fold};
            return self.UseWatched([&](Store& store, SignalWatch& watch) {
              options.progress = watch.AsProgress();
              return store.Compact(options, compress);
            });
          },
          nb::kw_only(), nb::arg("max_dead"), nb::arg("fold"), nb::arg("compress"),
          nb::arg("max_rate").none(), nb::arg("dry_run"))
      .def(
          "edit",
          [](const Self& self, uint64_t source, uint64_t into, Texts drop,
             std::vector<std::pair<std::string, std::string>> rename,
             std::optional<uint64_t> graft_from, Texts graft, std::string under,
             const nb::list& records, bool overwrite) {
            core::StepEdit edit{.drop = std::move(drop),
                                .rename = std::move(rename),
                                .records = ToRecordChanges(records),
                                .overwrite = overwrite};
            if (graft_from) {
              edit.graft = core::Graft{
                  .step = *graft_from, .patterns = std::move(graft), .under = std::move(under)};
            }
            self.UseWatched([&](Store& store, SignalWatch& watch) {
              edit.progress = watch.AsProgress();
              return store.Edit(source, into, edit);
            });
          },
          nb::arg("source"), nb::kw_only(), nb::arg("into"), nb::arg("drop"), nb::arg("rename"),
          nb::arg("graft_from").none(), nb::arg("graft"), nb::arg("under"), nb::arg("records"),
          nb::arg("overwrite"))
      .def(
          "merge",
          [](const Self& self, const std::vector<uint64_t>& steps, uint64_t into,
             std::vector<double> weights, bool overwrite) {
            core::MergeOptions options{.weights = std::move(weights), .overwrite = overwrite};
            return MergedStep(self.UseWatched([&](Store& store, SignalWatch& watch) {
              options.progress = watch.AsProgress();
              return store.Merge(steps, into, options);
            }));
          },
          nb::arg("steps"), nb::kw_only(), nb::arg("into"), nb::arg("weights"),
          nb::arg("overwrite"));
  return store;
}

std::unique_lock<std::shared_mutex> StoreBinding::LockToClose() {
  std::unique_lock lock(close_mutex_, std::defer_lock);
  if (!SignalWatch::IsRunningPython() || lock.try_lock()) return lock;
  ThrowInvalid(
      "the store is in a call: a function that follows its progress, or a signal handler, must not "
      "close it; set a flag, and close the store after the call");
}

void StoreBinding::Close() {
  process_.Check();
  std::unique_lock lock = LockToClose();
  SignalWatch watch;
  Result<void> result = [&]() -> Result<void> {
    const GilRelease no_gil;
    std::unique_lock alone = std::move(lock);
    ++closing_count_;
    if (!alone.owns_lock()) alone.lock();
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
    std::unique_lock alone = LockToClose();
    const GilRelease no_gil;
    ++closing_count_;
    if (!alone.owns_lock()) alone.lock();
    --closing_count_;
    const MutexLock no_caller(saver_mutex_);
    saver_.reset();  // waits for a running save
    store_.reset();
  }
  if (communicator_) communicator_->Leave("the store was closed");
}

}  // namespace cairn::python
