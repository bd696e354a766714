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
#include "kv/storage/internal/shared_library.h"

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
  SharedLibrary library;

  int (*create)(RadosClusterHandle* cluster, const char* id) = library.Find("rados_create");
  int (*conf_read_file)(RadosClusterHandle,
                        const char* path) = library.Find("rados_conf_read_file");
  int (*conf_parse_env)(RadosClusterHandle,
                        const char* variable) = library.Find("rados_conf_parse_env");
  int (*conf_set)(RadosClusterHandle, const char* option,
                  const char* value) = library.Find("rados_conf_set");
  int (*conf_get)(RadosClusterHandle, const char* option, char* buffer,
                  size_t size_bytes) = library.Find("rados_conf_get");
  int (*connect)(RadosClusterHandle) = library.Find("rados_connect");
  void (*shutdown)(RadosClusterHandle) = library.Find("rados_shutdown");
  int (*watch_flush)(RadosClusterHandle) = library.Find("rados_watch_flush");

  int (*ioctx_create)(RadosClusterHandle, const char* pool,
                      RadosIoContext*) = library.Find("rados_ioctx_create");
  int (*ioctx_create2)(RadosClusterHandle, int64_t pool_id,
                       RadosIoContext*) = library.Find("rados_ioctx_create2");
  void (*ioctx_destroy)(RadosIoContext) = library.Find("rados_ioctx_destroy");
  int64_t (*ioctx_get_id)(RadosIoContext) = library.Find("rados_ioctx_get_id");
  void (*ioctx_set_namespace)(RadosIoContext,
                              const char* name) = library.Find("rados_ioctx_set_namespace");

  int (*aio_create_completion)(void* argument, RadosCallback complete, RadosCallback safe,
                               RadosCompletion*) = library.Find("rados_aio_create_completion");
  int (*aio_get_return_value)(RadosCompletion) = library.Find("rados_aio_get_return_value");
  void (*aio_release)(RadosCompletion) = library.Find("rados_aio_release");

  RadosWriteOp (*create_write_op)() = library.Find("rados_create_write_op");
  void (*release_write_op)(RadosWriteOp) = library.Find("rados_release_write_op");
  void (*write_op_create)(RadosWriteOp, int exclusive,
                          const char* category) = library.Find("rados_write_op_create");
  /// Copies the bytes.
  void (*write_op_write_full)(RadosWriteOp, const char* bytes,
                              size_t length_bytes) = library.Find("rados_write_op_write_full");
  void (*write_op_setxattr)(RadosWriteOp, const char* name, const char* value,
                            size_t length_bytes) = library.Find("rados_write_op_setxattr");
  void (*write_op_rmxattr)(RadosWriteOp, const char* name) = library.Find("rados_write_op_rmxattr");
  void (*write_op_remove)(RadosWriteOp) = library.Find("rados_write_op_remove");
  int (*write_op_operate)(RadosWriteOp, RadosIoContext, const char* object, time_t* mtime,
                          int flags) = library.Find("rados_write_op_operate");
  int (*aio_write_op_operate)(RadosWriteOp, RadosIoContext, RadosCompletion, const char* object,
                              time_t* mtime,
                              int flags) = library.Find("rados_aio_write_op_operate");

  RadosReadOp (*create_read_op)() = library.Find("rados_create_read_op");
  void (*release_read_op)(RadosReadOp) = library.Find("rados_release_read_op");
  void (*read_op_stat)(RadosReadOp, uint64_t* size_bytes, time_t* mtime,
                       int* result) = library.Find("rados_read_op_stat");
  void (*read_op_read)(RadosReadOp, uint64_t offset_bytes, size_t length_bytes, char* buffer,
                       size_t* read_bytes, int* result) = library.Find("rados_read_op_read");
  void (*read_op_getxattrs)(RadosReadOp, RadosXattrs*,
                            int* result) = library.Find("rados_read_op_getxattrs");
  int (*read_op_operate)(RadosReadOp, RadosIoContext, const char* object,
                         int flags) = library.Find("rados_read_op_operate");
  int (*aio_read_op_operate)(RadosReadOp, RadosIoContext, RadosCompletion, const char* object,
                             int flags) = library.Find("rados_aio_read_op_operate");
  int (*getxattrs_next)(RadosXattrs, const char** name, const char** value,
                        size_t* length_bytes) = library.Find("rados_getxattrs_next");
  void (*getxattrs_end)(RadosXattrs) = library.Find("rados_getxattrs_end");
  int (*aio_read)(RadosIoContext, const char* object, RadosCompletion, char* buffer,
                  size_t length_bytes, uint64_t offset_bytes) = library.Find("rados_aio_read");
  int (*stat)(RadosIoContext, const char* object, uint64_t* size_bytes,
              time_t* mtime) = library.Find("rados_stat");

  int (*nobjects_list_open)(RadosIoContext,
                            RadosObjectList*) = library.Find("rados_nobjects_list_open");
  int (*nobjects_list_next)(RadosObjectList, const char** object, const char** locator,
                            const char** name_space) = library.Find("rados_nobjects_list_next");
  void (*nobjects_list_close)(RadosObjectList) = library.Find("rados_nobjects_list_close");

  int (*watch3)(RadosIoContext, const char* object, uint64_t* watch, RadosNotified,
                RadosWatchFailed, uint32_t timeout_s,
                void* argument) = library.Find("rados_watch3");
  int (*unwatch2)(RadosIoContext, uint64_t watch) = library.Find("rados_unwatch2");
  int (*notify_ack)(RadosIoContext, const char* object, uint64_t notify_id, uint64_t watch,
                    const char* bytes, int length_bytes) = library.Find("rados_notify_ack");
  int (*aio_notify)(RadosIoContext, const char* object, RadosCompletion, const char* bytes,
                    int length_bytes, uint64_t timeout_ms, char** reply,
                    size_t* reply_bytes) = library.Find("rados_aio_notify");
  void (*buffer_free)(char*) = library.Find("rados_buffer_free");
};

/// Opens the library, which is never closed. kFailedPrecondition: it is not installed, or lacks a
/// function; the message names the package.
inline Result<RadosApi> LoadRadosApi(const char* library = "librados.so.2") {
  constexpr const char* kAdvice =
      "stores at rados: addresses need librados 2; install the package librados2 of the "
      "distribution or of Ceph";
  CAIRN_TRY_ASSIGN(const SharedLibrary opened, SharedLibrary::Open(library, "of Ceph", kAdvice));
  RadosApi api{opened};
  CAIRN_TRY(api.library.CheckComplete());
  return api;
}

}  // namespace cairn::kv::internal
