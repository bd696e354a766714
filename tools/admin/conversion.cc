// Options become the JSON form of rules.

#include "tools/admin/conversion.h"

#include <fmt/format.h>

#include <cerrno>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "tools/common/text.h"

namespace cairn::tools {
namespace {

Result<nlohmann::ordered_json> ReadRules(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return Fail(SystemError(errno, "opening the rules", path));
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  // Values are copied and written recursively, so what is nested more deeply than rules is not
  // built.
  constexpr int kMaxDepth = 8;
  bool is_too_deep = false;
  const auto is_kept = [&](int depth, nlohmann::ordered_json::parse_event_t, const auto&) {
    is_too_deep = is_too_deep || depth > kMaxDepth;
    return depth <= kMaxDepth;
  };
  auto rules = nlohmann::ordered_json::parse(text, is_kept, /*allow_exceptions=*/false);
  if (rules.is_object()) rules = nlohmann::ordered_json::array({rules});
  if (!rules.is_array() || is_too_deep) {
    return Fail(Error{
        .code = ErrorCode::kInvalidArgument,
        .message =
            R"(the file is not a JSON list of rules, such as [{"rename": "^model.", "to": ""}])",
        .file = path});
  }
  return rules;
}

}  // namespace

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

Result<std::optional<ConversionRequest>> ParseConversion(const ConversionOptions& options) {
  if (options.rename.empty() && options.rules_file.empty() && options.dtype.empty()) {
    return std::nullopt;
  }
  auto rules = nlohmann::ordered_json::array();
  if (!options.rules_file.empty()) {
    CAIRN_TRY_ASSIGN(rules, ReadRules(options.rules_file));
  }
  for (const std::string& rename : options.rename) {
    const size_t at = rename.find('=');
    if (at == std::string::npos) {
      return Fail(ErrorCode::kInvalidArgument,
                  fmt::format("--rename '{}': write REGEX=TEXT", EscapeText(rename)));
    }
    rules.push_back({{"rename", rename.substr(0, at)}, {"to", rename.substr(at + 1)}});
  }
  core::KeyCasts casts;
  if (!options.dtype.empty()) {
    const auto found = schema::FindDType(options.dtype);
    if (!found) {
      return Fail(
          ErrorCode::kInvalidArgument,
          fmt::format("--dtype: '{}' is not a dtype; write float32, float16, bfloat16 or float64",
                      EscapeText(options.dtype)));
    }
    casts.floats = found->dtype;
  }
  const std::string text = rules.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  CAIRN_TRY_ASSIGN(core::ConversionRules parsed, core::ConversionRules::Parse(text));
  return ConversionRequest{std::move(parsed), std::move(casts)};
}

}  // namespace cairn::tools
