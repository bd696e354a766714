#pragma once
/// The part of a rank: all records that it contributes to one step, as an object that rank 0 reads
/// (docs/format/part.md).
///
///   header   128 bytes
///   blocks   u32 payload bytes, u32 entries, u32 stored bytes, u32 0, u64 XXH3-64 of the stored
///            bytes (seeded with payload bytes and entries), then the payload as one zstd frame
///   entry    u8 column, 3 zero bytes, u32 key bytes, u32 value bytes, key, value
///   end      a block with 0xffffffff entries, whose payload is the number of entries (u64)
///
/// A part is complete as soon as its object exists. Blocks beyond the first kMaxPartBytes are put
/// before it, as objects of at most this length that contain only blocks.

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kv/base/error.h"
#include "kv/base/key.h"
#include "kv/segment/internal/segment_format.h"
#include "kv/storage/storage.h"

namespace cairn::kv::internal {

inline constexpr uint32_t kPartVersion = 2;
inline constexpr size_t kPartHeaderBytes = 128;
inline constexpr uint64_t kMaxPartBytes = 64 << 20;
/// Space for "<session>-<step>-<counter>", padded with NUL.
inline constexpr size_t kMaxAttemptBytes = 56;

struct PartHeader {
  Uuid store_uuid{};
  uint64_t step = 0;
  uint32_t rank = 0;
  uint32_t world_size = 1;
  int64_t created_unix_ns = 0;
  std::string attempt;
  uint32_t data_objects = 0;  // set by PartWriter: objects with further blocks
};

/// Collects records and puts them as one object, or as several if they are many. Memory: about
/// kMaxPartBytes. Threads: one.
class PartWriter {
 public:
  /// `name` is the name of the object: "pending/<attempt>/<rank>.part". Requires
  /// `header.attempt.size() < kMaxAttemptBytes`.
  PartWriter(std::shared_ptr<Storage> storage, std::string name, PartHeader header);

  /// kInvalidArgument: the key and the value do not fit into a block (1 GiB).
  Result<void> Add(Column column, std::string_view key, std::span<const std::byte> value);
  /// Puts the object. Nothing can be added after this. kConflict: it exists.
  Result<void> Finish();

 private:
  Result<void> EndBlock(uint32_t entry_count);
  Result<void> PutData();

  const std::shared_ptr<Storage> storage_;
  const std::string name_;
  PartHeader header_;
  std::vector<std::byte> block_;  // the entries of the block that is not complete
  std::vector<std::byte> compressed_;
  std::vector<std::byte> blocks_;  // complete blocks that no object contains yet
  uint32_t block_entries_ = 0;
  uint64_t entry_count_ = 0;
};

/// An entry of a part. Ownership: borrows.
struct RecordView {
  Column column = Column::kSteps;
  std::string_view key;
  std::span<const std::byte> value;
};
/// Called with each entry, which is valid only during the call. The value is not aligned.
using PartCallback = std::function<Result<void>(const RecordView&)>;

/// Reads and checks the complete part, and calls `callback` with each entry. kNotFound: there is no
/// such object. kDataLoss: a block is damaged (the error names the object and the offset of the
/// block), or the header is not `expected` (whose time and number of objects are ignored).
/// kConflict: a rank wrote it for another store. kUnimplemented: the version is newer.
Result<void> ReadPart(Storage& storage, const std::string& name, const PartHeader& expected,
                      const PartCallback& callback);
/// Returns the bytes of the object `name`, for ReadFetchedPart. The records of a large part are in
/// other objects, which this does not read. kNotFound: there is no such object.
Result<std::vector<std::byte>> FetchPart(Storage& storage, const std::string& name);
/// Returns how long the blocks of `part`, which FetchPart returned, claim to be before compression.
/// Those in other objects are not counted. ReadFetchedPart calls back with at most this many bytes.
uint64_t ClaimedBytes(std::span<const std::byte> part);
/// Returns whether a part that FetchPart returned has blocks in other objects.
bool HasDataObjects(std::span<const std::byte> part);
/// As ReadPart, for bytes that FetchPart returned.
Result<void> ReadFetchedPart(Storage& storage, const std::string& name,
                             std::span<const std::byte> part, const PartHeader& expected,
                             const PartCallback& callback);

/// Returns the names of the objects of the part, of which `name` is the last one.
std::string PartDataName(const std::string& name, uint32_t index);

}  // namespace cairn::kv::internal
