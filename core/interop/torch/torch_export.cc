#include "core/interop/torch/torch_export.h"

#include <chrono>

#include "core/base/internal/progress_meter.h"
#include "core/interop/archive/internal/durable_file.h"
#include "core/interop/torch/internal/torch_archive_writer.h"
#include "core/interop/torch/internal/torch_pickler.h"
#include "core/payload_reader.h"

namespace cairn::core {

Result<TorchExportReport> ExportTorch(const CheckpointStore& store, const Contents& contents,
                                      const std::string& path, const Progress& progress,
                                      const RequestLoader& load) {
  const auto start = std::chrono::steady_clock::now();
  CAIRN_TRY_ASSIGN(auto pickler, internal::TorchPickler::Make(contents));
  CAIRN_TRY_ASSIGN(const internal::TorchPickle state, pickler.PickleNode(0));
  const internal::TorchCounts& counts = pickler.counts();
  CAIRN_TRY_ASSIGN(const auto file, internal::DurableFile::Create(path));
  internal::TorchArchiveWriter archive(*file, state);
  CAIRN_TRY(archive.Begin());
  internal::ProgressMeter meter(progress, counts.bytes);
  CAIRN_TRY(ReadRowMajor(load ? load : LoaderOf(store, contents.step), state.storages,
                         [&](size_t i, uint64_t, std::span<const std::byte> bytes) -> Result<void> {
                           CAIRN_TRY(archive.Append(i, bytes));
                           return meter.Add(bytes.size());
                         }));
  CAIRN_TRY(archive.Finish());
  CAIRN_TRY(file->Finish());
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  return TorchExportReport{.tensors = counts.tensors,
                           .bytes = counts.bytes,
                           .values = counts.values,
                           .arrays = counts.arrays,
                           .seconds = took.count()};
}

}  // namespace cairn::core
