// RocksDB writes a table to a file system with one file. There is one per table, and nothing is
// shared between tables but RocksDB's constants. So a child process can write tables whatever its
// parent's threads did at the time of the fork.

#include "kv/table/internal/table_writer.h"

#include <fmt/format.h>
#include <rocksdb/comparator.h>
#include <rocksdb/env.h>
#include <rocksdb/file_system.h>
#include <rocksdb/flush_block_policy.h>
#include <rocksdb/options.h>
#include <rocksdb/sst_file_writer.h>
#include <rocksdb/table.h>

#include <algorithm>
#include <string>
#include <utility>

#include "kv/base/digest.h"

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

/// Counts and hashes what is appended to an object.
class DigestingWriter final : public ObjectWriter {
 public:
  explicit DigestingWriter(std::unique_ptr<ObjectWriter> object) : object_(std::move(object)) {}

  Result<void> Append(std::span<const std::byte> bytes) override {
    checksum_.Update(bytes);
    size_bytes_ += bytes.size();
    return object_->Append(bytes);
  }
  Result<void> Finish() override { return object_->Finish(); }

  uint64_t size_bytes() const { return size_bytes_; }
  uint64_t digest() const { return checksum_.value(); }

 private:
  std::unique_ptr<ObjectWriter> object_;
  StreamChecksum64 checksum_;
  uint64_t size_bytes_ = 0;
};

/// Returns an environment in which every path is one file. It starts no threads. Creating the file
/// appends to `object`, which closing it leaves unfinished, and which must outlive the environment
/// and everything that uses it.
std::unique_ptr<rocksdb::Env> TableEnvironment(ObjectWriter& object) {
  return rocksdb::NewCompositeEnv(std::make_shared<TableFileSystem>(object));
}

/// Returns the options of tables, to be used with `environment`.
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

/// Returns the error of an operation of RocksDB on table `name`. Errors of the storage keep their
/// code; everything else that RocksDB finds wrong is damage.
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

}  // namespace

Error InvalidRecordError(std::string_view key, std::span<const std::byte> value) {
  return {.code = ErrorCode::kInvalidArgument,
          .message = value.empty() ? "a record with an empty value would be a tombstone"
                                   : fmt::format("a record has {} bytes, more than the limit of {}",
                                                 key.size() + value.size(), kMaxTableRecordBytes)};
}

struct TableWriter::State {
  State(Storage& of_object, std::unique_ptr<ObjectWriter> object, const ObjectId& object_id)
      : storage(of_object),
        id(object_id),
        name(ObjectName(ObjectKind::kTable, object_id)),
        output(std::move(object)),
        environment(TableEnvironment(output)),
        options(TableOptions(*environment)),
        writer(std::make_unique<rocksdb::SstFileWriter>(rocksdb::EnvOptions(), options,
                                                        /*column_family=*/nullptr,
                                                        /*invalidate_page_cache=*/false)) {}

  Storage& storage;
  const ObjectId id;
  const std::string name;
  DigestingWriter output;
  std::unique_ptr<rocksdb::Env> environment;
  rocksdb::Options options;
  std::unique_ptr<rocksdb::SstFileWriter> writer;
  uint64_t record_count = 0;
};

TableWriter::TableWriter(std::unique_ptr<State> state) : state_(std::move(state)) {}
TableWriter::~TableWriter() = default;

Result<std::unique_ptr<TableWriter>> TableWriter::Create(Storage& storage, const ObjectId& id) {
  CAIRN_TRY_ASSIGN(auto object, storage.Create(ObjectName(ObjectKind::kTable, id)));
  auto state = std::make_unique<State>(storage, std::move(object), id);
  const rocksdb::Status opened = state->writer->Open(state->name);
  if (!opened.ok()) return Fail(TableError(opened, "cannot create a table", state->name));
  return std::unique_ptr<TableWriter>(new TableWriter(std::move(state)));
}

Result<void> TableWriter::Add(std::string_view key, std::span<const std::byte> value) {
  CAIRN_TRY(CheckRecord(key, value));
  return Put(key, value);
}

Result<void> TableWriter::AddTombstone(std::string_view key) { return Put(key, {}); }

Result<void> TableWriter::Put(std::string_view key, std::span<const std::byte> value) {
  const rocksdb::Status status = state_->writer->Put(
      {key.data(), key.size()}, {reinterpret_cast<const char*>(value.data()), value.size()});
  if (status.IsInvalidArgument()) {
    return Fail(ErrorCode::kInvalidArgument, "the keys of a table must be added in ascending order",
                state_->name);
  }
  if (!status.ok()) {
    return Fail(TableError(status, "cannot add a record to the table", state_->name));
  }
  ++state_->record_count;
  return {};
}

Result<TableInfo> TableWriter::Finish() {
  if (state_->record_count == 0) {
    return Fail(ErrorCode::kInvalidArgument, "a table needs at least one record", state_->name);
  }
  const rocksdb::Status status = state_->writer->Finish();
  if (!status.ok()) return Fail(TableError(status, "cannot finish the table", state_->name));
  CAIRN_TRY(state_->output.Finish());
  CAIRN_TRY(CheckStored(state_->storage, state_->name, state_->output.size_bytes()));
  return TableInfo{.id = state_->id,
                   .file_bytes = state_->output.size_bytes(),
                   .record_count = state_->record_count,
                   .digest = state_->output.digest()};
}

}  // namespace cairn::kv::internal
