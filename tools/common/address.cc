// Addresses on the command line: STORE, STORE@STEP, STORE@TAG and STORE@STEP,STEP,...

#include "tools/common/address.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "kv/base/annotations.h"
#include "kv/read/snapshot.h"
#include "kv/store.h"
#include "tools/common/text.h"

namespace cairn::tools {
namespace {

bool Exists(const std::string& store) {
  std::error_code ignored;  // an error counts as absent; opening the store will report it
  return std::filesystem::exists(AddressDirectory(store), ignored);
}

/// Returns the position of the "@" before a step; npos if there is none. One before a "/" is part
/// of the name of a folder.
size_t FindAt(const std::string& text) {
  const size_t at = text.rfind('@');
  return at != std::string::npos && text.find('/', at) != std::string::npos ? std::string::npos
                                                                            : at;
}

/// A program ends before anyone could read what it has written to memory. kInvalidArgument.
Result<void> CheckIsOutsideOfMemory(const std::string& store) {
  if (!store.starts_with("memory:")) return {};
  return Fail(ErrorCode::kInvalidArgument,
              fmt::format("'{}' is a store in the memory of one process, which other processes "
                          "cannot see; give the address of a directory or a bucket",
                          EscapeText(store)));
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

/// Adds the steps of FIRST..LAST or FIRST..LAST..STRIDE, which may descend.
Result<void> AddRange(const std::string& text, std::vector<uint64_t>& steps) {
  constexpr uint64_t kMaxSteps = 100'000;
  std::vector<uint64_t> numbers;
  bool is_valid = true;
  for (size_t begin = 0; is_valid && begin <= text.size();) {
    const size_t end = std::min(text.find("..", begin), text.size());
    const auto number = ParseWhole<uint64_t>(std::string_view(text).substr(begin, end - begin));
    is_valid = number.has_value();
    numbers.push_back(number.value_or(0));
    begin = end + 2;
  }
  if (!is_valid || numbers.size() > 3 || (numbers.size() == 3 && numbers[2] == 0)) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("'{}' is not a range of steps; write FIRST..LAST or "
                            "FIRST..LAST..STRIDE",
                            EscapeText(text)));
  }
  const uint64_t first = numbers[0], last = numbers[1];
  const uint64_t stride = numbers.size() == 3 ? numbers[2] : 1;
  const uint64_t count = (first < last ? last - first : first - last) / stride;  // after the first
  if (count >= kMaxSteps) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("the range {} has more than {} steps; write FIRST..LAST..STRIDE with a "
                            "larger stride",
                            EscapeText(text), kMaxSteps));
  }
  for (uint64_t i = 0; i <= count; ++i) {
    steps.push_back(first < last ? first + i * stride : first - i * stride);
  }
  return {};
}

}  // namespace

std::string AddressDirectory(const std::string& store) {
  constexpr std::string_view kScheme = "file:";
  return store.starts_with(kScheme) ? store.substr(kScheme.size()) : store;
}

std::string StoreOf(const std::string& address) {
  auto parsed = ParseAddress(address);
  return parsed ? std::move(parsed->store) : std::string();
}

Result<Address> ParseAddress(const std::string& text) {
  CAIRN_TRY(CheckIsOutsideOfMemory(text));
  const size_t at = FindAt(text);
  Address address{.store = text};
  const std::string digits = at == std::string::npos ? "" : text.substr(at + 1);
  const bool number =
      !digits.empty() && std::all_of(digits.begin(), digits.end(),
                                     [](unsigned char c) { return c >= '0' && c <= '9'; });
  if (number && (Exists(text.substr(0, at)) || !Exists(text))) {
    const auto step = ParseWhole<uint64_t>(digits);
    if (!step) {
      return Fail(
          ErrorCode::kInvalidArgument,
          fmt::format("step {} exceeds the largest step number, 2^64 - 1; kv-dump steps lists the "
                      "steps of a store",
                      digits));
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
  CAIRN_TRY(CheckIsOutsideOfMemory(text));
  const size_t at = FindAt(text);
  std::string list = at == std::string::npos ? "" : text.substr(at + 1);
  const bool has_braces = list.size() > 2 && list.front() == '{' && list.back() == '}';
  if (has_braces) list = list.substr(1, list.size() - 2);
  const bool is_list = !list.empty() && list.find_first_not_of("0123456789,") == std::string::npos;
  if (Exists(text) || (!has_braces && (!is_list || list.find(',') == std::string::npos))) {
    CAIRN_TRY_ASSIGN(const Address address, ParseAddress(text));
    StepsAddress steps{.store = address.store};
    if (address.step) steps.steps.push_back(*address.step);
    return steps;
  }
  StepsAddress address{.store = text.substr(0, at)};
  if (AddressDirectory(address.store).empty()) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("'{}' does not name a store; write STORE@STEP,STEP", EscapeText(text)));
  }
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    const std::string element = list.substr(begin, end - begin);
    begin = end + 1;
    if (element.contains("..")) {
      CAIRN_TRY(AddRange(element, address.steps));
      continue;
    }
    CAIRN_TRY_ASSIGN(const Address one, ParseAddress(text.substr(0, at + 1) + element));
    if (!one.step) {
      return Fail(
          ErrorCode::kInvalidArgument,
          fmt::format("'{}' is not a list of steps; write STORE@STEP,STEP", EscapeText(text)));
    }
    address.steps.push_back(*one.step);
  }
  return address;
}

}  // namespace cairn::tools
