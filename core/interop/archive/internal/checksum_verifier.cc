#include "core/interop/archive/internal/checksum_verifier.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <mutex>

#include "core/base/internal/progress_meter.h"
#include "core/base/internal/worker_pool.h"
#include "core/interop/archive/internal/crc32.h"

namespace cairn::core::internal {
namespace {

constexpr uint64_t kBlockBytes = 8 << 20;

}  // namespace

void ChecksumVerifier::Add(const ZipReader& zip, std::shared_ptr<const kv::Mapping> mapping,
                           const std::string& path) {
  if (!zip.has_checksums()) {
    unchecked_.insert(path);
    return;
  }
  if (files_.empty() || files_.back().path != path) files_.push_back({mapping, path});
  for (const ZipMember& member : zip.members()) {
    const auto offset = static_cast<uint64_t>(member.bytes.data() - mapping->bytes().data());
    CAIRN_CHECK(offset <= mapping->bytes().size() &&
                member.bytes.size() <= mapping->bytes().size() - offset);
    items_.push_back({member.name, files_.size() - 1, offset, member.bytes.size(), member.crc32});
  }
}

Result<void> ChecksumVerifier::Verify(const Item& item) const {
  const kv::Mapping& mapping = *files_[item.file].mapping;
  uint32_t crc = 0;
  for (uint64_t done = 0; done < item.length_bytes;) {
    const uint64_t count = std::min(kBlockBytes, item.length_bytes - done);
    const uint64_t at = item.offset_bytes + done;
    auto populated = mapping.Populate(at, count);
    if (!populated) return Fail(std::move(populated).error().WithFile(files_[item.file].path));
    crc = Crc32(crc, mapping.bytes().subspan(at, count));
    // Blocks of long members are released at once; short members share pages with others.
    if (item.length_bytes > kBlockBytes) mapping.Release(at, count);
    done += count;
  }
  if (crc == item.crc32) return {};
  return Fail(Error{.code = ErrorCode::kDataLoss,
                    .message = fmt::format("'{}' does not match its checksum", item.member),
                    .file = files_[item.file].path,
                    .offset_bytes = item.offset_bytes});
}

Result<void> ChecksumVerifier::Run(const Progress& progress) const {
  uint64_t total_bytes = 0;
  for (const Item& item : items_) total_bytes += item.length_bytes;
  ProgressMeter meter(progress, total_bytes);
  WorkerPool pool(WorkerPool::DefaultThreadCount());
  std::mutex mutex;
  Result<void> outcome;
  std::atomic<bool> failed = false;
  pool.Run(items_.size(), [&](size_t i, size_t) {
    if (failed) return;
    Result<void> checked = Verify(items_[i]);
    if (checked) checked = meter.Add(items_[i].length_bytes);
    if (checked) return;
    const std::scoped_lock lock(mutex);
    if (!failed.exchange(true)) outcome = std::move(checked);
  });
  return outcome;
}

}  // namespace cairn::core::internal
