#include "core/interop/safetensors/safetensors_format.h"

#include <algorithm>
#include <array>

namespace cairn::core {
namespace {

struct Name {
  std::string_view name;
  DType dtype;
};
constexpr std::array kNames = {
    Name{"BOOL", DType::kBool},
    Name{"U8", DType::kUInt8},
    Name{"I8", DType::kInt8},
    Name{"U16", DType::kUInt16},
    Name{"I16", DType::kInt16},
    Name{"U32", DType::kUInt32},
    Name{"I32", DType::kInt32},
    Name{"U64", DType::kUInt64},
    Name{"I64", DType::kInt64},
    Name{"F16", DType::kFloat16},
    Name{"BF16", DType::kBFloat16},
    Name{"F32", DType::kFloat32},
    Name{"F64", DType::kFloat64},
    Name{"C64", DType::kComplex64},
    Name{"F8_E4M3", DType::kFloat8E4M3FN},
    Name{"F8_E4M3FNUZ", DType::kFloat8E4M3FNUZ},
    Name{"F8_E5M2", DType::kFloat8E5M2},
    Name{"F8_E5M2FNUZ", DType::kFloat8E5M2FNUZ},
    Name{"F8_E8M0", DType::kFloat8E8M0FNU},
    Name{"F4", DType::kFloat4E2M1FNx2},
};

}  // namespace

std::optional<std::string_view> SafetensorsName(DType dtype) {
  const auto* found = std::ranges::find(kNames, dtype, &Name::dtype);
  if (found == kNames.end()) return std::nullopt;
  return found->name;
}

std::optional<DType> FindSafetensorsDType(std::string_view name) {
  const auto* found = std::ranges::find(kNames, name, &Name::name);
  if (found == kNames.end()) return std::nullopt;
  return found->dtype;
}

}  // namespace cairn::core
