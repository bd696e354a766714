// Creates, saves and loads sample steps.

#include "tests/kv/sample_step.h"

#include <cairn_schema/chunk_generated.h>
#include <cairn_schema/structure_generated.h>
#include <cairn_schema/tensor_generated.h>
#include <cairn_schema/value_generated.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <set>

#include "kv/base/read_range.h"
#include "kv/base/record_check.h"
#include "kv/root/internal/kv_records.h"
#include "kv/root/internal/root_log.h"
#include "kv/root/internal/step_list.h"
#include "kv/storage/internal/object_names.h"
#include "kv/storage/open/open_storage.h"
#include "schema/dtype.h"
#include "tests/kv/byte_payload.h"

namespace cairn::kv::testing {

using internal::ObjectKind;
using internal::ObjectName;
namespace {

using internal::TakeBytes;

constexpr char kVersionFqn[] = "version";

std::vector<std::byte> TensorBytesRecord(uint64_t length_bytes, uint64_t chunk_count) {
  flatbuffers::FlatBufferBuilder builder;
  const auto shape = builder.CreateVector(std::vector<uint64_t>{length_bytes});
  schema::TensorRecordBuilder record(builder);
  record.add_version(schema::kRecordVersion);
  record.add_dtype(static_cast<uint8_t>(schema::DType::kUInt8));
  record.add_shape(shape);
  record.add_nbytes(length_bytes);
  record.add_chunk_count(chunk_count);
  schema::FinishTensorRecordBuffer(builder, record.Finish());
  return TakeBytes(builder);
}

std::vector<std::byte> IntRecord(uint64_t value) {
  flatbuffers::FlatBufferBuilder builder;
  schema::ValueRecordBuilder record(builder);
  record.add_version(schema::kRecordVersion);
  record.add_kind(schema::ValueKind::Int);
  record.add_integer(static_cast<int64_t>(value));
  schema::FinishValueRecordBuffer(builder, record.Finish());
  return TakeBytes(builder);
}

/// One dict that contains all tensors and the version.
std::vector<std::byte> FlatStructure(const SampleStep& sample) {
  flatbuffers::FlatBufferBuilder builder;
  std::vector<schema::NodeKind> kinds = {schema::NodeKind::Dict};
  std::vector<schema::KeyKind> key_kinds = {schema::KeyKind::Root};
  std::vector<std::string> keys = {""};
  for (const auto& [fqn, bytes] : sample.tensors) {
    kinds.push_back(schema::NodeKind::Tensor);
    keys.push_back(fqn);
  }
  kinds.push_back(schema::NodeKind::Value);
  keys.push_back(kVersionFqn);
  key_kinds.resize(kinds.size(), schema::KeyKind::String);
  std::vector<uint32_t> child_counts(kinds.size(), 0);
  child_counts[0] = static_cast<uint32_t>(kinds.size() - 1);
  const auto kinds_offset = builder.CreateVector(kinds);
  const auto key_kinds_offset = builder.CreateVector(key_kinds);
  const auto keys_offset = builder.CreateVectorOfStrings(keys);
  const auto counts_offset = builder.CreateVector(child_counts);
  schema::FinishStructureRecordBuffer(
      builder, schema::CreateStructureRecord(builder, schema::kRecordVersion, kinds_offset,
                                             key_kinds_offset, keys_offset, counts_offset));
  return TakeBytes(builder);
}

struct Chunk {
  uint64_t offset_bytes = 0;  // in the tensor
  Extents extents;
  Digest digest;
  uint64_t since_step = 0;
};

Result<Chunk> DecodeChunk(std::string_view key, std::span<const std::byte> record) {
  CAIRN_TRY_ASSIGN(const auto* chunk, CheckedRecord<schema::ChunkRecord>(
                                          record, schema::ChunkRecordIdentifier(), "chunk record"));
  CAIRN_TRY_ASSIGN(const ParsedKey parsed, ParseKey(key));
  CAIRN_TRY_ASSIGN(ChunkExtents extents, internal::DecodeChunkExtents(record));
  if (parsed.offsets_elements.size() != 1 || chunk->digest() == nullptr) {
    return Fail(ErrorCode::kDataLoss, "a chunk record without digest or of another rank");
  }
  return Chunk{.offset_bytes = parsed.offsets_elements[0],
               .extents = std::move(extents.payload),
               .digest = {.lo = chunk->digest()->lo(), .hi = chunk->digest()->hi()},
               .since_step = chunk->since_step()};
}

/// Returns the step to which a save refers; nothing if there is none.
Result<std::optional<uint64_t>> BaseStep(const Snapshot& snapshot) {
  if (snapshot.step_numbers().empty()) return std::nullopt;
  CAIRN_TRY_ASSIGN(const StepInfo latest, snapshot.FindStep(std::nullopt));
  return latest.step;
}

/// Returns the chunk that the latest step has under `key`.
Result<std::optional<Chunk>> FindBase(const Snapshot& snapshot, const std::string& key) {
  if (snapshot.step_numbers().empty()) return std::nullopt;
  CAIRN_TRY_ASSIGN(const StepInfo latest, snapshot.FindStep(std::nullopt));
  CAIRN_TRY_ASSIGN(const auto record, snapshot.Get(Column::kChunks, latest, key));
  if (!record) return std::nullopt;
  return DecodeChunk(key, *record);
}

/// Returns whether the chunk has two pages and the first of them equals that of `base`.
bool HasSameFirstPage(const Snapshot& snapshot, const Chunk& base,
                      std::span<const std::byte> bytes) {
  if (PageCount(bytes.size()) != 2 || base.extents.length_bytes() != bytes.size()) return false;
  const Extent first = base.extents.At(0);
  uint64_t page_digest = 0;
  const ReadRange range{.segment_id = first.segment_id,
                        .offset_bytes = first.page_digests_offset_bytes,
                        .target = std::as_writable_bytes(std::span(&page_digest, 1))};
  return snapshot.Read({&range, 1}, 1, [](size_t, auto) { return Result<void>(); }) &&
         page_digest == PageDigest(bytes.first(kPageBytes));
}

/// Writes the second page; the first one remains in the extent of `base`.
Result<void> SaveSecondPage(StepWriter& writer, const Chunk& base, uint64_t step,
                            const std::string& key, std::span<const std::byte> bytes) {
  std::vector<uint64_t> page_digests;
  AppendPageDigests(bytes, page_digests);
  const PageRange range{.begin_page = 1, .end_page = 2};
  CAIRN_TRY_ASSIGN(const auto appended,
                   writer.AppendPages(CopiedPayload(bytes), {&range, 1}, page_digests));
  const std::array extents = {base.extents.At(0).First(kPageBytes), appended[0]};
  return writer.AddChunk(key,
                         {.sizes = {bytes.size()},
                          .extents = Extents(extents),
                          .digest = RootDigest(page_digests, bytes.size()),
                          .since_step = step},
                         false);
}

Result<void> SaveTensor(StepWriter& writer, const Snapshot& base, uint64_t step,
                        const std::string& fqn, std::span<const std::byte> bytes) {
  const uint64_t chunk_count = (bytes.size() + kSampleChunkBytes - 1) / kSampleChunkBytes;
  CAIRN_TRY(writer.AddRecord(Column::kTensors, FqnKey(fqn),
                             TensorBytesRecord(bytes.size(), chunk_count)));
  for (uint64_t at = 0; at < bytes.size(); at += kSampleChunkBytes) {
    const auto part = bytes.subspan(at, std::min<uint64_t>(kSampleChunkBytes, bytes.size() - at));
    const std::string key = ChunkKey(fqn, std::array{at});
    CAIRN_TRY_ASSIGN(const std::optional<Chunk> old, FindBase(base, key));
    if (old && old->digest == PayloadDigest(part)) {
      CAIRN_TRY(writer.AddChunk(key,
                                {.sizes = {part.size()},
                                 .extents = old->extents,
                                 .digest = old->digest,
                                 .since_step = old->since_step},
                                true));
      continue;
    }
    if (old && HasSameFirstPage(base, *old, part)) {
      CAIRN_TRY(SaveSecondPage(writer, *old, step, key, part));
      continue;
    }
    const auto start = bytes.size() >= 65'536 ? SegmentAlignment::k4096 : SegmentAlignment::k64;
    CAIRN_TRY(SaveChunk(writer, step, key, CopiedPayload(part),
                        at == 0 ? start : SegmentAlignment::kNone));
  }
  return {};
}

}  // namespace

Result<Extent> SaveChunk(StepWriter& writer, uint64_t step, const std::string& key,
                         const Payload& payload, SegmentAlignment alignment) {
  CAIRN_TRY_ASSIGN(const auto appended, writer.Append(payload, alignment));
  CAIRN_TRY(writer.AddChunk(key,
                            {.sizes = {payload.length_bytes()},
                             .extents = appended.extent,
                             .digest = appended.digest,
                             .since_step = step},
                            /*reused=*/false));
  return appended.extent;
}

std::vector<std::byte> RandomBytes(uint64_t seed, uint64_t length_bytes) {
  std::mt19937_64 engine(seed);
  std::vector<std::byte> bytes(length_bytes);
  for (uint64_t at = 0; at < length_bytes; at += 8) {
    const uint64_t word = engine();
    std::memcpy(bytes.data() + at, &word, std::min<uint64_t>(8, length_bytes - at));
  }
  return bytes;
}

namespace {

/// Makes the first page of each chunk equal to that of `kept`.
void KeepFirstPages(std::span<const std::byte> kept, std::span<std::byte> bytes) {
  for (uint64_t at = 0; at < bytes.size(); at += kSampleChunkBytes) {
    const uint64_t count = std::min<uint64_t>(kPageBytes, bytes.size() - at);
    std::ranges::copy(kept.subspan(at, count), bytes.begin() + static_cast<ptrdiff_t>(at));
  }
}

}  // namespace

SampleStep MakeSample(uint64_t step, uint64_t version, const SampleShape& shape) {
  SampleStep sample{.step = step, .version = version, .tensors = {}};
  for (uint32_t i = 0; i < shape.tensor_count; ++i) {
    const bool frozen = i % 2 == 1;
    const uint64_t seed = frozen ? i : (step * 1'000 + version) * 1'000'000 + i + 1'000;
    // 0, then odd sizes up to the largest.
    const uint64_t length_bytes =
        i == 0 ? 0 : shape.largest_bytes * i * i / (shape.tensor_count * shape.tensor_count) + i;
    auto& bytes = sample.tensors[fmt::format("w{:03}", i)] = RandomBytes(seed, length_bytes);
    if (i % 4 == 0) KeepFirstPages(RandomBytes(i, length_bytes), bytes);
  }
  return sample;
}

Result<StepInfo> SaveSample(Store& store, const SampleStep& sample, bool overwrite) {
  CAIRN_TRY_ASSIGN(const auto base, store.Latest());
  CAIRN_TRY_ASSIGN(const auto writer,
                   store.Begin(sample.step, {.overwrite = overwrite, .rank = 0, .world_size = 1}));
  StepSummary summary{.base_step = std::nullopt,
                      .tensor_count = sample.tensors.size(),
                      .value_count = 1,
                      .logical_bytes = 0};
  CAIRN_TRY_ASSIGN(summary.base_step, BaseStep(*base));
  for (const auto& [fqn, bytes] : sample.tensors) {
    CAIRN_TRY(SaveTensor(*writer, *base, sample.step, fqn, bytes));
    summary.logical_bytes += bytes.size();
  }
  CAIRN_TRY(writer->AddRecord(Column::kValues, FqnKey(kVersionFqn), IntRecord(sample.version)));
  CAIRN_TRY(writer->SetStructure(FlatStructure(sample)));
  return writer->Commit(summary);
}

namespace {

// Every rank writes the tensors whose number modulo the world size is its rank.
Result<uint64_t> SavePart(StepWriter& writer, const Snapshot& base, const SampleStep& sample,
                          uint32_t rank, uint32_t world_size) {
  // All ranks except for the last one have the same records here.
  const std::vector<std::byte> value = IntRecord(rank + 1 == world_size ? rank : 0);
  const SharedRecord shared[] = {
      {.column = Column::kValues, .key = FqnKey("shared"), .value = value}};
  CAIRN_TRY(writer.AddShared(shared));
  uint64_t bytes_of_rank = 0;
  uint32_t number = 0;
  for (const auto& [fqn, bytes] : sample.tensors) {
    if (number++ % world_size != rank) continue;
    CAIRN_TRY(SaveTensor(writer, base, sample.step, fqn, bytes));
    bytes_of_rank += bytes.size();
  }
  return bytes_of_rank;
}

}  // namespace

Result<StepInfo> SaveSampleOfRank(Store& store, const SampleStep& sample,
                                  const BeginOptions& options,
                                  std::unique_ptr<StepWriter>& prepared) {
  CAIRN_TRY_ASSIGN(const auto base, store.Latest());
  CAIRN_TRY_ASSIGN(auto writer, store.Begin(sample.step, options));
  CAIRN_TRY_ASSIGN(uint64_t bytes,
                   SavePart(*writer, *base, sample, options.rank, options.world_size));
  if (options.rank > 0) {
    CAIRN_TRY(writer->Prepare({.logical_bytes = bytes}));
    prepared = std::move(writer);
    return StepInfo();
  }
  OtherRanks others_records;
  CAIRN_TRY(writer->Gather(others_records));
  StepSummary summary{.tensor_count = sample.tensors.size(), .value_count = 1};
  for (const auto& [fqn, content] : sample.tensors) {
    summary.logical_bytes += content.size();
    const uint64_t chunks = (content.size() + kSampleChunkBytes - 1) / kSampleChunkBytes;
    CAIRN_TRY(writer->AddRecord(Column::kTensors, FqnKey(fqn),
                                TensorBytesRecord(content.size(), chunks)));
  }
  CAIRN_TRY(writer->AddRecord(Column::kValues, FqnKey(kVersionFqn), IntRecord(sample.version)));
  CAIRN_TRY(writer->SetStructure(FlatStructure(sample)));
  CAIRN_TRY_ASSIGN(summary.base_step, BaseStep(*base));
  return writer->Commit(summary);
}

Result<StepInfo> SaveSampleByRanks(Store& store, std::span<const std::unique_ptr<Store>> others,
                                   const SampleStep& sample,
                                   std::optional<std::chrono::milliseconds> patience) {
  // Ranks that were opened together would generate the same name; these may have been opened later.
  const std::string attempt = store.NextAttempt(sample.step);
  std::vector<std::unique_ptr<StepWriter>> prepared(others.size() + 1);
  const auto save = [&](Store& of_rank, uint32_t rank) -> Result<StepInfo> {
    BeginOptions options{
        .rank = rank, .world_size = static_cast<uint32_t>(others.size() + 1), .attempt = attempt};
    if (patience) {
      options.deadline = std::chrono::steady_clock::now() + *patience;
      options.decision_deadline = options.deadline;
    }
    auto saved = SaveSampleOfRank(of_rank, sample, options, prepared[rank]);
    if (!saved) (void)of_rank.FailAttempt(attempt, rank, saved.error());
    if (!patience) prepared[rank] = nullptr;
    return saved;
  };
  // All ranks continue, even if another one fails.
  Result<StepInfo> failed;
  for (size_t i = 0; i < others.size(); ++i) {
    auto part = save(*others[i], static_cast<uint32_t>(i + 1));
    if (!part && failed) failed = std::move(part);
  }
  auto saved = save(store, 0);
  for (const auto& writer : prepared) {
    if (writer != nullptr && writer->AwaitDecision() && !saved) {
      saved.error().code = ErrorCode::kInternal;
    }
  }
  return failed || saved ? saved : failed;
}

Result<void> OtherRanks::AddShared(uint32_t rank, Column, std::string_view key,
                                   std::span<const std::byte>) {
  shared.push_back(fmt::format("{}:{}", rank, key.substr(0, key.find('\0'))));
  return {};
}

Result<void> OtherRanks::AddChunk(const RankChunk& chunk) {
  chunks.push_back(fmt::format("{}:{}", chunk.rank, chunk.fqn));
  return {};
}

Result<SampleStep> LoadSample(const Snapshot& snapshot, std::optional<uint64_t> step) {
  CAIRN_TRY_ASSIGN(const StepInfo info, snapshot.FindStep(step));
  SampleStep sample{.step = info.step, .version = 0, .tensors = {}};
  CAIRN_TRY(snapshot.Scan(
      Column::kTensors, info, "",
      [&](std::string_view key, std::span<const std::byte> record) -> Result<bool> {
        CAIRN_TRY_ASSIGN(const auto* tensor,
                         CheckedRecord<schema::TensorRecord>(
                             record, schema::TensorRecordIdentifier(), "tensor record"));
        CAIRN_TRY_ASSIGN(const ParsedKey parsed, ParseKey(key));
        sample.tensors[std::string(parsed.fqn)].resize(tensor->nbytes());
        return true;
      }));
  struct Expected {
    std::string fqn;
    Digest digest;
    std::span<std::byte> target;
    size_t missing_ranges = 0;
  };
  std::vector<Expected> chunks;
  std::vector<ReadRange> ranges;
  std::vector<size_t> chunk_of;  // by range
  CAIRN_TRY(snapshot.Scan(
      Column::kChunks, info, "",
      [&](std::string_view key, std::span<const std::byte> record) -> Result<bool> {
        CAIRN_TRY_ASSIGN(const Chunk chunk, DecodeChunk(key, record));
        const std::string fqn(key.substr(0, key.find('\0')));
        auto& bytes = sample.tensors[fqn];
        const uint64_t length_bytes = chunk.extents.length_bytes();
        if (chunk.offset_bytes + length_bytes > bytes.size()) {
          return Fail(
              Error{.code = ErrorCode::kDataLoss, .message = "one chunk too many", .key = fqn});
        }
        std::span<std::byte> rest = std::span(bytes).subspan(chunk.offset_bytes, length_bytes);
        chunks.push_back({fqn, chunk.digest, rest, chunk.extents.size()});
        for (const Extent& extent : chunk.extents) {
          ranges.push_back({.segment_id = extent.segment_id,
                            .offset_bytes = extent.offset_bytes,
                            .target = rest.first(extent.length_bytes)});
          rest = rest.subspan(extent.length_bytes);
          chunk_of.push_back(chunks.size() - 1);
        }
        return true;
      }));
  if (chunks.size() != info.chunk_count || sample.tensors.size() != info.tensor_count) {
    return Fail(Error{.code = ErrorCode::kDataLoss,
                      .message = fmt::format("the step has {} chunks, its record counts {}",
                                             chunks.size(), info.chunk_count),
                      .step = info.step});
  }
  CAIRN_TRY(snapshot.Read(ranges, 1, [&](size_t i, auto) -> Result<void> {
    Expected& chunk = chunks[chunk_of[i]];
    if (--chunk.missing_ranges > 0 || PayloadDigest(chunk.target) == chunk.digest) return {};
    CAIRN_TRY_ASSIGN(const SegmentInfo segment, snapshot.FindSegment(ranges[i].segment_id));
    return Fail(Error{.code = ErrorCode::kDataLoss,
                      .message = "payload does not match its digest",
                      .key = chunk.fqn,
                      .file = segment.name,
                      .step = info.step,
                      .offset_bytes = ranges[i].offset_bytes});
  }));
  CAIRN_TRY_ASSIGN(const auto value, snapshot.Get(Column::kValues, info, FqnKey(kVersionFqn)));
  if (!value) return Fail(ErrorCode::kDataLoss, "the version's record is missing");
  CAIRN_TRY_ASSIGN(
      const auto* version,
      CheckedRecord<schema::ValueRecord>(*value, schema::ValueRecordIdentifier(), "ValueRecord"));
  sample.version = static_cast<uint64_t>(version->integer());
  CAIRN_TRY_ASSIGN(const auto structure, snapshot.GetStructure(info));
  if (!structure || *structure != FlatStructure(sample)) {
    return Fail(
        Error{.code = ErrorCode::kDataLoss, .message = "wrong structure", .step = info.step});
  }
  return sample;
}

Result<Steps> LoadAllFrom(const Store& store) {
  CAIRN_TRY_ASSIGN(const auto snapshot, store.Latest());
  Steps steps;
  for (const uint64_t step : snapshot->step_numbers()) {
    CAIRN_TRY_ASSIGN(steps[step], LoadSample(*snapshot, step));
  }
  return steps;
}

Result<Steps> LoadAll(const std::string& directory) {
  CAIRN_TRY_ASSIGN(const auto store, Store::Open(directory, OpenMode::kRead));
  return LoadAllFrom(*store);
}

Result<std::vector<std::string>> Verify(const Snapshot& snapshot) {
  std::vector<std::string> lines;
  CAIRN_TRY(snapshot.VerifyFiles([&](const Damage& damage) {
    if (damage.error.code == ErrorCode::kNotFound) return;
    lines.push_back(
        fmt::format("{}: {}", ErrorCodeName(damage.error.code), damage.error.ToString()));
  }));
  return lines;
}

Result<std::vector<std::string>> FindLeftovers(const std::string& address) {
  CAIRN_TRY_ASSIGN(const std::shared_ptr<Storage> storage, OpenStorage(address));
  return FindLeftovers(storage);
}

Result<std::vector<std::string>> FindLeftovers(const std::shared_ptr<Storage>& storage) {
  CAIRN_TRY_ASSIGN(const auto root, internal::FindNewest(*storage));
  std::set<std::string> reached;
  if (root) {
    for (const auto& removed : root->removed) reached.insert(removed.name);
    for (const auto& page : root->pages) reached.insert(ObjectName(ObjectKind::kPage, page.id));
    CAIRN_TRY_ASSIGN(const auto entries, internal::StepList(storage, *root).All());
    for (const auto& entry : entries) {
      for (const auto& table : entry->tables) {
        reached.insert(ObjectName(ObjectKind::kTable, table.id));
      }
      CAIRN_CHECK(!entry->usage_in_tables);  // the samples have few segments
      for (const auto& use : entry->usage) {
        reached.insert(ObjectName(ObjectKind::kSegment, use.segment));
      }
    }
  }
  std::vector<std::string> leftovers;
  for (const std::string_view folder : {"segments/", "tables/", "pages/", "pending/"}) {
    CAIRN_TRY_ASSIGN(auto names, storage->List(folder));
    std::ranges::sort(names);
    for (const std::string& name : names) {
      if (!reached.contains(name)) leftovers.push_back(name);
    }
  }
  return leftovers;
}

}  // namespace cairn::kv::testing
