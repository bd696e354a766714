// The records of kv in tables, their keys, and the names of objects.

#include "kv/base/chunk_record.h"
#include "kv/base/key.h"
#include "kv/root/internal/kv_records.h"
#include "kv/state/internal/attempt_outcome.h"
#include "kv/storage/internal/object_names.h"
#include "kv/storage/rados/internal/stripe_layout.h"
#include "tests/fuzz/fuzz_support.h"

namespace cairn::fuzz {
namespace {

using namespace kv::internal;  // NOLINT(google-build-using-namespace): the code under test

void FuzzChunkView(Input input) {
  const size_t key_bytes = input.Byte();
  const std::string key(input.Text(key_bytes));
  const std::vector<std::byte> record = input.CopyRest();
  kv::ChunkView chunk;
  const Result<void> set = chunk.Set(key, record);
  if (!set) return UseError(set.error());
  CAIRN_FUZZ_CHECK(chunk.length_bytes() > 0);
  CAIRN_FUZZ_CHECK(chunk.length_bytes() == chunk.extents().payload.length_bytes());
  std::vector<uint64_t> offsets(chunk.dimensions());
  std::vector<uint64_t> sizes(chunk.dimensions());
  chunk.CopyOffsets(offsets);
  chunk.CopySizes(sizes);
  CAIRN_FUZZ_CHECK(kv::ChunkKey(chunk.fqn(), offsets) == key);
  const auto entry = DecodeChunk(record);
  CAIRN_FUZZ_CHECK(entry.has_value() && entry->extents == chunk.extents());
}

void FuzzKey(std::string_view key) {
  const auto parsed = kv::ParseKey(key);
  if (!parsed) return UseError(parsed.error());
  CAIRN_FUZZ_CHECK(kv::ChunkKey(parsed->fqn, parsed->offsets_elements) == key);
}

void FuzzUsage(Input input) {
  const std::string key(input.Text(8));
  const std::vector<std::byte> record = input.CopyRest();
  const auto use = DecodeUsage(key, record);
  if (!use) return UseError(use.error());
  CAIRN_FUZZ_CHECK(Is(DecodeUsage(kv::NumberKey(use->segment.id), EncodeUsage(*use)), *use));
}

void FuzzNames(std::string_view name) {
  if (const auto parsed = ParseObjectName(name)) {
    CAIRN_FUZZ_CHECK(ObjectName(parsed->kind, parsed->id) == name);
  }
  if (const auto number = ParseRootName(name)) CAIRN_FUZZ_CHECK(RootName(*number) == name);
  if (const auto stripe = ParseStripeName(name)) {
    const std::string again = StripeName(stripe->name, stripe->unique, stripe->index);
    const auto parsed = ParseStripeName(again);
    CAIRN_FUZZ_CHECK(parsed && parsed->name == stripe->name && parsed->index == stripe->index);
  }
  if (const auto layout = DecodeLayout(name)) {
    CAIRN_FUZZ_CHECK(Is(DecodeLayout(EncodeLayout(*layout)), *layout));
    const uint64_t count = layout->stripe_count();
    if (count > 0) CAIRN_FUZZ_CHECK((count - 1) * layout->stripe_bytes < layout->size_bytes);
  }
  EpochOfSession(name);
}

}  // namespace

void Fuzz(Input input) {
  const uint8_t selector = TakeSelector(input, 8);
  const std::vector<std::byte> record = input.CopyRest();
  // An extent or a table of a record uses more memory than bytes; a metric uses up to 16 times its
  // bytes.
  const MemoryLimit limit(record, 64);
  switch (selector) {
    case 0:
      return CheckRoundTrip(&DecodeStep, &EncodeStep, record);
    case 1:
      return CheckRoundTrip(&DecodeSegment, &EncodeSegment, record);
    case 2:
      CAIRN_FUZZ_CHECK(DecodeChunkExtents(record).has_value() == DecodeChunk(record).has_value());
      return CheckRoundTrip(&DecodeChunk, &EncodeChunk, record);
    case 3:
      return FuzzChunkView(input);
    case 4:
      return FuzzUsage(input);
    case 5:
      return CheckRoundTrip(
          &DecodeTables, [](const std::vector<TableInfo>& tables) { return EncodeTables(tables); },
          record);
    case 6:
      return FuzzKey(input.rest_text());
    default:
      return FuzzNames(input.rest_text());
  }
}

}  // namespace cairn::fuzz
