#pragma once
// SPDX-License-Identifier: Apache-2.0
/// A step as rules convert it: its contents under new names, and how to load them.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/convert/conversion_rules.h"
#include "core/convert/converted_keys.h"
#include "core/load/load_options.h"
#include "core/state_dict/key_pattern.h"
#include "core/step/contents.h"

namespace cairn::core {

class CheckpointStore;

/// The contents of a step after a conversion. Loads of it read only what they request, convert
/// while they scatter, and need no memory for whole tensors. Ownership: owns its records. Threads:
/// safe; it is immutable.
class Conversion {
 public:
  /// Applies `rules`, then `casts`, then selects what `patterns` match: the new names. Requires the
  /// complete contents of a step, from List. Errors: those of ConvertKeys, and kInvalidArgument for
  /// names that do not form a tree.
  static Result<Conversion> Make(Contents stored, const ConversionRules& rules,
                                 const KeyCasts& casts = {}, const KeyPatterns& patterns = {});

  /// The step with its new names, dtypes and shapes, in the form that List returns. A tensor that
  /// was only renamed or cast still shares its memory with others, if these were too.
  const Contents& contents() const { return contents_; }

  /// Fills targets as CheckpointStore::Load does; requests name converted tensors and boxes of
  /// them, and have neither a map nor a cast. kInvalidArgument: also, if a target that needs a cast
  /// or a map is not in host memory. Memory: in addition to that of Load, the factors of the
  /// matrices that are dequantized.
  Result<LoadReport> Load(const CheckpointStore& store, std::span<const LoadRequest> requests,
                          const Progress& progress = {},
                          std::span<const DeviceStream> streams = {}) const;

  /// Fills this rank's part of each tensor as CheckpointStore::LoadShards does without
  /// ShardLoadOptions::read_once. Errors: those of Load, and for targets those of LoadShards.
  Result<LoadReport> LoadShards(const CheckpointStore& store, std::span<const ShardTarget> targets,
                                uint32_t rank, const Progress& progress = {},
                                std::span<const DeviceStream> streams = {}) const;

 private:
  class Expansion;
  Conversion() = default;
  void AddTensors(const Contents& stored, std::vector<ConvertedKey> keys);
  std::optional<TensorInfo> AliasOf(const TensorInfo& stored, const ConvertedKey& key,
                                    std::span<const size_t> whole_keys,
                                    std::span<const ConvertedKey> keys) const;

  Contents contents_;
  std::vector<TensorInfo> stored_;  // the tensors of the step, in key order
  std::vector<SourceKey> sources_;
  std::vector<ConvertedKey> keys_;  // of contents_.tensors, in the same order
};

}  // namespace cairn::core
