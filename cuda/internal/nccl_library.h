#pragma once
/// NCCL's functions, from a library that is opened when they are first needed: builds need its
/// header only, and run without it.

#include <nccl.h>

#include <string>

#include "kv/error.h"

namespace cairn::cuda::internal {

/// The library that a process uses; it stays open until the process ends.
///
/// Threads: any; immutable once opened.
struct NcclLibrary {
  /// ncclCommSplit came with it.
  static constexpr int kMinVersion = NCCL_VERSION(2, 18, 1);

  /// The file named by the environment variable CAIRN_NCCL_LIBRARY, where it is set; else the
  /// libnccl.so.2 that this process has loaded already, as PyTorch brings its own and two in one
  /// process would not know of each other's streams; else the one that the system finds.
  ///
  /// kFailedPrecondition: there is none, or one that is older than kMinVersion; says which was
  /// found and what to install. The next call tries again.
  static Result<const NcclLibrary*> Open();

  std::string path;
  int version = 0;  // as NCCL_VERSION_CODE

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

/// "2.28.9"
std::string FormatNcclVersion(int version);

}  // namespace cairn::cuda::internal
