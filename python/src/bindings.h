#pragma once
/// The parts of the extension module that only module.cc uses. Each function adds the classes and
/// functions of one source file.

#include <nanobind/nanobind.h>

namespace cairn::python {

class StoreBinding;

void BindCollectives(nanobind::module_& m);
void BindConversions(nanobind::module_& m);
/// `store`: gets the calls that examine a step.
void BindInspection(nanobind::class_<StoreBinding>& store);
/// `store`: gets the calls that map tensors.
void BindNewTensors(nanobind::module_& m, nanobind::class_<StoreBinding>& store);
/// The reports of a store (cairn/reports.py), with named attributes that cannot be changed. Two of
/// them are equal if all attributes are; those that the package exports can be pickled.
void BindReports(nanobind::module_& m);
void BindStepPart(nanobind::module_& m);

}  // namespace cairn::python
