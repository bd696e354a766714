// core/upkeep/step_part.h for cairn/dcp and Store.writer. Calls that do I/O run without the GIL.

#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/checkpoint_store.h"
#include "core/upkeep/step_part.h"
#include "kv/storage/open/open_storage.h"
#include "python/src/bindings.h"
#include "python/src/convert.h"
#include "python/src/errors.h"
#include "python/src/flatten.h"
#include "python/src/gil.h"
#include "python/src/keyword_arguments.h"
#include "python/src/placements.h"
#include "python/src/process_guard.h"
#include "python/src/store_binding.h"

namespace cairn::python {
namespace {

void AddShards(core::StateDict& state, nb::dict shards) {
  core::StateDict::Builder root = state.root();
  for (auto [fqn, value] : shards) {
    const auto entry = nb::cast<nb::tuple>(value);
    const auto dtype = static_cast<core::DType>(nb::cast<uint8_t>(entry[0]));
    core::Sharding sharding = ToSharding(entry[1], dtype);
    core::TensorView view;
    view.dtype = dtype;
    view.shape = sharding.global_shape;
    root.Sharded(FromPyText(fqn), std::move(view), std::move(sharding));
  }
}

core::StepFrame ToFrame(nb::dict paths, nb::dict extensions) {
  core::StepFrame frame;
  for (auto [fqn, path] : paths) {
    std::vector<core::PathElement>& elements = frame.paths[FromPyText(fqn)];
    for (nb::handle element : path) {
      const bool is_position = PyLong_CheckExact(element.ptr());
      elements.push_back(
          {.text = FromPyText(is_position ? nb::str(element) : nb::borrow<nb::str>(element)),
           .is_position = is_position});
    }
  }
  for (auto [name, data] : extensions) {
    const auto bytes = nb::cast<nb::bytes>(data);
    const auto* begin = reinterpret_cast<const std::byte*>(bytes.c_str());
    frame.extensions.push_back({.name = FromPyText(name), .data = {begin, begin + bytes.size()}});
  }
  return frame;
}

[[noreturn]] void ThrowInUse() {
  Throw(Error{.code = ErrorCode::kConflict,
              .message =
                  "a save with this writer is still running on another thread: wait for it, or "
                  "use a separate writer for each save"});
}

// Runs `work` without the GIL. Returns its value, or raises its error.
template <typename Work>
auto WithoutGil(const Work& work) {
  return Unwrap(OutsideGil(work));
}

// At most one part of a step, for one attempt. The destructor aborts a part that was neither
// prepared nor committed.
//
// Threads: one at a time; a concurrent call raises Conflict. In a forked child all members except
// the constructor raise Invalid.
class StepPartBinding {
 public:
  // Uses the store of `owner`, which must outlive this object. Raises Invalid if it is closed.
  explicit StepPartBinding(const StoreBinding& owner) : store_(owner.Share()) {
    if (store_ == nullptr) ThrowInvalid("the store is closed; open it again");
  }
  ~StepPartBinding() {
    if (!process_.is_same_process()) {
      // The lease, threads and files belong to the parent, and so nothing is destroyed.
      (void)part_.release();
      (void)new std::shared_ptr(std::move(store_));
      return;
    }
    const GilRelease no_gil;
    part_.reset();
    store_.reset();
  }

  // Returns the ticket (step, world size, session, attempt) of a new attempt.
  nb::tuple OpenSession(uint64_t step, uint32_t world_size) {
    const ExclusiveUse use(*this);
    const core::StepTicket ticket =
        WithoutGil([&] { return core::StepPart::OpenSession(*store_, step, world_size); });
    return nb::make_tuple(ticket.step, ticket.world_size, ToPyText(ticket.session),
                          ToPyText(ticket.attempt));
  }
  // Begins the part of `rank`. The deadline of the options, which limits the commit, is replaced by
  // 24 hours: the coordinator of the ranks has its own deadlines, and commits when all have
  // prepared.
  void Begin(nb::tuple ticket, uint32_t rank, nb::kwargs options) {
    const ExclusiveUse use(*this);
    const core::StepTicket step_ticket{.step = nb::cast<uint64_t>(ticket[0]),
                                       .world_size = nb::cast<uint32_t>(ticket[1]),
                                       .session = FromPyText(ticket[2]),
                                       .attempt = FromPyText(ticket[3])};
    BeginPart(step_ticket, rank, ToSaveOptions(options));
  }
  // Begins the part of this rank of the store, in an attempt whose name all ranks derive without
  // communication. Every rank calls it. The deadline is as in Begin.
  void BeginTogether(uint64_t step, nb::kwargs options) {
    const ExclusiveUse use(*this);
    if (store_ == nullptr) ThrowInvalid("this part of a step has ended");
    const core::StepTicket ticket{.step = step,
                                  .world_size = store_->world_size(),
                                  .session = {},
                                  .attempt = store_->kv().NextAttempt(step)};
    BeginPart(ticket, store_->rank(), ToSaveOptions(options));
  }
  // Writes the leaves of `batch`, whose keys are FQNs, and `shards`: FQN -> (dtype code, sharding
  // with explicit boxes in the form of ToSharding). The caller keeps the memory of `shards` alive.
  // Returns the bytes of the tensors.
  uint64_t Add(Batch& batch, nb::dict shards, const Streams& streams) {
    const ExclusiveUse use(*this);
    core::StepPart& part = this->part();
    AddShards(batch.state, shards);
    SignalWatch watch;
    watch_ = &watch;
    const core::StateTree tree = batch.state.tree;  // the part takes the state
    check_memory_ = batch.MemoryCheck(tree);
    added_bytes_ = 0;
    auto added = OutsideGil([&] { return part.Add(std::move(batch.state), ToStreams(streams)); });
    watch_ = nullptr;
    check_memory_ = {};
    watch.Rethrow();
    Unwrap(std::move(added));
    return added_bytes_;
  }
  // Makes the part durable.
  core::SaveReport Prepare() {
    const ExclusiveUse use(*this);
    core::StepPart& part = this->part();
    return WithoutGil([&] { return part.Prepare(); });
  }
  // Commits the step. `paths`: FQN -> tuple of str (keys) and int (positions); `extensions`: name
  // -> bytes.
  core::SaveReport Commit(nb::dict paths, nb::dict extensions) {
    const ExclusiveUse use(*this);
    core::StepPart& part = this->part();
    const core::StepFrame frame = ToFrame(paths, extensions);
    return WithoutGil([&] { return part.Commit(frame); });
  }
  // Puts an object next to those of the store, unless it exists.
  void PutIfAbsent(nb::str name, nb::bytes data) {
    const ExclusiveUse use(*this);
    if (store_ == nullptr) ThrowInvalid("this part of a step has ended");
    const std::string object = FromPyText(name);
    const auto bytes = std::as_bytes(std::span(data.c_str(), data.size()));
    WithoutGil([&]() -> Result<void> {
      kv::Storage& storage = store_->kv().storage();
      if (storage.Size(object)) return {};
      auto put = storage.PutIfAbsent(object, bytes);
      return put || put.error().code != ErrorCode::kConflict ? std::move(put) : Result<void>();
    });
  }
  // Informs rank 0 that this rank gave up, and why. Best effort.
  void Abort(nb::str reason) {
    const ExclusiveUse use(*this);
    core::StepPart& part = this->part();
    const Error error{.code = ErrorCode::kFailedPrecondition, .message = FromPyText(reason)};
    const GilRelease no_gil;
    part.Abort(error);
  }
  // Aborts an unfinished part. May be called again.
  void Close() {
    const ExclusiveUse use(*this);
    const GilRelease no_gil;
    part_.reset();
    store_.reset();
  }

 private:
  // Marks the object as used. Raises Conflict if it is in use already, and Invalid after a fork.
  class ExclusiveUse {
   public:
    explicit ExclusiveUse(const StepPartBinding& of) : of_(of) {
      of.process_.Check();
      if (of.in_use_.exchange(true)) ThrowInUse();
    }
    ~ExclusiveUse() { of_.in_use_ = false; }
    ExclusiveUse(const ExclusiveUse&) = delete;
    ExclusiveUse& operator=(const ExclusiveUse&) = delete;

   private:
    const StepPartBinding& of_;
  };

  // Raises Invalid if there is no part.
  core::StepPart& part() const {
    if (part_ == nullptr) ThrowInvalid("this part of a step was not begun, or has ended");
    return *part_;
  }
  // Requires exclusive use.
  void BeginPart(const core::StepTicket& ticket, uint32_t rank, core::SaveOptions options) {
    options.deadline = std::chrono::hours(24);
    options.progress = [this](uint64_t done, uint64_t total) {
      added_bytes_ = done;
      return watch_ == nullptr || watch_->Report(done, total);
    };
    options.check_memory = [this] { return check_memory_ ? check_memory_() : Result<void>(); };
    part_ = WithoutGil([&] { return core::StepPart::Begin(*store_, ticket, rank, options); });
  }

  ProcessGuard process_;
  std::shared_ptr<core::CheckpointStore> store_;  // shared with the StoreBinding
  std::unique_ptr<core::StepPart> part_;
  SignalWatch* watch_ = nullptr;                // watch of the running Add
  uint64_t added_bytes_ = 0;                    // by the running Add
  std::function<Result<void>()> check_memory_;  // check of the running Add
  mutable std::atomic<bool> in_use_ = false;
};

constexpr uint64_t kMaxObjectBytes = 1 << 20;

// Puts a small object next to the objects of the store at `address`. Later reads by any rank see
// it.
Result<void> WriteObject(const std::string& address, const std::string& name,
                         std::span<const std::byte> data) {
  const GilRelease no_gil;
  CAIRN_TRY_ASSIGN(const auto storage, kv::OpenStorage(address));
  return storage->Put(name, data);
}

Result<std::vector<std::byte>> ReadObject(const std::string& address, const std::string& name) {
  const GilRelease no_gil;
  CAIRN_TRY_ASSIGN(const auto storage, kv::OpenStorage(address));
  return storage->Read(name, kMaxObjectBytes);
}

}  // namespace

void BindStepPart(nb::module_& m) {
  m.def(
      "write_object",
      [](nb::str address, nb::str name, nb::bytes data) {
        Unwrap(WriteObject(FromPyText(address), FromPyText(name),
                           std::as_bytes(std::span(data.c_str(), data.size()))));
      },
      nb::arg("address"), nb::arg("name"), nb::arg("data"));
  m.def(
      "read_object",
      [](nb::str address, nb::str name) {
        const auto bytes = Unwrap(ReadObject(FromPyText(address), FromPyText(name)));
        return nb::bytes(reinterpret_cast<const char*>(bytes.data()), bytes.size());
      },
      nb::arg("address"), nb::arg("name"));
  nb::class_<StepPartBinding>(m, "StepPart")
      .def(nb::init<const StoreBinding&>(), nb::keep_alive<1, 2>(), nb::arg("store"))
      .def("open_session", &StepPartBinding::OpenSession, nb::arg("step"), nb::arg("world_size"))
      .def("begin", &StepPartBinding::Begin, nb::arg("ticket"), nb::arg("rank"), nb::arg("options"))
      .def("begin_together", &StepPartBinding::BeginTogether, nb::arg("step"), nb::arg("options"))
      .def("add", &StepPartBinding::Add, nb::arg("batch"), nb::arg("shards"), nb::arg("streams"))
      .def("prepare", &StepPartBinding::Prepare)
      .def("commit", &StepPartBinding::Commit, nb::arg("paths"), nb::arg("extensions"))
      .def("put_if_absent", &StepPartBinding::PutIfAbsent, nb::arg("name"), nb::arg("data"))
      .def("abort", &StepPartBinding::Abort, nb::arg("reason"))
      .def("close", &StepPartBinding::Close);
}

}  // namespace cairn::python
