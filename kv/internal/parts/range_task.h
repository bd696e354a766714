#pragma once
/// What rank 0 and a merging rank exchange about one range of keys, as objects in
/// pending/<attempt>/ with the format of parts (docs/format/part.md):
///
///   <range>.merge    rank 0 -> merging rank: the range, what to read, and what the table is
///                    compared with
///   <range>.merged   merging rank -> rank 0: the table, and what rank 0 checks and adds up

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "kv/error.h"
#include "kv/internal/parts/part_file.h"
#include "kv/internal/parts/section_index.h"
#include "kv/internal/records/kv_records.h"
#include "kv/storage.h"

namespace cairn::kv::internal {

struct RangeTask {
  std::string begin;  // the name of its first tensor, FQN and NUL; empty: the first range
  std::string end;    // that of the next range; empty: the last range
  std::vector<SectionRead> reads;
  std::vector<std::pair<uint32_t, std::string>> shared;  // rank and digest, in the order of ranks
  std::vector<TableInfo> kept;  // the tables after the new one, newest first
};

struct RangeResult {
  TableInfo table;  // without records if nothing in the range differs from the tables kept
  uint64_t chunk_count = 0;
  std::vector<std::pair<uint64_t, uint64_t>> uses;  // segment ids, and bytes of chunks in them
  std::vector<std::byte> summary;                   // of RangeRecords::Summarize
};

/// Headers are those of the parts of the attempt; their rank and time are ignored.
Result<void> PutTask(const std::shared_ptr<Storage>& storage, const PartHeader& header,
                     uint32_t range, const RangeTask& task);
Result<void> PutResult(const std::shared_ptr<Storage>& storage, const PartHeader& header,
                       uint32_t range, const RangeResult& result);
/// kNotFound: there is none yet. kDataLoss: it is damaged; names the object.
Result<RangeTask> ReadTask(Storage& storage, const PartHeader& header, uint32_t range);
Result<RangeResult> ReadResult(Storage& storage, const PartHeader& header, uint32_t range);

std::string TaskName(const std::string& attempt, uint32_t range);
std::string ResultName(const std::string& attempt, uint32_t range);

}  // namespace cairn::kv::internal
