// Lists of metrics are lists of texts.

#include "python/src/policy.h"

#include "python/src/convert.h"
#include "python/src/errors.h"

namespace cairn::python {

namespace nb = nanobind;

kv::RetentionPolicy ToPolicy(uint64_t keep_last, uint64_t keep_every,
                             const std::vector<std::string>& keep_best) {
  kv::RetentionPolicy policy{.keep_last = keep_last, .keep_every = keep_every, .keep_best = {}};
  for (const std::string& text : keep_best) {
    policy.keep_best.push_back(Unwrap(kv::ParseKeepBest(text)));
  }
  return policy;
}

nb::tuple ToPyPolicy(const kv::RetentionPolicy& policy) {
  nb::list best;
  for (const kv::KeepBest& one : policy.keep_best) best.append(ToPyText(kv::FormatKeepBest(one)));
  return nb::make_tuple(policy.keep_last, policy.keep_every, best);
}

}  // namespace cairn::python
