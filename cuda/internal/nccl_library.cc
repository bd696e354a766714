#include "cuda/internal/nccl_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>

#include "kv/base/mutex.h"

namespace cairn::cuda::internal {
namespace {

constexpr const char* kName = "libnccl.so.2";
constexpr const char* kPathVariable = "CAIRN_NCCL_LIBRARY";
constexpr const char* kAdvice =
    "install NCCL 2.18.1 or newer (Debian and Ubuntu: libnccl2; pip: nvidia-nccl-cu13), or set "
    "CAIRN_NCCL_LIBRARY to its file";

struct Handle {
  void* library = nullptr;
  std::string path;
};

std::unexpected<Error> Unusable(std::string what) {
  return Fail(ErrorCode::kFailedPrecondition, fmt::format("{}; {}", what, kAdvice));
}

Result<Handle> OpenFile() {
  if (const char* const path = std::getenv(kPathVariable); path != nullptr && *path != '\0') {
    if (void* const library = ::dlopen(path, RTLD_NOW | RTLD_LOCAL)) return Handle{library, path};
    return Unusable(
        fmt::format("the library named by {} cannot be opened: {}", kPathVariable, ::dlerror()));
  }
  if (void* const library = ::dlopen(kName, RTLD_NOW | RTLD_NOLOAD)) return Handle{library, kName};
  if (void* const library = ::dlopen(kName, RTLD_NOW | RTLD_LOCAL)) return Handle{library, kName};
  return Unusable(fmt::format("no NCCL: {}", ::dlerror()));
}

template <typename Function>
bool Find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  return function != nullptr;
}

/// Returns null, or the name of the first function that is missing.
const char* FindAll(void* library, NcclLibrary& nccl) {
#define CAIRN_FIND_NCCL(function) \
  if (!Find(library, "nccl" #function, nccl.function)) return "nccl" #function
  CAIRN_FIND_NCCL(GetVersion);
  CAIRN_FIND_NCCL(GetUniqueId);
  CAIRN_FIND_NCCL(CommInitRankConfig);
  CAIRN_FIND_NCCL(CommSplit);
  CAIRN_FIND_NCCL(CommFinalize);
  CAIRN_FIND_NCCL(CommDestroy);
  CAIRN_FIND_NCCL(CommAbort);
  CAIRN_FIND_NCCL(CommGetAsyncError);
  CAIRN_FIND_NCCL(GetErrorString);
  CAIRN_FIND_NCCL(GetLastError);
  CAIRN_FIND_NCCL(AllReduce);
  CAIRN_FIND_NCCL(Broadcast);
  CAIRN_FIND_NCCL(Send);
  CAIRN_FIND_NCCL(Recv);
  CAIRN_FIND_NCCL(GroupStart);
  CAIRN_FIND_NCCL(GroupEnd);
#undef CAIRN_FIND_NCCL
  return nullptr;
}

// Returns the file that the library was loaded from, after links and search paths.
std::string FileOf(const NcclLibrary& nccl, const std::string& otherwise) {
  Dl_info info{};
  if (::dladdr(reinterpret_cast<const void*>(nccl.GetVersion), &info) != 0 &&
      info.dli_fname != nullptr) {
    return info.dli_fname;
  }
  return otherwise;
}

Result<NcclLibrary> Load() {
  CAIRN_TRY_ASSIGN(const Handle handle, OpenFile());
  NcclLibrary nccl;
  const char* const missing = FindAll(handle.library, nccl);
  // Checked first: an old version explains why a function is missing.
  if (nccl.GetVersion == nullptr || nccl.GetVersion(&nccl.version) != ncclSuccess) {
    return Unusable(fmt::format("{} is not NCCL: it does not report a version", handle.path));
  }
  nccl.path = FileOf(nccl, handle.path);
  if (nccl.version < NcclLibrary::kMinVersion || missing != nullptr) {
    return Unusable(fmt::format("{} is NCCL {}{}{}", nccl.path, FormatNcclVersion(nccl.version),
                                missing != nullptr ? ", without " : "",
                                missing != nullptr ? missing : ""));
  }
  return nccl;
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

}  // namespace cairn::cuda::internal
