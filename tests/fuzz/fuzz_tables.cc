// The footer, the meta index and the properties of tables, which are checked before RocksDB opens
// the table. No block is read: RocksDB ends the process in an assertion if a block with a right
// checksum is not of the kind that it expects, for example because it is a copy of another one.

#include <memory>

#include "kv/base/digest.h"
#include "kv/storage/files/internal/memory_storage.h"
#include "kv/table/internal/table_reader.h"
#include "tests/fuzz/fuzz_support.h"

namespace cairn::fuzz {

using namespace kv::internal;  // NOLINT(google-build-using-namespace): the code under test

void Fuzz(Input input) {
  const uint64_t record_count = input.Byte();
  const std::vector<std::byte> table = input.CopyRest();
  const auto storage = std::make_shared<MemoryStorage>("fuzz");
  const TableInfo info{.id = {.epoch = 1, .id = 1, .id_tail = 2},
                       .file_bytes = table.size(),
                       .record_count = record_count,
                       .digest = kv::Checksum64(table)};
  CAIRN_FUZZ_CHECK(storage->Put(ObjectName(ObjectKind::kTable, info.id), table).has_value());
  const MemoryLimit limit(table, 4096);
  const auto opened = TableReader::Open(storage, info);
  if (!opened) return UseError(opened.error());
  CAIRN_FUZZ_CHECK((*opened)->info() == info);
}

}  // namespace cairn::fuzz
