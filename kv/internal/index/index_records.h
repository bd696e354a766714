#pragma once
/// The FlatBuffers records that kv reads and writes. Every decoder returns kDataLoss for a damaged
/// record and kUnimplemented for one of a newer format version.

#include <array>
#include <span>
#include <string>
#include <vector>

#include "kv/digest.h"
#include "kv/error.h"
#include "kv/extents.h"
#include "kv/key.h"
#include "kv/record_check.h"
#include "kv/step_info.h"

namespace cairn::kv::internal {

/// Copies the finished buffer.
std::vector<std::byte> TakeBytes(const flatbuffers::FlatBufferBuilder& builder);

/// One rank's manifest, as a step record refers to it.
struct ManifestRef {
  uint32_t rank = 0;
  uint64_t file_bytes = 0;
  Digest digest;
};

struct StepEntry {
  StepInfo info;
  std::vector<ManifestRef> manifests;
};

std::vector<std::byte> EncodeStep(const StepEntry& entry);
Result<StepEntry> DecodeStep(std::span<const std::byte> record);

/// Requires a name that is a file name.
std::vector<std::byte> EncodeSegment(const SegmentInfo& info);
Result<SegmentInfo> DecodeSegment(std::span<const std::byte> record);

struct ChunkEntry {
  std::vector<uint64_t> sizes;
  Extents extents;
  Digest digest;
  uint64_t since_step = 0;
};
/// A chunk with one extent is encoded as version 1, one with several extents as version 2. Requires
/// extents that kv::ReadExtents accepts.
std::vector<std::byte> EncodeChunk(const ChunkEntry& entry);
/// Returns only the extents. See kv::ReadExtents.
Result<Extents> DecodeChunkExtents(std::span<const std::byte> record);

// The column kUsage: segment id, generation -> live bytes.
std::string UsageKey(uint64_t segment_id, uint64_t generation);
std::array<std::byte, 8> EncodeUsage(uint64_t live_bytes);
Result<Usage> DecodeUsage(std::string_view key, std::span<const std::byte> record);

}  // namespace cairn::kv::internal
