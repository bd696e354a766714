#pragma once
/// Stores opened for kv-dump, which tolerates damage.

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "core/checkpoint_store.h"
#include "core/inspect/stored_statistics.h"
#include "core/state_dict/key_pattern.h"
#include "core/step/contents.h"
#include "kv/base/step_info.h"
#include "kv/store.h"
#include "tools/common/address.h"

namespace cairn::tools {

struct OpenedStore {
  Address address;
  std::unique_ptr<core::CheckpointStore> store;
};

/// Opens the store of an address.
Result<OpenedStore> OpenStore(const std::string& address, const kv::StoreOptions& options = {});
/// Opens a store for a verb that does not take a step. kInvalidArgument: the address names a step.
Result<OpenedStore> OpenWithoutStep(const std::string& address, std::string_view verb);

/// Returns the directory of the store as a JSON string.
std::string StoreText(const OpenedStore& opened);

/// Returns the step that the address names, or the latest. kNotFound: there is no such step.
Result<kv::StepInfo> FindStep(const OpenedStore& opened);

/// Calls `visit` with the tensors of a step that match the patterns, in the order of
/// CheckpointStore::ForEachKey, in groups that ascend by FQN. The first group has few chunks, so
/// that it is complete at once. With `has_values`, also with the hidden tensors that have the bytes
/// of the long values that match.
using TensorGroupVisitor = std::function<Result<void>(std::span<const core::TensorInfo>)>;
Result<void> ForEachTensorGroup(const OpenedStore& opened, const kv::StepInfo& step,
                                const core::KeyPatterns& patterns, const TensorGroupVisitor& visit,
                                bool has_values = false);
/// Calls `visit` with these tensors, and with what their save recorded about their values.
using StatisticsVisitor =
    std::function<void(const core::TensorInfo&, const std::optional<core::StoredStatistics>&)>;
Result<void> ForEachStatistics(const OpenedStore& opened, const kv::StepInfo& step,
                               const core::KeyPatterns& patterns, const StatisticsVisitor& visit);

using FoundKey = std::variant<core::TensorInfo, core::ValueInfo>;
/// Returns the key with this name. kNotFound: there is none; the error names similar keys.
Result<FoundKey> FindKey(const core::CheckpointStore& store, const kv::StepInfo& step,
                         const std::string& fqn);

}  // namespace cairn::tools
