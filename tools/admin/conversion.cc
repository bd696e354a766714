#include "tools/admin/conversion.h"

namespace cairn::tools {

std::vector<Argument> ConversionArguments(ConversionOptions& options) {
  return {{.name = "--rename",
           .target = &options.rename,
           .help = "Replace the first match of a regular expression in each key; may be repeated",
           .value_name = "REGEX=TEXT"},
          {.name = "--rules",
           .target = &options.rules_file,
           .help = "Convert by the rules in this JSON file (docs/conversion.md)",
           .value_name = "FILE"},
          {.name = "--dtype",
           .target = &options.dtype,
           .help = "Cast all floating-point tensors: float32, float16, bfloat16 or float64",
           .value_name = "DTYPE"}};
}

void AppendConversion(const ConversionOptions& options, std::vector<std::string>& words) {
  for (const std::string& rename : options.rename) words.push_back("--rename=" + rename);
  if (!options.rules_file.empty()) words.push_back("--rules=" + options.rules_file);
  if (!options.dtype.empty()) words.push_back("--dtype=" + options.dtype);
}

bool Converts(const ConversionOptions& options) {
  return !options.rename.empty() || !options.rules_file.empty() || !options.dtype.empty();
}

}  // namespace cairn::tools
