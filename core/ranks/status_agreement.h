#pragma once
// SPDX-License-Identifier: Apache-2.0
/// Propagates the failure of one rank to all ranks, so that all reach the same decision: in
/// collective calls. The ranks of a save, which makes none, communicate through objects
/// (kv/state/internal/attempt_outcome.h).

#include "core/ranks/communicator.h"

namespace cairn::core {

/// Collective. Succeeds if `own` is a success on all ranks. Otherwise all ranks return the error of
/// the lowest rank that failed, with "rank 2: " before its message. If the communicator fails, a
/// rank returns its own error if it has one, otherwise the communicator's. Cost: 8 bytes per rank,
/// and after a failure one broadcast of the error.
Result<void> AgreeOnStatus(Communicator& communicator, const Result<void>& own);
template <typename T>
Result<void> AgreeOnStatus(Communicator& communicator, const Result<T>& own) {
  return AgreeOnStatus(communicator,
                       own ? Result<void>() : Result<void>(std::unexpected(own.error())));
}

}  // namespace cairn::core
