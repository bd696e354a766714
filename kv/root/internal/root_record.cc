// Encoding and decoding of roots and pages.

#include "kv/root/internal/root_record.h"

#include <cairn_schema/root_generated.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <ctime>
#include <utility>

#include "kv/base/record_check.h"
#include "kv/root/internal/framed_record.h"
#include "kv/root/internal/step_summary.h"
#include "kv/table/internal/table_reader.h"

namespace cairn::kv::internal {
namespace {

constexpr FrameKind kRootFrame{.magic = "CNRT", .version = 1, .name = "root"};
constexpr FrameKind kPageFrame{.magic = "CNPG", .version = 1, .name = "page of steps"};
constexpr const char* kPageIdentifier = "CNPS";

template <typename T>
using Offset = flatbuffers::Offset<T>;
using Builder = flatbuffers::FlatBufferBuilder;

schema::ObjectId ToSchema(const ObjectId& id) { return {id.epoch, id.id_tail, id.id}; }
ObjectId FromSchema(const schema::ObjectId& id) {
  return {.epoch = id.epoch(), .id = id.id(), .id_tail = id.id_tail()};
}

std::unexpected<Error> Damaged(const char* what) {
  return Fail(ErrorCode::kDataLoss, std::string("the record is damaged: ") + what);
}

// Ascending numbers as LEB128 varints: the first one, then the differences.

void AppendVarint(std::vector<uint8_t>& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<uint8_t>(value | 0x80));
  out.push_back(static_cast<uint8_t>(value));
}

std::vector<uint8_t> EncodeNumbers(std::span<const uint64_t> numbers) {
  std::vector<uint8_t> out;
  uint64_t last = 0;
  for (const uint64_t number : numbers) {
    AppendVarint(out, number - last);
    last = number;
  }
  return out;
}

/// Returns nothing if the bytes end inside the number or it exceeds 64 bits.
std::optional<uint64_t> TakeVarint(const uint8_t*& at, const uint8_t* end) {
  uint64_t value = 0;
  for (unsigned shift = 0; shift < 64 && at != end; shift += 7) {
    const uint8_t byte = *at++;
    const uint64_t bits = byte & 0x7fu;
    if (bits << shift >> shift != bits) return std::nullopt;
    value |= bits << shift;
    if ((byte & 0x80u) == 0) return value;
  }
  return std::nullopt;
}

Result<std::vector<uint64_t>> DecodeNumbers(const flatbuffers::Vector<uint8_t>* bytes) {
  if (bytes == nullptr || bytes->size() == 0) return Damaged("a page has no steps");
  std::vector<uint64_t> numbers;
  numbers.reserve(bytes->size());
  const uint8_t* at = bytes->data();
  const uint8_t* const end = at + bytes->size();
  uint64_t last = 0;
  while (at != end) {
    const auto difference = TakeVarint(at, end);
    const bool first = numbers.empty();
    if (!difference || (!first && *difference == 0) || last > ~uint64_t{0} - *difference) {
      return Damaged("the numbers of the steps of a page are not ascending");
    }
    last += *difference;
    numbers.push_back(last);
  }
  return numbers;
}

Offset<schema::StepEntry> AddEntry(Builder& builder, const StepEntry& entry) {
  std::vector<Offset<schema::TableRef>> tables;
  for (const TableInfo& table : entry.tables) {
    const schema::ObjectId id = ToSchema(table.id);
    tables.push_back(
        schema::CreateTableRef(builder, &id, table.file_bytes, table.record_count, table.digest));
  }
  std::vector<schema::SegmentUse> usage;
  for (const SegmentUse& use : entry.usage) {
    usage.emplace_back(ToSchema(use.segment), use.live_bytes);
  }
  const auto tables_offset = builder.CreateVector(tables);
  const auto usage_offset = builder.CreateVectorOfStructs(usage);
  const auto summary = AddSummary(builder, entry.info);
  return schema::CreateStepEntry(builder, summary, tables_offset, usage_offset,
                                 entry.usage_in_tables);
}

Result<std::vector<TableInfo>> ReadTables(const schema::StepEntry& step) {
  std::vector<TableInfo> tables;
  if (step.tables() == nullptr) return tables;
  if (step.tables()->size() > kMaxTables) return Damaged("an entry has too many tables");
  for (const schema::TableRef* table : *step.tables()) {
    CAIRN_TRY(CheckDigestKind(table->digest_kind(), "a table of a step"));
    if (table->id() == nullptr) return Damaged("a table has no identifier");
    tables.push_back({.id = FromSchema(*table->id()),
                      .file_bytes = table->file_bytes(),
                      .record_count = table->record_count(),
                      .digest = table->digest()});
  }
  return tables;
}

Result<StepEntryPtr> ReadEntry(const schema::StepEntry& step) {
  auto entry = std::make_shared<StepEntry>();
  CAIRN_TRY_ASSIGN(entry->info, ReadSummary(step.summary()));
  entry->usage_in_tables = step.usage_in_tables();
  CAIRN_TRY_ASSIGN(entry->tables, ReadTables(step));
  const size_t usage_count = step.usage() == nullptr ? 0 : step.usage()->size();
  if (usage_count > (entry->usage_in_tables ? 0 : kMaxInlineSegments)) {
    return Damaged("an entry has too many segments");
  }
  for (size_t i = 0; i < usage_count; ++i) {
    // Copied, because the verifier checks the alignment of a vector's length but not of its 8-byte
    // elements: in a damaged record they may be unaligned.
    schema::SegmentUse use;
    std::memcpy(&use, step.usage()->Data() + i * sizeof(use), sizeof(use));
    entry->usage.push_back({.segment = FromSchema(use.segment()), .live_bytes = use.live_bytes()});
  }
  return entry;
}

using SchemaEntries = flatbuffers::Vector<Offset<schema::StepEntry>>;

Offset<SchemaEntries> AddEntries(Builder& builder, std::span<const StepEntryPtr> entries) {
  std::vector<Offset<schema::StepEntry>> offsets;
  offsets.reserve(entries.size());
  for (const StepEntryPtr& entry : entries) offsets.push_back(AddEntry(builder, *entry));
  return builder.CreateVector(offsets);
}

Result<std::vector<StepEntryPtr>> ReadEntries(const SchemaEntries* steps) {
  std::vector<StepEntryPtr> entries;
  if (steps == nullptr) return entries;
  entries.reserve(steps->size());
  for (const schema::StepEntry* step : *steps) {
    CAIRN_TRY_ASSIGN(StepEntryPtr entry, ReadEntry(*step));
    if (!entries.empty() && entries.back()->info.step >= entry->info.step) {
      return Damaged("the entries of steps are not ascending");
    }
    entries.push_back(std::move(entry));
  }
  return entries;
}

Offset<schema::PageRef> AddPage(Builder& builder, const PageRef& page) {
  const auto steps = builder.CreateVector(EncodeNumbers(page.steps));
  const schema::ObjectId id = ToSchema(page.id);
  return schema::CreatePageRef(builder, &id, page.file_bytes, page.digest, steps);
}

Result<std::vector<PageRef>> ReadPages(const schema::RootRecord& record) {
  std::vector<PageRef> pages;
  if (record.pages() == nullptr) return pages;
  pages.reserve(record.pages()->size());
  size_t number_bytes = 0;
  for (const schema::PageRef* page : *record.pages()) {
    CAIRN_TRY(CheckDigestKind(page->digest_kind(), "a page of steps"));
    if (page->id() == nullptr) return Damaged("a page has no identifier");
    number_bytes += page->steps() == nullptr ? 0 : page->steps()->size();
    if (number_bytes > kMaxRecordBytes) return Damaged("pages have too many steps");
    CAIRN_TRY_ASSIGN(std::vector<uint64_t> steps, DecodeNumbers(page->steps()));
    pages.push_back({.id = FromSchema(*page->id()),
                     .file_bytes = page->file_bytes(),
                     .digest = page->digest(),
                     .steps = std::move(steps)});
  }
  return pages;
}

/// Checks that each step is listed once, and the highest one in `recent`.
Result<void> CheckSteps(const Root& root) {
  std::vector<uint64_t> numbers;
  for (const PageRef& page : root.pages) {
    if (root.recent.empty() || root.recent.back()->info.step < page.steps.back()) {
      return Damaged("the highest step is in a page");
    }
    numbers.insert(numbers.end(), page.steps.begin(), page.steps.end());
  }
  for (const StepEntryPtr& entry : root.recent) numbers.push_back(entry->info.step);
  if (!std::ranges::is_sorted(numbers)) std::ranges::sort(numbers);
  if (std::ranges::adjacent_find(numbers) != numbers.end()) {
    return Damaged("a step is listed twice");
  }
  return {};
}

Result<Uuid> ReadUuid(const flatbuffers::Vector<uint8_t>* bytes) {
  Uuid uuid;
  if (bytes == nullptr || bytes->size() != uuid.size()) {
    return Damaged("an identifier does not have 16 bytes");
  }
  std::ranges::copy(std::as_bytes(std::span(bytes->data(), uuid.size())), uuid.begin());
  return uuid;
}

Offset<flatbuffers::Vector<uint8_t>> AddUuid(Builder& builder, const Uuid& uuid) {
  return builder.CreateVector(reinterpret_cast<const uint8_t*>(uuid.data()), uuid.size());
}

Result<WriterIdentity> ReadWriter(const schema::Writer* writer) {
  if (writer == nullptr) return WriterIdentity{};
  WriterIdentity identity{.pid = writer->pid(), .since_unix_ns = writer->since_unix_ns()};
  CAIRN_TRY_ASSIGN(identity.host, BoundedText(writer->host()));
  CAIRN_TRY_ASSIGN(identity.session, BoundedText(writer->session()));
  return identity;
}

Result<std::vector<RemovedObject>> ReadRemoved(const schema::RootRecord& record) {
  std::vector<RemovedObject> removed;
  if (record.removed() == nullptr) return removed;
  removed.reserve(record.removed()->size());
  for (const schema::RemovedObject* object : *record.removed()) {
    CAIRN_TRY_ASSIGN(std::string name, BoundedText(object->name()));
    removed.push_back({.name = std::move(name),
                       .since_unix_ns = object->since_unix_ns(),
                       .file_bytes = object->file_bytes()});
  }
  return removed;
}

Offset<flatbuffers::Vector<Offset<schema::Tag>>> AddTags(Builder& builder, const Tags& tags) {
  if (tags.empty()) return 0;  // a root without tags does not grow
  std::vector<Offset<schema::Tag>> offsets;
  for (const auto& [name, step] : tags) {
    offsets.push_back(schema::CreateTag(builder, builder.CreateString(name), step));
  }
  return builder.CreateVector(offsets);
}

Result<Tags> ReadTags(const schema::RootRecord& record) {
  Tags tags;
  if (record.tags() == nullptr) return tags;
  if (record.tags()->size() > kMaxTags) return Damaged("there are too many tags");
  for (const schema::Tag* tag : *record.tags()) {
    CAIRN_TRY_ASSIGN(const std::string name, BoundedText(tag->name()));
    if (!IsTagName(name) || !tags.emplace(name, tag->step()).second) {
      return Damaged("a tag has an impossible name");
    }
  }
  return tags;
}

Offset<schema::RetentionPolicy> AddRetention(Builder& builder, const RetentionPolicy& policy) {
  if (!policy.keeps_any()) return 0;
  std::vector<Offset<schema::KeepBest>> best;
  for (const KeepBest& one : policy.keep_best) {
    best.push_back(
        schema::CreateKeepBest(builder, builder.CreateString(one.metric), one.count, one.highest));
  }
  const auto keep_best = builder.CreateVector(best);
  return schema::CreateRetentionPolicy(builder, policy.keep_last, policy.keep_every, keep_best);
}

Result<RetentionPolicy> ReadRetention(const schema::RootRecord& record) {
  RetentionPolicy policy;
  const schema::RetentionPolicy* const stored = record.retention();
  if (stored == nullptr) return policy;
  policy.keep_last = stored->keep_last();
  policy.keep_every = stored->keep_every();
  if (stored->keep_best() != nullptr) {
    if (stored->keep_best()->size() > kMaxKeepBest) return Damaged("its policy is too long");
    for (const schema::KeepBest* best : *stored->keep_best()) {
      CAIRN_TRY_ASSIGN(std::string metric, BoundedText(best->metric()));
      policy.keep_best.push_back(
          {.metric = std::move(metric), .count = best->count(), .highest = best->highest()});
    }
  }
  return policy;
}

using SchemaNames = flatbuffers::Vector<Offset<flatbuffers::String>>;

Offset<SchemaNames> AddFeatures(Builder& builder, const std::vector<std::string>& names) {
  return names.empty() ? 0 : builder.CreateVectorOfStrings(names);
}

Result<std::vector<std::string>> ReadFeatures(const SchemaNames* stored) {
  std::vector<std::string> names;
  if (stored == nullptr) return names;
  if (stored->size() > kMaxFeatures) return Damaged("there are too many features");
  for (const flatbuffers::String* stored_name : *stored) {
    CAIRN_TRY_ASSIGN(std::string name, BoundedText(stored_name));
    names.push_back(std::move(name));
  }
  if (!AreFeatures(names)) return Damaged("a feature has an impossible name");
  return names;
}

/// Checks that each tag names a step.
Result<void> CheckTagged(const Root& root) {
  for (const auto& [name, step] : root.tags) {
    const auto has = [step](const std::vector<uint64_t>& steps) {
      return std::ranges::binary_search(steps, step);
    };
    const bool is_recent = std::ranges::any_of(
        root.recent, [step](const StepEntryPtr& entry) { return entry->info.step == step; });
    if (!is_recent && std::ranges::none_of(root.pages, has, &PageRef::steps)) {
      return Damaged("a tag names a step that does not exist");
    }
  }
  return {};
}

Offset<schema::RootRecord> AddRoot(Builder& builder, const Root& root) {
  const auto recent = AddEntries(builder, root.recent);
  std::vector<Offset<schema::PageRef>> pages;
  for (const PageRef& page : root.pages) pages.push_back(AddPage(builder, page));
  std::vector<Offset<schema::RemovedObject>> removed;
  for (const RemovedObject& object : root.removed) {
    removed.push_back(schema::CreateRemovedObject(builder, builder.CreateString(object.name),
                                                  object.since_unix_ns, object.file_bytes));
  }
  const auto pages_offset = builder.CreateVector(pages);
  const auto removed_offset = builder.CreateVector(removed);
  const auto host = builder.CreateString(root.writer.host);
  const auto session = builder.CreateString(root.writer.session);
  const auto writer =
      schema::CreateWriter(builder, host, root.writer.pid, session, root.writer.since_unix_ns);
  const auto tags = AddTags(builder, root.tags);
  const auto retention = AddRetention(builder, root.retention);
  const auto commit_id = AddUuid(builder, root.commit_id);
  const auto store_uuid = AddUuid(builder, root.store_uuid);
  const auto predecessor = root.predecessor ? AddUuid(builder, *root.predecessor) : 0;
  const auto read_features = AddFeatures(builder, root.features.read);
  const auto write_features = AddFeatures(builder, root.features.write);
  return schema::CreateRootRecord(
      builder, schema::kRecordVersion, root.number, commit_id, store_uuid, root.epoch, writer,
      root.created_unix_ns, recent, pages_offset, removed_offset, root.kept_before_epoch, tags,
      retention, root.compress, predecessor, read_features, write_features);
}

Result<const schema::RootRecord*> CheckedRootRecord(std::span<const std::byte> bytes) {
  return CheckedRecord<schema::RootRecord>(bytes, schema::RootRecordIdentifier(), "RootRecord");
}

Result<Root> IdentityOf(const schema::RootRecord& record) {
  Root root{.number = record.number()};
  CAIRN_TRY_ASSIGN(root.features.read, ReadFeatures(record.read_features()));
  CAIRN_TRY_ASSIGN(root.features.write, ReadFeatures(record.write_features()));
  CAIRN_TRY_ASSIGN(root.commit_id, ReadUuid(record.commit_id()));
  CAIRN_TRY_ASSIGN(root.store_uuid, ReadUuid(record.store_uuid()));
  if (record.predecessor() != nullptr) {
    CAIRN_TRY_ASSIGN(root.predecessor, ReadUuid(record.predecessor()));
  }
  return root;
}

/// Part of what is encoded was read from objects of others, so it must not end the process.
std::unexpected<Error> Refused(const Error& error) {
  return Fail(ErrorCode::kInternal, "nothing was put, readers would refuse it: " + error.message);
}

std::span<const std::byte> BytesOf(const Builder& builder) {
  return std::as_bytes(std::span(builder.GetBufferPointer(), builder.GetSize()));
}

}  // namespace

std::string HostName() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return "unknown";
  return name.data();
}

int64_t NowUnixNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::string FormatUtc(int64_t unix_ns) {
  const std::time_t seconds = unix_ns / 1'000'000'000;
  std::tm parts{};
  if (::gmtime_r(&seconds, &parts) == nullptr) return "an unknown time";
  return fmt::format("{:04}-{:02}-{:02} {:02}:{:02}:{:02} UTC", parts.tm_year + 1900,
                     parts.tm_mon + 1, parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec);
}

WriterIdentity ThisWriter(std::string session) {
  return {.host = HostName(),
          .pid = static_cast<uint32_t>(::getpid()),
          .session = std::move(session),
          .since_unix_ns = NowUnixNs()};
}

std::string Describe(const WriterIdentity& writer) {
  if (writer.pid == 0) return "a process with a newer version of Cairn";
  return fmt::format("process {} on host {} (writer since {})", writer.pid, writer.host,
                     FormatUtc(writer.since_unix_ns));
}

bool AreFeatures(std::span<const std::string> names) {
  const auto is_name = [](const std::string& name) {
    return !name.empty() && name.size() <= kMaxFeatureBytes &&
           std::ranges::all_of(name, [](char c) {
             return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-';
           });
  };
  return names.size() <= kMaxFeatures && std::ranges::all_of(names, is_name) &&
         std::ranges::adjacent_find(names, std::greater_equal<>()) == names.end();
}

Result<void> CheckCanRead(const Features& features) {
  if (features.read.empty()) return {};
  return Fail(Error{.code = ErrorCode::kUnimplemented,
                    .message = fmt::format("to read the store, a program must know {}, which this "
                                           "build does not; use a newer Cairn",
                                           fmt::join(features.read, ", "))});
}

Result<void> CheckCanWrite(const Features& features, std::string file) {
  if (features.write.empty()) return {};
  return Fail(Error{.code = ErrorCode::kUnimplemented,
                    .message = fmt::format("to write the store, a program must know {}, which this "
                                           "build does not; use a newer Cairn, or open the store "
                                           "for reading",
                                           fmt::join(features.write, ", ")),
                    .file = std::move(file)});
}

Uuid NewUuid() {
  Uuid uuid;
  // Cannot fail for so few bytes.
  CAIRN_CHECK(::getrandom(uuid.data(), uuid.size(), 0) == static_cast<ssize_t>(uuid.size()));
  return uuid;
}

std::string UuidText(const Uuid& uuid) {
  std::string text;
  for (const std::byte byte : uuid) text += fmt::format("{:02x}", std::to_integer<int>(byte));
  return text;
}

Result<std::vector<std::byte>> EncodeRoot(const Root& root) {
  Builder builder(64 << 10);
  schema::FinishRootRecordBuffer(builder, AddRoot(builder, root));
  CAIRN_TRY_ASSIGN(std::vector<std::byte> object, FrameRecord(kRootFrame, BytesOf(builder)));
  if (const auto read = DecodeRoot(object); !read) return Refused(read.error());
  return object;
}

Result<Root> DecodeRootIdentity(std::span<const std::byte> object) {
  CAIRN_TRY_ASSIGN(const std::vector<std::byte> bytes,
                   UnframeRecord(kRootFrame, object, /*any_digest_kind=*/true));
  CAIRN_TRY_ASSIGN(const schema::RootRecord* record, CheckedRootRecord(bytes));
  return IdentityOf(*record);
}

Result<Root> DecodeRoot(std::span<const std::byte> object) {
  CAIRN_TRY_ASSIGN(const std::vector<std::byte> bytes, UnframeRecord(kRootFrame, object));
  CAIRN_TRY_ASSIGN(const schema::RootRecord* record, CheckedRootRecord(bytes));
  CAIRN_TRY_ASSIGN(Root root, IdentityOf(*record));
  // First: whatever else an unknown feature has changed is not understood.
  CAIRN_TRY(CheckCanRead(root.features));
  root.epoch = record->epoch();
  root.kept_before_epoch = record->kept_before_epoch();
  CAIRN_TRY_ASSIGN(root.writer, ReadWriter(record->writer()));
  root.created_unix_ns = record->created_unix_ns();
  CAIRN_TRY_ASSIGN(root.recent, ReadEntries(record->recent()));
  CAIRN_TRY_ASSIGN(root.pages, ReadPages(*record));
  CAIRN_TRY(CheckSteps(root));
  CAIRN_TRY_ASSIGN(root.removed, ReadRemoved(*record));
  CAIRN_TRY_ASSIGN(root.tags, ReadTags(*record));
  CAIRN_TRY(CheckTagged(root));
  CAIRN_TRY_ASSIGN(root.retention, ReadRetention(*record));
  root.compress = record->compress();
  root.checksum = FrameChecksum(object);
  return root;
}

Result<std::vector<std::byte>> EncodePage(std::span<const StepEntryPtr> entries) {
  Builder builder(16 << 10);
  const auto steps = AddEntries(builder, entries);
  builder.Finish(schema::CreateStepsPage(builder, schema::kRecordVersion, steps), kPageIdentifier);
  CAIRN_TRY_ASSIGN(std::vector<std::byte> object, FrameRecord(kPageFrame, BytesOf(builder)));
  if (const auto read = DecodePage(object); !read) return Refused(read.error());
  return object;
}

Result<std::vector<StepEntryPtr>> DecodePage(std::span<const std::byte> object) {
  CAIRN_TRY_ASSIGN(const std::vector<std::byte> bytes, UnframeRecord(kPageFrame, object));
  CAIRN_TRY_ASSIGN(const schema::StepsPage* record,
                   CheckedRecord<schema::StepsPage>(bytes, kPageIdentifier, "StepsPage"));
  return ReadEntries(record->steps());
}

}  // namespace cairn::kv::internal
