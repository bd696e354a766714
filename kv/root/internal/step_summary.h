#pragma once
/// The summary of a step, which is in its entry and in its tables, and texts of records.
/// Threads: all functions here are pure.

#include <cairn_schema/step_generated.h>

#include <cstddef>
#include <string>

#include "kv/base/error.h"
#include "kv/base/step_info.h"

namespace cairn::kv::internal {

/// Length of the longest name in a record: of a host, session, attempt or object.
inline constexpr size_t kMaxNameBytes = 512;

/// Returns a text of a record; "" if it is absent. kDataLoss: it is longer than the limit. Several
/// tables of a record may refer to the same string, so this bounds the memory for a hostile record.
Result<std::string> BoundedText(const flatbuffers::String* text, size_t max_bytes = kMaxNameBytes);

flatbuffers::Offset<schema::StepSummary> AddSummary(flatbuffers::FlatBufferBuilder& builder,
                                                    const StepInfo& info);
/// kDataLoss: there is none, or a limit is exceeded.
Result<StepInfo> ReadSummary(const schema::StepSummary* summary);

}  // namespace cairn::kv::internal
