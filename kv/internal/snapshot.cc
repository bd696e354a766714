// Reading committed state.

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>

#include "kv/internal/commit/store_state.h"

namespace cairn::kv {

using internal::Index;
using internal::StepEntry;

namespace internal {

void LiveGenerations::Set(const std::vector<StepEntry>& steps) {
  std::lock_guard lock(mutex_);
  generations_.clear();
  for (const StepEntry& entry : steps) generations_.insert(entry.info.generation);
}

bool LiveGenerations::Contains(uint64_t generation) const {
  std::lock_guard lock(mutex_);
  return generations_.contains(generation);
}

Result<std::vector<StepEntry>> LoadSteps(const Index& index) {
  std::vector<StepEntry> steps;
  CAIRN_TRY(
      index.Scan(Column::kSteps, "",
                 [&](std::string_view key, std::span<const std::byte> record) -> Result<bool> {
                   CAIRN_TRY_ASSIGN(StepEntry entry, DecodeStep(record));
                   if (key != NumberKey(entry.info.step)) {
                     return Fail(Error{.code = ErrorCode::kDataLoss,
                                       .message = "a step record stands under another step's key",
                                       .step = entry.info.step});
                   }
                   steps.push_back(std::move(entry));
                   return true;
                 }));
  return steps;
}

std::shared_ptr<const Snapshot> MakeSnapshot(const StoreState& state, std::shared_ptr<Index> index,
                                             const std::vector<StepEntry>& steps) {
  auto impl = std::make_unique<Snapshot::Impl>();
  impl->paths = state.paths;
  impl->options = state.options;
  impl->writable = state.writable;
  impl->uuid = state.uuid;
  impl->index = std::move(index);
  impl->pool = state.pool;
  impl->files = state.files;
  impl->live = state.live;
  impl->entries = steps;
  for (const StepEntry& entry : steps) impl->steps.push_back(entry.info);
  return std::make_shared<const Snapshot>(std::move(impl));
}

}  // namespace internal

Snapshot::Snapshot(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Snapshot::~Snapshot() = default;

const std::vector<StepInfo>& Snapshot::steps() const { return impl_->steps; }

Result<StepInfo> Snapshot::FindStep(std::optional<uint64_t> step) const {
  const std::vector<StepInfo>& steps = impl_->steps;
  if (steps.empty()) {
    return Fail(Error{.code = ErrorCode::kNotFound,
                      .message = "the store holds no step yet",
                      .file = impl_->paths.root,
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
            .file = impl_->paths.root,
            .step = step});
}

Result<void> Snapshot::Impl::CheckStillThere(uint64_t generation) const {
  if (live == nullptr || live->Contains(generation)) return {};
  return Fail(ErrorCode::kNotFound, "the step was deleted while it was being read");
}

Result<void> Snapshot::Scan(Column column, uint64_t generation, std::string_view prefix,
                            const ScanCallback& callback) const {
  std::string full = NumberKey(generation);
  full.append(prefix);
  CAIRN_TRY(impl_->index->Scan(column, full,
                               [&](std::string_view key, std::span<const std::byte> record) {
                                 return callback(key.substr(8), record);
                               }));
  return impl_->CheckStillThere(generation);
}

Result<std::optional<std::vector<std::byte>>> Snapshot::Get(Column column, uint64_t generation,
                                                            std::string_view key) const {
  std::string full = NumberKey(generation);
  full.append(key);
  CAIRN_TRY_ASSIGN(auto record, impl_->index->Get(column, full));
  if (!record) CAIRN_TRY(impl_->CheckStillThere(generation));
  return record;
}

Result<std::optional<std::vector<std::byte>>> Snapshot::GetStructure(const Digest& digest) const {
  return impl_->index->Get(Column::kStructures, NumberKey(digest.hi) + NumberKey(digest.lo));
}

Result<SegmentInfo> Snapshot::FindSegment(uint64_t segment_id) const {
  CAIRN_TRY_ASSIGN(const auto record, impl_->index->Get(Column::kSegments, NumberKey(segment_id)));
  if (!record) {
    return Fail(Error{.code = ErrorCode::kDataLoss,
                      .message = fmt::format("the index does not know segment {:016x}", segment_id),
                      .file = impl_->paths.segments()});
  }
  return internal::DecodeSegment(*record);
}

Result<std::vector<SegmentInfo>> Snapshot::Segments() const {
  std::vector<SegmentInfo> segments;
  CAIRN_TRY(impl_->index->Scan(
      Column::kSegments, "",
      [&](std::string_view key, std::span<const std::byte> record) -> Result<bool> {
        CAIRN_TRY_ASSIGN(SegmentInfo info, internal::DecodeSegment(record));
        if (key != NumberKey(info.segment_id)) {
          return Fail(ErrorCode::kDataLoss, "a segment record stands under another segment's key");
        }
        segments.push_back(std::move(info));
        return true;
      }));
  return segments;
}

Result<std::vector<Usage>> Snapshot::SegmentUsage() const {
  std::vector<Usage> usage;
  CAIRN_TRY(impl_->index->Scan(
      Column::kUsage, "",
      [&](std::string_view key, std::span<const std::byte> record) -> Result<bool> {
        CAIRN_TRY_ASSIGN(const Usage one, internal::DecodeUsage(key, record));
        usage.push_back(one);
        return true;
      }));
  return usage;
}

Error Snapshot::Impl::MissingSegment(uint64_t segment_id, const Error& cause) const {
  bool known_now = true;
  if (live != nullptr) {
    const auto record = index->Get(Column::kSegments, NumberKey(segment_id));
    known_now = !record || record->has_value();
  } else if (const auto fresh = Index::Open(paths.root, false, false, options.deadline)) {
    const auto record = (*fresh)->Get(Column::kSegments, NumberKey(segment_id));
    known_now = !record || record->has_value();
  }
  Error error = cause;
  error.code = known_now ? ErrorCode::kDataLoss : ErrorCode::kNotFound;
  error.message = known_now ? "a segment is missing: " + cause.message
                            : "the segment went with a step that was deleted meanwhile";
  return error;
}

Result<std::shared_ptr<const internal::SegmentFile>> Snapshot::Impl::OpenSegment(
    uint64_t segment_id) const {
  const auto record = index->Get(Column::kSegments, NumberKey(segment_id));
  if (!record) return std::unexpected(record.error());
  if (!*record) {
    return Fail(MissingSegment(
        segment_id,
        Error{.code = ErrorCode::kDataLoss,
              .message = fmt::format("the index does not know segment {:016x}", segment_id),
              .file = paths.segments()}));
  }
  CAIRN_TRY_ASSIGN(const SegmentInfo info, internal::DecodeSegment(**record));
  auto file = files->Open(segment_id, paths.segments() + "/" + info.name, options.io->direct);
  if (!file && file.error().code == ErrorCode::kNotFound) {
    return Fail(MissingSegment(segment_id, file.error()));
  }
  return file;
}

Result<uint64_t> Snapshot::Read(std::span<const ReadRange> ranges, uint32_t threads,
                                const RangeCallback& arrived) const {
  return internal::ReadRanges(
      ranges, *impl_->options.io, threads, *impl_->pool,
      [&](uint64_t segment_id) { return impl_->OpenSegment(segment_id); }, arrived);
}

Result<std::optional<DirectFile>> Snapshot::OpenDirect(uint64_t segment_id) const {
  CAIRN_TRY_ASSIGN(const auto file, impl_->OpenSegment(segment_id));
  if (!file->direct.direct()) return std::nullopt;
  return DirectFile{.fd = file->direct.fd(), .path = file->direct.path(), .open = file};
}

Result<std::shared_ptr<const Mapping>> Snapshot::Map(uint64_t segment_id) const {
  CAIRN_TRY_ASSIGN(const auto file, impl_->OpenSegment(segment_id));
  CAIRN_TRY_ASSIGN(const uint64_t size_bytes, file->buffered.SizeBytes());
  if (size_bytes < internal::kSegmentHeaderBytes) {
    return Fail(Error{.code = ErrorCode::kDataLoss,
                      .message = "the segment is too short",
                      .file = file->buffered.path()});
  }
  // Private and writable, so that a caller whose tensors know no read-only memory changes its own
  // copy of a page instead of dying; the file cannot be reached through it.
  void* memory = ::mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE,
                        file->buffered.fd(), 0);
  if (memory == MAP_FAILED) {
    return Fail(SystemError(errno, "cannot map the segment", file->buffered.path()));
  }
  return std::make_shared<const Mapping>(
      std::span(static_cast<const std::byte*>(memory), size_bytes));
}

}  // namespace cairn::kv
