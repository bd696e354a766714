#pragma once
// SPDX-License-Identifier: Apache-2.0
/// One number for the tensors of a step, which does not depend on how they are stored
/// (docs/fingerprint.md).

#include <cstdint>
#include <string>

#include "core/base/progress.h"
#include "core/state_dict/key_pattern.h"
#include "kv/base/error.h"
#include "kv/base/step_info.h"
#include "kv/store.h"

namespace cairn::core {

struct FingerprintOptions {
  KeyPatterns patterns;  // selects tensors by their FQNs
  /// Only the tensors below this key, by their names without it; empty: all.
  std::string under;
  /// SHA-256 instead of XXH3, which somebody can make collide on purpose. Reads all bytes.
  bool sha256 = false;
  /// Receives bytes of the selected tensors. Called only before payload is read.
  Progress progress;
};

struct Fingerprint {
  std::string text;     // "xxh3:" or "sha256:", and hexadecimal digits
  std::string listing;  // of which the text is the hash: one line per tensor
  uint64_t tensors = 0;
  uint64_t values = 0;      // plain values that the patterns select, which do not count
  uint64_t bytes = 0;       // length of the tensors
  uint64_t read_bytes = 0;  // payload that was read, because no recorded digest covers it
};

/// Computes the fingerprint of the selected tensors of `step`. Damaged payload is noticed only
/// where it is read. Memory: 32 MiB and a load, and 16 bytes per 4 MiB of tensors.
///
/// kNotFound: the step was deleted, or no tensor is selected. kCancelled: `options.progress` asked
/// to stop. kResourceExhausted: see CheckRepeats. Other errors: see CheckpointStore::Load.
Result<Fingerprint> ComputeFingerprint(const kv::Store& store, const kv::StepInfo& step,
                                       const FingerprintOptions& options = {});

}  // namespace cairn::core
