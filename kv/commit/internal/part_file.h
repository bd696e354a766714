#pragma once
/// The part of a rank: all records that it contributes to one step, as an object that rank 0 reads
/// (docs/format/part.md). It is a sequence of frames (framed_record.h), whose records have about
/// 1 MiB and consist of words:
///
///   [0, 2)    the store's uuid
///   [2]       step
///   [3]       u32 rank, u32 world size
///   [4]       u32 number of the frame, from 0 on; u32 1 in the last frame, otherwise 0
///   [5, 15)   attempt, padded with NUL
///   [15, ..)  records of the table, as in record_run.h
///
/// A part is complete as soon as its object exists.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kv/base/error.h"
#include "kv/root/internal/framed_record.h"
#include "kv/root/internal/root_record.h"
#include "kv/storage/storage.h"
#include "kv/table/internal/record_run.h"

namespace cairn::kv::internal {

inline constexpr FrameKind kPartFrame{
    .magic = "CNPT", .version = 1, .name = "part", .max_record_bytes = 1025ull << 20};
inline constexpr size_t kPartHeaderWords = 15;
/// Space for "<session>-<step>-<counter>", padded with NUL.
inline constexpr size_t kMaxAttemptBytes = 80;

struct PartHeader {
  Uuid store_uuid{};
  uint64_t step = 0;
  uint32_t rank = 0;
  uint32_t world_size = 1;
  std::string attempt;
};

/// Collects records and puts them as one object. Memory: the compressed records, and about 2 MiB.
/// Threads: one.
class PartWriter {
 public:
  /// `name` is the name of the object: "pending/<attempt>/<rank>.part". Requires
  /// `header.attempt.size() < kMaxAttemptBytes`.
  PartWriter(std::shared_ptr<Storage> storage, std::string name, const PartHeader& header);

  /// kResourceExhausted: the record has more than 1,025 MiB, or the compressed records have 2 GiB.
  Result<void> Add(const TableRecord& record);
  /// Puts the object. Nothing can be added after this. kConflict: it exists. Returns the errors of
  /// Add, too.
  Result<void> Finish();

 private:
  Result<void> EndFrame(bool is_last);

  const std::shared_ptr<Storage> storage_;
  const std::string name_;
  std::vector<uint64_t> words_;  // of the frame that is not complete
  std::vector<std::byte> object_;
  uint32_t frame_count_ = 0;
};

/// Returns the bytes of the object `name`, for ReadPart. kNotFound: there is no such object.
Result<std::vector<std::byte>> FetchPart(Storage& storage, const std::string& name);
/// Returns how long the records of `part` claim to be before compression. ReadPart calls back with
/// at most this many bytes.
uint64_t ClaimedBytes(std::span<const std::byte> part);
/// Checks a complete part, and calls `callback` with each record, which is valid only during the
/// call; its value is aligned to 8 bytes. Uses `memory` for the records, unless it is null.
/// kDataLoss: a frame is damaged, or is not one of `expected`; the error names `path` and the
/// offset of the frame. kConflict: a rank wrote it for another store. kUnimplemented: the version
/// is newer.
Result<void> ReadPart(const std::string& path, std::span<const std::byte> part,
                      const PartHeader& expected, const TableRecordCallback& callback,
                      std::vector<std::byte>* memory = nullptr);

}  // namespace cairn::kv::internal
