#pragma once
/// Finds keys of a step by parts of their names.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "core/checkpoint_store.h"
#include "kv/error.h"
#include "kv/step_info.h"

namespace cairn::tools {

/// Words that a name contains in any order, without regard to the case of ASCII letters. No words
/// match every name.
class SearchWords {
 public:
  explicit SearchWords(std::string_view query);
  bool Match(std::string_view name) const;

 private:
  std::vector<std::string> words_;  // in lower case
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
    uint64_t key_count = 0;  // of the step
  };
  /// Errors are those of CheckpointStore::ForEachKey. Keeps the names of the last step, up to 128
  /// MiB, so that the next search of this step reads nothing.
  Result<Found> Find(const kv::StepInfo& step, const SearchWords& words, size_t limit);

 private:
  using Visit = std::function<void(std::string_view fqn, bool is_tensor)>;
  Result<void> ForEachName(const kv::StepInfo& step, const Visit& visit);

  const core::CheckpointStore* store_;
  std::mutex mutex_;
  kv::StepInfo step_;  // whose names are kept
  bool has_names_ = false;
  std::string text_;          // all names
  std::vector<size_t> ends_;  // of each name in text_, times 2, plus 1 for a tensor
};

}  // namespace cairn::tools
