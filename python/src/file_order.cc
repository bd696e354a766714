#include "python/src/file_order.h"

#include <cstddef>
#include <vector>

#include "core/upkeep/file_order.h"
#include "python/src/errors.h"
#include "python/src/gil.h"

namespace cairn::python {

nb::list ToPyFileOrder(const StoreBinding& store, const StepContents& contents) {
  const auto shared = store.Share();
  if (shared == nullptr) ThrowInvalid("the store is closed; open it again");
  const auto& tensors = contents.tensors();
  auto order = [&] {
    const GilRelease no_gil;
    return core::FileOrder(*shared, contents.step(), tensors);
  }();
  constexpr size_t kNoLeaf = ~size_t{0};  // the hidden owner of aliases
  std::vector<size_t> leaves(tensors.size(), kNoLeaf);
  for (size_t leaf = 0; leaf < contents.leaf_count(); ++leaf) {
    if (!core::IsTensor(contents.kind(leaf))) continue;
    leaves[static_cast<size_t>(&contents.tensor(leaf) - tensors.data())] = leaf;
  }
  nb::list result;
  for (const size_t tensor : Unwrap(std::move(order))) {
    if (leaves[tensor] != kNoLeaf) result.append(leaves[tensor]);
  }
  return result;
}

}  // namespace cairn::python
