#include "kv/table/internal/table_writer.h"

#include <fmt/format.h>
#include <rocksdb/sst_file_writer.h>

#include <future>
#include <string>
#include <utility>

#include "kv/table/internal/record_buffer.h"
#include "kv/table/internal/table_file_system.h"
#include "kv/table/internal/window_reader.h"

namespace cairn::kv::internal {
namespace {

constexpr uint64_t kBatchBytes = 1 << 20;

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

}  // namespace

Result<void> CheckRecord(std::string_view key, std::span<const std::byte> value) {
  if (value.empty()) {
    return Fail(ErrorCode::kInvalidArgument, "a record with an empty value would be a tombstone");
  }
  if (key.size() + value.size() > kMaxTableRecordBytes) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("a record has {} bytes, more than the limit of {}",
                            key.size() + value.size(), kMaxTableRecordBytes));
  }
  return {};
}

struct TableWriter::State {
  State(Storage& of_object, std::unique_ptr<ObjectWriter> object, const ObjectId& object_id,
        RecordSource of_records)
      : storage(of_object),
        id(object_id),
        source(of_records),
        name(ObjectName(ObjectKind::kTable, object_id)),
        output(std::move(object)),
        environment(WriteEnvironment(output)),
        options(TableOptions(*environment)),
        writer(std::make_unique<rocksdb::SstFileWriter>(rocksdb::EnvOptions(), options,
                                                        /*column_family=*/nullptr,
                                                        /*invalidate_page_cache=*/false)) {}

  Storage& storage;
  const ObjectId id;
  const RecordSource source;
  const std::string name;
  DigestingWriter output;
  std::unique_ptr<rocksdb::Env> environment;
  rocksdb::Options options;
  std::unique_ptr<rocksdb::SstFileWriter> writer;
  uint64_t record_count = 0;
  std::string last_key;
  RecordBuffer batch;                 // not yet given to the table
  RecordBuffer written;               // of `writing`
  std::future<Result<void>> writing;  // adds `written` to the table. The last member: its
                                      // destructor waits for the thread, which uses the others.

  /// Waits until the batch before is in the table.
  Result<void> AwaitWritten() { return writing.valid() ? writing.get() : Result<void>(); }

  Result<void> Write(std::string_view key, std::span<const std::byte> value) {
    const rocksdb::Status status = writer->Put(
        {key.data(), key.size()}, {reinterpret_cast<const char*>(value.data()), value.size()});
    if (status.ok()) return {};
    return Fail(TableError(status, "cannot add a record to the table", name));
  }

  Result<void> Write(const RecordBuffer& records) {
    for (RecordBuffer::Cursor record(records); record.Valid(); record.Next()) {
      CAIRN_TRY(Write(record.key(), record.value()));
    }
    return {};
  }
};

TableWriter::TableWriter(std::unique_ptr<State> state) : state_(std::move(state)) {}
TableWriter::~TableWriter() = default;

Result<std::unique_ptr<TableWriter>> TableWriter::Create(Storage& storage, const ObjectId& id,
                                                         RecordSource source) {
  CAIRN_TRY_ASSIGN(auto object, storage.Create(ObjectName(ObjectKind::kTable, id)));
  auto state = std::make_unique<State>(storage, std::move(object), id, source);
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
  State& state = *state_;
  if (state.record_count > 0 && key <= state.last_key) {
    return Fail(Error{.code = ErrorCode::kInvalidArgument,
                      .message = "the keys of a table must be added in ascending order",
                      .file = state.name});
  }
  state.last_key = key;
  ++state.record_count;
  if (state.source == RecordSource::kMemory) return state.Write(key, value);
  state.batch.Add(key, value);
  if (state.batch.size_bytes() < kBatchBytes) return {};
  CAIRN_TRY(state.AwaitWritten());
  std::swap(state.written, state.batch);
  state.batch.ClearRecords();
  // Deferred if the system has no more threads.
  state.writing = std::async(std::launch::async | std::launch::deferred,
                             [&state] { return state.Write(state.written); });
  return {};
}

uint64_t TableWriter::record_count() const { return state_->record_count; }

Result<TableInfo> TableWriter::Finish() {
  if (state_->record_count == 0) {
    return Fail(Error{.code = ErrorCode::kInvalidArgument,
                      .message = "a table needs at least one record",
                      .file = state_->name});
  }
  CAIRN_TRY(state_->AwaitWritten());
  CAIRN_TRY(state_->Write(state_->batch));
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
