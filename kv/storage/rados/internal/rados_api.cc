// Lookup of the functions.

#include "kv/storage/rados/internal/rados_api.h"

#include "kv/storage/internal/shared_library.h"

namespace cairn::kv::internal {
namespace {

constexpr const char* kAdvice =
    "stores at rados: addresses need librados 2; install the package librados2 of the "
    "distribution or of Ceph";

}  // namespace

Result<RadosApi> LoadRadosApi(const char* library) {
  CAIRN_TRY_ASSIGN(SharedLibrary opened, SharedLibrary::Open(library, "of Ceph", kAdvice));
  RadosApi api{};
  opened.Find("rados_create", api.create);
  opened.Find("rados_conf_read_file", api.conf_read_file);
  opened.Find("rados_conf_parse_env", api.conf_parse_env);
  opened.Find("rados_conf_set", api.conf_set);
  opened.Find("rados_conf_get", api.conf_get);
  opened.Find("rados_connect", api.connect);
  opened.Find("rados_shutdown", api.shutdown);
  opened.Find("rados_watch_flush", api.watch_flush);
  opened.Find("rados_ioctx_create", api.ioctx_create);
  opened.Find("rados_ioctx_create2", api.ioctx_create2);
  opened.Find("rados_ioctx_destroy", api.ioctx_destroy);
  opened.Find("rados_ioctx_get_id", api.ioctx_get_id);
  opened.Find("rados_ioctx_set_namespace", api.ioctx_set_namespace);
  opened.Find("rados_aio_create_completion", api.aio_create_completion);
  opened.Find("rados_aio_get_return_value", api.aio_get_return_value);
  opened.Find("rados_aio_release", api.aio_release);
  opened.Find("rados_create_write_op", api.create_write_op);
  opened.Find("rados_release_write_op", api.release_write_op);
  opened.Find("rados_write_op_create", api.write_op_create);
  opened.Find("rados_write_op_write_full", api.write_op_write_full);
  opened.Find("rados_write_op_setxattr", api.write_op_setxattr);
  opened.Find("rados_write_op_rmxattr", api.write_op_rmxattr);
  opened.Find("rados_write_op_remove", api.write_op_remove);
  opened.Find("rados_write_op_operate", api.write_op_operate);
  opened.Find("rados_aio_write_op_operate", api.aio_write_op_operate);
  opened.Find("rados_create_read_op", api.create_read_op);
  opened.Find("rados_release_read_op", api.release_read_op);
  opened.Find("rados_read_op_stat", api.read_op_stat);
  opened.Find("rados_read_op_read", api.read_op_read);
  opened.Find("rados_read_op_getxattrs", api.read_op_getxattrs);
  opened.Find("rados_read_op_operate", api.read_op_operate);
  opened.Find("rados_aio_read_op_operate", api.aio_read_op_operate);
  opened.Find("rados_getxattrs_next", api.getxattrs_next);
  opened.Find("rados_getxattrs_end", api.getxattrs_end);
  opened.Find("rados_aio_read", api.aio_read);
  opened.Find("rados_stat", api.stat);
  opened.Find("rados_nobjects_list_open", api.nobjects_list_open);
  opened.Find("rados_nobjects_list_next", api.nobjects_list_next);
  opened.Find("rados_nobjects_list_close", api.nobjects_list_close);
  opened.Find("rados_watch3", api.watch3);
  opened.Find("rados_unwatch2", api.unwatch2);
  opened.Find("rados_notify_ack", api.notify_ack);
  opened.Find("rados_aio_notify", api.aio_notify);
  opened.Find("rados_buffer_free", api.buffer_free);
  CAIRN_TRY(opened.CheckComplete());
  return api;
}

}  // namespace cairn::kv::internal
