// The blocks of docs/communicators.md, in functions with the names that they use.
#include <array>
#include <memory>
#include <string>

#include "core/ranks/communicator.h"
#include "core/ranks/gather_v.h"
#include "core/ranks/gloo_communicator.h"
#include "core/tensor/mesh.h"
#include "cuda/nccl_communicator.h"
#include "kv/base/error.h"

namespace core = cairn::core;
namespace cuda = cairn::cuda;

cairn::Result<void> Connect(int rank, int world_size, const std::string& job_id) {
  // BLOCK
  return {};
}

cairn::Result<void> ConnectGpus(const core::GlooOptions& gloo_options, const core::DeviceMesh& mesh,
                                int local_rank, void* stream) {
  // BLOCK
  return {};
}
