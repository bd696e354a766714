// Rules arrive as JSON, the form that programs accept, too.

#include "python/src/conversion_binding.h"

#include <memory>
#include <string>
#include <utility>

#include "core/checkpoint_store.h"
#include "core/convert/converted_state.h"
#include "python/src/convert.h"
#include "python/src/errors.h"
#include "python/src/gil.h"

namespace cairn::python {

StepContents Convert(const StepContents& contents, nb::str rules, std::optional<uint8_t> dtype,
                     nb::dict casts, nb::list patterns) {
  core::KeyCasts parsed;
  if (dtype) parsed.floats = static_cast<core::DType>(*dtype);
  for (const auto& [fqn, code] : casts) {
    parsed.by_key[FromPyText(fqn)] = static_cast<core::DType>(nb::cast<uint8_t>(code));
  }
  const core::KeyPatterns selected = ParsePatterns(patterns);
  const std::string json = FromPyText(rules);
  auto made = [&]() -> Result<core::Conversion> {
    const GilRelease no_gil;
    CAIRN_TRY_ASSIGN(const core::ConversionRules list, core::ConversionRules::Parse(json));
    return core::Conversion::Make(contents.all(), list, parsed, selected);
  }();
  return StepContents(std::make_shared<const core::Conversion>(Unwrap(std::move(made))));
}

Batch ConvertBatch(const Batch& batch, nb::str rules, std::optional<uint8_t> dtype) {
  core::KeyCasts casts;
  if (dtype) casts.floats = static_cast<core::DType>(*dtype);
  const std::string json = FromPyText(rules);
  core::ConvertedState made = Unwrap([&]() -> Result<core::ConvertedState> {
    const GilRelease no_gil;
    CAIRN_TRY_ASSIGN(const core::ConversionRules list, core::ConversionRules::Parse(json));
    return core::ConvertedState::Make(batch.state, list, casts);
  }());
  using Scratch = std::shared_ptr<void>;
  Batch converted{.state = std::move(made.state), .owners = batch.owners, .borrowed = {}};
  converted.owners.push_back(
      nb::capsule(new Scratch(std::move(made.scratch)),
                  [](void* scratch) noexcept { delete static_cast<Scratch*>(scratch); }));
  return converted;
}

Result<core::LoadReport> LoadConverted(core::CheckpointStore& store,
                                       const core::Conversion& conversion, const Requests& requests,
                                       SignalWatch& watch, const DeviceTransfer& transfer) {
  if (requests.shards.empty()) {
    return conversion.Load(store, requests.list, watch.AsProgress(), transfer.streams);
  }
  std::vector<core::ShardTarget> targets = requests.shards;
  for (const core::LoadRequest& request : requests.list) {
    targets.push_back({.fqn = request.fqn, .sharding = nullptr, .local = request.target});
  }
  return conversion.LoadShards(store, targets, store.rank(), watch.AsProgress(), transfer.streams);
}

}  // namespace cairn::python
