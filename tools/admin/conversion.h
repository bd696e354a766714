#pragma once
/// The options of `kv-admin import` and `export` that convert tensors.

#include <optional>
#include <string>
#include <vector>

#include "core/convert/converted_keys.h"
#include "tools/common/command_line.h"

namespace cairn::tools {

struct ConversionOptions {
  std::vector<std::string> rename;  // "EXPRESSION=TEXT", applied after the rules of the file
  std::string rules_file;           // JSON
  std::string dtype;                // of all floating-point tensors; empty: their own
};

struct ConversionRequest {
  core::ConversionRules rules;
  core::KeyCasts casts;
};

/// Returns the arguments --rename, --rules and --dtype, which set `options`.
std::vector<Argument> ConversionArguments(ConversionOptions& options);

/// Appends the options to the words of a command.
void AppendConversion(const ConversionOptions& options, std::vector<std::string>& words);

/// Returns what the options request; nothing if they request nothing. kInvalidArgument: a rename
/// without "=", a malformed rule, or an unknown dtype. kNotFound, kUnavailable: the file cannot be
/// read.
Result<std::optional<ConversionRequest>> ParseConversion(const ConversionOptions& options);

}  // namespace cairn::tools
