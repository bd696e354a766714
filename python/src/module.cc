// The extension module cairn._cairn. It is private to the package: users use cairn.Store.

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <utility>

#include "core/base/close_name.h"
#include "core/device/device.h"
#include "core/interop/safetensors/safetensors_format.h"
#include "core/save/save_options.h"
#include "core/step/contents.h"
#include "core/upkeep/scrub.h"
#include "kv/base/annotations.h"
#include "kv/base/step_info.h"
#include "kv/storage/open/open_storage.h"
#include "python/src/bindings.h"
#include "python/src/communicator_binding.h"
#include "python/src/convert.h"
#include "python/src/errors.h"
#include "python/src/flatten.h"
#include "python/src/gil.h"
#include "python/src/keyword_arguments.h"
#include "python/src/placements.h"
#include "python/src/progress_function.h"
#include "python/src/step_contents.h"
#include "python/src/store_binding.h"

#ifdef CAIRN_HAS_CUDA
#include "cuda/backend.h"
#endif

namespace cairn::python {
namespace {

// Returns why core cannot use devices, or None if it can.
nb::object DeviceProblem() {
  const auto backend = core::FindDeviceBackend();
  return backend ? nb::none() : ToPyText(backend.error().message);
}

// The context manager of a CollectionPause.
struct PyCollectionPause {
  std::optional<CollectionPause> pause;
};

nb::dict DTypeTable() {
  nb::dict table;
  for (const schema::DTypeInfo& info : schema::kDTypes) {
    table[nb::str(info.name.data(), info.name.size())] =
        nb::make_tuple(static_cast<uint8_t>(info.dtype), schema::ElementBytes(info.dtype));
  }
  return table;
}

void BindRecords(nb::module_& m) {
  nb::class_<Mesh>(m, "Mesh").def("__init__", [](Mesh* self, nb::handle sizes, nb::handle ranks) {
    new (self) Mesh(Mesh::Make(sizes, ranks));
  });
  BindBatch(m);
  m.def(
      "check_save",
      [](uint64_t, const Batch& batch, nb::kwargs options) {
        Unwrap(core::CheckSave(batch.state, ToSaveOptions(options)));
      },
      nb::arg("step"), nb::arg("batch"), nb::arg("options"));
  m.def("device_problem", &DeviceProblem);
  m.def("skip_destructors_of_busy_process", &SkipDestructorsOfBusyProcess);
  m.def("set_progress", &SetProgressFunction, nb::arg("function").none());
  m.def("set_progress_interval", &SetProgressInterval, nb::arg("milliseconds"));
  m.def("report_progress", &ReportProgress, nb::arg("done"), nb::arg("total"));
  m.def("describe_wrong_file", [](nb::bytes head) {
    return core::DescribeWrongFile(std::string_view(head.c_str(), head.size()));
  });
  m.def("repeated_requests", &kv::RepeatedRequests, nb::arg("address"));
  nb::class_<PyCollectionPause>(m, "CollectionPause")
      .def(nb::init<>())
      .def("__enter__", [](PyCollectionPause& self) { self.pause.emplace(); })
      .def("__exit__", [](PyCollectionPause& self, nb::args) { self.pause.reset(); });
  nb::class_<core::Pickle>(m, "Pickle")
      .def("__init__",
           [](core::Pickle* self, nb::bytes data) {
             const auto* begin = reinterpret_cast<const std::byte*>(data.c_str());
             new (self) core::Pickle{{begin, begin + data.size()}};
           })
      .def_prop_ro("data", [](const core::Pickle& self) {
        return nb::bytes(self.data.data(), self.data.size());
      });
  nb::class_<kv::StepInfo>(m, "StoredStep")
      .def_ro("step", &kv::StepInfo::step)
      .def_ro("attempt", &kv::StepInfo::attempt);
  nb::class_<core::TensorInfo>(m, "TensorInfo")
      .def_prop_ro("fqn", [](const core::TensorInfo& self) { return ToPyText(self.fqn); })
      .def_prop_ro("dtype",
                   [](const core::TensorInfo& self) { return static_cast<uint8_t>(self.dtype); })
      .def_prop_ro("shape", [](const core::TensorInfo& self) { return ToPyNumbers(self.shape); })
      .def_ro("nbytes", &core::TensorInfo::nbytes)
      .def_prop_ro("alias_of",
                   [](const core::TensorInfo& self) -> nb::object {
                     return self.alias_of ? ToPyText(*self.alias_of) : nb::none();
                   })
      .def_ro("alias_offset_bytes", &core::TensorInfo::alias_offset_bytes)
      .def_prop_ro("alias_strides",
                   [](const core::TensorInfo& self) { return ToPyNumbers(self.alias_strides); })
      .def_prop_ro("place", &ToPyPlace);
}

void BindContents(nb::module_& m) {
  nb::class_<LongValue>(m, "LongValue")
      .def_prop_ro("type", [](const LongValue& self) { return core::TypeName(self.info.value); })
      .def_prop_ro("nbytes", [](const LongValue& self) {
        return std::get<core::ChunkedValue>(self.info.value).length_bytes;
      });
  nb::class_<StepContents>(m, "Contents")
      .def(nb::init<const StepContents&, const Batch&, nb::dict, nb::dict, nb::object>(),
           nb::arg("stored"), nb::arg("state"), nb::arg("shared"), nb::arg("long_values"),
           nb::arg("conversion"))
      .def_prop_ro("info", &StepContents::step)
      .def_prop_ro("step", [](const StepContents& self) { return self.step().step; })
      .def_prop_ro("generation", [](const StepContents& self) { return self.step().generation; })
      .def_prop_ro("is_converted", &StepContents::is_converted)
      .def_prop_ro("conversion", &StepContents::conversion)
      .def("__len__", &StepContents::leaf_count)
      .def("leaf", &StepContents::ToPyLeaf)
      .def("fqns", &StepContents::ToPyFqns)
      .def("find_tensor", &StepContents::FindTensor)
      .def("build", &StepContents::Build, nb::arg("leaves"), nb::arg("rebuild"))
      .def_prop_ro("has_subclasses", &StepContents::has_subclasses);
  m.def(
      "close_name",
      [](const std::string& name, const std::vector<std::string>& names) {
        return core::FindCloseName(name, names);
      },
      nb::arg("name"), nb::arg("names"));
}

void BindScrub(nb::module_& m) {
  using Scrub = core::BackgroundScrub;
  nb::class_<Scrub>(m, "Scrub",
                    "A background scrub (:meth:`cairn.Store.scrub`). It ends with :meth:`stop`, "
                    "with the ``with`` block, or when the object is deleted.\n\n"
                    "Threads: all methods may be called from any thread.")
      .def_prop_ro(
          "passes", [](const Scrub& self) { return self.state().passes; },
          "The number of complete passes.")
      .def_prop_ro(
          "bytes_read", [](const Scrub& self) { return self.state().bytes_read; },
          "Bytes of payload that these passes have read.")
      .def_prop_ro(
          "damage",
          [](const Scrub& self) {
            nb::list found;
            for (Error& one : self.state().damage) found.append(ToPyDamage(std::move(one)));
            return nb::tuple(found);
          },
          "The problems that the last complete pass has found, at most 1000: instances of Corrupt.")
      .def_prop_ro(
          "damage_count", [](const Scrub& self) { return self.state().damage_count; },
          "How many problems the last complete pass has found.")
      .def_prop_ro(
          "error",
          [](const Scrub& self) {
            const std::optional<Error> error = self.state().error;
            return error ? ToPyText(error->ToString()) : nb::none();
          },
          "Why the last pass could not be completed, such as a storage that cannot be reached; the "
          "next pass tries again.")
      .def_prop_ro(
          "is_running", [](const Scrub& self) { return self.state().is_running; },
          "Whether a pass is running; otherwise the scrub waits for the next one.")
      .def_prop_ro(
          "progress",
          [](const Scrub& self) {
            const core::ScrubState now = self.state();
            return std::pair(now.pass_bytes, now.pass_total_bytes);
          },
          "Bytes of payload that the running pass, or the last one, has verified, and those that "
          "it has to verify. These are 0 while the pass checks the records, which it does first.")
      .def("stop", &Scrub::Stop, nb::call_guard<GilRelease>(),
           "Ends the scrub, and waits for its current request. May be called again.")
      .def("__enter__", [](nb::handle_t<Scrub> self) { return self; })
      .def("__exit__", [](Scrub& self, nb::args) {
        const GilRelease no_gil;
        self.Stop();
      });
}

void BindCommunicator(nb::module_& m) {
  nb::class_<CommunicatorBinding>(m, "Communicator")
      .def(
          "__init__",
          [](CommunicatorBinding* self, nb::kwargs options) {
            new (self) CommunicatorBinding(ToGlooOptions(options));
          },
          nb::arg("options"))
      .def_static("alone", [] { return std::make_shared<CommunicatorBinding>(); })
      .def_prop_ro("rank", &CommunicatorBinding::rank)
      .def_prop_ro("world_size", &CommunicatorBinding::world_size)
      .def("arrive", &CommunicatorBinding::Arrive, nb::arg("call"), nb::arg("timeout"))
      .def("all_gather", &CommunicatorBinding::AllGather, nb::arg("mine"))
      .def("connect_devices", &CommunicatorBinding::ConnectDevices, nb::arg("device"),
           nb::arg("connect_timeout"))
      .def("disconnect_devices", &CommunicatorBinding::DisconnectDevices)
      .def("leave", &CommunicatorBinding::Leave, nb::arg("why"));
  m.def("describe_nccl", &DescribeNccl);
}

}  // namespace
}  // namespace cairn::python

NB_MODULE(_cairn, m) {
  // At exit Python may destroy the module before the last store or tensor, which is not a leak.
  nanobind::set_leak_warnings(false);
  cairn::python::StopUnwoundThreads();
#ifdef CAIRN_HAS_CUDA
  cairn::cuda::Register();
#endif
  m.attr("__version__") = CAIRN_VERSION;
  m.attr("DTYPES") = cairn::python::DTypeTable();
  m.attr("MAX_METRICS") = cairn::kv::kMaxMetrics;
  m.def(
      "is_metric_name",
      [](nanobind::str name) {
        const cairn::kv::Metric metric{.name = cairn::python::FromPyText(name)};
        return cairn::kv::CheckAnnotations({metric}, "", {}).has_value();
      },
      nanobind::arg("name"));
  cairn::python::BindReports(m);
  cairn::python::BindRecords(m);
  cairn::python::BindContents(m);
  cairn::python::BindScrub(m);
  cairn::python::BindCommunicator(m);
  auto store = cairn::python::StoreBinding::Bind(m);
  cairn::python::BindInspection(store);
  cairn::python::BindLoading(m, store);
  cairn::python::BindLoadPlan(m);
  cairn::python::BindNewTensors(m, store);
  cairn::python::BindConversions(m);
  cairn::python::BindCollectives(m);
  cairn::python::BindStepPart(m);
}
