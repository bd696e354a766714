#pragma once
/// Finds keys of a step by parts of their names.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/progress.h"
#include "core/checkpoint_store.h"
#include "kv/base/error.h"
#include "kv/base/step_info.h"

namespace cairn::tools {

/// Words that a name contains in any order, without regard to the case of ASCII letters. No words
/// match every name.
class SearchWords {
 public:
  /// kInvalidArgument: more than 1 KiB, or more than 32 words.
  static Result<SearchWords> Parse(std::string_view query);
  bool empty() const { return words_.empty(); }
  bool Match(std::string_view name) const;

 private:
  std::vector<std::string> words_;  // in lower case, without duplicates
};

/// Threads: all members are safe.
class KeySearch {
 public:
  /// `store` must outlive this object.
  explicit KeySearch(const core::CheckpointStore* store) : store_(store) {}

  struct Key {
    std::string fqn;
    bool is_tensor = true;
  };
  struct Found {
    std::vector<Key> keys;  // the first ones, in key order
    uint64_t matches = 0;
    uint64_t key_count = 0;  // number of keys in the step
  };
  /// Keeps the names of the last step, up to 128 MiB, so that the next search of this step reads
  /// nothing. kCancelled: `progress` asked to stop. Other errors: see CheckpointStore::ForEachKey.
  Result<Found> Find(const kv::StepInfo& step, const SearchWords& words, size_t limit,
                     const core::Progress& progress);

 private:
  struct Names {
    kv::StepInfo step;
    std::vector<Key> keys;
  };
  const core::CheckpointStore* store_;
  std::mutex mutex_;
  std::shared_ptr<const Names>
      names_;  // null: no search yet, or the names of the step are too many
};

}  // namespace cairn::tools
