#include "kv/internal/table/table_file_system.h"

#include <fmt/format.h>
#include <rocksdb/cache.h>
#include <rocksdb/table.h>

#include <algorithm>

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

class ReadFileSystem final : public rocksdb::FileSystemWrapper {
 public:
  explicit ReadFileSystem(const TableFile& file)
      : FileSystemWrapper(rocksdb::FileSystem::Default()), file_(file) {}
  const char* Name() const override { return "CairnTableReadFileSystem"; }

  IOStatus NewRandomAccessFile(const std::string&, const rocksdb::FileOptions&,
                               std::unique_ptr<rocksdb::FSRandomAccessFile>* result,
                               Debug*) override {
    *result = std::make_unique<ReadFile>(file_);
    return IOStatus::OK();
  }
  IOStatus GetFileSize(const std::string&, const rocksdb::IOOptions&, uint64_t* size_bytes,
                       Debug*) override {
    *size_bytes = file_.size_bytes();
    return IOStatus::OK();
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

class WriteFileSystem final : public rocksdb::FileSystemWrapper {
 public:
  explicit WriteFileSystem(ObjectWriter& object)
      : FileSystemWrapper(rocksdb::FileSystem::Default()), object_(object) {}
  const char* Name() const override { return "CairnTableWriteFileSystem"; }

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

std::unique_ptr<rocksdb::Env> ReadEnvironment(const TableFile& file) {
  return rocksdb::NewCompositeEnv(std::make_shared<ReadFileSystem>(file));
}

std::unique_ptr<rocksdb::Env> WriteEnvironment(ObjectWriter& object) {
  return rocksdb::NewCompositeEnv(std::make_shared<WriteFileSystem>(object));
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
  table.block_size = 16 << 10;
  // An open reads only the top of the index, whose size is a few bytes per MiB of records.
  table.index_type = rocksdb::BlockBasedTableOptions::kTwoLevelIndexSearch;
  table.metadata_block_size = 16 << 10;
  table.enable_index_compression = false;
  table.block_cache = rocksdb::NewLRUCache(kBlockCacheBytes, /*num_shard_bits=*/0);
  options.table_factory = std::make_shared<LazyIndexFactory>(table);
  return options;
}

Error TableError(const rocksdb::Status& status, std::string what, std::string name) {
  ErrorCode code = ErrorCode::kDataLoss;
  if (status.IsIOError()) code = ErrorCode::kUnavailable;
  if (status.IsPathNotFound()) code = ErrorCode::kNotFound;
  if (status.IsNoSpace() || status.IsMemoryLimit()) code = ErrorCode::kResourceExhausted;
  std::string text = status.ToString();
  std::ranges::replace(text, '\n', ' ');
  return Error{.code = code, .message = fmt::format("{}: {}", what, text), .file = std::move(name)};
}

}  // namespace cairn::kv::internal
