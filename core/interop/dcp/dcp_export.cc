// 1. Items and their pickles, in memory. 2. Archives, one behind another. 3. The metadata.

#include "core/interop/dcp/dcp_export.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <span>
#include <utility>

#include "core/interop/dcp/internal/dcp_folder.h"
#include "core/interop/dcp/internal/dcp_items.h"
#include "core/interop/dcp/internal/dcp_metadata.h"
#include "core/base/internal/progress_meter.h"
#include "core/interop/torch/internal/torch_archive_writer.h"
#include "core/interop/torch/internal/torch_pickler.h"
#include "core/payload_reader.h"

namespace cairn::core {
namespace {

using internal::DcpFolder;
using internal::DcpItem;
using internal::DcpMetadata;
using internal::DcpTreeItem;
using internal::TorchPickle;
using internal::TorchPickler;

// An archive to be written. Its item is that of the metadata with the same index.
struct Archive {
  size_t item = 0;
  TorchPickle what;
  uint64_t bytes = 0;  // of its storages
  bool begins_file = false;
};

// What will be written, in the order of the state.
struct Plan {
  DcpMetadata metadata;  // without places
  std::vector<Archive> archives;
};

internal::DcpTensor OneChunk(const TensorInfo& tensor) {
  return {.dtype = tensor.dtype, .shape = tensor.shape, .chunks = {WholeBox(tensor.shape)}};
}

Result<Plan> MakePlan(const Contents& contents, TorchPickler& pickler) {
  CAIRN_TRY_ASSIGN(std::vector<DcpTreeItem> items, internal::CutIntoDcpItems(contents.tree));
  Plan plan;
  for (DcpTreeItem& from : items) {
    DcpItem item{.key = std::move(from.key), .tensor = {}, .path = std::move(from.path)};
    TorchPickle what;
    if (from.is_tensor) {
      CAIRN_TRY_ASSIGN(what, pickler.TensorAlone(from.node));
      item.tensor = OneChunk(what.storages.front());
    } else {
      CAIRN_TRY_ASSIGN(what, pickler.Object(from.node));
    }
    Archive archive{.item = plan.metadata.items.size(), .what = std::move(what)};
    for (const TensorInfo& storage : archive.what.storages) archive.bytes += storage.nbytes;
    plan.metadata.items.push_back(std::move(item));
    plan.archives.push_back(std::move(archive));
  }
  return plan;
}

// Values before tensors, as torch writes them: they are read from one place. Then files.
void Arrange(Plan& plan, uint64_t max_file_bytes) {
  std::ranges::stable_partition(plan.archives, [&](const Archive& archive) {
    return !plan.metadata.items[archive.item].tensor;
  });
  uint64_t file_bytes = 0;
  for (Archive& archive : plan.archives) {
    archive.begins_file =
        &archive == plan.archives.data() ||
        (file_bytes > 0 && archive.bytes > max_file_bytes - std::min(file_bytes, max_file_bytes));
    file_bytes = archive.begins_file ? archive.bytes : file_bytes + archive.bytes;
  }
}

// The archives of a plan, from the bytes of all their storages in a row.
class ArchiveStream {
 public:
  ArchiveStream(Plan& plan, DcpFolder& folder) : plan_(plan), folder_(folder) {
    for (size_t i = 0; i < plan.archives.size(); ++i) {
      const auto& storages = plan.archives[i].what.storages;
      for (size_t n = 0; n < storages.size(); ++n) {
        storages_.push_back(storages[n]);
        places_.emplace_back(i, n);
      }
    }
  }

  // Of all archives in their order.
  std::span<const TensorInfo> storages() const { return storages_; }

  Result<void> Append(size_t storage, std::span<const std::byte> bytes) {
    const auto [archive, number] = places_[storage];
    while (next_ <= archive) CAIRN_TRY(BeginArchive());
    return writer_->Append(number, bytes);
  }

  Result<void> Finish() {
    while (next_ < plan_.archives.size()) CAIRN_TRY(BeginArchive());
    return EndArchive();
  }

 private:
  Result<void> BeginArchive() {
    CAIRN_TRY(EndArchive());
    const Archive& archive = plan_.archives[next_++];
    if (archive.begins_file) {
      CAIRN_TRY_ASSIGN(file_, folder_.BeginFile());
      offset_bytes_ = 0;
    }
    writer_.emplace(folder_.file(), archive.what);
    return writer_->Begin();
  }

  Result<void> EndArchive() {
    if (!writer_) return {};
    CAIRN_TRY_ASSIGN(const uint64_t length, writer_->Finish());
    writer_.reset();
    const DcpItem& item = plan_.metadata.items[plan_.archives[next_ - 1].item];
    std::optional<std::vector<uint64_t>> offsets;
    if (item.tensor) offsets = item.tensor->chunks.front().offsets;
    plan_.metadata.places[{item.key, std::move(offsets)}] = {
        .file = file_, .offset_bytes = offset_bytes_, .length_bytes = length};
    offset_bytes_ += length;
    return {};
  }

  Plan& plan_;
  DcpFolder& folder_;
  std::vector<TensorInfo> storages_;
  std::vector<std::pair<size_t, size_t>> places_;  // archive and number of each storage
  size_t next_ = 0;                                // archive that is not yet begun
  std::optional<internal::TorchArchiveWriter> writer_;
  std::string file_;
  uint64_t offset_bytes_ = 0;
};

Result<std::vector<std::string>> WriteFiles(const CheckpointStore& store, const kv::StepInfo& step,
                                            Plan& plan, const std::string& path,
                                            internal::ProgressMeter& progress) {
  CAIRN_TRY_ASSIGN(const auto folder, DcpFolder::Open(path));
  ArchiveStream stream(plan, *folder);
  CAIRN_TRY(ReadRowMajor(store, step, stream.storages(),
                         [&](size_t i, uint64_t, std::span<const std::byte> bytes) -> Result<void> {
                           CAIRN_TRY(stream.Append(i, bytes));
                           return progress.Add(bytes.size());
                         }));
  CAIRN_TRY(stream.Finish());
  return folder->Commit(internal::WriteDcpMetadata(plan.metadata));
}

}  // namespace

Result<DcpExportReport> ExportDcp(const CheckpointStore& store, const Contents& contents,
                                  const std::string& folder, const DcpExportOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  CAIRN_TRY_ASSIGN(TorchPickler pickler, TorchPickler::Make(contents));
  CAIRN_TRY_ASSIGN(Plan plan, MakePlan(contents, pickler));
  Arrange(plan, options.max_file_bytes);
  const internal::TorchCounts& counts = pickler.counts();
  internal::ProgressMeter progress(options.progress, counts.bytes);
  DcpExportReport report{.files = {},
                         .tensors = counts.tensors,
                         .bytes = counts.bytes,
                         .values = counts.values,
                         .arrays = counts.arrays};
  CAIRN_TRY_ASSIGN(report.files, WriteFiles(store, contents.step, plan, folder, progress));
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return report;
}

}  // namespace cairn::core
