// 1. Plan the items, with their pickles in memory. 2. Write the archives of the items one after
//    another. 3. Write the metadata, which makes them a checkpoint.

#include "core/interop/dcp/dcp_export.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <span>
#include <utility>

#include "core/base/internal/progress_meter.h"
#include "core/interop/dcp/internal/dcp_folder.h"
#include "core/interop/dcp/internal/dcp_items.h"
#include "core/interop/dcp/internal/dcp_metadata_writer.h"
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

// An archive to be written.
struct Archive {
  size_t item = 0;  // index of its item in the metadata
  TorchPickle pickle;
  uint64_t storage_bytes = 0;
  bool begins_file = false;
};

// What is to be written, in the order of the state.
struct Plan {
  DcpMetadata metadata;  // without locations
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
    Archive archive{.item = plan.metadata.items.size(), .pickle = {}};
    if (from.is_tensor) {
      CAIRN_TRY_ASSIGN(archive.pickle, pickler.PickleTensor(from.node));
      item.tensor = OneChunk(archive.pickle.storages.front());
    } else {
      CAIRN_TRY_ASSIGN(archive.pickle, pickler.PickleNode(from.node));
    }
    for (const TensorInfo& storage : archive.pickle.storages) {
      archive.storage_bytes += storage.nbytes;
    }
    plan.metadata.items.push_back(std::move(item));
    plan.archives.push_back(std::move(archive));
  }
  return plan;
}

// Sorts values before tensors, as torch does, so that all values are read from one file; then
// decides which archives begin a file.
void ArrangeFiles(Plan& plan, uint64_t max_file_bytes) {
  std::ranges::stable_partition(plan.archives, [&](const Archive& archive) {
    return !plan.metadata.items[archive.item].tensor;
  });
  uint64_t file_bytes = 0;
  for (Archive& archive : plan.archives) {
    archive.begins_file =
        &archive == plan.archives.data() ||
        (file_bytes > 0 &&
         archive.storage_bytes > max_file_bytes - std::min(file_bytes, max_file_bytes));
    file_bytes = archive.begins_file ? archive.storage_bytes : file_bytes + archive.storage_bytes;
  }
}

// Writes the archives of a plan from the bytes of all of their storages, in order.
class ArchiveStream {
 public:
  ArchiveStream(Plan& plan, DcpFolder& folder) : plan_(plan), folder_(folder) {
    for (size_t i = 0; i < plan.archives.size(); ++i) {
      const auto& storages = plan.archives[i].pickle.storages;
      for (size_t n = 0; n < storages.size(); ++n) {
        storages_.push_back(storages[n]);
        archive_of_.emplace_back(i, n);
      }
    }
  }

  // The storages of all archives, in the order of the archives.
  std::span<const TensorInfo> storages() const { return storages_; }

  Result<void> Append(size_t storage, std::span<const std::byte> bytes) {
    const auto [archive, number] = archive_of_[storage];
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
    writer_.emplace(folder_.file(), archive.pickle);
    return writer_->Begin();
  }

  Result<void> EndArchive() {
    if (!writer_) return {};
    CAIRN_TRY_ASSIGN(const uint64_t length, writer_->Finish());
    writer_.reset();
    const DcpItem& item = plan_.metadata.items[plan_.archives[next_ - 1].item];
    std::optional<std::vector<uint64_t>> offsets;
    if (item.tensor) offsets = item.tensor->chunks.front().offsets;
    plan_.metadata.locations[{item.key, std::move(offsets)}] = {
        .file = file_, .offset_bytes = offset_bytes_, .length_bytes = length};
    offset_bytes_ += length;
    return {};
  }

  Plan& plan_;
  DcpFolder& folder_;
  std::vector<TensorInfo> storages_;
  std::vector<std::pair<size_t, size_t>>
      archive_of_;   // archive of each storage, and its number there
  size_t next_ = 0;  // the first archive that has not been begun
  std::optional<internal::TorchArchiveWriter> writer_;
  std::string file_;
  uint64_t offset_bytes_ = 0;
};

Result<std::vector<std::string>> WriteFiles(const RequestLoader& load, Plan& plan,
                                            const std::string& path,
                                            internal::ProgressMeter& progress) {
  CAIRN_TRY_ASSIGN(const auto folder, DcpFolder::Open(path));
  ArchiveStream stream(plan, *folder);
  CAIRN_TRY(ReadRowMajor(load, stream.storages(),
                         [&](size_t i, uint64_t, std::span<const std::byte> bytes) -> Result<void> {
                           CAIRN_TRY(stream.Append(i, bytes));
                           return progress.Add(bytes.size());
                         }));
  CAIRN_TRY(stream.Finish());
  CAIRN_TRY_ASSIGN(const std::string metadata, internal::WriteDcpMetadata(plan.metadata));
  return folder->Commit(metadata);
}

}  // namespace

Result<DcpExportReport> ExportDcp(const CheckpointStore& store, const Contents& contents,
                                  const std::string& folder, const DcpExportOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  CAIRN_TRY_ASSIGN(TorchPickler pickler, TorchPickler::Make(contents));
  CAIRN_TRY_ASSIGN(Plan plan, MakePlan(contents, pickler));
  ArrangeFiles(plan, options.max_file_bytes);
  const internal::TorchCounts& counts = pickler.counts();
  internal::ProgressMeter progress(options.progress, counts.bytes);
  DcpExportReport report{.files = {},
                         .tensors = counts.tensors,
                         .bytes = counts.bytes,
                         .values = counts.values,
                         .arrays = counts.arrays};
  CAIRN_TRY_ASSIGN(report.files,
                   WriteFiles(options.load ? options.load : LoaderOf(store, contents.step), plan,
                              folder, progress));
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return report;
}

}  // namespace cairn::core
