// Tables: footer, metaindex, properties and index, and blocks with and without a checksum.

#include <memory>
#include <string>

#include "kv/base/digest.h"
#include "kv/storage/files/internal/memory_storage.h"
#include "kv/table/internal/table_block.h"
#include "kv/table/internal/table_reader.h"
#include "tests/fuzz/fuzz_support.h"

namespace cairn::fuzz {

using namespace kv::internal;  // NOLINT(google-build-using-namespace): the code under test

namespace {

/// No input has right checksums by chance, so the entries of its bytes are read as a block, too.
void ReadEntries(std::span<const std::byte> block) {
  for (const auto kind :
       {BlockCursor::Kind::kRecords, BlockCursor::Kind::kIndex, BlockCursor::Kind::kOther}) {
    BlockCursor cursor(kind);
    std::string middle;
    size_t count = 0;
    for (cursor.Open(block); cursor.Next(); ++count) {
      if (count % 2 == 0) middle = cursor.key();
      CAIRN_FUZZ_CHECK(cursor.value().size() <= block.size());
    }
    cursor.Open(block);
    if (cursor.Seek(middle)) CAIRN_FUZZ_CHECK(cursor.key() >= middle);
  }
}

Result<void> ReadRecords(const TableReader& table) {
  for (const TableAccess access : {TableAccess::kBulk, TableAccess::kLookup}) {
    const auto iterator = table.NewIterator(access);
    CAIRN_TRY(iterator->Seek({}));
    while (iterator->Valid()) {
      CAIRN_TRY(table.Get(iterator->key()));
      CAIRN_TRY(iterator->Next());
    }
  }
  return {};
}

}  // namespace

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
  ReadEntries(table);
  const auto opened = TableReader::Open(storage, info);
  if (!opened) return UseError(opened.error());
  CAIRN_FUZZ_CHECK((*opened)->info() == info);
  if (const auto read = ReadRecords(**opened); !read) UseError(read.error());
}

}  // namespace cairn::fuzz
