#include "core/inspect/internal/scrub_deltas.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "core/step/internal/delta_chain.h"
#include "core/step/internal/lookup.h"
#include "kv/base/digest.h"
#include "kv/base/read_range.h"

namespace cairn::core::internal {
namespace {

class DeltaScrubber {
 public:
  DeltaScrubber(const std::shared_ptr<const kv::Snapshot>& snapshot, std::string directory,
                const std::function<void(const kv::Damage&)>& damage)
      : view_{.snapshot = snapshot, .step = {}, .directory = std::move(directory)},
        damage_(damage) {}

  void Check(const ScrubItem& item) {
    const Result<void> decoded = Decode(item);
    if (decoded) {
      if (kv::PayloadDigest(bytes_) == item.chunk.digest) return;
      return Report(item, FindDamage(view_, item.fqn, item.chunk,
                                     fmt::format("chunk {} does not match its digest",
                                                 FormatNumbers(item.chunk.box.offsets))));
    }
    decoded_ = nullptr;
    Report(item, decoded.error());
  }

  uint64_t bytes_read() const { return bytes_read_; }

 private:
  /// Sets bytes_ to the bytes of the item. Continues with the bytes of the item before it, if this
  /// one has only more deltas.
  Result<void> Decode(const ScrubItem& item) {
    const ChunkInfo& chunk = item.chunk;
    if (decoded_ == nullptr || !Continues(chunk, decoded_->chunk)) {
      decoded_ = nullptr;
      CAIRN_TRY(ReadExtents(chunk));
    }
    DeltaChain chain;
    DeltaRead read{.fqn = &item.fqn,
                   .chunk = &chunk,
                   .first = decoded_ == nullptr ? 0 : decoded_->chunk.deltas.size(),
                   .chain = &chain};
    CAIRN_TRY_ASSIGN(const uint64_t bytes, ReadDeltas(view_, {&read, 1}));
    bytes_read_ += bytes;
    const Result<void> applied = chain.ApplyAll(0, bytes_);
    if (!applied) {
      return Fail(
          FindDamage(view_, item.fqn, chunk,
                     fmt::format("chunk {} cannot be decoded: {}", FormatNumbers(chunk.box.offsets),
                                 applied.error().message)));
    }
    if (!chain.empty() && kv::RootDigest(chain.page_digests(), bytes_.size()) != chunk.digest) {
      return Fail(FindDamage(view_, item.fqn, chunk,
                             fmt::format("the page digests of chunk {} do not match its record",
                                         FormatNumbers(chunk.box.offsets))));
    }
    decoded_ = &item;
    return {};
  }

  static bool Continues(const ChunkInfo& chunk, const ChunkInfo& before) {
    return chunk.extents == before.extents && before.deltas.size() <= chunk.deltas.size() &&
           std::ranges::equal(std::span(chunk.deltas).first(before.deltas.size()), before.deltas);
  }

  Result<void> ReadExtents(const ChunkInfo& chunk) {
    bytes_.resize(chunk.length_bytes());
    std::vector<kv::ReadRange> ranges;
    std::span<std::byte> rest(bytes_);
    for (const kv::Extent& extent : chunk.extents) {
      ranges.push_back({.segment_id = extent.segment_id,
                        .offset_bytes = extent.offset_bytes,
                        .target = rest.first(extent.length_bytes)});
      rest = rest.subspan(extent.length_bytes);
    }
    CAIRN_TRY_ASSIGN(const uint64_t bytes,
                     view_.snapshot->Read(ranges, 1, [](size_t, auto) { return Result<void>(); }));
    bytes_read_ += bytes;
    return {};
  }

  void Report(const ScrubItem& item, Error error) {
    if (error.key.empty()) error.key = item.fqn;
    error.step = item.step;
    damage_({std::move(error)});
  }

  const StepView view_;  // without a step; for the names of segments
  const std::function<void(const kv::Damage&)>& damage_;
  const ScrubItem* decoded_ = nullptr;  // its bytes are in bytes_; null: none
  std::vector<std::byte> bytes_;
  uint64_t bytes_read_ = 0;
};

}  // namespace

Result<uint64_t> ScrubDeltas(const std::shared_ptr<const kv::Snapshot>& snapshot,
                             const std::string& directory, std::span<const ScrubItem> items,
                             const std::function<void(const kv::Damage&)>& damage,
                             ProgressMeter& progress) {
  DeltaScrubber scrubber(snapshot, directory, damage);
  for (const ScrubItem& item : items) {
    scrubber.Check(item);
    CAIRN_TRY(progress.Add(item.chunk.length_bytes()));
  }
  return scrubber.bytes_read();
}

}  // namespace cairn::core::internal
