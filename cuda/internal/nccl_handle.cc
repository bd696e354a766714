// The one place where an ncclResult_t becomes an Error.

#include "cuda/internal/nccl_handle.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <atomic>
#include <cstdlib>

#include "kv/base/mutex.h"

namespace cairn::cuda::internal {
namespace {

constexpr const char* kPathVariable = "CAIRN_NCCL_LIBRARY";

std::unexpected<Error> Unusable(const std::string& what) {
  return Fail(ErrorCode::kFailedPrecondition,
              fmt::format("{}; install NCCL 2.18.1 or newer (Debian and Ubuntu: libnccl2; pip: "
                          "nvidia-nccl-cu13), or set {} to its file",
                          what, kPathVariable));
}

Result<NcclLibrary> Load() {
  const char* const given = std::getenv(kPathVariable);
  const bool is_given = given != nullptr && *given != '\0';
  void* const library = ::dlopen(is_given ? given : "libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return Unusable(is_given ? fmt::format("the library named by {} cannot be opened: {}",
                                           kPathVariable, ::dlerror())
                             : fmt::format("no NCCL: {}", ::dlerror()));
  }
  NcclLibrary nccl;
  const char* missing = nullptr;  // the first function that the library lacks
#define CAIRN_FIND_NCCL(function)                                                                \
  nccl.function = reinterpret_cast<decltype(nccl.function)>(::dlsym(library, "nccl" #function)); \
  if (nccl.function == nullptr && missing == nullptr) missing = "nccl" #function;
  CAIRN_FOR_EACH_NCCL_FUNCTION(CAIRN_FIND_NCCL)
#undef CAIRN_FIND_NCCL
  // Checked first: an old version explains why a function is missing.
  if (nccl.GetVersion == nullptr || nccl.GetVersion(&nccl.version) != ncclSuccess) {
    return Unusable(fmt::format("{} is not NCCL: it does not report a version",
                                is_given ? given : "libnccl.so.2"));
  }
  Dl_info info{};  // the file after links and search paths
  (void)::dladdr(reinterpret_cast<const void*>(nccl.GetVersion), &info);
  if (info.dli_fname != nullptr) nccl.path = info.dli_fname;
  if (nccl.version < NcclLibrary::kMinVersion || missing != nullptr) {
    return Unusable(fmt::format("{} is NCCL {}{}{}", nccl.path, FormatNcclVersion(nccl.version),
                                missing != nullptr ? ", without " : "",
                                missing != nullptr ? missing : ""));
  }
  return nccl;
}

ncclConfig_t ConfigWithoutBlocking() {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  return config;
}

}  // namespace

Result<const NcclLibrary*> NcclLibrary::Open() {
  static Mutex mutex;
  static const NcclLibrary* opened = nullptr;  // never freed: communicators may outlive statics
  const MutexLock lock(mutex);
  if (opened == nullptr) {
    CAIRN_TRY_ASSIGN(NcclLibrary loaded, Load());
    opened = new NcclLibrary(std::move(loaded));
  }
  return opened;
}

std::string FormatNcclVersion(int version) {
  // Up to 2.8, version codes had one digit less.
  const int unit = version < 10000 ? 1000 : 10000;
  return fmt::format("{}.{}.{}", version / unit, version % unit / 100, version % 100);
}

Error NcclHandle::ErrorOf(ncclResult_t status, const char* what) const {
  const char* const detail = nccl_.GetLastError(comm_);
  const bool has_detail = detail != nullptr && *detail != '\0';
  return {.code = ErrorCode::kUnavailable,
          .message =
              fmt::format("{}: NCCL reports {}{}{}{}", what, nccl_.GetErrorString(status),
                          has_detail ? " (" : "", has_detail ? detail : "", has_detail ? ")" : "")};
}

Result<void> NcclHandle::CheckStop(const char* what) const {
  if (!stop_->is_requested()) return {};
  return Fail(ErrorCode::kUnavailable, fmt::format("{}: {}", what, stop_->why()));
}

Result<bool> NcclHandle::IsIdle(const char* what) const {
  CAIRN_TRY(CheckStop(what));
  ncclResult_t state = ncclSuccess;
  const ncclResult_t asked = nccl_.CommGetAsyncError(comm_, &state);
  if (asked != ncclSuccess) return Fail(ErrorOf(asked, what));
  if (state != ncclSuccess && state != ncclInProgress) return Fail(ErrorOf(state, what));
  return state == ncclSuccess;
}

Result<void> NcclHandle::Drain(ncclResult_t status, const char* what, Deadline deadline) const {
  if (status != ncclSuccess && status != ncclInProgress) return Fail(ErrorOf(status, what));
  return Await([&] { return IsIdle(what); }, what, deadline);
}

Result<void> NcclHandle::Arrive(const char* what, Deadline deadline) {
  // For Split, NCCL's thread writes `comm_` while this thread reads it.
  CAIRN_TRY(Await(
      [&]() -> Result<bool> {
        CAIRN_TRY(CheckStop(what));
        return std::atomic_ref(comm_).load() != nullptr;
      },
      what, deadline));
  return Drain(ncclInProgress, what, deadline);
}

Result<std::unique_ptr<NcclHandle>> NcclHandle::Init(const NcclLibrary& nccl,
                                                     const ncclUniqueId& id, int rank,
                                                     int world_size, Deadline deadline,
                                                     std::shared_ptr<NcclStop> stop) {
  constexpr const char* kWhat = "connecting";
  auto handle = std::unique_ptr<NcclHandle>(new NcclHandle(nccl, std::move(stop)));
  ncclConfig_t config = ConfigWithoutBlocking();
  const ncclResult_t status =
      nccl.CommInitRankConfig(&handle->comm_, world_size, id, rank, &config);
  if (status != ncclSuccess && status != ncclInProgress) {
    return Fail(handle->ErrorOf(status, kWhat));
  }
  CAIRN_TRY(handle->Arrive(kWhat, deadline));
  return handle;
}

Result<std::unique_ptr<NcclHandle>> NcclHandle::Split(int color, int key, Deadline deadline) {
  constexpr const char* kWhat = "dividing the ranks";
  unfinished_.reset(new NcclHandle(nccl_, stop_));
  ncclConfig_t config = ConfigWithoutBlocking();
  CAIRN_TRY(
      Drain(nccl_.CommSplit(comm_, color, key, &unfinished_->comm_, &config), kWhat, deadline));
  CAIRN_TRY(unfinished_->Arrive(kWhat, deadline));
  return std::move(unfinished_);
}

void NcclHandle::Abort() noexcept {
  ncclComm_t const comm = std::exchange(comm_, nullptr);
  if (comm != nullptr) (void)nccl_.CommAbort(comm);  // if it fails, nothing else can be done
  unfinished_.reset();                               // now no thread of NCCL writes to it any more
}

void NcclHandle::Close(Deadline deadline) noexcept {
  if (comm_ == nullptr) return;
  if (stop_->is_requested() || !Drain(nccl_.CommFinalize(comm_), "closing", deadline))
    return Abort();
  (void)nccl_.CommDestroy(
      std::exchange(comm_, nullptr));  // after CommFinalize this only frees local memory
}

}  // namespace cairn::cuda::internal
