// GPUDirect Storage: whether this machine has it. cuFile is opened at run time.

#include "cuda/gds.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include "cuda/backend.h"

#if __has_include(<cufile.h>)
#include <cufile.h>
#define CAIRN_HAS_CUFILE_HEADER 1
#endif

namespace cairn::cuda {

#ifdef CAIRN_HAS_CUFILE_HEADER

namespace {

constexpr const char* kLibrary = "libcufile.so.0";

template <typename Function>
Result<Function*> Symbol(void* library, const char* name) {
  void* const symbol = dlsym(library, name);
  if (symbol != nullptr) return reinterpret_cast<Function*>(symbol);
  return Fail(ErrorCode::kFailedPrecondition, fmt::format("{} has no {}", kLibrary, name));
}

/// What is asked of a driver that is open.
Result<void> CheckProperties(void* library) {
  CAIRN_TRY_ASSIGN(auto* const get_properties, Symbol<decltype(cuFileDriverGetProperties)>(
                                                   library, "cuFileDriverGetProperties"));
  CUfileDrvProps_t properties{};
  const CUfileError_t status = get_properties(&properties);
  if (status.err != CU_FILE_SUCCESS) {
    return Fail(ErrorCode::kFailedPrecondition,
                fmt::format("cuFile does not say what its driver can (error {})",
                            static_cast<int>(status.err)));
  }
  // Without its kernel module the driver opens all the same, and copies through host memory.
  if (properties.nvfs.major_version == 0 && properties.nvfs.minor_version == 0) {
    return Fail(ErrorCode::kFailedPrecondition,
                "cuFile runs in compatibility mode: the kernel module nvidia-fs is not loaded");
  }
  return {};
}

}  // namespace

Result<void> FindGpuDirectStorage() {
  CAIRN_TRY(FindBackend());
  // Stays open: a library that has threads of its own cannot be unloaded safely.
  void* const library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return Fail(ErrorCode::kFailedPrecondition,
                fmt::format("{} cannot be opened: {}", kLibrary, dlerror()));
  }
  CAIRN_TRY_ASSIGN(auto* const open,
                   Symbol<decltype(cuFileDriverOpen)>(library, "cuFileDriverOpen"));
  const CUfileError_t status = open();
  if (status.err != CU_FILE_SUCCESS) {
    return Fail(ErrorCode::kFailedPrecondition,
                fmt::format("cuFile's driver does not open (error {}, CUDA's {})",
                            static_cast<int>(status.err), static_cast<int>(status.cu_err)));
  }
  auto checked = CheckProperties(library);
  // The name is a macro in cufile.h, for the second version of the function.
  auto close = Symbol<CUfileError_t()>(library, "cuFileDriverClose_v2");
  if (!close) close = Symbol<CUfileError_t()>(library, "cuFileDriverClose");
  if (close) (void)(*close)();  // nothing was opened through it
  return checked;
}

#else

Result<void> FindGpuDirectStorage() {
  return Fail(ErrorCode::kUnimplemented, "this build was made without cufile.h");
}

#endif

}  // namespace cairn::cuda
