// Tables, which RocksDB reads after this project has checked their footers. Checksums of blocks are
// not made right: RocksDB ends the process in assertions if a forged block has a right one.

#include <algorithm>
#include <memory>
#include <string>

#include "kv/digest.h"
#include "kv/internal/storage/memory_storage.h"
#include "kv/internal/table/table_check.h"
#include "kv/internal/table/table_reader.h"
#include "kv/internal/table/table_stack.h"
#include "tests/fuzz/fuzz_support.h"

namespace cairn::fuzz {
namespace {

using namespace kv::internal;  // NOLINT(google-build-using-namespace): the code under test

void CheckTable(const TableReader& table) {
  const auto iterator = table.NewIterator(TableAccess::kLookup);
  Result<void> moved = iterator->Seek("");
  size_t count = 0;
  while (moved && iterator->Valid()) {
    const std::string key(iterator->key());
    const std::vector<std::byte> value(iterator->value().begin(), iterator->value().end());
    if (count++ == 0) {
      const auto found = table.Get(key);
      CAIRN_FUZZ_CHECK(!found || *found == value);
    }
    moved = iterator->Next();
    if (moved && iterator->Valid()) CAIRN_FUZZ_CHECK(iterator->key() > key);
  }
  if (!moved) UseError(moved.error());
  // The digest is that of the damaged table, so that only the blocks are compared.
  if (const auto verified = table.Verify(); !verified) UseError(verified.error());
}

void Fuzz(Input input) {
  const uint64_t record_count = input.Byte();
  const std::vector<std::byte> table = input.CopyRest();
  const bool is_sound =
      HasSoundFooter(table.size(), [&](uint64_t offset_bytes, std::span<std::byte> target) {
        if (offset_bytes > table.size() || target.size() > table.size() - offset_bytes) {
          return false;
        }
        const auto from = std::span(table).subspan(offset_bytes, target.size());
        std::ranges::copy(from, target.begin());
        return true;
      });
  const auto storage = std::make_shared<MemoryStorage>("fuzz");
  const TableInfo info{.id = {.epoch = 1, .id = 1},
                       .file_bytes = table.size(),
                       .record_count = record_count,
                       .digest = kv::Checksum64(table)};
  CAIRN_FUZZ_CHECK(storage->Put(ObjectName(ObjectKind::kTable, info.id), table).has_value());
  const MemoryLimit limit(table, 4096);
  const auto opened = TableReader::Open(storage, info);
  if (!opened) return UseError(opened.error());
  CAIRN_FUZZ_CHECK(is_sound);
  CheckTable(**opened);
}

}  // namespace
}  // namespace cairn::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  cairn::fuzz::Fuzz({data, size});
  return 0;
}
