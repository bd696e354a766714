#pragma once
/// The options of `kv-admin import` and `export` that convert tensors.

#include <string>
#include <vector>

#include "tools/common/command_line.h"

namespace cairn::tools {

struct ConversionOptions {
  std::vector<std::string> rename;  // "EXPRESSION=TEXT", applied after the rules of the file
  std::string rules_file;           // JSON
  std::string dtype;                // dtype of all floating-point tensors; empty: their own
};

/// Returns the arguments --rename, --rules and --dtype, which set `options`.
std::vector<Argument> ConversionArguments(ConversionOptions& options);

/// Appends the options to the words of a command.
void AppendConversion(const ConversionOptions& options, std::vector<std::string>& words);

/// Returns whether the options request a conversion, which the Python package carries out.
bool Converts(const ConversionOptions& options);

}  // namespace cairn::tools
