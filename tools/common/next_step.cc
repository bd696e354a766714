// What to try after a verb has failed: the verb and its arguments decide how advice is written.

#include "tools/common/next_step.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <variant>
#include <vector>

#include "core/base/advice.h"
#include "tools/common/address.h"
#include "tools/common/text.h"

namespace cairn::tools {
namespace {

/// An address that the user gave.
struct GivenAddress {
  std::string text;   // STORE or STORE@STEP
  std::string store;  // without the step
};

/// Unlike ParseAddress, does not open the store, which may be what has failed.
std::string WithoutStep(const std::string& text) {
  std::error_code ignored;  // an error counts as absent
  const bool is_path = std::filesystem::exists(AddressDirectory(text), ignored);
  return is_path ? text : text.substr(0, text.rfind('@'));
}

std::vector<GivenAddress> GivenAddresses(const Verb& verb) {
  std::vector<GivenAddress> given;
  for (const Argument& argument : verb.arguments) {
    const bool is_address = argument.name.starts_with("STORE") || argument.name == "FROM" ||
                            argument.name == "FROM[@STEP]" || argument.name == "TO";
    if (!is_address) continue;
    std::vector<std::string> texts;
    if (const auto* const one = std::get_if<std::string*>(&argument.target)) texts = {**one};
    if (const auto* const several = std::get_if<std::vector<std::string>*>(&argument.target)) {
      texts = **several;
    }
    for (const std::string& text : texts) {
      if (!text.empty()) given.push_back({.text = text, .store = WithoutStep(text)});
    }
  }
  return given;
}

/// Returns the address of the store that contains `file`; the first one if there is no file or it
/// is in none of them.
GivenAddress AddressOf(const Verb& verb, const std::string& file) {
  const std::vector<GivenAddress> given = GivenAddresses(verb);
  for (const GivenAddress& address : given) {
    const std::string location = AddressDirectory(address.store);
    if (file.starts_with(location.substr(0, location.find('?')))) return address;
  }
  return given.empty() ? GivenAddress() : given.front();
}

bool HasOption(const Verb& verb, std::string_view name) {
  return std::ranges::any_of(verb.arguments,
                             [&](const Argument& argument) { return argument.name == name; });
}

}  // namespace

std::string NextStep(const Verb& verb, const Error& error) {
  const GivenAddress address = AddressOf(verb, error.file);
  const core::AdviceContext context{.store = address.store, .quote = ShellWord};
  if (std::string advice = core::Advise(error, context); !advice.empty()) return advice;
  // The layer that has created the error knew more.
  if (error.message.contains("kv-dump ") || error.message.contains("kv-admin ")) return "";
  if (error.code == ErrorCode::kConflict && error.message.contains("overwrite") &&
      !error.message.contains("--overwrite") && HasOption(verb, "--overwrite")) {
    return "--overwrite replaces it";
  }
  if (error.code != ErrorCode::kNotFound || address.store.empty()) return "";
  if (error.message.contains("did you mean") || error.message.contains("similar keys")) return "";
  if (!error.key.empty()) {
    const std::string step =
        error.step ? fmt::format("{}@{}", address.store, *error.step) : address.text;
    return fmt::format("kv-dump keys {} lists all keys", ShellWord(step));
  }
  if (!error.step || error.message.contains("no steps")) return "";
  return error.file.empty()
             ? fmt::format("kv-dump keys {}@{} lists all keys", ShellWord(address.store),
                           *error.step)
             : fmt::format("kv-dump steps {} lists all steps", ShellWord(address.store));
}

}  // namespace cairn::tools
