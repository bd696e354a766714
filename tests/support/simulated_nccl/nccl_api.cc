// NCCL's C functions, on the simulated runtime.
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/simulated_nccl/communicator.h"
#include "tests/support/simulated_nccl/simulated_nccl.h"

namespace cairn::simulated_nccl {
namespace {

using CommunicatorPtr = std::shared_ptr<Communicator>;

struct Fault {
  uint64_t calls_left = 0;
  ncclResult_t error = ncclSuccess;
};

// All members require the lock.
struct Library {
  std::mutex mutex;
  Config config;
  Counters counters;
  std::map<std::string, Fault, std::less<>> faults;
  std::map<std::string, std::shared_ptr<Clique>> cliques;  // by unique id
  uint64_t id_count = 0;
  std::map<ncclComm_t, CommunicatorPtr> communicators;
  uintptr_t next_handle = 0x4cc100000000;  // never reused
};

Library& TheLibrary() {
  static auto* const library = new Library;
  return *library;
}

ncclResult_t TakeFault(std::string_view function) {
  Library& library = TheLibrary();
  const std::lock_guard lock(library.mutex);
  const auto found = library.faults.find(function);
  if (found == library.faults.end() || found->second.calls_left == 0) return ncclSuccess;
  return --found->second.calls_left == 0 ? found->second.error : ncclSuccess;
}

template <class Body>
ncclResult_t Call(std::string_view function, Body&& body) {
  const ncclResult_t fault = TakeFault(function);
  return fault == ncclSuccess ? body() : fault;
}

CommunicatorPtr Find(ncclComm_t handle) {
  Library& library = TheLibrary();
  const std::lock_guard lock(library.mutex);
  const auto found = library.communicators.find(handle);
  return found == library.communicators.end() ? nullptr : found->second;
}

ncclComm_t Keep(CommunicatorPtr communicator) {
  Library& library = TheLibrary();
  const std::lock_guard lock(library.mutex);
  const auto handle = reinterpret_cast<ncclComm_t>(library.next_handle += 64);
  library.communicators.emplace(handle, std::move(communicator));
  return handle;
}

void Forget(ncclComm_t handle) {
  Library& library = TheLibrary();
  const std::lock_guard lock(library.mutex);
  library.communicators.erase(handle);
}

// The operations of this thread since ncclGroupStart.
struct GroupCall {
  CommunicatorPtr communicator;
  cudaStream_t stream;
  Operation operation;
};
struct Group {
  int depth = 0;
  std::vector<GroupCall> calls;
  ncclResult_t error = ncclSuccess;
};
thread_local Group group;

// The part of a group that belongs to one communicator and one stream.
ncclResult_t Launch(const CommunicatorPtr& communicator, std::vector<Operation> operations,
                    cudaStream_t stream) {
  return communicator->Begin([weak = std::weak_ptr(communicator),
                              operations = std::move(operations),
                              stream]() -> std::optional<ncclResult_t> {
    const CommunicatorPtr self = weak.lock();
    return self ? self->Submit(operations, stream) : ncclInternalError;
  });
}

ncclResult_t EndGroup() {
  Group ended = std::exchange(group, {});
  if (ended.error != ncclSuccess) return ended.error;
  ncclResult_t result = ncclSuccess;
  while (!ended.calls.empty()) {
    const CommunicatorPtr communicator = ended.calls.front().communicator;
    const cudaStream_t stream = ended.calls.front().stream;
    std::vector<Operation> operations;
    std::vector<GroupCall> others;
    for (GroupCall& call : ended.calls) {
      if (call.communicator != communicator) {
        others.push_back(std::move(call));
        continue;
      }
      if (call.stream != stream) {
        return communicator->Refuse(
            ncclInvalidUsage, "several streams of one communicator in a group: not simulated");
      }
      operations.push_back(call.operation);
    }
    ended.calls = std::move(others);
    const ncclResult_t launched = Launch(communicator, std::move(operations), stream);
    if (launched != ncclSuccess && launched != ncclInProgress) return launched;
    if (launched == ncclInProgress) result = ncclInProgress;
  }
  return result;
}

ncclResult_t CheckOperation(Communicator& communicator, const Operation& operation) {
  if (const ncclResult_t ready = communicator.CheckReady(); ready != ncclSuccess) return ready;
  if (operation.peer < 0 || operation.peer >= communicator.clique()->size()) {
    return communicator.Refuse(ncclInvalidArgument, "no such rank");
  }
  return ncclSuccess;
}

// Adds one operation to the group of the thread, or executes it as a separate group.
ncclResult_t Ask(ncclComm_t handle, cudaStream_t stream, ncclDataType_t type,
                 const Operation& operation) {
  if (type != ncclUint8) return ncclInvalidUsage;  // not simulated
  const CommunicatorPtr communicator = Find(handle);
  if (!communicator) return ncclInvalidArgument;
  const bool alone = group.depth == 0;
  if (const ncclResult_t checked = CheckOperation(*communicator, operation);
      checked != ncclSuccess) {
    if (!alone) group.error = checked;
    return checked;
  }
  const bool is_transfer =
      operation.kind == OperationKind::kSend || operation.kind == OperationKind::kReceive;
  if (!is_transfer && operation.bytes == 0) return ncclSuccess;  // as in NCCL
  {
    Library& library = TheLibrary();
    const std::lock_guard lock(library.mutex);
    if (operation.kind == OperationKind::kSend) {
      library.counters.send_bytes += operation.bytes;
    } else if (!is_transfer) {
      library.counters.collective_bytes += operation.source != nullptr ? operation.bytes : 0;
    }
  }
  group.calls.push_back({communicator, stream, operation});
  return alone ? EndGroup() : ncclSuccess;
}

CommunicatorPtr Make() {
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return nullptr;
  Library& library = TheLibrary();
  const std::lock_guard lock(library.mutex);
  return std::make_shared<Communicator>(device, library.config.in_progress_polls);
}

ncclResult_t Init(ncclComm_t* handle, int size, const ncclUniqueId& id, int rank) {
  if (handle == nullptr || size < 1 || rank < 0 || rank >= size) return ncclInvalidArgument;
  if (group.depth > 0) return ncclInvalidUsage;  // not simulated
  const CommunicatorPtr communicator = Make();
  if (!communicator) return ncclUnhandledCudaError;
  Library& library = TheLibrary();
  std::shared_ptr<Clique> clique;
  bool refuses = false;
  {
    const std::lock_guard lock(library.mutex);
    refuses = library.config.refuses_shared_devices;
    const auto found = library.cliques.find(std::string(id.internal, sizeof id.internal));
    if (found == library.cliques.end()) return ncclInvalidArgument;
    if (!found->second) found->second = std::make_shared<Clique>(size);
    clique = found->second;
  }
  if (clique->size() != size || !clique->Arrive(rank, communicator->device())) {
    return ncclInvalidUsage;
  }
  communicator->Join(clique, rank);
  *handle = Keep(communicator);
  return communicator->Begin([clique, refuses]() -> std::optional<ncclResult_t> {
    if (!clique->Complete()) return std::nullopt;
    return refuses && clique->SharesDevices() ? ncclInvalidUsage : ncclSuccess;
  });
}

// Waits until `split` is complete, then sets the rank of `child`, if there is one.
Communicator::Step SplitStep(const std::shared_ptr<Clique>& clique,
                             const std::shared_ptr<Clique::Split>& split, int rank,
                             const CommunicatorPtr& child) {
  return [clique, split, rank, weak = std::weak_ptr(child)]() -> std::optional<ncclResult_t> {
    if (!clique->Locked([&] { return split->complete(); })) return std::nullopt;
    if (const CommunicatorPtr part = weak.lock()) {
      part->Join(split->parts.at(split->color_and_key.at(rank).first), split->RankInPart(rank));
    }
    return ncclSuccess;
  };
}

ncclResult_t Split(ncclComm_t parent_handle, int color, int key, ncclComm_t* handle) {
  const CommunicatorPtr parent = Find(parent_handle);
  if (!parent || handle == nullptr) return ncclInvalidArgument;
  if (color < 0 && color != NCCL_SPLIT_NOCOLOR) return ncclInvalidArgument;
  if (group.depth > 0) return ncclInvalidUsage;  // not simulated
  if (const ncclResult_t ready = parent->CheckReady(); ready != ncclSuccess) return ready;
  const std::shared_ptr<Clique> clique = parent->clique();
  const int rank = parent->rank();
  const std::shared_ptr<Clique::Split> split = clique->JoinSplit(rank, color, key);
  CommunicatorPtr child;
  *handle = nullptr;
  if (color != NCCL_SPLIT_NOCOLOR) {
    child = Make();
    if (!child) return ncclUnhandledCudaError;
    *handle = Keep(child);
  }
  // The child completes its split separately, because its state is polled separately.
  if (child) child->Begin(SplitStep(clique, split, rank, child));
  return parent->Begin(SplitStep(clique, split, rank, child));
}

}  // namespace

void Reset(const Config& config) {
  Library& library = TheLibrary();
  const std::lock_guard lock(library.mutex);
  library.config = config;
  library.counters = {};
  library.faults.clear();
  library.cliques.clear();
}

void SetAsyncError(ncclComm_t handle, ncclResult_t error) {
  if (const CommunicatorPtr communicator = Find(handle)) {
    communicator->SetAsyncError(error, "an error that a test asked for");
  }
}

void FailCall(std::string_view function, uint64_t nth, ncclResult_t error) {
  Library& library = TheLibrary();
  const std::lock_guard lock(library.mutex);
  library.faults.insert_or_assign(std::string(function), Fault{nth, error});
}

Counters GetCounters() {
  Library& library = TheLibrary();
  const std::lock_guard lock(library.mutex);
  return library.counters;
}

uint64_t LiveCommunicatorCount() {
  Library& library = TheLibrary();
  const std::lock_guard lock(library.mutex);
  return library.communicators.size();
}

}  // namespace cairn::simulated_nccl

using namespace cairn::simulated_nccl;  // NOLINT(google-build-using-namespace): C functions below

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  return Call("ncclGetVersion", [&] {
    const std::lock_guard lock(TheLibrary().mutex);
    *version = TheLibrary().config.version;
    return ncclSuccess;
  });
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  return Call("ncclGetUniqueId", [&] {
    Library& library = TheLibrary();
    const std::lock_guard lock(library.mutex);
    *id = {};
    std::snprintf(id->internal, sizeof id->internal, "simulated clique %llu",
                  static_cast<unsigned long long>(++library.id_count));
    library.cliques.emplace(std::string(id->internal, sizeof id->internal), nullptr);
    return ncclSuccess;
  });
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  return Call("ncclCommInitRankConfig", [&] {
    const bool is_blocking = config == nullptr || config->blocking != 0;
    return is_blocking ? ncclInvalidUsage : Init(comm, size, id, rank);  // not simulated
  });
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* part, ncclConfig_t*) {
  return Call("ncclCommSplit", [&] { return Split(comm, color, key, part); });
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  return Call("ncclCommFinalize", [&] {
    const CommunicatorPtr communicator = Find(comm);
    if (!communicator) return ncclInvalidArgument;
    if (const ncclResult_t ready = communicator->CheckReady(); ready != ncclSuccess) return ready;
    return communicator->Begin(
        [weak = std::weak_ptr(communicator)]() -> std::optional<ncclResult_t> {
          const CommunicatorPtr self = weak.lock();
          if (self && !self->Quiescent()) return std::nullopt;
          return ncclSuccess;
        });
  });
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  return Call("ncclCommDestroy", [&] {
    const CommunicatorPtr communicator = Find(comm);
    if (!communicator) return ncclInvalidArgument;
    while (!communicator->Quiescent()) communicator->clique()->WaitForChange();
    Forget(comm);
    return ncclSuccess;
  });
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  return Call("ncclCommAbort", [&] {
    const CommunicatorPtr communicator = Find(comm);
    if (!communicator) return ncclInvalidArgument;
    communicator->Abort();
    Forget(comm);
    const std::lock_guard lock(TheLibrary().mutex);
    ++TheLibrary().counters.abort_count;
    return ncclSuccess;
  });
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  return Call("ncclCommGetAsyncError", [&] {
    const CommunicatorPtr communicator = Find(comm);
    if (!communicator || error == nullptr) return ncclInvalidArgument;
    *error = communicator->Poll();
    return ncclSuccess;
  });
}

ncclResult_t ncclGroupStart() {
  return Call("ncclGroupStart", [] {
    ++group.depth;
    return ncclSuccess;
  });
}

ncclResult_t ncclGroupEnd() {
  return Call("ncclGroupEnd", [] {
    if (group.depth == 0) return ncclInvalidUsage;
    return --group.depth == 0 ? EndGroup() : ncclSuccess;
  });
}

ncclResult_t ncclSend(const void* source, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  return Call("ncclSend", [&] {
    return Ask(comm, stream, type,
               {.kind = OperationKind::kSend, .source = source, .bytes = count, .peer = peer});
  });
}

ncclResult_t ncclRecv(void* target, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return Call("ncclRecv", [&] {
    return Ask(comm, stream, type,
               {.kind = OperationKind::kReceive, .target = target, .bytes = count, .peer = peer});
  });
}

ncclResult_t ncclBroadcast(const void* source, void* target, size_t count, ncclDataType_t type,
                           int root, ncclComm_t comm, cudaStream_t stream) {
  return Call("ncclBroadcast", [&] {
    const CommunicatorPtr communicator = Find(comm);
    const bool is_root = communicator && communicator->rank() == root;
    return Ask(comm, stream, type,
               {.kind = OperationKind::kBroadcast,
                .source = is_root ? source : nullptr,  // only that of the root is used
                .target = target,
                .bytes = count,
                .peer = root});
  });
}

ncclResult_t ncclAllReduce(const void* source, void* target, size_t count, ncclDataType_t type,
                           ncclRedOp_t reduction, ncclComm_t comm, cudaStream_t stream) {
  return Call("ncclAllReduce", [&] {
    if (reduction != ncclMax) return ncclInvalidUsage;  // not simulated
    return Ask(
        comm, stream, type,
        {.kind = OperationKind::kAllReduce, .source = source, .target = target, .bytes = count});
  });
}

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclUnhandledCudaError:
      return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
    case ncclSystemError:
      return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    case ncclInternalError:
      return "internal error - please report this issue to the NCCL developers";
    case ncclInvalidArgument:
      return "invalid argument (run with NCCL_DEBUG=WARN for details)";
    case ncclInvalidUsage:
      return "invalid usage (run with NCCL_DEBUG=WARN for details)";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    case ncclInProgress:
      return "NCCL operation in progress";
    default:
      return "unknown result code";
  }
}

// The text is valid until the next call of the thread.
const char* ncclGetLastError(ncclComm_t comm) {
  thread_local std::string text;
  const CommunicatorPtr communicator = Find(comm);
  text = communicator ? communicator->last_error() : "";
  return text.c_str();
}

}  // extern "C"
