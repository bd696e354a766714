#pragma once
/// Where tests keep the stores that several processes use.

#include <fmt/format.h>

#include <cstdlib>
#include <random>
#include <string>
#include <string_view>

#include "kv/storage/internal/object_names.h"
#include "kv/storage/open/open_storage.h"
#include "tests/support/result_matchers.h"
#include "tests/support/scoped_temp_dir.h"

namespace cairn::testing {

/// Returns the address of a new store: in `directory`, or, if CAIRN_TEST_STORES is an address such
/// as "s3://BUCKET/PREFIX", below that.
inline std::string NewStoreAddress(const ScopedTempDir& directory, std::string_view name) {
  const char* const stores = std::getenv("CAIRN_TEST_STORES");
  if (stores == nullptr) return directory / name;
  return fmt::format("{}/{:08x}-{}", stores, std::random_device{}(), name);
}

/// Returns whether a store was created at the address.
inline bool StoreExists(const std::string& address) {
  const auto storage = kv::OpenStorage(address);
  CAIRN_EXPECT_OK(storage);
  const auto exists = kv::ObjectExists(**storage, kv::internal::kIdentityName);
  CAIRN_EXPECT_OK(exists);
  return exists && *exists;
}

}  // namespace cairn::testing
