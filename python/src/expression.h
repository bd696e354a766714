#pragma once
/// Regular expressions of conversion rules (python/cairn/_load/rules.py).

#include <nanobind/nanobind.h>
#include <re2/re2.h>

#include <memory>
#include <string>
#include <vector>

namespace cairn::python {

namespace nb = nanobind;

/// A regular expression in the syntax of RE2, and texts that replace its first match in a key, in
/// which \1 is the first group. Cost of a match: linear in the length of the key.
class Expression {
 public:
  /// Raises Invalid for a malformed expression or text, and for more than 9 groups.
  Expression(nb::str text, nb::list templates);

  int group_count() const { return regex_->NumberOfCapturingGroups(); }
  /// Returns (texts of the groups from \1 on, the key after each replacement), or None if the key
  /// does not match.
  nb::object Derive(nb::str key) const;

 private:
  std::unique_ptr<const RE2> regex_;
  std::vector<std::string> templates_;
};

}  // namespace cairn::python
