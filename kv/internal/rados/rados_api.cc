// Lookup of the functions.

#include "kv/internal/rados/rados_api.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <string>

namespace cairn::kv::internal {
namespace {

constexpr const char* kAdvice =
    "stores at rados: addresses need librados 2; install the package librados2 of the "
    "distribution or of Ceph";

template <typename Function>
bool Find(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(::dlsym(library, name));
  return *function != nullptr;
}

}  // namespace

Result<RadosApi> LoadRadosApi(const char* library) {
  void* const handle = ::dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* const reason = ::dlerror();
    return Fail(ErrorCode::kFailedPrecondition,
                fmt::format("cannot open the library of Ceph: {}; {}",
                            reason != nullptr ? reason : library, kAdvice));
  }
  RadosApi api{};
  const char* missing = nullptr;
  const auto find = [&](const char* name, auto* function) {
    if (!Find(handle, name, function)) missing = name;
  };
  find("rados_create", &api.create);
  find("rados_conf_read_file", &api.conf_read_file);
  find("rados_conf_parse_env", &api.conf_parse_env);
  find("rados_conf_set", &api.conf_set);
  find("rados_conf_get", &api.conf_get);
  find("rados_connect", &api.connect);
  find("rados_shutdown", &api.shutdown);
  find("rados_watch_flush", &api.watch_flush);
  find("rados_ioctx_create", &api.ioctx_create);
  find("rados_ioctx_create2", &api.ioctx_create2);
  find("rados_ioctx_destroy", &api.ioctx_destroy);
  find("rados_ioctx_get_id", &api.ioctx_get_id);
  find("rados_ioctx_set_namespace", &api.ioctx_set_namespace);
  find("rados_aio_create_completion", &api.aio_create_completion);
  find("rados_aio_get_return_value", &api.aio_get_return_value);
  find("rados_aio_release", &api.aio_release);
  find("rados_create_write_op", &api.create_write_op);
  find("rados_release_write_op", &api.release_write_op);
  find("rados_write_op_create", &api.write_op_create);
  find("rados_write_op_write_full", &api.write_op_write_full);
  find("rados_write_op_setxattr", &api.write_op_setxattr);
  find("rados_write_op_rmxattr", &api.write_op_rmxattr);
  find("rados_write_op_remove", &api.write_op_remove);
  find("rados_write_op_operate", &api.write_op_operate);
  find("rados_aio_write_op_operate", &api.aio_write_op_operate);
  find("rados_create_read_op", &api.create_read_op);
  find("rados_release_read_op", &api.release_read_op);
  find("rados_read_op_stat", &api.read_op_stat);
  find("rados_read_op_read", &api.read_op_read);
  find("rados_read_op_getxattrs", &api.read_op_getxattrs);
  find("rados_read_op_operate", &api.read_op_operate);
  find("rados_aio_read_op_operate", &api.aio_read_op_operate);
  find("rados_getxattrs_next", &api.getxattrs_next);
  find("rados_getxattrs_end", &api.getxattrs_end);
  find("rados_aio_read", &api.aio_read);
  find("rados_stat", &api.stat);
  find("rados_nobjects_list_open", &api.nobjects_list_open);
  find("rados_nobjects_list_next", &api.nobjects_list_next);
  find("rados_nobjects_list_close", &api.nobjects_list_close);
  find("rados_watch3", &api.watch3);
  find("rados_unwatch2", &api.unwatch2);
  find("rados_notify_ack", &api.notify_ack);
  find("rados_aio_notify", &api.aio_notify);
  find("rados_buffer_free", &api.buffer_free);
  if (missing == nullptr) return api;
  return Fail(ErrorCode::kFailedPrecondition,
              fmt::format("the library {} has no function {}; {}", library, missing, kAdvice));
}

}  // namespace cairn::kv::internal
