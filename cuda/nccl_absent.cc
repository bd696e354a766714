// Builds that did not find nccl.h.

#include "core/ranks/status_agreement.h"
#include "cuda/nccl_communicator.h"

namespace cairn::cuda {
namespace {

std::unexpected<Error> Absent() {
  return Fail(ErrorCode::kUnimplemented,
              "this build has no NCCL communicator, as nccl.h was not found when it was made; "
              "install NCCL's header or name its directory in CAIRN_NCCL_INCLUDE_DIR");
}

}  // namespace

Result<std::unique_ptr<core::Communicator>> ConnectNccl(core::Communicator& host,
                                                        const NcclOptions&) {
  // The others may be of a build that has it, and wait for this rank's word.
  CAIRN_TRY(core::AgreeOnStatus(host, Absent()));
  return Absent();
}

Result<std::string> DescribeNccl() { return Absent(); }

}  // namespace cairn::cuda
