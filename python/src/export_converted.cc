// The exporters of core/interop with a loader in Python.

#include "python/src/export_converted.h"

#include <utility>

#include "core/checkpoint_store.h"
#include "core/interop/model_directory/model_export.h"
#include "core/interop/safetensors/safetensors_export.h"
#include "python/src/convert.h"
#include "python/src/errors.h"
#include "python/src/load_plan.h"

namespace cairn::python {

nb::tuple ExportConverted(const StoreBinding& store, const StepContents& contents,
                          const std::string& target, nb::callable load, bool is_model,
                          uint64_t max_shard_bytes, bool overwrite) {
  const auto opened = store.Share();
  if (!opened) ThrowInvalid("the store is closed");
  SignalWatch watch;
  // The GIL is held throughout, except while `load` waits for the storage.
  const core::RequestLoader loader =
      [&](std::span<const core::LoadRequest> requests) -> Result<core::LoadReport> {
    Requests given;
    given.list.assign(requests.begin(), requests.end());
    load(nb::cast(&given, nb::rv_policy::reference));
    return core::LoadReport{};
  };
  const auto finish = [&watch](auto exported) {
    watch.Rethrow();
    const auto done = Unwrap(std::move(exported));
    nb::list files;
    for (const std::string& file : done.files) files.append(ToPyText(file));
    uint64_t tensors_left_out = 0;
    if constexpr (requires { done.tensors_left_out; }) tensors_left_out = done.tensors_left_out;
    return nb::make_tuple(files, done.tensors, done.bytes, tensors_left_out, done.values_left_out,
                          done.seconds);
  };
  if (is_model) {
    return finish(core::ExportModelDirectory(*opened, contents.all(), target,
                                             {.max_shard_bytes = max_shard_bytes,
                                              .overwrite = overwrite,
                                              .progress = watch.AsProgress(),
                                              .load = loader}));
  }
  return finish(core::ExportSafetensors(*opened, contents.all(), target,
                                        {.max_shard_bytes = max_shard_bytes,
                                         .name_prefix = {},
                                         .progress = watch.AsProgress(),
                                         .load = loader}));
}

}  // namespace cairn::python
