// Checks a ChunkRecord and its key.

#include "kv/base/chunk_record.h"

#include <cairn_schema/chunk_generated.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <bit>
#include <cstring>
#include <string>
#include <utility>

#include "kv/base/key.h"
#include "kv/base/record_check.h"

namespace cairn::kv {
namespace {

/// The offsets of a key, for errors.
std::string FormatOffsets(std::string_view offsets) {
  std::vector<uint64_t> numbers;
  for (; !offsets.empty(); offsets.remove_prefix(sizeof(uint64_t))) {
    numbers.push_back(ReadBigEndian(offsets.data()));
  }
  return fmt::format("[{}]", fmt::join(numbers, ", "));
}

}  // namespace

std::optional<ChunkStatistics> ReadStatistics(const schema::ChunkRecord& record) {
  const schema::ChunkStatistics* const stored = record.statistics();
  if (stored == nullptr) return std::nullopt;
  return ChunkStatistics{.min = stored->min(),
                         .max = stored->max(),
                         .mean = stored->mean(),
                         .zeros = stored->zeros(),
                         .nans = stored->nans(),
                         .infs = stored->infs()};
}

Result<void> ChunkView::Set(std::string_view key, std::span<const std::byte> record) {
  const size_t name_end = key.find('\0');
  if (name_end == std::string_view::npos || (key.size() - name_end - 1) % sizeof(uint64_t) != 0) {
    CAIRN_TRY(ParseKey(key));  // returns the error
  }
  fqn_ = key.substr(0, name_end);
  offsets_ = key.substr(name_end + 1);
  auto checked =
      CheckedRecord<schema::ChunkRecord>(record, schema::ChunkRecordIdentifier(), "ChunkRecord");
  if (!checked) return Fail(std::move(checked).error().WithKey(fqn_));
  record_ = *checked;
  const auto damaged = [&](const char* why) {
    return Fail(
        Error{.code = ErrorCode::kDataLoss,
              .message = fmt::format("ChunkRecord {} is damaged: {}", FormatOffsets(offsets_), why),
              .key = std::string(fqn_)});
  };
  auto extents = ReadExtents(*record_);
  if (!extents) {
    Error error = std::move(extents).error();
    error.message = fmt::format("chunk {}: {}", FormatOffsets(offsets_), error.message);
    return Fail(std::move(error).WithKey(fqn_));
  }
  // A newer kind, which ReadExtents refuses, has none.
  if (record_->digest() == nullptr) return damaged("no digest");
  extents_ = *std::move(extents);
  length_bytes_ = extents_.payload.length_bytes();
  const auto* const sizes = record_->sizes();
  if ((sizes == nullptr ? 0 : sizes->size()) != dimensions()) return damaged("impossible sizes");
  uint64_t delta_bytes = 0;
  for (const Extent& delta : extents_.deltas) {
    if (delta.length_bytes > length_bytes_ - delta_bytes) {
      return damaged("deltas larger than it");
    }
    delta_bytes += delta.length_bytes;
  }
  return {};
}

void ChunkView::CopyOffsets(std::span<uint64_t> offsets) const {
  CAIRN_CHECK(offsets.size() == dimensions());
  for (size_t d = 0; d < offsets.size(); ++d) {
    offsets[d] = ReadBigEndian(offsets_.data() + d * sizeof(uint64_t));
  }
}

// Copies the elements, because the verifier checks the alignment of a vector's length but not of
// its 8-byte elements: in a damaged record they may be unaligned.
void ChunkView::CopySizes(std::span<uint64_t> sizes) const {
  static_assert(std::endian::native == std::endian::little);
  CAIRN_CHECK(sizes.size() == dimensions());
  if (!sizes.empty()) std::memcpy(sizes.data(), record_->sizes()->Data(), sizes.size_bytes());
}

}  // namespace cairn::kv
