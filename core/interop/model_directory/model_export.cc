// 1. Sort the keys of the step: files, and the tensors of each of the weights. 2. Write all of them
//    into a temporary folder. 3. Rename the folder.

#include "core/interop/model_directory/model_export.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <system_error>
#include <utility>
#include <variant>

#include "core/interop/model_directory/model_layout.h"
#include "core/interop/safetensors/internal/durable_file.h"
#include "core/interop/safetensors/safetensors_export.h"
#include "core/step/internal/lookup.h"
#include "kv/base/catch_exhaustion.h"

namespace cairn::core {
namespace {

namespace fs = std::filesystem;

// A directory of other things must not be replaced because of a mistyped path.
constexpr std::array<const char*, 3> kModelFiles = {"config.json", "model_index.json",
                                                    "adapter_config.json"};

constexpr const char* kStoreFile = "CAIRN";  // in the directory of a store

Result<void> CheckReplaceable(const fs::path& path) {
  const auto conflict = [&](const char* why) {
    return Fail(Error{.code = ErrorCode::kConflict, .message = why, .file = path.string()});
  };
  bool is_model = false;
  std::error_code error;
  for (const char* name : kModelFiles) is_model = is_model || fs::exists(path / name, error);
  if (!is_model) return conflict("the directory is not that of a model, and is not replaced");
  fs::recursive_directory_iterator entries(path, error);
  for (; !error && entries != fs::recursive_directory_iterator(); entries.increment(error)) {
    const std::string name = entries->path().filename().string();
    if (name.starts_with('.')) {
      return conflict("the directory has hidden files, such as those of git, and is not replaced");
    }
    if (name == kStoreFile) {
      return conflict("the directory has a store of Cairn, and is not replaced");
    }
  }
  if (error) return Fail(SystemError(error.value(), "reading the directory", path.string()));
  return {};
}

/// A directory that appears complete or not at all.
///
/// 1. The caller writes all files into a temporary folder "PATH.PID.tmp" next to the directory.
/// 2. Commit syncs the folders and renames the temporary folder to PATH. If PATH is a directory
///    that is to be replaced, the two exchange their names, and the old one is removed.
///
/// A crash at any time therefore leaves the old directory or the new one under PATH. On a file
/// system that cannot exchange names, it may leave none; both then have temporary names. Without
/// Commit the destructor removes the temporary folder.
///
/// Threads: one. Requires that nobody else writes to the directory.
class StagedFolder {
 public:
  /// Creates the temporary folder and the parents of `path`. kInvalidArgument: `path` is a file.
  /// kConflict: it is a directory that is not empty, and `overwrite` is false, or IsReplaceable
  /// does not accept it.
  static Result<std::unique_ptr<StagedFolder>> Open(const std::string& path, bool overwrite) {
    std::unique_ptr<StagedFolder> folder(new StagedFolder());
    std::error_code error;
    // Through symbolic links, so that the directory is replaced and not the link to it.
    folder->path_ = fs::weakly_canonical(fs::absolute(path), error);
    if (error) return Fail(SystemError(error.value(), "cannot resolve the path", path));
    if (folder->path_.filename().empty()) folder->path_ = folder->path_.parent_path();
    CAIRN_TRY(folder->CheckTarget(overwrite));
    fs::create_directories(folder->path_.parent_path(), error);
    for (int number = 0; !error && folder->temporary_.empty(); ++number) {
      const fs::path unused = fmt::format("{}.{}{}.tmp", folder->path_.string(), ::getpid(),
                                          number == 0 ? "" : fmt::format(".{}", number));
      if (fs::create_directory(unused, error)) folder->temporary_ = unused;
    }
    if (!error) return folder;
    return Fail(SystemError(error.value(), "cannot create a directory for it", path));
  }

  ~StagedFolder() {
    std::error_code ignored;  // the remaining files have temporary names
    kv::CleanUp([&] {
      if (!temporary_.empty()) fs::remove_all(temporary_, ignored);
    });
  }

  StagedFolder(const StagedFolder&) = delete;
  StagedFolder& operator=(const StagedFolder&) = delete;

  /// Where to write the files.
  const fs::path& temporary() const { return temporary_; }
  /// The final path of the directory.
  const fs::path& path() const { return path_; }

  /// Makes the files, which have been synced, durable under their final names.
  Result<void> Commit() {
    std::error_code error;
    fs::recursive_directory_iterator entries(temporary_, error);
    for (; !error && entries != fs::recursive_directory_iterator(); entries.increment(error)) {
      if (entries->is_directory()) CAIRN_TRY(internal::SyncDirectory(entries->path().string()));
    }
    if (error)
      return Fail(SystemError(error.value(), "reading the directory", temporary_.string()));
    CAIRN_TRY(internal::SyncDirectory(temporary_.string()));
    if (replaces_) {
      CAIRN_TRY(Replace());
    } else if (::rename(temporary_.c_str(), path_.c_str()) != 0) {
      return Fail(SystemError(errno, "cannot rename the finished directory", path_.string()));
    } else {
      temporary_.clear();
    }
    return internal::SyncDirectory(path_.parent_path().string());
  }

 private:
  StagedFolder() = default;

  Result<void> CheckTarget(bool overwrite) {
    std::error_code error;
    if (!fs::exists(path_, error)) return {};
    if (!fs::is_directory(path_, error)) {
      return Fail(Error{.code = ErrorCode::kInvalidArgument,
                        .message = "a model directory is a directory; this is a file",
                        .file = path_.string()});
    }
    const bool is_empty = fs::is_empty(path_, error);
    if (error) return Fail(SystemError(error.value(), "reading the directory", path_.string()));
    if (is_empty) return {};
    if (!overwrite) {
      return Fail(Error{.code = ErrorCode::kConflict,
                        .message = "the directory is not empty; give --overwrite to replace it",
                        .file = path_.string()});
    }
    replaces_ = true;
    return CheckReplaceable(path_);
  }

  // Afterwards `temporary_` is the old directory, which the destructor removes.
  Result<void> Replace() {
    // It may be another directory by now.
    CAIRN_TRY(CheckReplaceable(path_));
    if (::renameat2(AT_FDCWD, temporary_.c_str(), AT_FDCWD, path_.c_str(), RENAME_EXCHANGE) == 0) {
      return {};
    }
    if (errno != EINVAL && errno != ENOSYS) {
      return Fail(SystemError(errno, "cannot replace the directory", path_.string()));
    }
    const fs::path old = temporary_.string() + ".old";
    if (::rename(path_.c_str(), old.c_str()) != 0 ||
        ::rename(temporary_.c_str(), path_.c_str()) != 0) {
      return Fail(SystemError(errno, "cannot replace the directory", path_.string()));
    }
    temporary_ = old;
    return {};
  }

  fs::path path_;
  fs::path temporary_;
  bool replaces_ = false;
};

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

Result<std::vector<ModelWeights>> FindWeights(const CheckpointStore& store,
                                              const Contents& contents) {
  for (const ValueInfo& value : contents.values) {
    if (value.fqn != kModelWeightsKey) continue;
    ValueInfo weights = value;
    CAIRN_TRY(store.Examine(contents.step, {}, {&weights, 1}));
    const auto* const text = std::get_if<std::string>(&weights.value);
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

Result<Plan> MakePlan(const CheckpointStore& store, const Contents& contents) {
  Plan plan;
  CAIRN_TRY_ASSIGN(plan.weights, FindWeights(store, contents));
  for (const ModelWeights& weights : plan.weights) {
    plan.tensors[weights.stem].step = contents.step;
  }
  for (const ValueInfo& value : contents.values) {
    if (IsBelowKey(value.fqn, kModelFilesKey)) {
      const bool is_long = std::holds_alternative<ChunkedValue>(value.value) &&
                           TypeName(value.value) == std::string_view("bytes");
      const TensorInfo* const bytes =
          is_long ? internal::FindByName(contents.tensors, value.fqn) : nullptr;
      CAIRN_TRY(AddFile(value.fqn, std::get_if<Bytes>(&value.value), bytes, plan));
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

Result<void> WriteWeights(const CheckpointStore& store, const Plan& plan, const fs::path& folder,
                          const ModelExportOptions& options, ModelExportReport& report) {
  uint64_t total_bytes = 0;
  for (const auto& [stem, contents] : plan.tensors) {
    for (const TensorInfo& tensor : contents.tensors) total_bytes += tensor.nbytes;
  }
  for (const ModelWeights& weights : plan.weights) {
    Progress progress;  // of all weights as one
    if (options.progress) {
      progress = [&, begin_bytes = report.bytes](uint64_t done_bytes, uint64_t) {
        return options.progress(begin_bytes + done_bytes, total_bytes);
      };
    }
    SafetensorsExportOptions how{.max_shard_bytes = options.max_shard_bytes,
                                 .name_prefix = weights.fqn_prefix(),
                                 .metadata = weights.metadata,
                                 .progress = progress,
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
  CAIRN_TRY_ASSIGN(const Plan plan, MakePlan(store, contents));
  CAIRN_TRY_ASSIGN(const auto folder, StagedFolder::Open(out, options.overwrite));
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
