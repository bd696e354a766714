#pragma once
/// Tables for tests, in each kind of storage.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kv/storage/files/internal/memory_storage.h"
#include "kv/storage/internal/object_names.h"
#include "kv/storage/open/open_storage.h"
#include "kv/storage/storage.h"
#include "kv/table/internal/table_reader.h"
#include "kv/table/internal/table_writer.h"
#include "tests/support/result_matchers.h"
#include "tests/support/scoped_temp_dir.h"

namespace cairn::kv::internal {

/// A key and its value; an empty value is a tombstone.
using Records = std::map<std::string, std::string>;

inline std::span<const std::byte> Bytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}
inline std::string Text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// Runs a test with a storage in memory and one in a directory.
class TableStorageTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (GetParam() == std::string_view("memory")) {
      storage_ = std::make_shared<MemoryStorage>("test");
    } else {
      CAIRN_ASSERT_OK_AND_ASSIGN(storage_, OpenStorage(dir_.path()));
    }
  }

  const std::shared_ptr<Storage>& storage() const { return storage_; }

  Result<TableInfo> Write(const Records& records) {
    CAIRN_TRY_ASSIGN(const auto writer, TableWriter::Create(*storage_, NewObjectId(1)));
    for (const auto& [key, value] : records) {
      CAIRN_TRY(value.empty() ? writer->AddTombstone(key) : writer->Add(key, Bytes(value)));
    }
    return writer->Finish();
  }

  Result<std::shared_ptr<const TableReader>> WriteAndOpen(const Records& records) {
    CAIRN_TRY_ASSIGN(const TableInfo info, Write(records));
    return TableReader::Open(storage_, info);
  }

  Result<std::vector<std::byte>> ReadTable(const TableInfo& info) {
    return storage_->Read(ObjectName(ObjectKind::kTable, info.id), 1 << 30);
  }

  /// Replaces the bytes of the table, and returns its new description with the old digest.
  Result<TableInfo> ReplaceTable(TableInfo info, std::span<const std::byte> bytes) {
    info.id = NewObjectId(1);
    info.file_bytes = bytes.size();
    CAIRN_TRY(storage_->Put(ObjectName(ObjectKind::kTable, info.id), bytes));
    return info;
  }

 private:
  cairn::testing::ScopedTempDir dir_;
  std::shared_ptr<Storage> storage_;
};

#define CAIRN_INSTANTIATE_STORAGES(suite)                                             \
  INSTANTIATE_TEST_SUITE_P(Storages, suite, ::testing::Values("memory", "directory"), \
                           [](const auto& info) { return std::string(info.param); })

/// Returns all records of the table, tombstones included.
inline Result<Records> ReadAll(const TableReader& table) {
  Records records;
  const auto iterator = table.NewIterator(TableAccess::kLookup);
  CAIRN_TRY(iterator->Seek({}));
  while (iterator->Valid()) {
    records.emplace(iterator->key(), Text(iterator->value()));
    CAIRN_TRY(iterator->Next());
  }
  return records;
}

inline Result<Records> ScanAll(const TableStack& stack, std::string_view prefix = {}) {
  Records records;
  CAIRN_TRY(stack.Scan(prefix,
                       [&](std::string_view key, std::span<const std::byte> value) -> Result<bool> {
                         EXPECT_EQ(reinterpret_cast<uintptr_t>(value.data()) % 8, 0u);
                         EXPECT_TRUE(records.empty() || records.rbegin()->first < key);
                         records.emplace(key, Text(value));
                         return true;
                       }));
  return records;
}

}  // namespace cairn::kv::internal
