#include "python/src/expression.h"

#include <utility>

#include "kv/base/error.h"
#include "python/src/convert.h"
#include "python/src/errors.h"

namespace cairn::python {
namespace {

constexpr size_t kMaxBytes = 10'000;
constexpr int kMaxGroups = 10;  // \0 to \9

}  // namespace

Expression::Expression(nb::str text, nb::list templates) {
  const std::string pattern = FromPyText(text);
  if (pattern.size() > kMaxBytes) ThrowInvalid("the expression is too long");
  RE2::Options options;
  options.set_log_errors(false);
  regex_ = std::make_unique<const RE2>(pattern, options);
  if (!regex_->ok()) ThrowInvalid("'" + pattern + "': " + regex_->error());
  if (group_count() >= kMaxGroups) ThrowInvalid("'" + pattern + "' has more than 9 groups");
  for (const nb::handle each : templates) {
    std::string why;
    templates_.push_back(FromPyText(each));
    if (regex_->CheckRewriteString(templates_.back(), &why)) continue;
    ThrowInvalid("'" + templates_.back() + "': " + why);
  }
}

nb::object Expression::Derive(nb::str key) const {
  const std::string text = FromPyText(key);
  re2::StringPiece groups[kMaxGroups];
  const int count = group_count() + 1;
  if (!regex_->Match(text, 0, text.size(), RE2::UNANCHORED, groups, count)) return nb::none();
  nb::list found, names;
  for (int i = 1; i < count; ++i) found.append(ToPyText({groups[i].data(), groups[i].size()}));
  const auto begin = static_cast<size_t>(groups[0].data() - text.data());
  for (const std::string& each : templates_) {
    std::string name = text.substr(0, begin);
    CAIRN_CHECK(regex_->Rewrite(&name, each, groups, count));
    name += text.substr(begin + groups[0].size());
    names.append(ToPyText(name));
  }
  return nb::make_tuple(found, names);
}

}  // namespace cairn::python
