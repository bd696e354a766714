// The index, with RocksDB.

#include "kv/internal/index/index.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <rocksdb/db.h>
#include <rocksdb/file_checksum.h>
#include <rocksdb/file_system.h>
#include <rocksdb/table.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "kv/file_descriptor.h"
#include "kv/internal/index/table_check.h"
#include "kv/internal/io/fault_point.h"
#include "kv/internal/io/file.h"
#include "kv/mutex.h"
#include "kv/thread_annotations.h"

namespace cairn::kv::internal {

/// RocksDB's view of the disk. A table is checked before RocksDB parses it, and files are removed
/// only while no reader is opening the index.
class IndexFileSystem final : public rocksdb::FileSystemWrapper {
 public:
  explicit IndexFileSystem(const std::string& gate_path)
      : FileSystemWrapper(rocksdb::FileSystem::Default()),
        gate_(gate_path.empty() ? -1 : ::open(gate_path.c_str(), O_RDONLY | O_CLOEXEC)) {}
  static const char* kClassName() { return "CairnIndexFileSystem"; }
  const char* Name() const override { return kClassName(); }

  rocksdb::IOStatus NewRandomAccessFile(const std::string& name,
                                        const rocksdb::FileOptions& options,
                                        std::unique_ptr<rocksdb::FSRandomAccessFile>* result,
                                        rocksdb::IODebugContext* debug) override {
    rocksdb::IOStatus opened = target()->NewRandomAccessFile(name, options, result, debug);
    if (!opened.ok() || !name.ends_with(".sst")) return opened;
    uint64_t file_bytes = 0;
    opened = target()->GetFileSize(name, options.io_options, &file_bytes, debug);
    if (!opened.ok()) return opened;
    const auto read = [&](uint64_t offset_bytes, std::span<std::byte> bytes) {
      auto* scratch = reinterpret_cast<char*>(bytes.data());
      rocksdb::Slice got;
      if (!(*result)
               ->Read(offset_bytes, bytes.size(), options.io_options, &got, scratch, debug)
               .ok() ||
          got.size() != bytes.size()) {
        return false;
      }
      if (got.data() != scratch) std::memcpy(scratch, got.data(), got.size());
      return true;
    };
    if (HasSoundProperties(file_bytes, read)) return opened;
    return rocksdb::IOStatus::Corruption("table with damaged properties or footer", name);
  }

  /// A file that cannot be removed now is removed later, at the latest by the next open for
  /// writing, which removes every file that RocksDB's manifest does not contain.
  rocksdb::IOStatus DeleteFile(const std::string& name, const rocksdb::IOOptions& options,
                               rocksdb::IODebugContext* debug) override {
    const MutexLock lock(mutex_);
    postponed_.push_back(name);
    // A store that is being created has no gate and no readers.
    if (gate_.is_open() && ::flock(gate_.get(), LOCK_EX | LOCK_NB) != 0) {
      return rocksdb::IOStatus::OK();
    }
    rocksdb::IOStatus result;
    for (const std::string& path : postponed_) {
      rocksdb::IOStatus one = target()->DeleteFile(path, options, debug);
      if (!one.ok() && path == name) result = one;
    }
    postponed_.clear();
    if (gate_.is_open()) ::flock(gate_.get(), LOCK_UN);
    return result;
  }

 private:
  const FileDescriptor gate_;
  Mutex mutex_;
  std::vector<std::string> postponed_ CAIRN_GUARDED_BY(mutex_);
};

namespace {

/// Discards RocksDB's log: a store contains no file that nobody checks, and readers write nothing.
class QuietLogger final : public rocksdb::Logger {
 public:
  using rocksdb::Logger::Logv;
  void Logv(const char*, va_list) override {}
};

/// Prevents removals of files while a reader opens the index.
class ReaderGate {
 public:
  static Result<ReaderGate> Enter(const std::string& path, std::chrono::milliseconds deadline) {
    ReaderGate gate;
    gate.file_ = FileDescriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!gate.file_.is_open()) return Fail(SystemError(errno, "cannot open", path));
    const auto end = std::chrono::steady_clock::now() + deadline;
    while (::flock(gate.file_.get(), LOCK_SH | LOCK_NB) != 0) {
      if (errno != EWOULDBLOCK && errno != EINTR) {
        return Fail(SystemError(errno, "cannot take the readers' lock", path));
      }
      if (std::chrono::steady_clock::now() > end) {
        return Fail(Error{.code = ErrorCode::kUnavailable,
                          .message = "the writer held the readers' lock until the deadline",
                          .file = path});
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return gate;
  }

 private:
  ReaderGate() = default;
  FileDescriptor file_;
};

Error FromStatus(const rocksdb::Status& status, std::string what, const std::string& directory) {
  ErrorCode code = ErrorCode::kUnavailable;
  if (status.IsCorruption()) code = ErrorCode::kDataLoss;
  if (status.IsNoSpace()) code = ErrorCode::kResourceExhausted;
  if (status.IsMemoryLimit()) code = ErrorCode::kResourceExhausted;
  if (status.IsInvalidArgument())
    code = ErrorCode::kDataLoss;  // our arguments are right, so a file is wrong
  if (status.IsPathNotFound() || status.IsNotFound()) code = ErrorCode::kDataLoss;
  std::string text = status.ToString();
  std::ranges::replace(text, '\n', ' ');
  if (code == ErrorCode::kUnavailable && text.find("No such file") != std::string::npos) {
    code = ErrorCode::kDataLoss;
  }
  return Error{
      .code = code, .message = fmt::format("{}: {}", what, text), .file = directory + "/index"};
}

/// Asks the kernel to read the ends of all tables concurrently. RocksDB opens the tables one by
/// one, and each open waits for the footer, the properties and the index block. Only a hint: errors
/// are ignored.
void PrefetchTables(const std::string& path) {
  constexpr off_t kTailBytes = 96 << 10;
  DIR* const directory = ::opendir(path.c_str());
  if (directory == nullptr) return;
  while (const dirent* entry = ::readdir(directory)) {
    if (!std::string_view(entry->d_name).ends_with(".sst")) continue;
    const FileDescriptor file(::openat(::dirfd(directory), entry->d_name, O_RDONLY | O_CLOEXEC));
    struct stat status{};
    if (!file.is_open() || ::fstat(file.get(), &status) != 0) continue;
    const off_t begin = std::max<off_t>(0, status.st_size - kTailBytes);
    (void)::posix_fadvise(file.get(), begin, status.st_size - begin, POSIX_FADV_WILLNEED);
  }
  ::closedir(directory);
}

rocksdb::Slice ToSlice(std::string_view text) { return {text.data(), text.size()}; }
std::string_view ToView(const rocksdb::Slice& slice) { return {slice.data(), slice.size()}; }

rocksdb::ColumnFamilyOptions ColumnOptions() {
  rocksdb::ColumnFamilyOptions options;
  // A third smaller than LZ4: an incremental save writes mostly records, and a load of a hundredth
  // of the keys reads most blocks of records.
  options.compression = rocksdb::kZSTD;
  options.compression_opts.level = 1;
  options.write_buffer_size = 8 << 20;
  // Each commit adds one table per column, with keys after those of the tables before. Levelled
  // compaction would only move such tables to lower levels, without merging them, and every open
  // would have to open all of them.
  options.compaction_style = rocksdb::kCompactionStyleUniversal;
  options.target_file_size_base = 16 << 20;
  rocksdb::BlockBasedTableOptions table;
  table.checksum = rocksdb::kXXH3;
  table.format_version = 5;
  table.block_size = 16 << 10;
  table.enable_index_compression = false;  // every open reads all index blocks
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  return options;
}

rocksdb::DBOptions DatabaseOptions(bool create) {
  rocksdb::DBOptions options;
  options.create_if_missing = create;
  options.create_missing_column_families = true;
  options.info_log = std::make_shared<QuietLogger>();
  options.atomic_flush = true;  // all columns of a commit, or none
  // What was not committed must not become durable when the index is closed, or by a retry in the
  // background.
  options.avoid_flush_during_shutdown = true;
  options.max_bgerror_resume_count = 0;
  options.max_open_files = -1;  // every file is open before Open returns, as readers require
  options.max_file_opening_threads = 1;
  options.max_manifest_file_size = 256 << 10;  // every open reads all of it
  options.skip_stats_update_on_db_open = true;
  options.stats_dump_period_sec = 0;
  options.stats_persist_period_sec = 0;
  options.file_checksum_gen_factory = rocksdb::GetFileChecksumGenCrc32cFactory();
  return options;
}

}  // namespace

std::span<const std::byte> AlignedBytes::Assign(std::string_view bytes) {
  words_.resize((bytes.size() + 7) / 8);
  if (!bytes.empty()) std::memcpy(words_.data(), bytes.data(), bytes.size());
  return {reinterpret_cast<const std::byte*>(words_.data()), bytes.size()};
}

void IndexBatch::Add(Operation::Kind kind, Column column, std::string_view key,
                     std::string_view value) {
  const Operation operation{.kind = kind,
                            .column = column,
                            .key_bytes = static_cast<uint32_t>(key.size()),
                            .value_bytes = static_cast<uint32_t>(value.size())};
  bytes_.append(reinterpret_cast<const char*>(&operation), sizeof(operation));
  bytes_.append(key);
  bytes_.append(value);
}
void IndexBatch::Put(Column column, std::string_view key, std::span<const std::byte> value) {
  Add(Operation::Kind::kPut, column, key,
      {reinterpret_cast<const char*>(value.data()), value.size()});
}
void IndexBatch::Delete(Column column, std::string_view key) {
  Add(Operation::Kind::kDelete, column, key, {});
}
void IndexBatch::DeleteRange(Column column, std::string_view begin, std::string_view end) {
  Add(Operation::Kind::kDeleteRange, column, begin, end);
}
uint64_t IndexBatch::size_bytes() const { return bytes_.size(); }
void IndexBatch::Clear() { bytes_.clear(); }

Index::Index(std::string directory, bool writable, std::chrono::milliseconds deadline)
    : directory_(std::move(directory)), writable_(writable), deadline_(deadline) {}

Index::~Index() { CloseDatabase(); }

Result<std::shared_ptr<Index>> Index::Open(const std::string& directory, bool writable, bool create,
                                           std::chrono::milliseconds deadline) {
  auto index = std::shared_ptr<Index>(new Index(directory, writable, deadline));
  const WriterMutexLock lock(index->mutex_);
  CAIRN_TRY(index->OpenDatabase(create));
  return index;
}

Result<void> Index::OpenDatabase(bool create) {
  if (writable_) return OpenOnce(create);
  const auto end = std::chrono::steady_clock::now() + deadline_;
  while (true) {
    const std::string before = Signature(directory_);
    signature_ = before;
    Result<void> opened = OpenOnce(create);
    // If the files have not changed, a failure is damage; otherwise the writer replaced some.
    if (opened || Signature(directory_) == before || std::chrono::steady_clock::now() > end) {
      return opened;
    }
  }
}

Result<void> Index::OpenOnce(bool create) {
  const std::string gate_path = directory_ + "/CAIRN";
  const std::string path = directory_ + "/index";
  rocksdb::DBOptions options = DatabaseOptions(create);
  std::vector<rocksdb::ColumnFamilyDescriptor> descriptors;
  descriptors.emplace_back(rocksdb::kDefaultColumnFamilyName, rocksdb::ColumnFamilyOptions());
  for (int i = 0; i < kColumnCount; ++i) {
    descriptors.emplace_back(ColumnName(static_cast<Column>(i)), ColumnOptions());
  }
  rocksdb::DB* database = nullptr;
  rocksdb::Status status;
  file_system_ = std::make_shared<IndexFileSystem>(writable_ ? gate_path : "");
  environment_ = rocksdb::NewCompositeEnv(file_system_);
  options.env = environment_.get();
  if (writable_) {
    status = rocksdb::DB::Open(options, path, descriptors, &columns_, &database);
  } else {
    CAIRN_TRY_ASSIGN(const ReaderGate gate, ReaderGate::Enter(gate_path, deadline_));
    PrefetchTables(path);
    status = rocksdb::DB::OpenForReadOnly(options, path, descriptors, &columns_, &database);
  }
  if (!status.ok()) {
    columns_.clear();
    Error error = FromStatus(status, "cannot open the index", directory_);
    if (error.code == ErrorCode::kDataLoss) {
      error.message += "; kv-admin rebuild-index creates it again from commits/";
    }
    if (status.IsIOError() && status.ToString().find("lock") != std::string::npos) {
      error.code = ErrorCode::kConflict;
    }
    return Fail(std::move(error));
  }
  db_.reset(database);
  return {};
}

Result<void> Index::CheckOpen() const {
  if (db_ == nullptr) {
    return Fail(Error{.code = ErrorCode::kFailedPrecondition,
                      .message = "the store is closed",
                      .file = directory_});
  }
  return {};
}

void Index::CloseDatabase() {
  if (db_ == nullptr) return;
  for (rocksdb::ColumnFamilyHandle* column : columns_) db_->DestroyColumnFamilyHandle(column);
  columns_.clear();
  db_.reset();
}

Result<void> Index::Close() {
  const WriterMutexLock lock(mutex_);
  CloseDatabase();
  return {};
}

Result<void> Index::Reopen() {
  const WriterMutexLock lock(mutex_);
  CloseDatabase();
  return OpenDatabase(/*create=*/false);
}

Result<void> Index::Scan(
    Column column, std::string_view prefix,
    const std::function<Result<bool>(std::string_view, std::span<const std::byte>)>& callback)
    const {
  return ScanFrom(column, prefix,
                  [&](std::string_view key, std::span<const std::byte> value) -> Result<bool> {
                    if (!key.starts_with(prefix)) return false;
                    return callback(key, value);
                  });
}

Result<void> Index::ScanFrom(
    Column column, std::string_view begin,
    const std::function<Result<bool>(std::string_view, std::span<const std::byte>)>& callback)
    const {
  const ReaderMutexLock lock(mutex_);
  CAIRN_TRY(CheckOpen());
  AlignedBytes aligned;
  const std::unique_ptr<rocksdb::Iterator> iterator(
      db_->NewIterator(rocksdb::ReadOptions(), columns_[static_cast<size_t>(column) + 1]));
  for (iterator->Seek(ToSlice(begin)); iterator->Valid(); iterator->Next()) {
    CAIRN_TRY_ASSIGN(const bool more,
                     callback(ToView(iterator->key()), aligned.Assign(ToView(iterator->value()))));
    if (!more) return {};
  }
  if (!iterator->status().ok()) {
    return Fail(FromStatus(iterator->status(),
                           fmt::format("cannot scan the column {}", ColumnName(column)),
                           directory_));
  }
  return {};
}

Result<std::optional<std::vector<std::byte>>> Index::Get(Column column,
                                                         std::string_view key) const {
  const ReaderMutexLock lock(mutex_);
  CAIRN_TRY(CheckOpen());
  rocksdb::PinnableSlice value;
  const rocksdb::Status status = db_->Get(
      rocksdb::ReadOptions(), columns_[static_cast<size_t>(column) + 1], ToSlice(key), &value);
  if (status.IsNotFound()) return std::nullopt;
  if (!status.ok()) {
    return Fail(FromStatus(status, fmt::format("cannot read the column {}", ColumnName(column)),
                           directory_));
  }
  const auto* data = reinterpret_cast<const std::byte*>(value.data());
  return std::vector<std::byte>(data, data + value.size());
}

Result<void> Index::Write(const IndexBatch& batch) {
  if (const int fault = FaultPoint("index.write")) {
    return Fail(SystemError(fault, "cannot write to the index", directory_ + "/index"));
  }
  const ReaderMutexLock lock(mutex_);
  CAIRN_TRY(CheckOpen());
  rocksdb::WriteBatch writes(batch.bytes_.size());
  for (size_t at = 0; at < batch.bytes_.size();) {
    IndexBatch::Operation operation;
    std::memcpy(&operation, batch.bytes_.data() + at, sizeof(operation));
    at += sizeof(operation);
    const rocksdb::Slice key(batch.bytes_.data() + at, operation.key_bytes);
    const rocksdb::Slice value(key.data() + key.size(), operation.value_bytes);
    at += key.size() + value.size();
    rocksdb::ColumnFamilyHandle* column = columns_[static_cast<size_t>(operation.column) + 1];
    switch (operation.kind) {
      case IndexBatch::Operation::Kind::kPut:
        writes.Put(column, key, value);
        break;
      case IndexBatch::Operation::Kind::kDelete:
        writes.Delete(column, key);
        break;
      case IndexBatch::Operation::Kind::kDeleteRange:
        writes.DeleteRange(column, key, value);
        break;
    }
  }
  rocksdb::WriteOptions options;
  options.disableWAL = true;
  const rocksdb::Status status = db_->Write(options, &writes);
  if (!status.ok()) return Fail(FromStatus(status, "cannot write to the index", directory_));
  return {};
}

Result<void> Index::Flush() {
  if (const int fault = FaultPoint("index.flush")) {
    return Fail(SystemError(fault, "cannot sync the index", directory_ + "/index"));
  }
  {
    const ReaderMutexLock lock(mutex_);
    CAIRN_TRY(CheckOpen());
    const rocksdb::Status status = db_->Flush(rocksdb::FlushOptions(), columns_);
    if (!status.ok()) return Fail(FromStatus(status, "cannot sync the index", directory_));
  }
  if (const int fault = FaultPoint("index.flushed")) {
    return Fail(SystemError(fault, "cannot sync the index", directory_ + "/index"));
  }
  return {};
}

Result<void> Index::VerifyTables(const std::function<void(Error)>& damage) const {
  const ReaderMutexLock lock(mutex_);
  CAIRN_TRY(CheckOpen());
  // The gate prevents the removal of files between listing and reading them.
  CAIRN_TRY_ASSIGN(const ReaderGate gate, ReaderGate::Enter(directory_ + "/CAIRN", deadline_));
  std::vector<rocksdb::LiveFileMetaData> files;
  db_->GetLiveFilesMetaData(&files);
  const auto factory = rocksdb::GetFileChecksumGenCrc32cFactory();
  std::vector<std::byte> buffer(1 << 20);
  for (const rocksdb::LiveFileMetaData& file : files) {
    const std::string path = directory_ + "/index" + file.name;
    // A reader's view may be older than the files: the writer may have removed some of its tables.
    auto opened = File::OpenRead(path, /*direct=*/false, "index.open");
    if (!opened) {
      if (!writable_ && Signature(directory_) != signature_) continue;
      damage(std::move(opened).error());
      continue;
    }
    const auto generator = factory->CreateFileChecksumGenerator({.file_name = file.name});
    Result<uint64_t> size_bytes = opened->SizeBytes();
    Result<void> read = {};
    for (uint64_t at = 0; read && size_bytes && at < *size_bytes; at += buffer.size()) {
      const auto part =
          std::span(buffer).first(std::min<uint64_t>(buffer.size(), *size_bytes - at));
      read = opened->ReadAt(at, part);
      generator->Update(reinterpret_cast<const char*>(part.data()), part.size());
    }
    generator->Finalize();
    if (!read) {
      damage(std::move(read).error());
    } else if (generator->GetChecksum() != file.file_checksum) {
      damage(Error{.code = ErrorCode::kDataLoss,
                   .message = fmt::format("index table of column {} does not match its checksum",
                                          file.column_family_name),
                   .file = path});
    }
  }
  return {};
}

std::string Index::Signature(const std::string& directory) {
  const auto describe = [](const std::string& path) {
    struct stat status = {};
    if (::stat(path.c_str(), &status) != 0) return std::string("none");
    return fmt::format("{}:{}:{}:{}", status.st_ino, status.st_size, status.st_mtim.tv_sec,
                       status.st_mtim.tv_nsec);
  };
  const std::string current = directory + "/index/CURRENT";
  std::string signature = describe(current);
  // Without a fault point: how often readers call this depends on when the writer's RocksDB
  // replaces its files, and tests that end the process at a point require that every run passes it.
  if (const auto text = ReadWholeFile(current, 256, /*fault_point=*/nullptr)) {
    std::string name(reinterpret_cast<const char*>(text->data()), text->size());
    while (!name.empty() && name.back() == '\n') name.pop_back();
    if (name.find('/') == std::string::npos && name.find('\0') == std::string::npos) {
      signature += describe(directory + "/index/" + name);
    }
  }
  return signature;
}

}  // namespace cairn::kv::internal
