// What the conversions of a load (cairn/_load/conversions.py) need from C++: regular expressions of
// rules, casts, and exports of converted steps.

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <re2/re2.h>

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/interop/model_directory/model_export.h"
#include "core/interop/safetensors/safetensors_export.h"
#include "core/tensor/element_cast.h"
#include "kv/base/error.h"
#include "python/src/bindings.h"
#include "python/src/convert.h"
#include "python/src/errors.h"
#include "python/src/gil.h"
#include "python/src/loading.h"
#include "python/src/step_contents.h"
#include "python/src/store_binding.h"

namespace cairn::python {
namespace {

constexpr size_t kMaxBytes = 10'000;
constexpr int kMaxGroups = 10;  // \0 to \9

// A regular expression in the syntax of RE2, and texts that replace its first match in a key, in
// which \1 is the first group. Cost of a match: linear in the length of the key.
class Expression {
 public:
  // Raises Invalid for a malformed expression or text, and for more than 9 groups.
  Expression(nb::str text, nb::list templates) {
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

  int group_count() const { return regex_->NumberOfCapturingGroups(); }
  // Returns (texts of the groups from \1 on, the key after each replacement), or None if the key
  // does not match.
  nb::object Derive(nb::str key) const {
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

 private:
  std::unique_ptr<const RE2> regex_;
  std::vector<std::string> templates_;
};

// Casts row-major elements at an address to others. Requires a cast that core has.
void CastElements(uint8_t from, nb::handle source, uint8_t to, nb::handle target, uint64_t count) {
  const auto cast =
      core::FindElementCast(static_cast<core::DType>(from), static_cast<core::DType>(to));
  if (cast == nullptr) ThrowInvalid("there is no conversion between these dtypes");
  const std::byte* const begin = FromPyAddress(source);
  std::byte* const made = FromPyAddress(target);
  const GilRelease no_gil;
  cast(begin, made, count);
}

// Writes the tensors of `contents`, which `load` fills: it receives Requests. Returns (files,
// tensors, bytes, tensors left out, values left out, seconds). Raises what `load` raises, and the
// errors of core::ExportSafetensors or, if `is_model`, of core::ExportModelDirectory.
nb::tuple ExportConverted(const StoreBinding& store, const StepContents& contents,
                          const std::string& target, nb::callable load, bool is_model,
                          uint64_t max_shard_bytes, bool overwrite) {
  const auto opened = store.Share();
  if (!opened) ThrowInvalid("the store is closed");
  SignalWatch watch;
  // The GIL is held throughout, except while `load` waits for the storage.
  const core::RequestLoader loader =
      [&](std::span<const core::LoadRequest> requests) -> Result<core::LoadReport> {
    Requests given;
    given.list.assign(requests.begin(), requests.end());
    load(nb::cast(&given, nb::rv_policy::reference));
    return core::LoadReport{};
  };
  const auto finish = [&watch](auto exported) {
    watch.Rethrow();
    const auto done = Unwrap(std::move(exported));
    uint64_t tensors_left_out = 0;
    if constexpr (requires { done.tensors_left_out; }) tensors_left_out = done.tensors_left_out;
    return nb::make_tuple(ToPyTexts(done.files), done.tensors, done.bytes, tensors_left_out,
                          done.values_left_out, done.seconds);
  };
  if (is_model) {
    return finish(core::ExportModelDirectory(*opened, contents.all(), target,
                                             {.max_shard_bytes = max_shard_bytes,
                                              .overwrite = overwrite,
                                              .progress = watch.AsProgress(),
                                              .load = loader}));
  }
  return finish(core::ExportSafetensors(*opened, contents.all(), target,
                                        {.max_shard_bytes = max_shard_bytes,
                                         .replaces = overwrite,
                                         .name_prefix = {},
                                         .progress = watch.AsProgress(),
                                         .load = loader}));
}

}  // namespace

void BindConversions(nb::module_& m) {
  nb::class_<Expression>(m, "Expression")
      .def(nb::init<nb::str, nb::list>(), nb::arg("text"), nb::arg("templates"))
      .def_prop_ro("group_count", &Expression::group_count)
      .def("derive", &Expression::Derive, nb::arg("key"));
  m.def("cast_elements", &CastElements);
  m.def("export_converted", &ExportConverted, nb::arg("store"), nb::arg("contents"),
        nb::arg("target"), nb::arg("load"), nb::arg("is_model"), nb::arg("max_shard_bytes"),
        nb::arg("overwrite"));
}

}  // namespace cairn::python
