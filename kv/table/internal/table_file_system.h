#pragma once
/// RocksDB's view of the table that it writes: a file system with one file.
///
/// There is one per table, and nothing is shared between tables but RocksDB's constants. So a child
/// process can write tables whatever its parent's threads did at the time of the fork.

#include <rocksdb/env.h>
#include <rocksdb/file_system.h>
#include <rocksdb/options.h>

#include <memory>
#include <string>

#include "kv/base/error.h"
#include "kv/storage/storage.h"

namespace cairn::kv::internal {

/// Returns an environment in which every path is one file. It starts no threads. Creating the file
/// appends to `object`, which closing it leaves unfinished, and which must outlive the environment
/// and everything that uses it.
std::unique_ptr<rocksdb::Env> TableEnvironment(ObjectWriter& object);

/// Returns the options of tables, to be used with `environment`.
rocksdb::Options TableOptions(rocksdb::Env& environment);

/// Returns the error of an operation of RocksDB on table `name`. Errors of the storage keep their
/// code; everything else that RocksDB finds wrong is damage.
Error TableError(const rocksdb::Status& status, std::string what, std::string name);

}  // namespace cairn::kv::internal
