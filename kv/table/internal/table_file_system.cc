#include "kv/table/internal/table_file_system.h"

#include <fmt/format.h>
#include <rocksdb/cache.h>
#include <rocksdb/comparator.h>
#include <rocksdb/flush_block_policy.h>
#include <rocksdb/table.h>

#include <algorithm>
#include <utility>

namespace cairn::kv::internal {
namespace {

using rocksdb::IOStatus;
using Debug = rocksdb::IODebugContext;

/// Opens tables without reading their index, which RocksDB's own factory reads completely although
/// a lookup needs two blocks of it: 340 KB for a million chunks.
class LazyIndexFactory final : public rocksdb::TableFactory {
 public:
  explicit LazyIndexFactory(const rocksdb::BlockBasedTableOptions& options)
      : blocks_(rocksdb::NewBlockBasedTableFactory(options)) {}
  const char* Name() const override { return blocks_->Name(); }

  using rocksdb::TableFactory::NewTableReader;
  rocksdb::Status NewTableReader(const rocksdb::ReadOptions& options,
                                 const rocksdb::TableReaderOptions& table_options,
                                 std::unique_ptr<rocksdb::RandomAccessFileReader>&& file,
                                 uint64_t file_bytes, std::unique_ptr<rocksdb::TableReader>* table,
                                 bool /*prefetch_index*/) const override {
    return blocks_->NewTableReader(options, table_options, std::move(file), file_bytes, table,
                                   /*prefetch_index_and_filter_in_cache=*/false);
  }
  rocksdb::TableBuilder* NewTableBuilder(const rocksdb::TableBuilderOptions& options,
                                         rocksdb::WritableFileWriter* file) const override {
    return blocks_->NewTableBuilder(options, file);
  }

 private:
  const std::unique_ptr<rocksdb::TableFactory> blocks_;
};

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
/// block, and not the first one of the next column. For readers, it is RocksDB's own order.
class ColumnSeparator final : public rocksdb::Comparator {
 public:
  const char* Name() const override { return rocksdb::BytewiseComparator()->Name(); }
  int Compare(const rocksdb::Slice& a, const rocksdb::Slice& b) const override {
    return rocksdb::BytewiseComparator()->Compare(a, b);
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

/// Blocks of records and of the index that were read lately, of one table.
constexpr size_t kBlockCacheBytes = 1 << 20;

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

class ReadFile final : public rocksdb::FSRandomAccessFile {
 public:
  explicit ReadFile(const TableFile& file) : file_(file) {}

  IOStatus Read(uint64_t offset_bytes, size_t length_bytes, const rocksdb::IOOptions&,
                rocksdb::Slice* result, char* scratch, Debug*) const override {
    const uint64_t left = file_.size_bytes() - std::min(offset_bytes, file_.size_bytes());
    const auto target =
        std::as_writable_bytes(std::span(scratch, std::min<uint64_t>(length_bytes, left)));
    if (const auto read = file_.ReadAt(offset_bytes, target); !read) return ToStatus(read.error());
    *result = rocksdb::Slice(scratch, target.size());
    return IOStatus::OK();
  }

  /// When RocksDB opens a table, it prefetches the end of the file, which TableFile has in memory.
  /// Scans get no such help, so that RocksDB reads ahead for them in growing pieces.
  IOStatus Prefetch(uint64_t offset_bytes, size_t length_bytes, const rocksdb::IOOptions&,
                    Debug*) override {
    if (offset_bytes + length_bytes >= file_.size_bytes()) return IOStatus::OK();
    return IOStatus::NotSupported();
  }

 private:
  const TableFile& file_;
};

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
  TableFileSystem(const TableFile* file, ObjectWriter* object)
      : FileSystemWrapper(rocksdb::FileSystem::Default()), file_(file), object_(object) {}
  const char* Name() const override { return "CairnTableFileSystem"; }

  IOStatus NewRandomAccessFile(const std::string&, const rocksdb::FileOptions&,
                               std::unique_ptr<rocksdb::FSRandomAccessFile>* result,
                               Debug*) override {
    *result = std::make_unique<ReadFile>(*file_);
    return IOStatus::OK();
  }
  IOStatus GetFileSize(const std::string&, const rocksdb::IOOptions&, uint64_t* size_bytes,
                       Debug*) override {
    *size_bytes = file_->size_bytes();
    return IOStatus::OK();
  }
  IOStatus NewWritableFile(const std::string&, const rocksdb::FileOptions&,
                           std::unique_ptr<rocksdb::FSWritableFile>* result, Debug*) override {
    *result = std::make_unique<WriteFile>(*object_);
    return IOStatus::OK();
  }
  /// RocksDB deletes what it could not finish. The owner of the object discards it.
  IOStatus DeleteFile(const std::string&, const rocksdb::IOOptions&, Debug*) override {
    return IOStatus::OK();
  }

 private:
  const TableFile* const file_;
  ObjectWriter* const object_;
};

}  // namespace

std::unique_ptr<rocksdb::Env> TableEnvironment(const TableFile* file, ObjectWriter* object) {
  return rocksdb::NewCompositeEnv(std::make_shared<TableFileSystem>(file, object));
}

rocksdb::Options TableOptions(rocksdb::Env& environment) {
  rocksdb::Options options;
  options.env = &environment;
  options.db_host_id.clear();  // a table need not name the host
  // A third smaller than LZ4: an incremental save writes mostly records, and a load of a hundredth
  // of the keys reads most blocks of records.
  options.compression = rocksdb::kZSTD;
  options.compression_opts.level = 1;
  rocksdb::BlockBasedTableOptions table;
  table.checksum = rocksdb::kXXH3;
  table.format_version = 5;
  table.block_size = kTableBlockBytes;
  table.flush_block_policy_factory = std::make_shared<LargeRecordsApart>();
  // An open reads only the top of the index, whose size is a few bytes per MiB of records.
  table.index_type = rocksdb::BlockBasedTableOptions::kTwoLevelIndexSearch;
  table.metadata_block_size = 16 << 10;
  table.enable_index_compression = false;
  table.block_cache = rocksdb::NewLRUCache(kBlockCacheBytes, /*num_shard_bits=*/0);
  static const ColumnSeparator order;
  options.comparator = &order;
  options.table_factory = std::make_shared<LazyIndexFactory>(table);
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
