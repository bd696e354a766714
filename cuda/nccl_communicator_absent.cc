// The functions of cuda/nccl_communicator.h in builds without nccl.h.

#include "core/ranks/status_agreement.h"
#include "cuda/nccl_communicator.h"

namespace cairn::cuda {
namespace {

std::unexpected<Error> Absent() {
  return Fail(ErrorCode::kUnimplemented,
              "this build has no NCCL communicator because nccl.h was not found; install NCCL's "
              "header or set CAIRN_NCCL_INCLUDE_DIR to its directory");
}

}  // namespace

Result<std::unique_ptr<core::Communicator>> ConnectNccl(core::Communicator& host,
                                                        const NcclOptions&) {
  // Other ranks may use a build with NCCL, and wait for the status of this rank.
  CAIRN_TRY(core::AgreeOnStatus(host, Absent()));
  return Absent();
}

Result<std::string> DescribeNccl() { return Absent(); }

}  // namespace cairn::cuda
