#pragma once
/// RocksDB writing a table by itself: the limit of a commit, which writes one with its records.

#include <string>

#include "kv/base/error.h"

namespace cairn::tools {

/// Returns the path of the largest table of the store. kNotFound: it has none.
Result<std::string> FindLargestTable(const std::string& store);

/// Writes the records of a table to a new table at `target` with SstFileWriter, compressed as in a
/// store, and syncs it. Returns the seconds, without the time for reading the records. The table is
/// removed. Memory: a few MiB.
Result<double> WriteTableAlone(const std::string& source, const std::string& target);

}  // namespace cairn::tools
