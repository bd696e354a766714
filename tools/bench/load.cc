// kv-bench load and partial: loads of a complete model and of one key in a hundred.

#include <fmt/format.h>

#include <algorithm>

#include "core/checkpoint_store.h"
#include "core/load/load_options.h"
#include "kv/read/snapshot.h"
#include "tools/bench/fio.h"
#include "tools/bench/page_cache.h"
#include "tools/bench/saved_model.h"
#include "tools/bench/verbs.h"
#include "tools/common/progress.h"

namespace cairn::tools {
namespace {

Result<BenchRow> LoadOnce(const core::CheckpointStore& store, const ModelMemory& model,
                          const std::vector<size_t>& chosen) {
  std::vector<core::LoadRequest> requests;
  BenchRow row;
  for (const size_t i : chosen) {
    const BenchTensor& tensor = model.tensors()[i];
    requests.push_back({tensor.fqn,
                        core::WholeBox(tensor.shape),
                        {tensor.dtype, tensor.shape, {}, model.bytes_of(i).data()}});
    row.bytes += tensor.nbytes;
  }
  CAIRN_TRY_ASSIGN(const auto snapshot, store.kv().Latest());
  CAIRN_TRY_ASSIGN(const kv::StepInfo step, snapshot->FindStep(1));
  ProgressLine progress("loading");
  const Meter meter;
  CAIRN_TRY_ASSIGN(const core::LoadReport report, store.Load(step, requests, progress.callback()));
  row.measured = meter.Stop();
  const double ratio = static_cast<double>(report.bytes_read) / static_cast<double>(row.bytes);
  row.extra = {
      {"keys", chosen.size()}, {"bytes_read", report.bytes_read}, {"bytes_read_ratio", ratio}};
  row.note = fmt::format("cold, {} of {} keys; read {:.4f} of their bytes", chosen.size(),
                         model.tensors().size(), ratio);
  return row;
}

Result<void> CheckLoaded(const ModelMemory& model, const std::vector<size_t>& chosen) {
  for (const size_t i : chosen) {
    const auto loaded = model.bytes_of(i);
    const std::vector<std::byte> copy(loaded.begin(), loaded.end());
    model.Fill(i, 1);
    if (!std::equal(copy.begin(), copy.end(), loaded.begin())) {
      return Fail(Error{.code = ErrorCode::kDataLoss,
                        .message = "loaded bytes differ from those that were saved",
                        .key = model.tensors()[i].fqn});
    }
  }
  return {};
}

std::vector<size_t> EveryTensor(const ModelMemory& model) {
  std::vector<size_t> all(model.tensors().size());
  for (size_t i = 0; i < all.size(); ++i) all[i] = i;
  return all;
}

/// Every hundredth key, starting at a different key in each run.
std::vector<size_t> OnePercent(const ModelMemory& model, uint64_t run) {
  constexpr uint64_t kStride = 100;
  const uint64_t count = model.tensors().size();
  std::vector<size_t> chosen;
  for (size_t i = run * 37 % std::min(kStride, count); i < count; i += kStride) chosen.push_back(i);
  return chosen;
}

}  // namespace

Result<void> BenchLoad(const BenchOptions& options, BenchReport& report) {
  const FioFile fio_file{options.directory};
  return WithSavedModel(
      options, "load", [&](const std::string& directory, ModelMemory& model) -> Result<void> {
        if (options.fio) CAIRN_TRY(FioWrite(options.directory, options.bytes));
        const std::string what = options.warm ? "warm load" : "cold load";
        for (uint64_t run = 1; run <= options.repeat; ++run) {
          model.FillAll(2);  // so that bytes that are not loaded are detected
          CAIRN_TRY_ASSIGN(const StorePointer store,
                           core::CheckpointStore::Open(directory, kv::OpenMode::kRead));
          if (!options.warm) CAIRN_TRY(EvictFromPageCache(directory));
          CAIRN_TRY_ASSIGN(BenchRow row, LoadOnce(*store, model, EveryTensor(model)));
          row.verb = "load", row.what = what, row.run = run;
          row.extra["cold"] = !options.warm;
          row.note = options.warm ? "files as the previous save or run left them in the page cache"
                                  : "every file of the store was evicted from the page cache";
          report.Add(row);
          if (const size_t bad = model.FindMismatch(1); bad != model.tensors().size()) {
            return Fail(Error{.code = ErrorCode::kDataLoss,
                              .message = "loaded bytes differ from those that were saved",
                              .key = model.tensors()[bad].fqn});
          }
          if (options.fio) {
            CAIRN_TRY_ASSIGN(const FioResult fio, FioRead(options.directory, options.bytes));
            report.Add(FioRow("load", "fio read", run, fio));
          }
        }
        report.AddRatio("load", what, "fio read");
        return {};
      });
}

Result<void> BenchPartial(const BenchOptions& options, BenchReport& report) {
  return WithSavedModel(
      options, "partial", [&](const std::string& directory, ModelMemory& model) -> Result<void> {
        for (uint64_t run = 1; run <= options.repeat; ++run) {
          const std::vector<size_t> chosen = OnePercent(model, run);
          for (const size_t i : chosen) model.Fill(i, 2);
          CAIRN_TRY_ASSIGN(const StorePointer store,
                           core::CheckpointStore::Open(directory, kv::OpenMode::kRead));
          CAIRN_TRY(EvictFromPageCache(directory));
          CAIRN_TRY_ASSIGN(BenchRow row, LoadOnce(*store, model, chosen));
          CAIRN_TRY(CheckLoaded(model, chosen));
          row.verb = "partial", row.what = "1 % of keys", row.run = run;
          report.Add(row);
        }
        return {};
      });
}

}  // namespace cairn::tools
