// Tensors are sorted as the reference implementation sorts them, cut into shards, and streamed.

#include "core/interop/safetensors/safetensors_export.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/base/internal/progress_meter.h"
#include "core/interop/safetensors/internal/durable_file.h"
#include "core/interop/safetensors/internal/shard_names.h"
#include "core/interop/safetensors/safetensors_writer.h"

namespace cairn::core {
namespace {

using internal::kSafetensorsSuffix;
using internal::kShardIndexSuffix;

// Tensors of one file, in the order of their bytes.
using Shard = std::vector<TensorInfo>;

Result<std::vector<TensorInfo>> SelectTensors(const Contents& contents) {
  std::vector<TensorInfo> tensors;
  for (const TensorInfo& tensor : contents.tensors) {
    if (tensor.hidden) continue;
    CAIRN_TRY(CheckSafetensorsDType(tensor.fqn, tensor.dtype));
    tensors.push_back(tensor);
  }
  CAIRN_TRY(CheckRepeats(tensors));
  return tensors;
}

std::vector<Shard> CutIntoShards(std::vector<TensorInfo> tensors, uint64_t max_shard_bytes) {
  std::vector<Shard> shards(1);
  uint64_t shard_bytes = 0;
  for (TensorInfo& tensor : tensors) {
    if (!shards.back().empty() && shard_bytes + tensor.nbytes > max_shard_bytes) {
      shards.emplace_back();
      shard_bytes = 0;
    }
    shard_bytes += tensor.nbytes;
    shards.back().push_back(std::move(tensor));
  }
  // The data begins at a multiple of 8 bytes, so all tensors are aligned if wide elements are
  // first.
  for (Shard& shard : shards) {
    std::ranges::stable_sort(shard, std::ranges::greater{}, [](const TensorInfo& tensor) {
      return schema::ElementBytes(tensor.dtype);
    });
  }
  return shards;
}

// Returns the path of the files without its suffix.
std::filesystem::path StemOf(const std::string& out) {
  const bool is_file = std::string_view(out).ends_with(kSafetensorsSuffix);
  return is_file ? std::filesystem::path(out.substr(0, out.size() - kSafetensorsSuffix.size()))
                 : std::filesystem::path(out) / "model";
}

// As StemOf; creates the directory of the files.
Result<std::filesystem::path> PrepareStem(const std::string& out) {
  std::filesystem::path stem = StemOf(out);
  if (stem.has_parent_path()) {
    std::error_code error;
    std::filesystem::create_directories(stem.parent_path(), error);
    if (error) {
      return Fail(
          SystemError(error.value(), "cannot create the directory", stem.parent_path().string()));
    }
  }
  return stem;
}

Result<void> WriteShard(const RequestLoader& load, const Shard& shard, const std::string& path,
                        const SafetensorsExportOptions& options,
                        internal::ProgressMeter& progress) {
  std::vector<SafetensorsEntry> entries;
  for (const TensorInfo& tensor : shard) {
    entries.push_back({tensor.fqn.substr(options.name_prefix.size()), tensor.dtype, tensor.shape});
  }
  CAIRN_TRY_ASSIGN(const auto writer, SafetensorsWriter::Create(path, entries, options.metadata));
  CAIRN_TRY(ReadRowMajor(load, shard,
                         [&](size_t, uint64_t, std::span<const std::byte> bytes) -> Result<void> {
                           CAIRN_TRY(writer->Append(bytes));
                           return progress.Add(bytes.size());
                         }));
  return writer->Finish();
}

// The index of the shards that Hugging Face libraries read.
Result<void> WriteIndex(const std::string& path, uint64_t total_bytes, nlohmann::json weight_map) {
  const nlohmann::json index = {{"metadata", {{"total_size", total_bytes}}},
                                {"weight_map", std::move(weight_map)}};
  const std::string text = index.dump(2) + "\n";
  CAIRN_TRY_ASSIGN(const auto file, internal::DurableFile::Create(path));
  CAIRN_TRY(file->Write(std::as_bytes(std::span(text))));
  return file->Finish();
}

}  // namespace

Result<SafetensorsExportReport> ExportSafetensors(const CheckpointStore& store,
                                                  const Contents& contents, const std::string& out,
                                                  const SafetensorsExportOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  CAIRN_TRY_ASSIGN(std::vector<TensorInfo> tensors, SelectTensors(contents));
  const std::vector<Shard> shards = CutIntoShards(std::move(tensors), options.max_shard_bytes);
  CAIRN_TRY_ASSIGN(const std::filesystem::path stem, PrepareStem(out));
  SafetensorsExportReport report{.values_left_out = contents.values.size()};
  for (const Shard& shard : shards) {
    report.tensors += shard.size();
    for (const TensorInfo& tensor : shard) report.bytes += tensor.nbytes;
  }
  internal::ProgressMeter progress(options.progress, report.bytes);
  const RequestLoader load = options.load ? options.load : LoaderOf(store, contents.step);
  nlohmann::json weight_map = nlohmann::json::object();
  for (size_t i = 0; i < shards.size(); ++i) {
    std::string path = stem.string();
    if (shards.size() > 1) path += fmt::format("-{:05}-of-{:05}", i + 1, shards.size());
    path += kSafetensorsSuffix;
    CAIRN_TRY(WriteShard(load, shards[i], path, options, progress));
    const std::string name = std::filesystem::path(path).filename().string();
    for (const TensorInfo& tensor : shards[i]) {
      weight_map[tensor.fqn.substr(options.name_prefix.size())] = name;
    }
    report.files.push_back(std::move(path));
  }
  if (shards.size() > 1) {
    std::string path = stem.string() + std::string(kShardIndexSuffix);
    CAIRN_TRY(WriteIndex(path, report.bytes, std::move(weight_map)));
    report.files.push_back(std::move(path));
  }
  if (options.replaces) CAIRN_TRY(RemoveReplacedFiles(out, report.files));
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return report;
}

Result<std::vector<std::string>> FindExportedFiles(const std::string& out) {
  const std::filesystem::path stem = StemOf(out);
  const std::string name = stem.filename().string();
  const std::filesystem::path folder = stem.has_parent_path() ? stem.parent_path() : ".";
  std::vector<std::string> found;
  std::error_code error;
  if (!std::filesystem::exists(folder, error)) return found;
  std::filesystem::directory_iterator entries(folder, error);
  for (; !error && entries != std::filesystem::directory_iterator(); entries.increment(error)) {
    const std::string file = entries->path().filename().string();
    std::string_view rest = file;
    if (rest.ends_with(kSafetensorsSuffix)) rest.remove_suffix(kSafetensorsSuffix.size());
    const bool is_weights = rest != file && (rest == name || internal::WithoutShard(rest) == name);
    if (is_weights || file == name + std::string(kShardIndexSuffix)) {
      found.push_back((stem.parent_path() / file).string());
    }
  }
  if (error) return Fail(SystemError(error.value(), "reading the folder", folder.string()));
  return found;
}

Result<void> RemoveReplacedFiles(const std::string& out, const std::vector<std::string>& written) {
  CAIRN_TRY_ASSIGN(const std::vector<std::string> found, FindExportedFiles(out));
  const auto name_of = [](const std::string& path) {  // one folder may have several paths
    return std::filesystem::path(path).filename();
  };
  for (const std::string& file : found) {
    if (std::ranges::find(written, name_of(file), name_of) != written.end()) continue;
    std::error_code error;
    std::filesystem::remove(file, error);
    if (error) return Fail(SystemError(error.value(), "removing a replaced file", file));
  }
  return {};
}

}  // namespace cairn::core
