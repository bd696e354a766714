#pragma once
/// Options from Python keyword arguments.

#include <nanobind/nanobind.h>

#include <string>

#include "core/ranks/gloo_communicator.h"
#include "core/save/save_options.h"
#include "kv/base/copy_options.h"
#include "kv/base/options.h"

namespace cairn::python {

namespace nb = nanobind;

/// Returns the options of Store.save, Store.save_async and StepPart.begin: the fields of
/// cairn.SaveTuning, `overwrite`, annotations, `deadline` (in seconds) and `streams` (pairs of a
/// device and the address of a stream). Options that are absent or None have the default of
/// core::SaveOptions. Raises TypeError for other names and for values of a wrong type. Requires the
/// GIL.
core::SaveOptions ToSaveOptions(const nb::kwargs& arguments);

/// Returns changes of the records of a step from pairs of a name and bytes or None. Requires the
/// GIL.
core::ApplicationRecordChanges ToRecordChanges(const nb::list& records);

/// Returns the options of Store: `take_over`, `session` (of another rank's part of a step, to write
/// another part of it), `credentials` (a function), and `grace` in seconds, which has the default
/// of kv::StoreOptions if it is absent or None. Raises TypeError for other names and for values of
/// a wrong type, and Invalid for a negative `grace`. Requires the GIL.
kv::StoreOptions ToStoreOptions(const nb::kwargs& arguments);

/// Returns the options of Store.copy_from: `steps` (a list of numbers), `overwrite`, `threads` and
/// `max_bytes_per_second`, with the defaults of kv::CopyOptions. Raises TypeError for other names
/// and for values of a wrong type. Requires the GIL.
kv::CopyOptions ToCopyOptions(const nb::kwargs& arguments);

/// Returns the options of Communicator: `rank`, `world_size`, `all_gather` (a function of bytes
/// that returns a list of bytes), `interface`, `route_to`, `connect_timeout` and `timeout` (both in
/// seconds), with the defaults of core::GlooOptions. `all_gather` may raise; its exception passes
/// through ConnectGloo. Raises TypeError for other names and for values of a wrong type, and
/// Invalid for a timeout that is not positive. Requires the GIL.
core::GlooOptions ToGlooOptions(const nb::kwargs& arguments);

/// Raises Invalid unless there are 16 bytes.
kv::RunId ToRunId(const nb::bytes& bytes);

/// Converts a timeout to at least 1 ms and at most 30 days. Raises Invalid if it is not positive.
std::chrono::milliseconds ToTimeout(double seconds);

}  // namespace cairn::python
