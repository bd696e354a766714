// Addresses on the command line: STORE, STORE@STEP, STORE@TAG and STORE@STEP,STEP,...

#include "tools/common/address.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <system_error>

#include "kv/annotations.h"
#include "kv/snapshot.h"
#include "kv/store.h"
#include "tools/common/text.h"

namespace cairn::tools {
namespace {

bool Exists(const std::string& store) {
  std::error_code ignored;  // an error counts as absent; opening the store will report it
  return std::filesystem::exists(AddressDirectory(store), ignored);
}

/// Returns the step that has the tag.
Result<uint64_t> FindTag(const std::string& store, const std::string& tag) {
  if (!kv::IsTagName(tag)) {
    return Fail(
        ErrorCode::kInvalidArgument,
        fmt::format("'{}' is neither a step nor a tag; write STORE@NUMBER, STORE@TAG, or only "
                    "STORE for the latest step",
                    EscapeText(tag)));
  }
  CAIRN_TRY_ASSIGN(const auto opened, kv::Store::Open(store, kv::OpenMode::kRead));
  CAIRN_TRY_ASSIGN(const auto snapshot, opened->Latest());
  return snapshot->FindTag(tag);
}

}  // namespace

std::string AddressDirectory(const std::string& store) {
  constexpr std::string_view kScheme = "file:";
  return store.starts_with(kScheme) ? store.substr(kScheme.size()) : store;
}

Result<Address> ParseAddress(const std::string& text) {
  const size_t at = text.rfind('@');
  Address address{.store = text};
  const std::string digits = at == std::string::npos ? "" : text.substr(at + 1);
  const bool number =
      !digits.empty() && std::all_of(digits.begin(), digits.end(),
                                     [](unsigned char c) { return c >= '0' && c <= '9'; });
  if (number && (Exists(text.substr(0, at)) || !Exists(text))) {
    uint64_t step = 0;
    const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), step);
    if (parsed.ec != std::errc()) {
      return Fail(ErrorCode::kInvalidArgument,
                  fmt::format("step {} exceeds the largest step number, 2^64 - 1", digits));
    }
    address = {.store = text.substr(0, at), .step = step};
  } else if (at != std::string::npos && !number && !Exists(text) &&
             (kv::IsTagName(digits) || Exists(text.substr(0, at)))) {
    address.store = text.substr(0, at);
    CAIRN_TRY_ASSIGN(address.step, FindTag(address.store, digits));
  }
  if (AddressDirectory(address.store).empty()) {
    return Fail(
        ErrorCode::kInvalidArgument,
        fmt::format("'{}' does not name a store; write STORE or STORE@STEP", EscapeText(text)));
  }
  return address;
}

Result<StepsAddress> ParseStepsAddress(const std::string& text) {
  const size_t at = text.rfind('@');
  std::string list = at == std::string::npos ? "" : text.substr(at + 1);
  const bool has_braces = list.size() > 2 && list.front() == '{' && list.back() == '}';
  if (has_braces) list = list.substr(1, list.size() - 2);
  const bool is_list = !list.empty() && list.find_first_not_of("0123456789,") == std::string::npos;
  if (!is_list || (!has_braces && list.find(',') == std::string::npos) || Exists(text)) {
    CAIRN_TRY_ASSIGN(const Address address, ParseAddress(text));
    StepsAddress steps{.store = address.store};
    if (address.step) steps.steps.push_back(*address.step);
    return steps;
  }
  StepsAddress address;
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    CAIRN_TRY_ASSIGN(const Address one,
                     ParseAddress(text.substr(0, at + 1) + list.substr(begin, end - begin)));
    if (!one.step) {
      return Fail(
          ErrorCode::kInvalidArgument,
          fmt::format("'{}' is not a list of steps; write STORE@STEP,STEP", EscapeText(text)));
    }
    address.store = one.store;
    address.steps.push_back(*one.step);
    begin = end + 1;
  }
  return address;
}

}  // namespace cairn::tools
