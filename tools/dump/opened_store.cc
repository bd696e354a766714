// Stores opened for kv-dump, which tolerates damage.

#include "tools/dump/opened_store.h"

#include <fmt/format.h>

#include "kv/snapshot.h"
#include "tools/common/terminal.h"
#include "tools/common/text.h"

namespace cairn::tools {

Result<OpenedStore> OpenStore(const std::string& address, const kv::StoreOptions& options) {
  OpenedStore opened;
  CAIRN_TRY_ASSIGN(opened.address, ParseAddress(address));
  CAIRN_TRY_ASSIGN(opened.store,
                   core::CheckpointStore::Open(opened.address.store, kv::OpenMode::kRead, options));
  return opened;
}

Result<OpenedStore> OpenWithoutStep(const std::string& address, std::string_view verb) {
  CAIRN_TRY_ASSIGN(OpenedStore opened, OpenStore(address));
  if (opened.address.step) {
    return Fail(
        ErrorCode::kInvalidArgument,
        fmt::format("{} takes a store without a step; omit @{}", verb, *opened.address.step));
  }
  return opened;
}

std::string StoreText(const OpenedStore& opened) {
  return JsonText(AddressDirectory(opened.address.store));
}

Result<kv::StepInfo> FindStep(const OpenedStore& opened) {
  CAIRN_TRY_ASSIGN(const auto snapshot, opened.store->kv().Latest());
  return snapshot->FindStep(opened.address.step);
}

Result<core::Contents> ListKeys(const OpenedStore& opened,
                                const std::vector<std::string>& patterns) {
  CAIRN_TRY_ASSIGN(const core::KeyPatterns parsed, core::KeyPatterns::Parse(patterns));
  return opened.store->List(opened.address.step, parsed);
}

Result<core::KeyPatterns> PatternFor(const std::string& fqn) {
  if (fqn.empty()) return core::KeyPatterns();  // the root itself is the value
  std::string pattern = fqn;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const bool special = std::string_view("*?[]").find(pattern[i]) != std::string_view::npos;
    if (special || (i == 0 && pattern[i] == '!')) pattern[i] = '?';
  }
  return core::KeyPatterns::Parse({pattern});
}

}  // namespace cairn::tools
