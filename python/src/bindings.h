#pragma once
/// The parts of the extension module. Each function adds the classes and functions of one source
/// file.

#include <nanobind/nanobind.h>

namespace cairn::python {

struct Batch;
class StoreBinding;

void BindBatch(nanobind::module_& m);
void BindCollectives(nanobind::module_& m);
void BindConversions(nanobind::module_& m);
/// `store`: gets the calls that examine a step.
void BindInspection(nanobind::class_<StoreBinding>& store);
/// `store`: gets the calls that load requests.
void BindLoading(nanobind::module_& m, nanobind::class_<StoreBinding>& store);
void BindLoadPlan(nanobind::module_& m);
/// `store`: gets the calls that map tensors.
void BindNewTensors(nanobind::module_& m, nanobind::class_<StoreBinding>& store);
/// `batch`: gets the calls that compare the ranks.
void BindRankSamples(nanobind::class_<Batch>& batch);
/// The reports of a store (cairn/reports.py), with named attributes that cannot be changed. Two of
/// them are equal if all attributes are; those that the package exports can be pickled.
void BindReports(nanobind::module_& m);
void BindStepPart(nanobind::module_& m);

}  // namespace cairn::python
