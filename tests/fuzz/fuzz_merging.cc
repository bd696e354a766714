// What ranks exchange if several of them merge the records of a step: the indexes of parts,
// sections, and the tasks, results and summaries of merging ranks.

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "core/save/internal/rank_merge.h"
#include "core/step/internal/tensor_records.h"
#include "kv/internal/parts/part_file.h"
#include "kv/internal/parts/range_task.h"
#include "kv/internal/parts/section_index.h"
#include "kv/internal/storage/memory_storage.h"
#include "kv/internal/storage/object_names.h"
#include "tests/fuzz/fuzz_support.h"
#include "tests/fuzz/part_bytes.h"

namespace cairn::fuzz {
namespace {

using namespace kv::internal;  // NOLINT(google-build-using-namespace): the code under test

constexpr char kAttempt[] = "0000000112345678-7-0";
constexpr char kPart[] = "pending/0000000112345678-7-0/1.part";
constexpr char kSections[] = "pending/0000000112345678-7-0/1.0.data";
constexpr uint32_t kRange = 1;

const PartHeader kHeader{.step = 7, .rank = kRange, .world_size = 2, .attempt = kAttempt};

/// The limit of what a decoder of parts may allocate: a block of zeros is stored in 4 bytes per
/// 128 KiB.
uint64_t LimitFor(size_t size_bytes) { return (16 << 20) + uint64_t{size_bytes} * (40 << 10); }

/// Takes a u16, the number of entries, and returns a part with the rest as its entries.
std::vector<std::byte> TakePart(Input& input, const PartHeader& header) {
  const auto entry_count = input.Number<uint16_t>();
  return PartOf(header, input.rest(), entry_count);
}

/// Every section is in the reads of one range at least.
void CheckIndex(const SectionIndex& index) {
  for (const size_t count : {1, 3}) {
    const std::vector<std::string> begins = index.Split(count);
    CAIRN_FUZZ_CHECK(!begins.empty() && begins.size() <= count && begins.front().empty());
    CAIRN_FUZZ_CHECK(std::ranges::is_sorted(begins));
    uint64_t read_chunks = 0;
    for (size_t i = 0; i < begins.size(); ++i) {
      const std::string end = i + 1 < begins.size() ? begins[i + 1] : std::string();
      for (const SectionRead& read : index.ReadsOf(begins[i], end)) read_chunks += read.chunk_count;
    }
    CAIRN_FUZZ_CHECK(read_chunks >= index.chunk_count());
  }
}

/// Reads an indexed part as rank 0 does.
void FuzzIndex(Input input) {
  PartHeader header = kHeader;
  header.is_indexed = true;
  const std::vector<std::byte> part = TakePart(input, header);
  MemoryStorage storage("fuzz");
  SectionIndex index;
  uint64_t chunk_count = 0;
  const MemoryLimit limit(LimitFor(part.size()));
  const auto read =
      ReadFetchedPart(storage, kPart, part, header, [&](const RecordView& record) -> Result<void> {
        if (record.column != kv::Column::kTables) return {};
        CAIRN_TRY_ASSIGN(const PartSection section, DecodeSection(record.key, record.value));
        CAIRN_FUZZ_CHECK(std::ranges::equal(EncodeSection(section), record.value));
        CAIRN_FUZZ_CHECK(section.first == record.key && section.first <= section.last);
        // Ranks of a job trust the numbers that they announce to each other.
        if (section.chunk_count > 1 << 20) return {};
        index.Add(1, section);
        chunk_count += section.chunk_count;
        return {};
      });
  if (!read) return UseError(read.error());
  CAIRN_FUZZ_CHECK(index.chunk_count() == chunk_count);
  CheckIndex(index);
}

/// Reads blocks, whose checksums are made right, as the sections of a range.
void FuzzSections(Input input) {
  const auto chunk_count = input.Number<uint16_t>();
  std::vector<std::byte> bytes = input.CopyRest();
  RepairBlocks(bytes, 0);
  uint64_t seen = 0;
  const MemoryLimit limit(LimitFor(bytes.size()));
  const auto read =
      ReadSections(kSections, bytes, chunk_count, [&](const RecordView&) -> Result<void> {
        ++seen;
        return {};
      });
  if (!read) return UseError(read.error());
  CAIRN_FUZZ_CHECK(seen == chunk_count);
}

/// Puts the part as object `name`, reads it, and checks that what was read can be put and read
/// again.
template <typename Read, typename Put>
void FuzzObject(Input input, const std::string& name, const Read& read, const Put& put) {
  const std::vector<std::byte> part = TakePart(input, kHeader);
  const auto storage = std::make_shared<MemoryStorage>("fuzz");
  CAIRN_FUZZ_CHECK(storage->Put(name, part).has_value());
  const auto decode = [&] {
    const MemoryLimit limit(LimitFor(part.size()));
    return read(*storage, kHeader, kRange);
  };
  const auto first = decode();
  if (!first) return UseError(first.error());
  std::vector<std::vector<std::byte>> objects;
  auto value = *first;
  for (int i = 0; i < 2; ++i) {
    const auto other = std::make_shared<MemoryStorage>("fuzz");
    CAIRN_FUZZ_CHECK(put(other, kHeader, kRange, value).has_value());
    objects.push_back(FetchPart(*other, name).value());
    auto again = read(*other, kHeader, kRange);
    CAIRN_FUZZ_CHECK(again.has_value());
    value = *std::move(again);
  }
  CAIRN_FUZZ_CHECK(objects[0] == objects[1]);
}

/// Adds the input to a step of three tensors as the summary of a merging rank.
void FuzzSummary(Input input) {
  core::internal::RankMerge merge;
  for (const char* fqn : {"a", "b", "model.w"}) {
    const core::TensorInfo info{
        .fqn = fqn, .dtype = core::DType::kFloat32, .shape = {4}, .nbytes = 16};
    CAIRN_FUZZ_CHECK(
        merge
            .AddShared(0, kv::Column::kTensors, kv::FqnKey(fqn), core::internal::EncodeTensor(info))
            .has_value());
  }
  const std::vector<std::byte> summary = input.CopyRest();
  const MemoryLimit limit(summary, 64);
  if (const auto added = merge.AddSummary(1, summary); !added) return UseError(added.error());
  const auto tensors = merge.CheckTensors();
  if (!tensors) return UseError(tensors.error());
  CAIRN_FUZZ_CHECK(tensors->size() == 3);
}

void Fuzz(Input input) {
  switch (TakeSelector(input, 5)) {
    case 0:
      return FuzzIndex(input);
    case 1:
      return FuzzSections(input);
    case 2:
      return FuzzObject(input, TaskName(kAttempt, kRange), &ReadTask, &PutTask);
    case 3:
      return FuzzObject(input, ResultName(kAttempt, kRange), &ReadResult, &PutResult);
    default:
      return FuzzSummary(input);
  }
}

}  // namespace
}  // namespace cairn::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  cairn::fuzz::Fuzz({data, size});
  return 0;
}
