#pragma once
/// Steps with known contents, which are saved and loaded only through the kv API.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kv/base/options.h"
#include "kv/base/step_info.h"
#include "kv/read/snapshot.h"
#include "kv/step_writer.h"
#include "kv/storage/storage.h"
#include "kv/store.h"

namespace cairn::kv::testing {

/// The size of a sample. Tensors have from 0 to `largest_bytes` bytes.
struct SampleShape {
  uint32_t tensor_count = 6;
  uint64_t largest_bytes = 200'000;
};

/// The contents are a function of (step, version, shape). Every other tensor is "frozen": it is the
/// same in all steps, so that saves after the first refer to bytes that exist already.
struct SampleStep {
  uint64_t step = 0;
  uint64_t version = 0;
  std::map<std::string, std::vector<std::byte>> tensors;  // by FQN
  friend bool operator==(const SampleStep&, const SampleStep&) = default;
};

/// Tensors are split into chunks of this many bytes: one full page and a short one.
inline constexpr uint64_t kSampleChunkBytes = 80'000;

SampleStep MakeSample(uint64_t step, uint64_t version = 0, const SampleShape& shape = {});

/// Pseudo-random bytes, the same for the same seed.
std::vector<std::byte> RandomBytes(uint64_t seed, uint64_t length_bytes);

/// Saves with real records, so that core could load it too. Chunks whose digest equals that of the
/// latest step become references.
Result<StepInfo> SaveSample(Store& store, const SampleStep& sample, bool overwrite = false);

/// Appends the payload and adds it under `key`, as all of a chunk with one dimension.
Result<Extent> SaveChunk(StepWriter& writer, uint64_t step, const std::string& key,
                         const Payload& payload,
                         SegmentAlignment alignment = SegmentAlignment::k64);

/// One rank's share of a save by several ranks: each writes a part of the tensors. Rank 0 gathers
/// the parts and commits. The others prepare their parts, and receive the writer, which awaits the
/// decision, in `prepared`.
Result<StepInfo> SaveSampleOfRank(Store& store, const SampleStep& sample,
                                  const BeginOptions& options,
                                  std::unique_ptr<StepWriter>& prepared);

/// Saves a sample from several ranks. `others` are stores that joined `store`; each rank writes a
/// part of the tensors, and all have prepared their parts before rank 0 commits. A failure is
/// published to the other ranks, as core does. With `patience`, no rank waits longer than this for
/// the parts, and the other ranks wait as long for the decision. The error is kInternal if rank 0
/// fails, but another rank learns that the step is committed.
Result<StepInfo> SaveSampleByRanks(
    Store& store, std::span<const std::unique_ptr<Store>> others, const SampleStep& sample,
    std::optional<std::chrono::milliseconds> patience = std::nullopt);

/// Joins the session of `writer`, which has opened `place` (an address or a storage).
template <typename Place>
Result<std::unique_ptr<Store>> JoinSession(const Place& place, Store& writer,
                                           StoreOptions options = {}) {
  CAIRN_TRY_ASSIGN(options.session, writer.OpenSession());
  return Store::Open(place, OpenMode::kJoinSession, options);
}

/// What StepWriter::Gather adds: the chunks and the shared records of other ranks, as "rank:FQN"
/// in the order in which they were added.
class OtherRanks final : public RankRecords {
 public:
  Result<void> AddShared(uint32_t rank, Column column, std::string_view key,
                         std::span<const std::byte> value) override;
  Result<void> AddChunk(const RankChunk& chunk) override;

  std::vector<std::string> shared;
  std::vector<std::string> chunks;
};

/// Returns the newest snapshot of the store in `place` (an address or a storage), as a reader that
/// opens it now.
template <typename Place>
Result<std::shared_ptr<const Snapshot>> ReadLatest(const Place& place,
                                                   const StoreOptions& options = {}) {
  CAIRN_TRY_ASSIGN(const auto store, Store::Open(place, OpenMode::kRead, options));
  return store->Latest();
}

/// Reads every record and byte of a step and checks every digest. kDataLoss names the key.
Result<SampleStep> LoadSample(const Snapshot& snapshot,
                              std::optional<uint64_t> step = std::nullopt);

using Steps = std::map<uint64_t, SampleStep>;
/// Loads all steps of the current snapshot of `store`.
Result<Steps> LoadAllFrom(const Store& store);
/// Opens `directory` for reading and loads all of its steps.
Result<Steps> LoadAll(const std::string& directory);

/// Returns what VerifyFiles reports, one string per problem.
Result<std::vector<std::string>> Verify(const Snapshot& snapshot);

/// Returns the names of the objects that neither a step nor the list of removed objects reaches.
/// Empty after every open for writing.
Result<std::vector<std::string>> FindLeftovers(const std::string& address);
Result<std::vector<std::string>> FindLeftovers(const std::shared_ptr<Storage>& storage);

}  // namespace cairn::kv::testing
