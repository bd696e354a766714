// 1. Sort the keys of the step: files, and the tensors of each of the weights. 2. Write all of them
//    into a temporary folder. 3. Rename the folder.

#include "core/interop/model_directory/model_export.h"

#include <fmt/format.h>

#include <chrono>
#include <filesystem>
#include <map>
#include <set>
#include <span>
#include <utility>
#include <variant>

#include "core/interop/model_directory/internal/staged_folder.h"
#include "core/interop/model_directory/model_layout.h"
#include "core/interop/safetensors/internal/durable_file.h"
#include "core/interop/safetensors/safetensors_export.h"
#include "core/upkeep/payload_reader.h"

namespace cairn::core {
namespace {

namespace fs = std::filesystem;

// A file of the step: its bytes are a value or a tensor.
struct StepFile {
  std::string name;
  const Bytes* value = nullptr;
  const TensorInfo* tensor = nullptr;
};

struct Plan {
  std::vector<StepFile> files;
  std::vector<ModelWeights> weights;
  std::map<std::string, Contents> tensors;  // by stem
  uint64_t tensors_left_out = 0;
  uint64_t values_left_out = 0;
};

std::unexpected<Error> BadFile(const std::string& fqn, std::string why) {
  return Fail(Error{.code = ErrorCode::kDataLoss, .message = std::move(why), .key = fqn});
}

// Adds a key below "__files__".
Result<void> AddFile(const std::string& fqn, const Bytes* value, const TensorInfo* tensor,
                     Plan& plan) {
  const std::string name = fqn.substr(std::min(fqn.size(), kModelFilesKey.size() + 1));
  if (!IsModelFileName(name)) {
    return BadFile(fqn, "this is not the name of a file inside of the directory");
  }
  if (name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json")) {
    return BadFile(fqn, "a file may not have the name of weights");
  }
  const bool is_bytes = value != nullptr || (tensor != nullptr && tensor->dtype == DType::kUInt8 &&
                                             tensor->shape.size() == 1);
  if (!is_bytes) return BadFile(fqn, "the contents of a file are bytes or a tensor of uint8");
  plan.files.push_back({name, value, tensor});
  if (plan.files.size() <= kMaxModelFiles) return {};
  return BadFile(fqn, fmt::format("the step has more than {} files", kMaxModelFiles));
}

Result<std::vector<ModelWeights>> FindWeights(const Contents& contents) {
  for (const ValueInfo& value : contents.values) {
    if (value.fqn != kModelWeightsKey) continue;
    const auto* const text = std::get_if<std::string>(&value.value);
    return DecodeModelWeights(text == nullptr ? "" : *text);
  }
  return Fail(
      Error{.code = ErrorCode::kInvalidArgument,
            .message = fmt::format("the step has no '{}', so it was not saved as a model: add "
                                   "cairn.hf.describe(model) to the states that are "
                                   "saved; --format safetensors exports any step",
                                   kModelWeightsKey),
            .step = contents.step.step});
}

Result<void> CheckFileSizes(const Plan& plan) {
  uint64_t all_bytes = 0;
  for (const StepFile& file : plan.files) {
    const uint64_t bytes = file.value != nullptr ? file.value->data.size() : file.tensor->nbytes;
    if (bytes > kMaxModelFileBytes || all_bytes + bytes > kMaxAllModelFileBytes) {
      return BadFile(file.name, fmt::format("a file of {} bytes is too long", bytes));
    }
    all_bytes += bytes;
  }
  return {};
}

Result<Plan> MakePlan(const Contents& contents) {
  Plan plan;
  CAIRN_TRY_ASSIGN(plan.weights, FindWeights(contents));
  for (const ModelWeights& weights : plan.weights) {
    plan.tensors[weights.stem].step = contents.step;
  }
  for (const ValueInfo& value : contents.values) {
    if (IsBelowKey(value.fqn, kModelFilesKey)) {
      CAIRN_TRY(AddFile(value.fqn, std::get_if<Bytes>(&value.value), nullptr, plan));
    } else if (value.fqn != kModelWeightsKey) {
      ++plan.values_left_out;
    }
  }
  for (const TensorInfo& tensor : contents.tensors) {
    if (tensor.hidden) continue;
    if (IsBelowKey(tensor.fqn, kModelFilesKey)) {
      CAIRN_TRY(AddFile(tensor.fqn, nullptr, &tensor, plan));
    } else if (const ModelWeights* const weights = FindModelWeights(plan.weights, tensor.fqn)) {
      plan.tensors[weights->stem].tensors.push_back(tensor);
    } else {
      ++plan.tensors_left_out;
    }
  }
  CAIRN_TRY(CheckFileSizes(plan));
  return plan;
}

Result<void> WriteFile(const RequestLoader& load, const StepFile& file, const fs::path& path) {
  std::error_code error;
  fs::create_directories(path.parent_path(), error);
  if (error) return Fail(SystemError(error.value(), "cannot create the directory", path.string()));
  CAIRN_TRY_ASSIGN(const auto writer, internal::DurableFile::Create(path.string()));
  if (file.value != nullptr) {
    CAIRN_TRY(writer->Write(file.value->data));
  } else {
    CAIRN_TRY(ReadRowMajor(
        load, {file.tensor, 1},
        [&](size_t, uint64_t, std::span<const std::byte> bytes) { return writer->Write(bytes); }));
  }
  return writer->Finish();
}

// Progress of several exports as one.
class JoinedProgress {
 public:
  JoinedProgress(const Progress& progress, uint64_t total_bytes)
      : progress_(progress), total_bytes_(total_bytes) {}
  Progress part(uint64_t begin_bytes) const {
    if (!progress_) return {};
    return [this, begin_bytes](uint64_t done_bytes, uint64_t) {
      return progress_(begin_bytes + done_bytes, total_bytes_);
    };
  }

 private:
  const Progress& progress_;
  uint64_t total_bytes_;
};

Result<void> WriteWeights(const CheckpointStore& store, const Plan& plan, const fs::path& folder,
                          const ModelExportOptions& options, ModelExportReport& report) {
  uint64_t total_bytes = 0;
  for (const auto& [stem, contents] : plan.tensors) {
    for (const TensorInfo& tensor : contents.tensors) total_bytes += tensor.nbytes;
  }
  const JoinedProgress progress(options.progress, total_bytes);
  for (const ModelWeights& weights : plan.weights) {
    SafetensorsExportOptions how{.max_shard_bytes = options.max_shard_bytes,
                                 .name_prefix = weights.fqn_prefix(),
                                 .metadata = weights.metadata,
                                 .progress = progress.part(report.bytes),
                                 .load = options.load};
    CAIRN_TRY_ASSIGN(const SafetensorsExportReport written,
                     ExportSafetensors(store, plan.tensors.at(weights.stem),
                                       (folder / (weights.stem + ".safetensors")).string(), how));
    for (const std::string& file : written.files) report.files.push_back(file);
    report.tensors += written.tensors;
    report.bytes += written.bytes;
  }
  return {};
}

}  // namespace

Result<ModelExportReport> ExportModelDirectory(const CheckpointStore& store,
                                               const Contents& contents, const std::string& out,
                                               const ModelExportOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  CAIRN_TRY_ASSIGN(const Plan plan, MakePlan(contents));
  CAIRN_TRY_ASSIGN(const auto folder, internal::StagedFolder::Open(out, options.overwrite));
  ModelExportReport report{.tensors_left_out = plan.tensors_left_out,
                           .values_left_out = plan.values_left_out};
  const fs::path temporary = folder->temporary();
  const RequestLoader load = options.load ? options.load : LoaderOf(store, contents.step);
  CAIRN_TRY(WriteWeights(store, plan, temporary, options, report));
  for (const StepFile& file : plan.files) {
    CAIRN_TRY(WriteFile(load, file, temporary / file.name));
    report.files.push_back((temporary / file.name).string());
  }
  CAIRN_TRY(folder->Commit());
  for (std::string& file : report.files) {
    file = (fs::path(out) / fs::path(file).lexically_relative(temporary)).string();
  }
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return report;
}

}  // namespace cairn::core
