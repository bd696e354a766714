#pragma once
/// The functions of librados that Cairn uses, found in the library at run time.
///
/// The C interface of librados 2 is stable, so the declarations here fit every version since Ceph
/// 12. Nothing of Ceph is needed to build Cairn, or to use other storages.
/// https://docs.ceph.com/en/latest/rados/api/librados/

#include <cstddef>
#include <cstdint>
#include <ctime>

#include "kv/base/error.h"

namespace cairn::kv::internal {

// Handles, each of which the library creates and releases.
using RadosClusterHandle = void*;
using RadosIoContext = void*;
using RadosCompletion = void*;
using RadosWriteOp = void*;
using RadosReadOp = void*;
using RadosXattrs = void*;
using RadosObjectList = void*;

using RadosCallback = void (*)(RadosCompletion completion, void* argument);
using RadosNotified = void (*)(void* argument, uint64_t notify_id, uint64_t watch,
                               uint64_t notifier_id, void* data, size_t length_bytes);
using RadosWatchFailed = void (*)(void* argument, uint64_t watch, int error);

inline constexpr int kRadosCreateExclusive = 1;  // LIBRADOS_CREATE_EXCLUSIVE
inline constexpr int kRadosCreateIdempotent = 0;
/// LIBRADOS_OPERATION_FULL_TRY: writes to a full pool fail; otherwise they wait for space.
inline constexpr int kRadosFullTry = 64;

/// A member has the name of its function without "rados_". Results are 0 or more, or a negative
/// number of errno.
struct RadosApi {
  int (*create)(RadosClusterHandle* cluster, const char* id);
  int (*conf_read_file)(RadosClusterHandle, const char* path);
  int (*conf_parse_env)(RadosClusterHandle, const char* variable);
  int (*conf_set)(RadosClusterHandle, const char* option, const char* value);
  int (*conf_get)(RadosClusterHandle, const char* option, char* buffer, size_t size_bytes);
  int (*connect)(RadosClusterHandle);
  void (*shutdown)(RadosClusterHandle);
  int (*watch_flush)(RadosClusterHandle);

  int (*ioctx_create)(RadosClusterHandle, const char* pool, RadosIoContext*);
  int (*ioctx_create2)(RadosClusterHandle, int64_t pool_id, RadosIoContext*);
  void (*ioctx_destroy)(RadosIoContext);
  int64_t (*ioctx_get_id)(RadosIoContext);
  void (*ioctx_set_namespace)(RadosIoContext, const char* name);

  int (*aio_create_completion)(void* argument, RadosCallback complete, RadosCallback safe,
                               RadosCompletion*);
  int (*aio_get_return_value)(RadosCompletion);
  void (*aio_release)(RadosCompletion);

  RadosWriteOp (*create_write_op)();
  void (*release_write_op)(RadosWriteOp);
  void (*write_op_create)(RadosWriteOp, int exclusive, const char* category);
  /// Copies the bytes.
  void (*write_op_write_full)(RadosWriteOp, const char* bytes, size_t length_bytes);
  void (*write_op_setxattr)(RadosWriteOp, const char* name, const char* value, size_t length_bytes);
  void (*write_op_rmxattr)(RadosWriteOp, const char* name);
  void (*write_op_remove)(RadosWriteOp);
  int (*write_op_operate)(RadosWriteOp, RadosIoContext, const char* object, time_t* mtime,
                          int flags);
  int (*aio_write_op_operate)(RadosWriteOp, RadosIoContext, RadosCompletion, const char* object,
                              time_t* mtime, int flags);

  RadosReadOp (*create_read_op)();
  void (*release_read_op)(RadosReadOp);
  void (*read_op_stat)(RadosReadOp, uint64_t* size_bytes, time_t* mtime, int* result);
  void (*read_op_read)(RadosReadOp, uint64_t offset_bytes, size_t length_bytes, char* buffer,
                       size_t* read_bytes, int* result);
  void (*read_op_getxattrs)(RadosReadOp, RadosXattrs*, int* result);
  int (*read_op_operate)(RadosReadOp, RadosIoContext, const char* object, int flags);
  int (*aio_read_op_operate)(RadosReadOp, RadosIoContext, RadosCompletion, const char* object,
                             int flags);
  int (*getxattrs_next)(RadosXattrs, const char** name, const char** value, size_t* length_bytes);
  void (*getxattrs_end)(RadosXattrs);
  int (*aio_read)(RadosIoContext, const char* object, RadosCompletion, char* buffer,
                  size_t length_bytes, uint64_t offset_bytes);
  int (*stat)(RadosIoContext, const char* object, uint64_t* size_bytes, time_t* mtime);

  int (*nobjects_list_open)(RadosIoContext, RadosObjectList*);
  int (*nobjects_list_next)(RadosObjectList, const char** object, const char** locator,
                            const char** name_space);
  void (*nobjects_list_close)(RadosObjectList);

  int (*watch3)(RadosIoContext, const char* object, uint64_t* watch, RadosNotified,
                RadosWatchFailed, uint32_t timeout_s, void* argument);
  int (*unwatch2)(RadosIoContext, uint64_t watch);
  int (*notify_ack)(RadosIoContext, const char* object, uint64_t notify_id, uint64_t watch,
                    const char* bytes, int length_bytes);
  int (*aio_notify)(RadosIoContext, const char* object, RadosCompletion, const char* bytes,
                    int length_bytes, uint64_t timeout_ms, char** reply, size_t* reply_bytes);
  void (*buffer_free)(char*);
};

/// Opens the library, which is never closed. kFailedPrecondition: it is not installed, or lacks a
/// function; the message names the package.
Result<RadosApi> LoadRadosApi(const char* library = "librados.so.2");

}  // namespace cairn::kv::internal
