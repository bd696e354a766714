#include "core/step/internal/tensor_records.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "cairn_schema/chunk_generated.h"
#include "cairn_schema/tensor_generated.h"
#include "kv/base/chunk_record.h"
#include "kv/base/record_check.h"

namespace cairn::core::internal {
namespace {

// Copies the elements, because the verifier checks the alignment of a vector's length but not of
// its 8-byte elements: in a damaged record they may be unaligned.
void Copy(const flatbuffers::Vector<uint64_t>* numbers, std::vector<uint64_t>& copied) {
  static_assert(std::endian::native == std::endian::little);
  copied.clear();
  if (numbers == nullptr || numbers->size() == 0) return;
  copied.resize(numbers->size());
  std::memcpy(copied.data(), numbers->Data(), copied.size() * sizeof(uint64_t));
}

std::unexpected<Error> Damaged(std::string_view fqn, std::string why) {
  return Fail(
      Error{.code = ErrorCode::kDataLoss, .message = std::move(why), .key = std::string(fqn)});
}

}  // namespace

std::string FormatNumbers(std::span<const uint64_t> numbers) {
  return fmt::format("[{}]", fmt::join(numbers, ", "));
}

std::span<const std::byte> TensorEncoder::Encode(const TensorEntry& tensor) {
  // FlatBuffers omits numbers that are 0.
  const bool has_usual_fields = tensor.alias == nullptr && !tensor.hidden &&
                                static_cast<uint8_t>(tensor.dtype) != 0 && tensor.nbytes != 0 &&
                                tensor.chunk_count != 0;
  if (has_usual_fields && dimensions_ == tensor.shape.size()) {
    auto* const record =
        flatbuffers::GetMutableRoot<schema::TensorRecord>(builder_.GetBufferPointer());
    for (size_t d = 0; d < tensor.shape.size(); ++d) {
      record->mutable_shape()->Mutate(static_cast<uint32_t>(d), tensor.shape[d]);
    }
    record->mutate_dtype(static_cast<uint8_t>(tensor.dtype));
    record->mutate_nbytes(tensor.nbytes);
    record->mutate_chunk_count(tensor.chunk_count);
  } else {
    Build(tensor);
    dimensions_.reset();
    if (has_usual_fields) dimensions_ = tensor.shape.size();
  }
  return std::as_bytes(std::span(builder_.GetBufferPointer(), builder_.GetSize()));
}

std::span<const std::byte> TensorEncoder::Encode(const TensorInfo& info) {
  TensorAlias alias{.offset_bytes = info.alias_offset_bytes, .strides = info.alias_strides};
  if (info.alias_of) alias.owner = *info.alias_of;
  return Encode(EntryOf(info, info.alias_of ? &alias : nullptr));
}

void TensorEncoder::Build(const TensorEntry& tensor) {
  builder_.Clear();
  const auto shape = builder_.CreateVector(tensor.shape.data(), tensor.shape.size());
  flatbuffers::Offset<flatbuffers::String> alias_of;
  flatbuffers::Offset<flatbuffers::Vector<uint64_t>> alias_strides;
  uint64_t alias_offset_bytes = 0;
  if (const TensorAlias* alias = tensor.alias) {
    alias_of = builder_.CreateString(alias->owner.data(), alias->owner.size());
    alias_strides = builder_.CreateVector(alias->strides.data(), alias->strides.size());
    alias_offset_bytes = alias->offset_bytes;
  }
  builder_.Finish(schema::CreateTensorRecord(builder_, schema::kRecordVersion,
                                             static_cast<uint8_t>(tensor.dtype), shape,
                                             tensor.nbytes, tensor.chunk_count, alias_of,
                                             alias_offset_bytes, alias_strides, tensor.hidden),
                  schema::TensorRecordIdentifier());
}

std::vector<std::byte> EncodeTensor(const TensorInfo& info) {
  TensorEncoder encoder;
  const std::span<const std::byte> record = encoder.Encode(info);
  CAIRN_DCHECK(DecodeTensor(info.fqn, record).has_value());
  return {record.begin(), record.end()};
}

Result<TensorInfo> DecodeTensor(std::string_view fqn, std::span<const std::byte> bytes) {
  TensorInfo info;
  CAIRN_TRY(DecodeTensor(fqn, bytes, info));
  return info;
}

Result<void> DecodeTensor(std::string_view fqn, std::span<const std::byte> bytes,
                          TensorInfo& info) {
  auto checked = kv::CheckedRecord<schema::TensorRecord>(bytes, schema::TensorRecordIdentifier(),
                                                         "TensorRecord");
  if (!checked) return Fail(std::move(checked).error().WithKey(fqn));
  const schema::TensorRecord* record = *checked;
  info.fqn = fqn;
  info.dtype = static_cast<DType>(record->dtype());
  Copy(record->shape(), info.shape);
  info.nbytes = record->nbytes();
  info.chunk_count = record->chunk_count();
  info.alias_of.reset();
  info.alias_offset_bytes = record->alias_offset_bytes();
  Copy(record->alias_strides(), info.alias_strides);
  info.hidden = record->hidden();
  if (!schema::FindDType(info.dtype)) {
    return Fail(
        Error{.code = ErrorCode::kUnimplemented,
              .message = fmt::format("dtype code {} is unknown to this version; upgrade to read it",
                                     record->dtype()),
              .key = std::string(fqn)});
  }
  const auto nbytes = TensorBytes(info.dtype, info.shape);
  if (!nbytes || *nbytes != info.nbytes) {
    return Damaged(
        fqn, fmt::format("TensorRecord is damaged: {} bytes do not agree with {} of shape {}",
                         info.nbytes, schema::DTypeName(info.dtype), FormatNumbers(info.shape)));
  }
  if (record->alias_of() == nullptr) {
    if (!info.alias_strides.empty()) {
      return Damaged(fqn, "TensorRecord is damaged: strides without the tensor that they refer to");
    }
    return {};
  }
  info.alias_of = record->alias_of()->str();
  if (info.alias_strides.size() != info.shape.size() || info.chunk_count != 0) {
    return Damaged(fqn, "TensorRecord is damaged: an alias has chunks or too few strides");
  }
  return {};
}

Result<DecodedChunk> DecodeChunk(std::string_view key, std::span<const std::byte> bytes) {
  DecodedChunk decoded{.fqn = key.substr(0, key.find('\0')), .info = {}};
  CAIRN_TRY(DecodeChunk(key, bytes, decoded.info));
  return decoded;
}

Result<void> DecodeChunk(std::string_view key, std::span<const std::byte> bytes, ChunkInfo& info) {
  kv::ChunkView chunk;
  CAIRN_TRY(chunk.Set(key, bytes));
  info.box.offsets.resize(chunk.dimensions());
  chunk.CopyOffsets(info.box.offsets);
  info.box.sizes.resize(chunk.dimensions());
  chunk.CopySizes(info.box.sizes);
  info.extents = chunk.extents().payload;
  info.deltas = chunk.extents().deltas;
  const schema::Digest& digest = *chunk.record().digest();
  info.digest = {.lo = digest.lo(), .hi = digest.hi()};
  info.since_step = chunk.record().since_step();
  info.statistics = kv::ReadStatistics(chunk.record());
  return {};
}

Result<void> CheckChunk(const TensorEntry& tensor, const ChunkInfo& chunk) {
  const auto length = std::ranges::equal(chunk.box.sizes, tensor.shape)
                          ? Result<uint64_t>(tensor.nbytes)
                          : TensorBytes(tensor.dtype, chunk.box.sizes);
  if (!BoxFits(chunk.box, tensor.shape) || !length || *length != chunk.length_bytes()) {
    return Damaged(tensor.fqn,
                   fmt::format("chunk {} of sizes {} and {} bytes does not fit into {} of shape {}",
                               FormatNumbers(chunk.box.offsets), FormatNumbers(chunk.box.sizes),
                               chunk.length_bytes(), schema::DTypeName(tensor.dtype),
                               FormatNumbers(tensor.shape)));
  }
  return {};
}

std::optional<uint64_t> ContiguousOffsetBytes(DType dtype, std::span<const uint64_t> shape,
                                              const Box& box) {
  CAIRN_CHECK(box.sizes.size() == shape.size() && box.offsets.size() == shape.size());
  // Contiguous: dimensions of size 1, then one dimension of any size, then complete dimensions.
  size_t d = 0;
  while (d < shape.size() && box.sizes[d] == 1) ++d;
  for (size_t inner = d + 1; inner < shape.size(); ++inner) {
    if (box.sizes[inner] != shape[inner]) return std::nullopt;
  }
  const auto strides = RowMajorStrides(shape);
  uint64_t offset = 0;
  for (size_t i = 0; i < shape.size(); ++i) offset += box.offsets[i] * strides[i];
  return offset * schema::ElementBytes(dtype);
}

}  // namespace cairn::core::internal
