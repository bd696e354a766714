// Reading committed state.

#include "kv/snapshot.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>

#include "kv/internal/segment/read_scheduler.h"
#include "kv/internal/snapshot_state.h"
#include "kv/internal/verify_files.h"
#include "kv/mapping.h"
#include "kv/read_range.h"
#include "kv/step_info.h"

namespace cairn::kv {

Snapshot::Snapshot(std::unique_ptr<const internal::SnapshotState> state)
    : state_(std::move(state)) {}
Snapshot::~Snapshot() = default;

const std::vector<StepInfo>& Snapshot::steps() const { return state_->steps; }

Result<StepInfo> Snapshot::FindStep(std::optional<uint64_t> step) const {
  const std::vector<StepInfo>& steps = state_->steps;
  if (steps.empty()) {
    return Fail(Error{.code = ErrorCode::kNotFound,
                      .message = "the store has no steps yet",
                      .file = state_->paths.root,
                      .step = step});
  }
  if (!step) return steps.back();
  const auto found = std::ranges::lower_bound(steps, *step, {}, &StepInfo::step);
  if (found != steps.end() && found->step == *step) return *found;
  std::vector<uint64_t> known;
  const size_t shown = std::min<size_t>(steps.size(), 8);
  for (size_t i = steps.size() - shown; i < steps.size(); ++i) known.push_back(steps[i].step);
  return Fail(
      Error{.code = ErrorCode::kNotFound,
            .message = fmt::format("no such step; the store has {}{}",
                                   shown < steps.size() ? "..., " : "", fmt::join(known, ", ")),
            .file = state_->paths.root,
            .step = step});
}

Result<void> Snapshot::Scan(Column column, uint64_t generation, std::string_view prefix,
                            const ScanCallback& callback) const {
  std::string full = NumberKey(generation);
  full.append(prefix);
  CAIRN_TRY(state_->index->Scan(column, full,
                                [&](std::string_view key, std::span<const std::byte> record) {
                                  return callback(key.substr(8), record);
                                }));
  return state_->CheckNotDeleted(generation);
}

Result<std::optional<std::vector<std::byte>>> Snapshot::Get(Column column, uint64_t generation,
                                                            std::string_view key) const {
  std::string full = NumberKey(generation);
  full.append(key);
  CAIRN_TRY_ASSIGN(auto record, state_->index->Get(column, full));
  if (!record) CAIRN_TRY(state_->CheckNotDeleted(generation));
  return record;
}

Result<std::optional<std::vector<std::byte>>> Snapshot::GetStructure(const Digest& digest) const {
  return state_->index->Get(Column::kStructures, NumberKey(digest.hi) + NumberKey(digest.lo));
}

Result<SegmentInfo> Snapshot::FindSegment(uint64_t segment_id) const {
  CAIRN_TRY_ASSIGN(const auto record, state_->index->Get(Column::kSegments, NumberKey(segment_id)));
  if (!record) {
    return Fail(Error{.code = ErrorCode::kDataLoss,
                      .message = fmt::format("the index has no segment {:016x}", segment_id),
                      .file = state_->paths.segments()});
  }
  return internal::DecodeSegment(*record);
}

Result<std::vector<SegmentInfo>> Snapshot::Segments() const {
  std::vector<SegmentInfo> segments;
  CAIRN_TRY(state_->index->Scan(
      Column::kSegments, "",
      [&](std::string_view key, std::span<const std::byte> record) -> Result<bool> {
        CAIRN_TRY_ASSIGN(SegmentInfo info, internal::DecodeSegment(record));
        if (key != NumberKey(info.segment_id)) {
          return Fail(ErrorCode::kDataLoss, "a segment record is under the key of another segment");
        }
        segments.push_back(std::move(info));
        return true;
      }));
  return segments;
}

Result<std::vector<Usage>> Snapshot::SegmentUsage() const {
  std::vector<Usage> usage;
  CAIRN_TRY(state_->index->Scan(
      Column::kUsage, "",
      [&](std::string_view key, std::span<const std::byte> record) -> Result<bool> {
        CAIRN_TRY_ASSIGN(const Usage one, internal::DecodeUsage(key, record));
        usage.push_back(one);
        return true;
      }));
  return usage;
}

Result<uint64_t> Snapshot::Read(std::span<const ReadRange> ranges, uint32_t threads,
                                const RangeCallback& arrived) const {
  return internal::ReadRanges(
      ranges, *state_->options.io, threads, *state_->pool,
      [&](uint64_t segment_id) { return state_->OpenSegment(segment_id); }, arrived);
}

Result<std::optional<DirectFile>> Snapshot::OpenDirect(uint64_t segment_id) const {
  CAIRN_TRY_ASSIGN(const auto file, state_->OpenSegment(segment_id));
  if (!file->direct.direct()) return std::nullopt;
  return DirectFile{.fd = file->direct.fd(), .path = file->direct.path(), .open = file};
}

Result<std::shared_ptr<const Mapping>> Snapshot::Map(uint64_t segment_id) const {
  CAIRN_TRY_ASSIGN(const auto file, state_->OpenSegment(segment_id));
  CAIRN_TRY_ASSIGN(const uint64_t size_bytes, file->buffered.SizeBytes());
  if (size_bytes < internal::kSegmentHeaderBytes) {
    return Fail(Error{.code = ErrorCode::kDataLoss,
                      .message = "the segment is too short",
                      .file = file->buffered.path()});
  }
  // The mapping is private and writable, because torch's tensors cannot be read-only: a caller that
  // writes to one changes its own copy of a page and does not crash. The file cannot be changed
  // through it.
  void* memory = ::mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE,
                        file->buffered.fd(), 0);
  if (memory == MAP_FAILED) {
    return Fail(SystemError(errno, "cannot map the segment", file->buffered.path()));
  }
  return std::make_shared<const Mapping>(
      std::span(static_cast<const std::byte*>(memory), size_bytes));
}

Result<void> Snapshot::VerifyFiles(const std::function<void(Damage)>& damage) const {
  const auto scan_chunks = [this](uint64_t generation, const ScanCallback& callback) {
    return Scan(Column::kChunks, generation, "", callback);
  };
  return internal::VerifyFiles(
      *state_, {.segments = Segments(), .usage = SegmentUsage(), .scan_chunks = scan_chunks},
      damage);
}

}  // namespace cairn::kv
