#include "kv/table/internal/table_writer.h"

#include <fmt/format.h>
#include <rocksdb/sst_file_writer.h>

#include <string>
#include <utility>

#include "kv/base/digest.h"
#include "kv/table/internal/table_file_system.h"

namespace cairn::kv::internal {
namespace {

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
