// Calls of a store that examine a step: whether a state equals it, and what is damaged.

#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "core/inspect/check_state.h"
#include "core/upkeep/damaged_tensors.h"
#include "python/src/bindings.h"
#include "python/src/convert.h"
#include "python/src/errors.h"
#include "python/src/flatten.h"
#include "python/src/step_contents.h"
#include "python/src/store_binding.h"

namespace cairn::python {
namespace {

nb::dict ToPyFindings(const std::vector<core::StateCheck::Finding>& findings) {
  nb::dict found;
  for (const auto& [fqn, text] : findings) found[ToPyText(fqn)] = ToPyText(text);
  return found;
}

nb::tuple Check(const StoreBinding& self, const StepContents& contents, const Batch& batch,
                const Streams& streams) {
  const core::StateCheck check =
      self.UseWatched([&](core::CheckpointStore& store, SignalWatch& watch) {
        return core::CheckState(store.kv(), contents.all(), batch.state, store.rank(),
                                watch.AsProgress(), ToStreams(streams));
      });
  return nb::make_tuple(ToPyFindings(check.different), ToPyFindings(check.not_comparable),
                        ToPyTexts(check.missing), ToPyTexts(check.unexpected), check.compared_bytes,
                        check.bytes_read, check.different_bytes);
}

nb::list FindDamaged(const StoreBinding& self, const StepContents& contents) {
  std::vector<Error> found = self.UseWatched([&](core::CheckpointStore& store, SignalWatch& watch) {
    return core::FindDamagedTensors(store, contents.step(), contents.tensors(), watch.AsProgress());
  });
  nb::list errors;
  for (Error& error : found) {
    error.step = contents.step().step;
    errors.append(ToPyDamage(std::move(error)));
  }
  return errors;
}

bool HasEqualChunks(const StoreBinding& self, const kv::StepInfo& step, nb::str a, nb::str b) {
  const std::string one = FromPyText(a);
  const std::string other = FromPyText(b);
  return self.Use([&](core::CheckpointStore& store) -> Result<bool> {
    CAIRN_TRY_ASSIGN(const auto chunks, store.Chunks(step, one));
    CAIRN_TRY_ASSIGN(const auto others, store.Chunks(step, other));
    return std::ranges::equal(chunks, others, [](const auto& x, const auto& y) {
      return x.box == y.box && x.digest == y.digest;
    });
  });
}

}  // namespace

void BindInspection(nb::class_<StoreBinding>& store) {
  store
      .def("check", &Check, nb::arg("contents"), nb::arg("batch"), nb::arg("streams"),
           "Whether the batch equals the contents: what differs and what cannot be compared, by "
           "FQN, FQNs that are missing and unexpected, and the bytes that were compared, that were "
           "read, and "
           "of the pages that differ.")
      .def("find_damaged", &FindDamaged, nb::arg("contents"),
           "The Corrupt of each tensor that cannot be read.")
      .def("has_equal_chunks", &HasEqualChunks, nb::arg("step"), nb::arg("a"), nb::arg("b"),
           "Whether the digests of two tensors of a step are equal, chunk by chunk.");
}

}  // namespace cairn::python
