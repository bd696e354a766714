#include "core/save/check_save.h"

#include "core/save/internal/save_planner.h"
#include "kv/base/catch_exhaustion.h"

namespace cairn::core {

Result<void> CheckSave(const StateDict& state, const SaveOptions& options) {
  return kv::CatchExhaustion("the plan of a save", [&]() -> Result<void> {
    CAIRN_TRY(internal::PlanSave(state, options));
    return {};
  });
}

}  // namespace cairn::core
