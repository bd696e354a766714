#include "kv/table/internal/table_file_system.h"

#include <fmt/format.h>
#include <rocksdb/comparator.h>
#include <rocksdb/flush_block_policy.h>
#include <rocksdb/table.h>

#include <algorithm>
#include <utility>

namespace cairn::kv::internal {
namespace {

using rocksdb::IOStatus;
using Debug = rocksdb::IODebugContext;

constexpr size_t kTableBlockBytes = 16 << 10;

/// Ends blocks at their usual size, and before a record that is larger than a block, such as the
/// structure of a step, so that lookups of small records do not read it.
class LargeRecordsApart final : public rocksdb::FlushBlockPolicyFactory {
 public:
  const char* Name() const override { return "CairnLargeRecordsApart"; }
  rocksdb::FlushBlockPolicy* NewFlushBlockPolicy(
      const rocksdb::BlockBasedTableOptions& options,
      const rocksdb::BlockBuilder& block) const override {
    return new Policy(rocksdb::FlushBlockBySizePolicyFactory::NewFlushBlockPolicy(
        options.block_size, options.block_size_deviation, block));
  }

 private:
  class Policy final : public rocksdb::FlushBlockPolicy {
   public:
    explicit Policy(rocksdb::FlushBlockPolicy* by_size) : by_size_(by_size) {}
    bool Update(const rocksdb::Slice& key, const rocksdb::Slice& value) override {
      const bool is_full = by_size_->Update(key, value);
      const bool is_empty = std::exchange(is_empty_, false);  // RocksDB ignores it then
      return is_full || (!is_empty && value.size() > kTableBlockBytes);
    }

   private:
    const std::unique_ptr<rocksdb::FlushBlockPolicy> by_size_;
    bool is_empty_ = true;
  };
};

/// The order of bytes. Between blocks of different columns, the key in the index follows all keys
/// of the first column, so that a lookup of a key that the column does not have reads its last
/// block, and not the first one of the next column. For RocksDB's readers, it is their own order.
class ColumnSeparator final : public rocksdb::Comparator {
 public:
  const char* Name() const override { return rocksdb::BytewiseComparator()->Name(); }
  int Compare(const rocksdb::Slice& a, const rocksdb::Slice& b) const override {
    return a.compare(b);
  }
  void FindShortestSeparator(std::string* start, const rocksdb::Slice& limit) const override {
    if (!start->empty() && !limit.empty() && start->front() != limit[0]) {
      // In UTF-8, no name has this byte. Keys that are not less keep the usual separator.
      const std::string end = {static_cast<char>(limit[0] - 1), '\xff'};
      if (*start < end) {
        *start = end;
        return;
      }
    }
    rocksdb::BytewiseComparator()->FindShortestSeparator(start, limit);
  }
  void FindShortSuccessor(std::string* key) const override {
    rocksdb::BytewiseComparator()->FindShortSuccessor(key);
  }
};

IOStatus ToStatus(const Error& error) {
  const std::string text = error.ToString();
  switch (error.code) {
    case ErrorCode::kNotFound:
      return IOStatus::PathNotFound(text);
    case ErrorCode::kDataLoss:
      return IOStatus::Corruption(text);
    case ErrorCode::kResourceExhausted:
      return IOStatus::NoSpace(text);
    default:
      return IOStatus::IOError(text);
  }
}

class WriteFile final : public rocksdb::FSWritableFile {
 public:
  explicit WriteFile(ObjectWriter& object) : object_(object) {}

  using rocksdb::FSWritableFile::Append;
  IOStatus Append(const rocksdb::Slice& data, const rocksdb::IOOptions&, Debug*) override {
    const auto appended = object_.Append(std::as_bytes(std::span(data.data(), data.size())));
    return appended ? IOStatus::OK() : ToStatus(appended.error());
  }
  // RocksDB closes files that it gives up, too, so only the owner of the object finishes it.
  IOStatus Close(const rocksdb::IOOptions&, Debug*) override { return IOStatus::OK(); }
  IOStatus Flush(const rocksdb::IOOptions&, Debug*) override { return IOStatus::OK(); }
  IOStatus Sync(const rocksdb::IOOptions&, Debug*) override { return IOStatus::OK(); }

 private:
  ObjectWriter& object_;
};

class TableFileSystem final : public rocksdb::FileSystemWrapper {
 public:
  explicit TableFileSystem(ObjectWriter& object)
      : FileSystemWrapper(rocksdb::FileSystem::Default()), object_(object) {}
  const char* Name() const override { return "CairnTableFileSystem"; }

  IOStatus NewWritableFile(const std::string&, const rocksdb::FileOptions&,
                           std::unique_ptr<rocksdb::FSWritableFile>* result, Debug*) override {
    *result = std::make_unique<WriteFile>(object_);
    return IOStatus::OK();
  }
  /// RocksDB deletes what it could not finish. The owner of the object discards it.
  IOStatus DeleteFile(const std::string&, const rocksdb::IOOptions&, Debug*) override {
    return IOStatus::OK();
  }

 private:
  ObjectWriter& object_;
};

}  // namespace

std::unique_ptr<rocksdb::Env> TableEnvironment(ObjectWriter& object) {
  return rocksdb::NewCompositeEnv(std::make_shared<TableFileSystem>(object));
}

rocksdb::Options TableOptions(rocksdb::Env& environment) {
  rocksdb::Options options;
  options.env = &environment;
  options.db_host_id.clear();  // a table need not name the host
  // A third smaller than LZ4: an incremental save writes mostly records, and a load of a hundredth
  // of the keys reads most blocks of records.
  options.compression = rocksdb::kZSTD;
  // Level 1 is 6 % smaller, and takes one and a half times as long, because it compresses what
  // remains after the matches, which are mostly digests.
  options.compression_opts.level = -1;
  rocksdb::BlockBasedTableOptions table;
  table.checksum = rocksdb::kXXH3;
  table.format_version = 5;
  table.block_size = kTableBlockBytes;
  table.block_size_deviation = 0;  // otherwise, each record is measured before it is added
  table.flush_block_policy_factory = std::make_shared<LargeRecordsApart>();
  // An open reads only the top of the index, whose size is a few bytes per MiB of records.
  table.index_type = rocksdb::BlockBasedTableOptions::kTwoLevelIndexSearch;
  table.metadata_block_size = 16 << 10;
  table.enable_index_compression = false;
  table.no_block_cache = true;  // RocksDB reads no table
  static const ColumnSeparator order;
  options.comparator = &order;
  options.table_factory =
      std::shared_ptr<rocksdb::TableFactory>(rocksdb::NewBlockBasedTableFactory(table));
  return options;
}

Error TableError(const rocksdb::Status& status, std::string what, std::string name) {
  ErrorCode code = ErrorCode::kDataLoss;
  if (status.IsIOError()) code = ErrorCode::kUnavailable;
  if (status.IsPathNotFound()) code = ErrorCode::kNotFound;
  if (status.IsNoSpace() || status.IsMemoryLimit()) code = ErrorCode::kResourceExhausted;
  // An error of ours (ToStatus) is complete. RocksDB would write "No space left on device" before
  // it, also if the process has no file descriptors.
  const bool is_ours = status.IsIOError() && status.getState() != nullptr;
  std::string text = is_ours ? status.getState() : status.ToString();
  std::ranges::replace(text, '\n', ' ');
  return Error{.code = code,
               .hint = code == ErrorCode::kDataLoss ? Hint::kRebuildTables : Hint::kNone,
               .message = fmt::format("{}: {}", what, text),
               .file = std::move(name)};
}

}  // namespace cairn::kv::internal
