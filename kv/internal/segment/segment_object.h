#pragma once
/// The object of a segment as a file, which is what the writer and the readers of payload use.
///
/// In a storage with LocalFiles, it is the file of the object. In another one, it is a file in
/// memory with a copy of the object, so a segment that is written or read there has to fit into
/// memory.

#include <string>

#include "kv/error.h"
#include "kv/internal/io/file.h"
#include "kv/storage.h"

namespace cairn::kv::internal {

/// Creates the file of a segment that is to be written. kConflict: it exists.
Result<File> CreateSegmentFile(Storage& storage, const std::string& name, bool direct);
/// Makes the object of a segment that was written to `file` and synced, unless the file is that
/// object. Its name is durable then, or after LocalFiles::SyncNames.
Result<void> PutSegmentFile(Storage& storage, const std::string& name, const File& file);
/// Opens a segment for reading. kNotFound: it does not exist.
Result<File> OpenSegmentFile(Storage& storage, const std::string& name, bool direct);

}  // namespace cairn::kv::internal
