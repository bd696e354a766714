// Conversions of tuples.

#include "python/src/placements.h"

#include <vector>

#include "python/src/convert.h"
#include "python/src/errors.h"

namespace cairn::python {
namespace {

uint32_t ToUInt32(uint64_t number) {
  if (number > UINT32_MAX) ThrowInvalid("a mesh or placement has a number beyond 32 bits");
  return static_cast<uint32_t>(number);
}

core::Placement ToPlacement(nb::handle placement) {
  const std::vector<uint64_t> numbers = FromPyNumbers(placement);
  if (numbers.size() != 3 ||
      numbers[0] > static_cast<uint64_t>(core::Placement::Kind::kStridedShard)) {
    ThrowInvalid("a placement is (kind, dimension, split factor)");
  }
  return core::Placement{.kind = static_cast<core::Placement::Kind>(numbers[0]),
                         .dim = ToUInt32(numbers[1]),
                         .split_factor = ToUInt32(numbers[2])};
}

core::ShardView ToPart(nb::handle part, core::DType dtype) {
  const auto fields = nb::cast<nb::tuple>(part);
  core::ShardView result;
  result.box = {.offsets = FromPyNumbers(fields[0]), .sizes = FromPyNumbers(fields[1])};
  result.view = {.dtype = dtype,
                 .shape = result.box.sizes,
                 .strides = FromPyNumbers(fields[2]),
                 .data = FromPyAddress(fields[3]),
                 .device = nb::cast<int>(fields[4])};
  return result;
}

}  // namespace

Mesh Mesh::Make(nb::handle sizes, nb::handle ranks) {
  std::vector<core::DeviceMesh::Dim> dims;
  for (const uint64_t size : FromPyNumbers(sizes)) {
    dims.push_back({.name = "", .size = ToUInt32(size)});
  }
  std::vector<uint32_t> numbers;
  for (const uint64_t rank : FromPyNumbers(ranks)) numbers.push_back(ToUInt32(rank));
  auto mesh = Unwrap(core::DeviceMesh::Make(std::move(dims), std::move(numbers)));
  return {std::make_shared<const core::DeviceMesh>(std::move(mesh))};
}

core::Sharding ToSharding(nb::handle sharding, core::DType dtype) {
  const auto fields = nb::cast<nb::tuple>(sharding);
  core::Sharding result{
      .global_shape = FromPyNumbers(fields[0]), .mesh = nullptr, .placements = {}, .parts = {}};
  if (!nb::object(fields[1]).is_none()) {
    result.mesh = nb::cast<const Mesh&>(fields[1]).mesh;
    for (const nb::handle item : nb::object(fields[2])) {
      result.placements.push_back(ToPlacement(item));
    }
    return result;
  }
  for (const nb::handle item : nb::object(fields[2])) {
    result.parts.push_back(ToPart(item, dtype));
  }
  return result;
}

}  // namespace cairn::python
