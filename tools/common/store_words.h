#pragma once
/// The names in a store, to complete what a user types.
///
/// Only stores in a directory are opened, because others may take long to answer. A store that
/// cannot be read has no names.

#include <string>
#include <string_view>
#include <vector>

namespace cairn::tools {

struct StoreWord {
  std::string word;
  std::string help;  // may be empty
};

/// Returns an address without its step.
std::string StoreOf(const std::string& address);

/// Returns the newest steps of a store, newest first and at most 200, and its tags.
std::vector<StoreWord> StepWords(const std::string& store);

/// Returns the keys of the step of `address` that begin with `typed`, up to the end of the next
/// path element: "model." and not each key below it. At most 500.
std::vector<StoreWord> KeyWords(const std::string& address, std::string_view typed);

}  // namespace cairn::tools
