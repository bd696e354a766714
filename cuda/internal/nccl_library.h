#pragma once
/// The functions of NCCL, from a library that is opened when it is first needed: a build needs only
/// NCCL's header, and programs run without the library.

#include <nccl.h>

#include <string>

#include "kv/base/error.h"

namespace cairn::cuda::internal {

/// The NCCL library of this process; it stays open until the process ends. Threads: immutable.
struct NcclLibrary {
  /// The first version with ncclCommSplit.
  static constexpr int kMinVersion = NCCL_VERSION(2, 18, 1);

  /// Opens the file that the environment variable CAIRN_NCCL_LIBRARY names, if it is set. Otherwise
  /// uses the libnccl.so.2 that this process has already loaded, because PyTorch ships its own and
  /// two copies in one process would not know of each other's streams. Otherwise opens the
  /// libnccl.so.2 of the system. Threads: safe.
  ///
  /// kFailedPrecondition: there is no such library, or it is older than kMinVersion; the message
  /// states what was found and what to install. The next call tries again.
  static Result<const NcclLibrary*> Open();

  std::string path;
  int version = 0;  // in the form of NCCL_VERSION_CODE

  decltype(&::ncclGetVersion) GetVersion = nullptr;
  decltype(&::ncclGetUniqueId) GetUniqueId = nullptr;
  decltype(&::ncclCommInitRankConfig) CommInitRankConfig = nullptr;
  decltype(&::ncclCommSplit) CommSplit = nullptr;
  decltype(&::ncclCommFinalize) CommFinalize = nullptr;
  decltype(&::ncclCommDestroy) CommDestroy = nullptr;
  decltype(&::ncclCommAbort) CommAbort = nullptr;
  decltype(&::ncclCommGetAsyncError) CommGetAsyncError = nullptr;
  decltype(&::ncclGetErrorString) GetErrorString = nullptr;
  decltype(&::ncclGetLastError) GetLastError = nullptr;
  decltype(&::ncclAllReduce) AllReduce = nullptr;
  decltype(&::ncclBroadcast) Broadcast = nullptr;
  decltype(&::ncclSend) Send = nullptr;
  decltype(&::ncclRecv) Recv = nullptr;
  decltype(&::ncclGroupStart) GroupStart = nullptr;
  decltype(&::ncclGroupEnd) GroupEnd = nullptr;
};

/// Returns a version such as "2.28.9".
std::string FormatNcclVersion(int version);

}  // namespace cairn::cuda::internal
