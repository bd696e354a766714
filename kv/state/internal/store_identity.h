#pragma once
/// The object CAIRN, and the creation of a store.

#include <initializer_list>
#include <string_view>

#include "kv/base/error.h"
#include "kv/root/internal/root_record.h"
#include "kv/storage/storage.h"

namespace cairn::kv::internal {

inline constexpr int kStoreFormat = 3;

/// Reads and checks CAIRN, and sets `features` to what it lists. kNotFound: there is nothing at the
/// address, or an empty directory, which may be a store that is being created. kInvalidArgument: it
/// is not a store. kUnimplemented: the store has another format, or a read feature that this build
/// does not know. kDataLoss: CAIRN is damaged, or missing although there are other objects of a
/// store.
Result<Uuid> ReadIdentity(Storage& storage, Features* features = nullptr);

/// Creates CAIRN, and the directory if the storage is one, unless they exist, and returns the uuid.
/// kInvalidArgument: there are other files, and it is not a store. Returns the errors of
/// ReadIdentity, too.
Result<Uuid> CreateIdentity(Storage& storage, Features* features = nullptr);

/// Returns whether there are objects in one of these folders, which end with '/'.
Result<bool> HasObjects(Storage& storage, std::initializer_list<std::string_view> folders);

}  // namespace cairn::kv::internal
