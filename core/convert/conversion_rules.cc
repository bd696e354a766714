// Parses rules. Each rule is a JSON object that has one of the fields of kKinds, whose value is a
// regular expression, and the other fields of its kind.

#include "core/convert/conversion_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>

#include "core/convert/internal/rule.h"

namespace cairn::core {
namespace internal {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxJsonBytes = 16 << 20;
constexpr size_t kMaxPatternBytes = 10'000;
constexpr size_t kMaxRules = 100'000;
constexpr int64_t kMaxDim = 64;
constexpr int kMaxDepth = 8;  // of the values in a list of rules

struct Kind {
  RuleKind kind;
  std::string_view name;
  std::set<std::string_view> fields;  // besides `name`
};

const std::vector<Kind>& Kinds() {
  static const std::vector<Kind> kinds = {
      {RuleKind::kRename, "rename", {"to"}},
      {RuleKind::kDrop, "drop", {}},
      {RuleKind::kSplit, "split", {"into", "dim", "sizes"}},
      {RuleKind::kConcat, "concat", {"to", "dim"}},
      {RuleKind::kStack, "stack", {"to", "dim", "group"}},
      {RuleKind::kUnstack, "unstack", {"to", "dim"}},
      {RuleKind::kPermute, "permute", {"dims"}},
      {RuleKind::kRearrange, "rearrange", {"dim", "factors", "order"}},
      {RuleKind::kCast, "cast", {"dtype"}},
      {RuleKind::kDequantize, "dequantize", {"weight", "block", "dtype"}},
  };
  return kinds;
}

class RuleParser {
 public:
  RuleParser(const Json& json, size_t position) : json_(json) { rule_.position = position; }

  Result<Rule> Parse() && {
    if (!json_.is_object()) return rule_.Fails("a rule is a JSON object");
    for (const Kind& kind : Kinds()) {
      if (json_.contains(kind.name)) kind_ = &kind;
    }
    if (kind_ == nullptr) {
      std::string names;
      for (const Kind& kind : Kinds()) names += fmt::format(" {}", kind.name);
      return rule_.Fails("a rule has one of these fields:" + names);
    }
    rule_.kind = kind_->kind;
    for (const auto& [field, value] : json_.items()) {
      if (field != kind_->name && !kind_->fields.contains(field)) {
        return rule_.Fails(fmt::format("it has no field '{}'", field));
      }
    }
    CAIRN_TRY(ParseNames());
    CAIRN_TRY(ParseNumbers());
    CAIRN_TRY(ParseDType());
    return std::move(rule_);
  }

 private:
  Result<void> ParseNames() {
    const Json& given = json_[kind_->name];
    switch (rule_.kind) {
      case RuleKind::kRename:
        return ParseRename(given);
      case RuleKind::kConcat:
        return ParseConcat(given);
      case RuleKind::kSplit: {
        CAIRN_TRY_ASSIGN(std::vector<std::string> into, Texts("into"));
        if (into.empty()) return rule_.Fails("'into' names no part");
        return AddPattern(given, std::move(into));
      }
      case RuleKind::kStack:
      case RuleKind::kUnstack: {
        CAIRN_TRY_ASSIGN(std::string to, Text("to"));
        const bool has_position = to.find("{i}") != std::string::npos;
        if (rule_.kind == RuleKind::kUnstack && !has_position) {
          return rule_.Fails("'to' needs {i}, the position of a part");
        }
        return AddPattern(given, {std::move(to)});
      }
      case RuleKind::kDequantize: {
        CAIRN_TRY_ASSIGN(std::string weight, Text("weight"));
        return AddPattern(given, {std::move(weight)});
      }
      default:
        return AddPattern(given, {});
    }
  }

  Result<void> ParseRename(const Json& given) {
    if (given.is_string()) {
      CAIRN_TRY_ASSIGN(std::string to, Text("to"));
      return AddPattern(given, {std::move(to)});
    }
    if (!given.is_object() || json_.contains("to")) {
      return rule_.Fails("give a regular expression and 'to', or an object of both");
    }
    for (const auto& [pattern, to] : given.items()) {
      if (!to.is_string())
        return rule_.Fails(fmt::format("'{}' has no text to rename to", pattern));
      CAIRN_TRY(AddPattern(pattern, {to.get<std::string>()}));
    }
    return {};
  }

  // A regular expression for the first part, and templates for the others and for the result.
  Result<void> ParseConcat(const Json& given) {
    if (!given.is_array() || given.size() < 2) return rule_.Fails("it needs a list of two or more");
    CAIRN_TRY_ASSIGN(std::string to, Text("to"));
    std::vector<std::string> templates{std::move(to)};
    for (size_t i = 1; i < given.size(); ++i) {
      if (!given[i].is_string()) return rule_.Fails("the names of the parts are texts");
      templates.push_back(given[i].get<std::string>());
    }
    return AddPattern(given[0], std::move(templates));
  }

  Result<void> AddPattern(const Json& pattern, std::vector<std::string> templates) {
    if (!pattern.is_string()) return rule_.Fails("the regular expression is not a text");
    NamePattern added{.text = pattern.get<std::string>(), .regex = nullptr, .templates = {}};
    if (added.text.size() > kMaxPatternBytes) return rule_.Fails("the expression is too long");
    RE2::Options options;
    options.set_log_errors(false);
    added.regex = std::make_unique<const RE2>(added.text, options);
    if (!added.regex->ok()) {
      return rule_.Fails(fmt::format("'{}': {}", added.text, added.regex->error()));
    }
    for (const std::string& each : templates) {
      std::string why;
      if (!added.regex->CheckRewriteString(each, &why)) {
        return rule_.Fails(fmt::format("'{}': {}", each, why));
      }
    }
    if (added.regex->NumberOfCapturingGroups() > 9) {
      return rule_.Fails(fmt::format("'{}' has more than 9 groups", added.text));
    }
    added.templates = std::move(templates);
    rule_.patterns.push_back(std::move(added));
    return {};
  }

  Result<void> ParseNumbers() {
    if (json_.contains("dim")) {
      CAIRN_TRY_ASSIGN(const int64_t dim, Number(json_["dim"], -kMaxDim, kMaxDim));
      rule_.from_end = dim < 0;
      rule_.dim = static_cast<size_t>(dim < 0 ? -dim : dim);
    }
    if (json_.contains("sizes")) {
      CAIRN_TRY_ASSIGN(rule_.sizes, Numbers("sizes", 0));
      if (rule_.sizes.size() != rule_.patterns[0].templates.size()) {
        return rule_.Fails("'sizes' and 'into' have different lengths");
      }
    }
    if (rule_.kind == RuleKind::kStack) {
      const int groups = rule_.patterns[0].regex->NumberOfCapturingGroups();
      rule_.group = groups;
      if (json_.contains("group")) {
        CAIRN_TRY_ASSIGN(const int64_t group, Number(json_["group"], 1, groups));
        rule_.group = static_cast<int>(group);
      }
      if (groups == 0) return rule_.Fails("the expression needs a group, the position: (\\d+)");
    }
    if (rule_.kind == RuleKind::kPermute) return ParseOrder("dims");
    if (rule_.kind == RuleKind::kRearrange) return ParseRearrange();
    if (json_.contains("block")) {
      CAIRN_TRY_ASSIGN(const int64_t block, Number(json_["block"], 1, INT32_MAX));
      rule_.block = static_cast<uint64_t>(block);
    }
    return {};
  }

  Result<void> ParseRearrange() {
    if (!json_.contains("factors")) return rule_.Fails("it needs 'factors'");
    CAIRN_TRY_ASSIGN(rule_.factors, Numbers("factors", -1));
    if (std::ranges::count(rule_.factors, uint64_t{0}) > 1) {
      return rule_.Fails("'factors' has more than one -1");
    }
    CAIRN_TRY(ParseOrder("order"));
    if (rule_.order.size() != rule_.factors.size()) {
      return rule_.Fails("'factors' and 'order' have different lengths");
    }
    return {};
  }

  Result<void> ParseOrder(const char* field) {
    if (!json_.contains(field)) return rule_.Fails(fmt::format("it needs '{}'", field));
    CAIRN_TRY_ASSIGN(const std::vector<uint64_t> order, Numbers(field, 0));
    rule_.order.assign(order.begin(), order.end());
    std::vector<size_t> sorted = rule_.order;
    std::ranges::sort(sorted);
    for (size_t i = 0; i < sorted.size(); ++i) {
      if (sorted[i] != i) return rule_.Fails(fmt::format("'{}' is not a permutation", field));
    }
    return {};
  }

  Result<void> ParseDType() {
    if (rule_.kind == RuleKind::kDequantize) rule_.dtype = schema::DType::kBFloat16;
    if (!json_.contains("dtype")) {
      return rule_.kind == RuleKind::kCast ? rule_.Fails("it needs 'dtype'") : Result<void>();
    }
    CAIRN_TRY_ASSIGN(const std::string name, Text("dtype"));
    const auto found = schema::FindDType(name);
    if (!found) return rule_.Fails(fmt::format("'{}' is not a dtype", name));
    rule_.dtype = found->dtype;
    return {};
  }

  Result<std::string> Text(const char* field) const {
    if (!json_.contains(field) || !json_[field].is_string()) {
      return rule_.Fails(fmt::format("'{}' must be a text", field));
    }
    return json_[field].get<std::string>();
  }

  Result<std::vector<std::string>> Texts(const char* field) const {
    if (!json_.contains(field) || !json_[field].is_array()) {
      return rule_.Fails(fmt::format("'{}' must be a list of texts", field));
    }
    std::vector<std::string> texts;
    for (const Json& each : json_[field]) {
      if (!each.is_string()) return rule_.Fails(fmt::format("'{}' must be a list of texts", field));
      texts.push_back(each.get<std::string>());
    }
    return texts;
  }

  // Requires 0 <= max.
  Result<int64_t> Number(const Json& json, int64_t min, int64_t max) const {
    const bool is_too_large =
        json.is_number_unsigned() && json.get<uint64_t>() > static_cast<uint64_t>(max);
    if (!json.is_number_integer() || is_too_large || json.get<int64_t>() < min ||
        json.get<int64_t>() > max) {
      const std::string given = json.is_primitive() ? json.dump() : json.type_name();
      return rule_.Fails(fmt::format("{} is not an integer of {} to {}", given, min, max));
    }
    return json.get<int64_t>();
  }

  // Numbers from 1 on; `min` may be 0, or -1, which is returned as 0.
  Result<std::vector<uint64_t>> Numbers(const char* field, int64_t min) const {
    if (!json_[field].is_array()) return rule_.Fails(fmt::format("'{}' must be a list", field));
    std::vector<uint64_t> numbers;
    for (const Json& each : json_[field]) {
      CAIRN_TRY_ASSIGN(const int64_t number, Number(each, min, int64_t{1} << 48));
      if (min < 0 && number == 0) return rule_.Fails(fmt::format("'{}' contains 0", field));
      numbers.push_back(number < 0 ? 0 : static_cast<uint64_t>(number));
    }
    return numbers;
  }

  const Json& json_;
  const Kind* kind_ = nullptr;
  Rule rule_;
};

}  // namespace

std::string_view RuleName(RuleKind kind) {
  const auto found = std::ranges::find(Kinds(), kind, &Kind::kind);
  return found->name;
}

std::unexpected<Error> Rule::Fails(std::string message, std::string_view key) const {
  const std::string_view name = patterns.empty() ? std::string_view("rule") : RuleName(kind);
  const std::string pattern = patterns.empty() ? "" : fmt::format(" '{}'", patterns[0].text);
  return Fail(Error{.code = ErrorCode::kInvalidArgument,
                    .message = fmt::format("rule {} ({}{}): {}", position, name, pattern, message),
                    .key = std::string(key)});
}

std::optional<std::vector<std::string>> NamePattern::Derive(const std::string& key, int group,
                                                            std::string* index) const {
  constexpr int kMaxGroups = 10;  // \0 to \9
  re2::StringPiece groups[kMaxGroups];
  const int count = std::min(regex->NumberOfCapturingGroups() + 1, kMaxGroups);
  if (!regex->Match(key, 0, key.size(), RE2::UNANCHORED, groups, count)) return std::nullopt;
  if (index != nullptr) *index = std::string(groups[group].data(), groups[group].size());
  const auto begin = static_cast<size_t>(groups[0].data() - key.data());
  std::vector<std::string> names;
  for (const std::string& each : templates) {
    std::string name = key.substr(0, begin);
    CAIRN_CHECK(regex->Rewrite(&name, each, groups, count));
    name += key.substr(begin + groups[0].size());
    names.push_back(std::move(name));
  }
  return names;
}

}  // namespace internal

ConversionRules::ConversionRules(std::shared_ptr<const internal::RuleList> list)
    : list_(std::move(list)) {}

Result<ConversionRules> ConversionRules::Parse(std::string_view json) {
  if (json.size() > internal::kMaxJsonBytes) {
    return Fail(ErrorCode::kInvalidArgument, "the rules have more than 16 MiB");
  }
  // Values are copied recursively, so what is nested more deeply than any rule is never built.
  bool is_too_deep = false;
  const auto is_kept = [&](int depth, internal::Json::parse_event_t, const internal::Json&) {
    is_too_deep = is_too_deep || depth > internal::kMaxDepth;
    return depth <= internal::kMaxDepth;
  };
  internal::Json parsed =
      internal::Json::parse(json, is_kept, /*allow_exceptions=*/false, /*ignore_comments=*/true);
  if (is_too_deep) return Fail(ErrorCode::kInvalidArgument, "the rules are nested too deeply");
  if (parsed.is_discarded()) return Fail(ErrorCode::kInvalidArgument, "the rules are not JSON");
  if (parsed.is_object()) parsed = internal::Json::array({parsed});
  if (!parsed.is_array() || parsed.size() > internal::kMaxRules) {
    return Fail(ErrorCode::kInvalidArgument, "the rules are not a JSON list of at most 100000");
  }
  auto list = std::make_shared<internal::RuleList>();
  for (size_t i = 0; i < parsed.size(); ++i) {
    CAIRN_TRY_ASSIGN(internal::Rule rule, internal::RuleParser(parsed[i], i + 1).Parse());
    list->rules.push_back(std::move(rule));
  }
  return ConversionRules(std::move(list));
}

}  // namespace cairn::core
