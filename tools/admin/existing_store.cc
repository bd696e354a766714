#include "tools/admin/existing_store.h"

#include "kv/store.h"

namespace cairn::tools {

Result<std::unique_ptr<kv::Store>> OpenExisting(const std::string& store,
                                                const kv::StoreOptions& options) {
  CAIRN_TRY(kv::Store::Open(store, kv::OpenMode::kRead));
  return kv::Store::Open(store, kv::OpenMode::kWrite, options);
}

}  // namespace cairn::tools
