// kv-bench load: loads of a complete model.

#include <vector>

#include "core/checkpoint_store.h"
#include "core/load/load_options.h"
#include "kv/read/snapshot.h"
#include "tools/bench/fio.h"
#include "tools/bench/measure.h"
#include "tools/bench/model.h"
#include "tools/bench/verbs.h"
#include "tools/common/progress.h"

namespace cairn::tools {
namespace {

Result<BenchRow> LoadOnce(const core::CheckpointStore& store, const ModelMemory& model, bool warm) {
  std::vector<core::LoadRequest> requests;
  BenchRow row{.what = warm ? "warm load" : "cold load"};
  for (size_t i = 0; i < model.tensors().size(); ++i) {
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
  row.extra = {{"keys", requests.size()}, {"bytes_read", report.bytes_read}, {"cold", !warm}};
  row.note = warm ? "files as the previous save or run left them in the page cache"
                  : "every file of the store was evicted from the page cache";
  return row;
}

}  // namespace

Result<void> BenchLoad(const BenchOptions& options, BenchReport& report) {
  const Fio fio(options.directory, options.bytes);
  return WithSavedModel(
      options, "load", [&](const std::string& directory, ModelMemory& model) -> Result<void> {
        if (options.fio) CAIRN_TRY(fio.Write(0));
        for (uint64_t run = 1; run <= options.repeat; ++run) {
          model.FillAll(2);  // so that bytes that are not loaded are detected
          CAIRN_TRY_ASSIGN(const StorePointer store,
                           core::CheckpointStore::Open(directory, kv::OpenMode::kRead));
          if (!options.warm) CAIRN_TRY(EvictFromPageCache(directory));
          CAIRN_TRY_ASSIGN(BenchRow row, LoadOnce(*store, model, options.warm));
          row.run = run;
          report.Add(row);
          if (const size_t bad = model.FindMismatch(1); bad != model.tensors().size()) {
            return Fail(Error{.code = ErrorCode::kDataLoss,
                              .message = "loaded bytes differ from those that were saved",
                              .key = model.tensors()[bad].fqn});
          }
          if (options.fio) {
            CAIRN_TRY_ASSIGN(const BenchRow limit, fio.Read(run));
            report.Add(limit);
          }
        }
        report.AddRatio(options.warm ? "warm load" : "cold load", "fio read");
        return {};
      });
}

}  // namespace cairn::tools
