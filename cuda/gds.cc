// GPUDirect Storage for callers that ask before they save.

#include "cuda/gds.h"

#include "cuda/backend.h"
#include "cuda/internal/cufile.h"

namespace cairn::cuda {

Result<void> FindGpuDirectStorage(const std::string& directory) {
  CAIRN_TRY(internal::CheckCuFileBuild());
  CAIRN_TRY_ASSIGN(core::DeviceBackend* const backend, FindBackend());
  return internal::TryOutDirectory(*backend, directory);
}

}  // namespace cairn::cuda
