// Stores of newer builds (docs/format/compatibility.md): what this build does not know is ignored
// and kept, unless a feature forbids it.

#include <cairn_schema/chunk_generated.h>
#include <cairn_schema/root_generated.h>
#include <cairn_schema/segment_generated.h>
#include <cairn_schema/step_generated.h>
#include <cairn_schema/tensor_generated.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "kv/base/digest.h"
#include "kv/compact.h"
#include "kv/copy_steps.h"
#include "kv/root/internal/framed_record.h"
#include "kv/root/internal/kv_records.h"
#include "kv/root/internal/root_log.h"
#include "kv/segment/internal/segment_format.h"
#include "kv/storage/files/internal/memory_storage.h"
#include "kv/store.h"
#include "kv/table/internal/table_reader.h"
#include "kv/table/internal/table_writer.h"
#include "schema/little_endian.h"
#include "tests/kv/encode_footer.h"
#include "tests/kv/root/hooked_storage.h"
#include "tests/kv/sample_step.h"
#include "tests/kv/store_checks.h"
#include "tests/support/result_matchers.h"

namespace cairn::kv {
namespace {

using cairn::testing::IsError;
using internal::MemoryStorage;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using namespace cairn::kv::testing;  // NOLINT(google-build-using-namespace)
using Bytes = std::vector<std::byte>;

// The first and the last one that a newer build may define, and those around the ones of
// applications.
constexpr std::array kNewColumns = {Column{5}, Column{63}, Column{100}, Column{128}, Column{252}};
constexpr uint16_t kNewField = 60;  // no record has so many
constexpr uint16_t IdOf(uint16_t vtable_offset) { return (vtable_offset - 4) / 2; }
constexpr uint16_t kReadFeaturesField = IdOf(schema::RootRecord::VT_READ_FEATURES);
constexpr uint16_t kWriteFeaturesField = IdOf(schema::RootRecord::VT_WRITE_FEATURES);

std::string_view AsText(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
std::span<const std::byte> AsBytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

/// Returns a FlatBuffers record with one more field, or with another value of one, whose inline
/// bytes are the first ones of `field`, which is aligned to 8 bytes. `inner` is the table inside of
/// the record that gets it, if not the one of the record itself.
Bytes WithField(std::span<const std::byte> record, uint16_t id, std::span<const std::byte> field,
                const void* inner = nullptr) {
  Bytes bytes(record.begin(), record.end());
  bytes.resize((bytes.size() + 7) / 8 * 8);
  const auto table =
      inner == nullptr
          ? schema::GetLittleEndian<uint32_t>(bytes, 0)
          : static_cast<uint32_t>(static_cast<const std::byte*>(inner) - record.data());
  const auto old_vtable = table - schema::GetLittleEndian<uint32_t>(bytes, table);
  const auto old_size = schema::GetLittleEndian<uint16_t>(bytes, old_vtable);
  Bytes vtable(std::max<size_t>(old_size, 4 + 2 * (id + 1)));
  std::memcpy(vtable.data(), &bytes[old_vtable], old_size);
  schema::PutLittleEndian(vtable, 0, static_cast<uint16_t>(vtable.size()));
  schema::PutLittleEndian(vtable, 4 + 2 * id, static_cast<uint16_t>(bytes.size() - table));
  bytes.insert(bytes.end(), field.begin(), field.end());
  bytes.resize((bytes.size() + 7) / 8 * 8);
  schema::PutLittleEndian(bytes, table, static_cast<uint32_t>(table - bytes.size()));
  bytes.insert(bytes.end(), vtable.begin(), vtable.end());
  bytes.resize((bytes.size() + 7) / 8 * 8);
  return bytes;
}

/// A field that is a list of one name.
Bytes OneName(std::string_view name) {
  Bytes field(20 + name.size());
  schema::PutLittleEndian(field, 0, uint32_t{4});  // to the list
  schema::PutLittleEndian(field, 4, uint32_t{1});  // its length
  schema::PutLittleEndian(field, 8, uint32_t{4});  // to the name
  schema::PutLittleEndian(field, 12, static_cast<uint32_t>(name.size()));
  std::memcpy(&field[16], name.data(), name.size());
  return field;
}

/// A field that is a list of one element of `size` bytes, all 9.
Bytes OneElement(size_t size) {
  Bytes field(8 + size, std::byte{9});
  schema::PutLittleEndian(field, 0, uint32_t{4});  // to the list
  schema::PutLittleEndian(field, 4, uint32_t{1});  // its length
  return field;
}

/// A field `digest_kind` of a newer build.
const Bytes kNewKind(8, std::byte{9});
/// Returns the frame of a root or page with another kind of digest, which has 32 bytes.
Bytes WithKind(Bytes frame, std::byte kind) {
  frame[5] = kind;
  if (kind != std::byte{kXxh3}) frame.resize(frame.size() + 32);
  const size_t covered = frame.size() - 8;
  schema::PutLittleEndian(frame, covered, Checksum64(std::span(frame).first(covered)));
  return frame;
}

class FutureTest : public ::testing::Test {
 protected:
  void SetUp() override {
    storage_ = std::make_shared<HookedStorage>();
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto store, Open(OpenMode::kWrite));
    for (const uint64_t step : {1, 2}) {
      expected_[step] = MakeSample(step);
      CAIRN_ASSERT_OK(SaveSample(*store, expected_[step]));
    }
    CAIRN_ASSERT_OK(store->Close());
  }

  Result<std::unique_ptr<Store>> Open(OpenMode mode) {
    return Store::Open(storage_, mode, {.grace = std::chrono::milliseconds(0)});
  }
  Bytes Read(const std::string& name) { return storage_->Read(name, 16 << 20).value(); }
  void Write(const std::string& name, std::span<const std::byte> bytes) {
    CAIRN_ASSERT_OK(storage_->Put(name, bytes));
  }
  /// Adds lines to CAIRN before the checksum.
  void AddLines(const std::string& lines) {
    std::string text(AsText(Read("CAIRN")));
    text = text.substr(0, text.find("checksum")) + lines;
    text += fmt::format("checksum {:016x}\n", Checksum64(AsBytes(text)));
    Write("CAIRN", AsBytes(text));
  }
  internal::Root NewestRoot() { return **internal::FindNewest(*storage_); }
  /// Puts a root that has one more field.
  void WriteRoot(const internal::Root& root, uint16_t id, std::span<const std::byte> field) {
    const Bytes record = *internal::UnframeRecord(kFrame, *internal::EncodeRoot(root));
    Write(internal::RootName(root.number),
          *internal::FrameRecord(kFrame, WithField(record, id, field)));
  }
  /// Adds a field to the newest root.
  void AddToRoot(uint16_t id, std::span<const std::byte> field) {
    const std::string name = internal::RootName(NewestRoot().number);
    const Bytes record = *internal::UnframeRecord(kFrame, Read(name));
    Write(name, *internal::FrameRecord(kFrame, WithField(record, id, field)));
  }
  /// Puts a root in which the oldest step is in a page, with what `change` makes of its object.
  void MoveToPage(const std::function<Bytes(const Bytes&)>& change) {
    internal::Root next = internal::Successor(NewestRoot(), std::chrono::hours(24));
    const internal::ObjectId id = internal::NewObjectId(next.epoch);
    const Bytes page = change(*internal::EncodePage({next.recent.data(), 1}));
    Write(internal::ObjectName(internal::ObjectKind::kPage, id), page);
    next.pages = {{.id = id,
                   .file_bytes = page.size(),
                   .digest = Checksum64(page),
                   .steps = {next.recent.front()->info.step}}};
    next.recent.erase(next.recent.begin());
    ASSERT_EQ(internal::CommitRoot(*storage_, next).state,
              internal::CommitOutcome::State::kCommitted);
  }
  void MoveToPage(std::byte kind) {
    MoveToPage([kind](const Bytes& page) { return WithKind(page, kind); });
  }
  /// Adds an entry of a new column and a new field to the footer of each segment, and changes all
  /// its records. Returns the lengths of the segments and the digests of the footers by id.
  std::map<uint64_t, std::pair<uint64_t, uint64_t>> RewriteFooters(
      const std::function<Bytes(Column, std::span<const std::byte>)>& change) {
    std::map<uint64_t, std::pair<uint64_t, uint64_t>> footers;
    const std::vector<std::string> names = storage_->List("segments/").value();
    for (const std::string& name : names) {
      Bytes bytes = Read(name);
      const auto header =
          *internal::DecodeSegmentHeader(std::span(bytes).first<internal::kSegmentHeaderBytes>());
      auto trailer = *internal::DecodeSegmentTrailer(
          std::span(bytes).last<internal::kSegmentTrailerBytes>(), bytes.size());
      const auto old =
          std::span(bytes).subspan(trailer.footer_offset_bytes(), trailer.footer_bytes);
      auto entries = *internal::DecodeSegmentFooter(old, header.segment_id);
      for (auto& entry : entries) entry.value = change(entry.column, entry.value);
      entries.push_back({.column = kNewColumns[0], .key = "key", .value = Bytes(9)});
      const std::string attempt = *internal::DecodeFooterAttempt(old);
      const Bytes footer = WithField(internal::EncodeFooter(header, attempt, entries), kNewField,
                                     Bytes(8, std::byte{7}));
      trailer.footer_bytes = footer.size();
      trailer.footer_digest = Checksum64(footer);
      bytes.resize(trailer.footer_offset_bytes());
      bytes.insert(bytes.end(), footer.begin(), footer.end());
      bytes.resize((bytes.size() + internal::kSegmentTrailerBytes + 4095) / 4096 * 4096);
      internal::EncodeSegmentTrailer(trailer,
                                     std::span(bytes).last<internal::kSegmentTrailerBytes>());
      Write(name, bytes);
      footers[header.segment_id] = {bytes.size(), trailer.footer_digest};
    }
    return footers;
  }
  /// Returns a record with a new field, if it has room for one.
  static Bytes WithNewField(Column column, std::span<const std::byte> record) {
    // The entry of the step has the digest of the structure.
    const bool has_room = column != Column::kTables && column != Column::kStructures;
    return has_room ? WithField(record, kNewField, Bytes(8, std::byte{7}))
                    : Bytes(record.begin(), record.end());
  }
  /// Puts a root in which the table of `step` has other records, and new columns.
  void RewriteTable(uint64_t step, auto change) {
    internal::Root next = internal::Successor(NewestRoot(), std::chrono::hours(24));
    for (internal::StepEntryPtr& entry : next.recent) {
      if (entry->info.step != step) continue;
      internal::StepEntry changed = *entry;
      changed.tables = {FutureTable(*entry, change)};
      entry = std::make_shared<const internal::StepEntry>(std::move(changed));
    }
    ASSERT_EQ(internal::CommitRoot(*storage_, next).state,
              internal::CommitOutcome::State::kCommitted);
  }
  internal::TableInfo FutureTable(const internal::StepEntry& entry, auto change) {
    internal::OpenTables tables(storage_);
    const auto stack = *tables.OpenStack(entry.tables);
    const auto writer =
        *internal::TableWriter::Create(*storage_, internal::NewObjectId(NewestRoot().epoch));
    size_t new_count = 0;
    (void)stack.Scan("", [&](std::string_view key, auto value) -> Result<bool> {
      const auto column = static_cast<Column>(key[0]);
      for (; new_count < kNewColumns.size() && column > kNewColumns[new_count]; ++new_count) {
        CAIRN_TRY(
            writer->Add(TableKey(kNewColumns[new_count], "key"), AsBytes("of a newer build")));
      }
      const Bytes tables = internal::EncodeTables({});
      CAIRN_TRY(writer->Add(
          key,
          change(column, column == Column::kTables ? std::span<const std::byte>(tables) : value)));
      return true;
    });
    return *writer->Finish();
  }
  /// Returns in how many new columns a step has the record that RewriteTable adds.
  static size_t NewRecordsOf(Store& store, uint64_t step) {
    const auto snapshot = *store.Latest();
    return static_cast<size_t>(std::ranges::count_if(kNewColumns, [&](Column column) {
      const auto record = *snapshot->Get(column, *snapshot->FindStep(step), "key");
      return record && AsText(*record) == "of a newer build";
    }));
  }
  void ExpectAll() {
    ExpectSteps(storage_, expected_);
    ExpectSound(storage_);
  }
  /// The store can be read, and everything that writes names the feature and changes nothing.
  void ExpectReadOnly(const std::string& feature) {
    ExpectAll();
    const auto before = ContentsOf(*storage_);
    EXPECT_THAT(Open(OpenMode::kWrite), IsError(ErrorCode::kUnimplemented, feature));
    EXPECT_THAT(Store::Rebuild(storage_), IsError(ErrorCode::kUnimplemented, feature));
    const auto session = NewestRoot().writer.session;
    EXPECT_THAT(Store::Open(storage_, OpenMode::kJoinSession, {.session = session}),
                IsError(ErrorCode::kUnimplemented, feature));
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto from, Open(OpenMode::kRead));
    CAIRN_ASSERT_OK_AND_ASSIGN(
        const auto to, Store::Open(std::make_shared<MemoryStorage>("to"), OpenMode::kWrite));
    EXPECT_THAT(CopySteps(*from, *to, {.steps = {1}}), IsError(ErrorCode::kUnimplemented, feature));
    EXPECT_TRUE(ContentsOf(*storage_) == before);
  }
  void ExpectRefused(const std::string& name) {
    const auto before = ContentsOf(*storage_);
    for (const OpenMode mode : {OpenMode::kRead, OpenMode::kWrite}) {
      EXPECT_THAT(Open(mode), IsError(ErrorCode::kUnimplemented, name));
    }
    EXPECT_THAT(Store::Rebuild(storage_), IsError(ErrorCode::kUnimplemented, name));
    EXPECT_TRUE(ContentsOf(*storage_) == before);
  }
  /// What reads all of `step` fails with the name and changes nothing, also a rebuild.
  void ExpectStepRefused(uint64_t step, const std::string& name) {
    const auto is_refused = [&] { return IsError(ErrorCode::kUnimplemented, name); };
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto store, Open(OpenMode::kWrite));
    CAIRN_ASSERT_OK_AND_ASSIGN(
        const auto to, Store::Open(std::make_shared<MemoryStorage>("to"), OpenMode::kWrite));
    const auto before = ContentsOf(*storage_);
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto damage, Verify(*store->Latest().value()));
    EXPECT_THAT(damage, ElementsAre(HasSubstr(name)));
    EXPECT_THAT(CopySteps(*store, *to, {.steps = {step}}), is_refused());
    EXPECT_THAT(Compact(*store, {.max_dead = 0}), is_refused());
    EXPECT_THAT(Store::Rebuild(storage_, {.take_over = true}), is_refused());
    EXPECT_TRUE(ContentsOf(*storage_) == before);
  }
  void ExpectRebuildRefused(const std::string& name) {
    const auto before = ContentsOf(*storage_);
    EXPECT_THAT(Store::Rebuild(storage_), IsError(ErrorCode::kUnimplemented, name));
    EXPECT_TRUE(ContentsOf(*storage_) == before);
  }

  static constexpr internal::FrameKind kFrame{.magic = "CNRT", .name = "root"};
  std::shared_ptr<HookedStorage> storage_;
  Steps expected_;
};

TEST_F(FutureTest, UnknownLinesAreIgnored) {
  AddLines("region eu north\nlicence none\n");
  const Bytes identity = Read("CAIRN");
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto store, Open(OpenMode::kWrite));
  CAIRN_ASSERT_OK(SaveSample(*store, expected_[3] = MakeSample(3)));
  ExpectAll();
  EXPECT_EQ(Read("CAIRN"), identity);
}

TEST_F(FutureTest, FeatureOfTheStoreToReadRefusesTheOpen) {
  AddLines("read-features braids stripes\n");
  ExpectRefused("braids, stripes");
}

TEST_F(FutureTest, FeatureOfTheStoreToWriteRefusesWrites) {
  AddLines("write-features stripes\n");
  ExpectReadOnly("stripes");
}

TEST_F(FutureTest, ImpossibleFeaturesAreDamage) {
  const Bytes identity = Read("CAIRN");
  for (const std::string lines : {"read-features \n", "read-features b a\n", "write-features A\n",
                                  "write-features a  b\n", "read-features a\nread-features b\n"}) {
    Write("CAIRN", identity);
    AddLines(lines);
    EXPECT_THAT(Open(OpenMode::kRead), IsError(ErrorCode::kDataLoss, "CAIRN")) << lines;
  }
}

TEST_F(FutureTest, FeatureOfARootToReadRefusesTheOpen) {
  AddToRoot(kReadFeaturesField, OneName("signatures"));
  ExpectRefused("signatures");
}

// A reader that has the store open does not take a root for an older one, either.
TEST_F(FutureTest, FeatureOfANewerRootToReadRefusesTheRead) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto store, Open(OpenMode::kRead));
  CAIRN_ASSERT_OK(store->Latest());
  internal::Root next = internal::Successor(NewestRoot(), std::chrono::hours(24));
  ASSERT_EQ(internal::CommitRoot(*storage_, next).state,
            internal::CommitOutcome::State::kCommitted);
  AddToRoot(kReadFeaturesField, OneName("signatures"));
  EXPECT_THAT(store->Latest(), IsError(ErrorCode::kUnimplemented, "signatures"));
}

// What identifies a root is read without its features: it was taken for a damaged one, which may be
// the predecessor.
TEST_F(FutureTest, RootOfANewerBuildInPlaceOfThePredecessorRefusesACommit) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto store, Open(OpenMode::kWrite));
  const internal::Root known = NewestRoot();
  internal::Root other = known;
  other.commit_id = internal::NewUuid();
  const auto expect_refusal = [&](const std::string& name) {
    EXPECT_THAT(store->SetCompression(true), IsError(ErrorCode::kUnimplemented, name));
    internal::Root next = internal::Successor(known, std::chrono::hours(24));
    EXPECT_EQ(internal::CommitRoot(*storage_, next).state,
              internal::CommitOutcome::State::kUnknown);
    EXPECT_THAT(storage_->Size(internal::RootName(next.number)), IsError(ErrorCode::kNotFound, ""));
  };
  WriteRoot(other, kReadFeaturesField, OneName("signatures"));
  expect_refusal("signatures");
  Write(internal::RootName(other.number), WithKind(*internal::EncodeRoot(other), kNewKind[0]));
  expect_refusal("kind 9");
}

TEST_F(FutureTest, RootOfANewerBuildOfAnotherStoreIsIgnored) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto store, Open(OpenMode::kRead));
  CAIRN_ASSERT_OK(store->Latest());
  internal::Root stray = internal::Successor(NewestRoot(), std::chrono::hours(24));
  stray.store_uuid = internal::NewUuid();
  stray.predecessor = internal::NewUuid();
  WriteRoot(stray, kReadFeaturesField, OneName("signatures"));
  for (const bool is_current : {false, true}) {
    storage_->has_current_listings = is_current;
    CAIRN_EXPECT_OK(store->Latest());
    CAIRN_EXPECT_OK(Open(OpenMode::kRead));
  }
  CAIRN_EXPECT_OK(Store::Rebuild(storage_));
  ExpectAll();
}

// Its identity shows that it is another one.
TEST_F(FutureTest, RootOfANewerBuildWithTheNumberOfACommitRefusesIt) {
  internal::Root next = internal::Successor(NewestRoot(), std::chrono::hours(24));
  WriteRoot(next, kReadFeaturesField, OneName("signatures"));
  const internal::CommitOutcome outcome = internal::CommitRoot(*storage_, next);
  EXPECT_EQ(outcome.state, internal::CommitOutcome::State::kNotCommitted);
  EXPECT_EQ(outcome.error.code, ErrorCode::kConflict);
  EXPECT_THAT(outcome.error.message, HasSubstr("newer version of Cairn has taken over"));
}

TEST_F(FutureTest, FeatureOfARootToWriteRefusesWrites) {
  AddToRoot(kWriteFeaturesField, OneName("signatures"));
  ExpectReadOnly("signatures");
}

TEST_F(FutureTest, UnknownFieldOfARootIsIgnored) {
  AddToRoot(kNewField, Bytes(8, std::byte{7}));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto store, Open(OpenMode::kWrite));
  CAIRN_ASSERT_OK(SaveSample(*store, expected_[3] = MakeSample(3)));
  ExpectAll();
}

TEST_F(FutureTest, UnknownColumnsAndFieldsAreIgnoredAndColumnsAreKept) {
  RewriteTable(2, WithNewField);
  ExpectAll();
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto store, Open(OpenMode::kWrite));
  CAIRN_ASSERT_OK(SaveSample(*store, expected_[3] = MakeSample(3)));
  CAIRN_ASSERT_OK(store->Delete(std::array<uint64_t, 1>{1}));
  expected_.erase(1);
  EXPECT_EQ(NewRecordsOf(*store, 2), kNewColumns.size());
  EXPECT_EQ(NewRecordsOf(*store, 3), 0u) << "of its base";
  CAIRN_ASSERT_OK_AND_ASSIGN(const CompactReport compacted, Compact(*store, {.max_dead = 0}));
  EXPECT_GT(compacted.rewritten_steps, 0u);
  EXPECT_EQ(NewRecordsOf(*store, 2), kNewColumns.size());
  ExpectAll();
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto copy,
                             Store::Open(std::make_shared<MemoryStorage>("to"), OpenMode::kWrite));
  CAIRN_ASSERT_OK(CopySteps(*store, *copy, {.steps = {2, 3}}));
  EXPECT_EQ(NewRecordsOf(*copy, 2), kNewColumns.size());
  EXPECT_EQ(NewRecordsOf(*copy, 3), 0u);
  ExpectSteps(*copy, expected_);
}

// The source is compacted, and its former tables and segments are removed, after the copy has
// begun.
TEST_F(FutureTest, UnknownColumnsAreKeptByACopyDuringACompaction) {
  RewriteTable(2, WithNewField);
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto writer, Open(OpenMode::kWrite));
  CAIRN_ASSERT_OK(writer->Delete(std::array<uint64_t, 1>{1}));
  expected_.erase(1);
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto source, Open(OpenMode::kRead));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto copy,
                             Store::Open(std::make_shared<MemoryStorage>("to"), OpenMode::kWrite));
  bool has_begun = false;
  uint64_t rewritten = 0;
  storage_->before_read = [&](std::string_view name) {
    if (!name.starts_with("tables/") || std::exchange(has_begun, true)) return;
    const auto compacted = Compact(*writer, {.max_dead = 0});
    if (compacted) rewritten = compacted->rewritten_steps;
  };
  CAIRN_ASSERT_OK(CopySteps(*source, *copy, {.steps = {2}}));
  EXPECT_GT(rewritten, 0u);
  EXPECT_EQ(NewRecordsOf(*copy, 2), kNewColumns.size());
  ExpectSteps(*copy, expected_);
}

// The table of step 2 is in the root before the damaged one, and that of step 3 describes itself.
TEST_F(FutureTest, UnknownColumnsAreKeptByARebuild) {
  RewriteTable(2, WithNewField);
  {
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto store, Open(OpenMode::kWrite));
    CAIRN_ASSERT_OK(SaveSample(*store, expected_[3] = MakeSample(3)));
  }
  Write(internal::RootName(NewestRoot().number), AsBytes("damage"));
  CAIRN_ASSERT_OK(Store::Rebuild(storage_));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto store, Open(OpenMode::kRead));
  EXPECT_EQ(NewRecordsOf(*store, 2), kNewColumns.size());
  EXPECT_EQ(NewRecordsOf(*store, 3), 0u);
  ExpectAll();
}

TEST_F(FutureTest, UnknownFieldsOfEntriesAndPagesAreIgnored) {
  constexpr internal::FrameKind kPageFrame{.magic = "CNPG", .name = "page of steps"};
  const Bytes field(8, std::byte{7});
  MoveToPage([&](const Bytes& page) {
    const Bytes record = WithField(*internal::UnframeRecord(kPageFrame, page), kNewField, field);
    const auto* entry = flatbuffers::GetRoot<schema::StepsPage>(record.data())->steps()->Get(0);
    return *internal::FrameRecord(kPageFrame, WithField(record, kNewField, field, entry));
  });
  const std::string name = internal::RootName(NewestRoot().number);
  const Bytes record = *internal::UnframeRecord(kFrame, Read(name));
  const auto* entry = schema::GetRootRecord(record.data())->recent()->Get(0);
  Write(name, *internal::FrameRecord(kFrame, WithField(record, kNewField, field, entry)));
  ExpectAll();
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto store, Open(OpenMode::kWrite));
  CAIRN_ASSERT_OK(SaveSample(*store, expected_[3] = MakeSample(3)));
  CAIRN_ASSERT_OK(store->Delete(std::array<uint64_t, 1>{1}));
  expected_.erase(1);
  ExpectAll();
}

TEST_F(FutureTest, UnknownEntriesAndFieldsOfFootersAreIgnored) {
  const auto footers = RewriteFooters(WithNewField);
  for (const uint64_t step : {1, 2}) {
    RewriteTable(step, [&](Column column, std::span<const std::byte> record) {
      if (column != Column::kSegments) return WithNewField(column, record);
      SegmentInfo info = *internal::DecodeSegment(record);
      std::tie(info.file_bytes, info.footer_digest) = footers.at(info.segment_id);
      return WithNewField(column, internal::EncodeSegment(info));
    });
  }
  ExpectAll();
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto store, Open(OpenMode::kWrite));
  CAIRN_ASSERT_OK(store->Delete(std::array<uint64_t, 1>{1}));
  expected_.erase(1);
  CAIRN_ASSERT_OK(Compact(*store, {.max_dead = 0}));
  ExpectAll();
}

// Only the footers remain, which have all tensors of the first step.
TEST_F(FutureTest, UnknownEntriesAndFieldsOfFootersAreIgnoredByARebuild) {
  (void)RewriteFooters(WithNewField);
  RemoveObjects(*storage_, "roots/");
  RemoveObjects(*storage_, "tables/");
  CAIRN_ASSERT_OK(Store::Rebuild(storage_));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto snapshot, ReadLatest(storage_));
  CAIRN_ASSERT_OK_AND_ASSIGN(const StepInfo info, snapshot->FindStep(1));
  uint64_t bytes = 0;
  for (const auto& [fqn, tensor] : expected_.at(1).tensors) bytes += tensor.size();
  EXPECT_EQ(info.logical_bytes, bytes);
}

TEST_F(FutureTest, NewerTensorRecordsInFootersRefuseARebuild) {
  (void)RewriteFooters([](Column column, std::span<const std::byte> record) {
    return column == Column::kTensors
               ? WithField(record, IdOf(schema::TensorRecord::VT_VERSION), Bytes(8, std::byte{9}))
               : Bytes(record.begin(), record.end());
  });
  RemoveObjects(*storage_, "roots/");
  RemoveObjects(*storage_, "tables/");
  ExpectRebuildRefused("newer format version");
}

TEST_F(FutureTest, UnknownKindOfDigestInARootRefusesTheOpen) {
  MoveToPage(std::byte{kXxh3});
  const std::string name = internal::RootName(NewestRoot().number);
  const Bytes intact = Read(name);
  Write(name, WithKind(intact, kNewKind[0]));
  ExpectRefused("root has a digest of kind 9");
  const Bytes record = *internal::UnframeRecord(kFrame, intact);
  const auto* root = schema::GetRootRecord(record.data());
  const auto* entry = root->recent()->Get(0);
  const auto write = [&](uint16_t vtable_offset, const void* inner) {
    Write(name,
          *internal::FrameRecord(kFrame, WithField(record, IdOf(vtable_offset), kNewKind, inner)));
  };
  write(schema::PageRef::VT_DIGEST_KIND, root->pages()->Get(0));
  ExpectRefused("a page of steps has a digest of kind 9");
  write(schema::TableRef::VT_DIGEST_KIND, entry->tables()->Get(0));
  ExpectRefused("a table of a step has a digest of kind 9");
  write(schema::StepSummary::VT_DIGEST_KIND, entry->summary());
  ExpectRefused("the structure of a step has a digest of kind 9");
}

TEST_F(FutureTest, PageWithAnUnknownKindOfDigestIsNotDamage) {
  MoveToPage(kNewKind[0]);
  ExpectStepRefused(1, "page of steps has a digest of kind 9");
  EXPECT_THAT(LoadSample(*ReadLatest(storage_).value(), 1),
              IsError(ErrorCode::kUnimplemented, "kind 9"));
}

TEST_F(FutureTest, RecordsWithAnUnknownKindOfDigestOrCodecAreNotDamage) {
  const auto rewrite = [&](Column changed, uint16_t vtable_offset) {
    RewriteTable(2, [=](Column column, std::span<const std::byte> record) {
      return column == changed ? WithField(record, IdOf(vtable_offset), kNewKind)
                               : Bytes(record.begin(), record.end());
    });
  };
  rewrite(Column::kSegments, schema::SegmentRecord::VT_DIGEST_KIND);
  ExpectStepRefused(2, "a SegmentRecord has a digest of kind 9");
  SetUp();
  rewrite(Column::kChunks, schema::ChunkRecord::VT_DIGEST_KIND);
  ExpectStepRefused(2, "a chunk record has a digest of kind 9");
  SetUp();
  RewriteTable(2, [](Column column, std::span<const std::byte> record) {
    if (column != Column::kChunks) return Bytes(record.begin(), record.end());
    const Bytes steps = WithField(record, IdOf(schema::ChunkRecord::VT_STEPS), OneElement(32));
    return WithField(steps, IdOf(schema::ChunkRecord::VT_CODECS), OneElement(1));
  });
  ExpectStepRefused(2, "a step of codec 9");
}

TEST_F(FutureTest, TablesWithAnUnknownKindOfDigestAreNotDamage) {
  for (const Column changed : {Column::kSteps, Column::kTables}) {
    SetUp();
    RewriteTable(2, [&](Column column, std::span<const std::byte> record) {
      Bytes bytes(record.begin(), record.end());
      if (column != changed) return bytes;
      if (column == Column::kSteps) {
        return WithField(record, IdOf(schema::StepSummary::VT_DIGEST_KIND), kNewKind);
      }
      bytes[4] = kNewKind[0];
      return bytes;
    });
    RemoveObjects(*storage_, "roots/");
    ExpectRebuildRefused("kind 9");
  }
}

// The other table of the step is damaged, and that of the newer build has its records.
TEST_F(FutureTest, ARebuildIsRefusedIfOnlyATableOfANewerBuildIsIntact) {
  const internal::TableInfo damaged = NewestRoot().recent.back()->tables.front();
  RewriteTable(2, [](Column column, std::span<const std::byte> record) {
    return column == Column::kChunks
               ? WithField(record, IdOf(schema::ChunkRecord::VT_DIGEST_KIND), kNewKind)
               : Bytes(record.begin(), record.end());
  });
  Write(internal::RootName(NewestRoot().number), AsBytes("damage"));
  Write(internal::ObjectName(internal::ObjectKind::kTable, damaged.id), AsBytes("damage"));
  ExpectRebuildRefused("kind 9");
}

TEST_F(FutureTest, SegmentWithAnUnknownKindOfDigestIsNotDamage) {
  const std::string name = storage_->List("segments/").value().front();
  Bytes segment = Read(name);
  const auto trailer = std::span(segment).last(80);
  trailer[12] = kNewKind[0];
  schema::PutLittleEndian(trailer, 72, Checksum64(trailer.first(72)));
  Write(name, segment);
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto damage, Verify(*ReadLatest(storage_).value()));
  EXPECT_THAT(damage, ElementsAre(HasSubstr("the segment has a digest of kind 9")));
  RemoveObjects(*storage_, "roots/");
  RemoveObjects(*storage_, "tables/");
  ExpectRebuildRefused("kind 9");
}

}  // namespace
}  // namespace cairn::kv
