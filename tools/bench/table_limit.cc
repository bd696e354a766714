#include "tools/bench/table_limit.h"

#include <fmt/format.h>
#include <rocksdb/iterator.h>
#include <rocksdb/options.h>
#include <rocksdb/sst_file_reader.h>
#include <rocksdb/sst_file_writer.h>
#include <rocksdb/table.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>
#include <vector>

#include "tools/bench/measure.h"

namespace cairn::tools {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr size_t kBatchRecords = 10'000;

/// The settings of a store's tables (docs/format/table.md).
rocksdb::Options TableOptions() {
  rocksdb::Options options;
  options.compression = rocksdb::kZSTD;
  options.compression_opts.level = 1;
  rocksdb::BlockBasedTableOptions table;
  table.checksum = rocksdb::kXXH3;
  table.format_version = 5;
  table.block_size = 16 << 10;
  table.index_type = rocksdb::BlockBasedTableOptions::kTwoLevelIndexSearch;
  table.metadata_block_size = 16 << 10;
  table.enable_index_compression = false;
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  return options;
}

Result<void> Check(const rocksdb::Status& status, const std::string& path) {
  if (status.ok()) return {};
  return Fail(Error{.code = ErrorCode::kUnavailable, .message = status.ToString(), .file = path});
}

}  // namespace

Result<std::string> FindLargestTable(const std::string& store) {
  std::error_code error;
  std::pair<uintmax_t, std::string> largest;
  for (const auto& entry : fs::directory_iterator(fs::path(store) / "tables", error)) {
    const uintmax_t size_bytes = entry.file_size(error);
    if (!error) largest = std::max(largest, {size_bytes, entry.path().string()});
  }
  if (!largest.second.empty()) return largest.second;
  return Fail(Error{.code = ErrorCode::kNotFound, .message = "no tables found", .file = store});
}

Result<double> WriteTableAlone(const std::string& source, const std::string& target) {
  rocksdb::SstFileReader reader(TableOptions());
  CAIRN_TRY(Check(reader.Open(source), source));
  const std::unique_ptr<rocksdb::Iterator> records(reader.NewIterator({}));
  records->SeekToFirst();
  double seconds = 0;
  auto begin = Clock::now();
  rocksdb::SstFileWriter writer({}, TableOptions(), nullptr, /*invalidate_page_cache=*/false);
  CAIRN_TRY(Check(writer.Open(target), target));
  seconds += SecondsSince(begin);
  std::vector<std::pair<std::string, std::string>> batch;
  while (records->Valid()) {
    batch.clear();
    for (; records->Valid() && batch.size() < kBatchRecords; records->Next()) {
      batch.emplace_back(records->key().ToString(), records->value().ToString());
    }
    begin = Clock::now();
    for (const auto& [key, value] : batch) CAIRN_TRY(Check(writer.Put(key, value), target));
    seconds += SecondsSince(begin);
  }
  CAIRN_TRY(Check(records->status(), source));
  begin = Clock::now();
  CAIRN_TRY(Check(writer.Finish(), target));  // syncs the file
  seconds += SecondsSince(begin);
  std::error_code ignored;
  fs::remove(target, ignored);
  return seconds;
}

}  // namespace cairn::tools
