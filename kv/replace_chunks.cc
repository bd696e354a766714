// The chunks are moved as a compaction moves chunks that lose their deltas.

#include "kv/replace_chunks.h"

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "kv/base/copy_options.h"
#include "kv/maintain/compact_options.h"
#include "kv/maintain/internal/live_ranges.h"
#include "kv/maintain/internal/payload_mover.h"
#include "kv/maintain/internal/step_rewriter.h"
#include "kv/segment/internal/segment_description.h"
#include "kv/state/internal/store_state.h"
#include "kv/storage/internal/object_names.h"
#include "kv/store.h"

namespace cairn::kv {
namespace {

/// The chunks by the location of their last extent.
class Replacements final : public internal::PayloadMoves {
 public:
  explicit Replacements(std::span<const StoredChunk> chunks) {
    for (const StoredChunk& chunk : chunks) {
      chunk.entry.extents.ForEach(
          [&](const Extent& extent) { segments_.insert(extent.segment_id); });
      by_location_[LocationOf(chunk.entry.extents)].push_back(
          {.key = chunk.key, .entry = chunk.entry, .moved_to = {}});
    }
  }

  internal::ChunkVersion& Find(const StoredChunk& chunk) {
    return *Search(by_location_, chunk.entry.extents);
  }

  bool Contains(uint64_t segment_id) const override { return segments_.contains(segment_id); }
  std::optional<ChunkExtents> Moved(const ChunkExtents& extents) const override {
    const internal::ChunkVersion* const version = Search(by_location_, extents);
    if (version == nullptr || version->moved_to.empty()) return std::nullopt;
    return ChunkExtents(Extents(version->moved_to));
  }

 private:
  using Location = std::pair<uint64_t, uint64_t>;
  static Location LocationOf(const ChunkExtents& extents) {
    const Extent& last = extents.deltas.empty() ? extents.payload.back() : extents.deltas.back();
    return {last.segment_id, last.offset_bytes};
  }
  /// Returns the version of a chunk with these extents, or null.
  template <typename Versions>
  static auto Search(Versions& versions, const ChunkExtents& extents)
      -> decltype(versions.begin()->second.data()) {
    const auto found = versions.find(LocationOf(extents));
    if (found == versions.end()) return nullptr;
    const auto version = std::ranges::find_if(
        found->second, [&](const auto& candidate) { return candidate.entry.extents == extents; });
    return version == found->second.end() ? nullptr : &*version;
  }

  std::set<uint64_t> segments_;
  std::map<Location, std::vector<internal::ChunkVersion>> by_location_;
};

}  // namespace

Result<ReplaceReport> ReplaceChunks(
    Store& store, std::span<const StoredChunk> chunks,
    const std::function<Result<std::vector<std::byte>>(size_t i)>& bytes_of) {
  internal::StoreState& state = internal::StoreAccess::StateOf(store);
  CAIRN_TRY_ASSIGN(const auto turn, internal::TakeCompactTurn(state));
  CAIRN_TRY_ASSIGN(const auto snapshot, store.Latest());
  ReplaceReport report;
  if (chunks.empty()) return report;
  size_t next = 0;
  CompactOptions options;
  options.decode = [&](const auto&, std::string_view, const ChunkExtents&,
                       std::span<std::byte> bytes) -> Result<void> {
    CAIRN_TRY_ASSIGN(const std::vector<std::byte> found, bytes_of(next));
    if (found.size() != bytes.size()) {
      return Fail(ErrorCode::kInvalidArgument, "the new bytes of a chunk have another length");
    }
    std::ranges::copy(found, bytes.begin());
    return {};
  };
  Throttle no_limit(0);
  const internal::CompactContext context{
      .state = state, .options = options, .throttle = no_limit, .progress = [](uint64_t) {
        return Result<void>();
      }};
  const std::string name =
      internal::CompactionName(state.session, internal::NewObjectId(state.epoch).id);
  Replacements replacements(chunks);
  internal::PayloadMover mover(context, snapshot, name);
  for (; next < chunks.size(); ++next) {
    const std::array version = {&replacements.Find(chunks[next])};
    CAIRN_TRY(mover.Rewrite(version));
    report.written_bytes += chunks[next].entry.extents.payload.length_bytes();
  }
  CAIRN_TRY_ASSIGN(report.rewritten_steps, CommitMoves(state, replacements, mover));
  return report;
}

}  // namespace cairn::kv
