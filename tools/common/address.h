#pragma once
/// Addresses on the command line: STORE, STORE@STEP, STORE@TAG and STORE@STEP,STEP,...

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kv/base/error.h"

namespace cairn::tools {

struct Address {
  std::string store;             // the argument of CheckpointStore::Open
  std::optional<uint64_t> step;  // none: the latest step
};

/// Splits at the last "@" if a number or a tag follows, unless only a directory with that complete
/// name exists. Opens the store to find the step of a tag. kInvalidArgument: the store is empty or
/// in memory, or the step exceeds 2^64 - 1. kNotFound: no step has the tag; lists the tags.
Result<Address> ParseAddress(const std::string& text);

/// Steps of one store.
struct StepsAddress {
  std::string store;
  std::vector<uint64_t> steps;  // in the order of the text; none: the latest step
};
/// Parses STORE, STORE@STEP, or several steps of one store: STORE@STEP,STEP,... with or without
/// braces around the list. With braces, an element may also be a tag or a range, as bash has them:
/// FIRST..LAST or FIRST..LAST..STRIDE. kInvalidArgument: also if a range has more than 100,000
/// steps. Other errors: see ParseAddress.
Result<StepsAddress> ParseStepsAddress(const std::string& text);

/// Returns an address without its step; empty if it is not an address.
std::string StoreOf(const std::string& address);

/// Returns the directory of a store address, without "file:".
std::string AddressDirectory(const std::string& store);

}  // namespace cairn::tools
