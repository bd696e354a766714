// 1. List the directory and its folders. 2. Select the weights of each folder. 3. Read the files.

#include "core/interop/model_directory/model_directory.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <system_error>
#include <utility>

#include "core/interop/safetensors/internal/shard_names.h"
#include "core/interop/safetensors/safetensors_format.h"

namespace cairn::core {
namespace {

namespace fs = std::filesystem;

using internal::kSafetensorsSuffix;
using internal::kShardIndexSuffix;

// The weights that libraries open by default, if there are others in the same folder.
constexpr std::array<std::string_view, 3> kUsualStems = {"model", "diffusion_pytorch_model",
                                                         "adapter_model"};

// Files with weights that are not read: files of other frameworks, and pickles.
constexpr std::array<std::string_view, 19> kOtherWeights = {
    ".bin",  ".bin.index.json", ".pt",    ".pth",    ".ckpt", ".h5",     ".msgpack", ".gguf",
    ".onnx", ".onnx_data",      ".pkl",   ".pickle", ".ot",   ".tflite", ".pb",      ".npy",
    ".npz",  ".nemo",           ".distcp"};

bool IsOtherWeights(std::string_view name) {
  return std::ranges::any_of(kOtherWeights,
                             [&](std::string_view suffix) { return name.ends_with(suffix); });
}

std::string Joined(std::string_view folder, std::string_view name, char separator) {
  return folder.empty() ? std::string(name) : fmt::format("{}{}{}", folder, separator, name);
}

std::unexpected<Error> Refused(std::string message, const fs::path& file) {
  return Fail(Error{
      .code = ErrorCode::kInvalidArgument, .message = std::move(message), .file = file.string()});
}

// The safetensors files of one stem in one folder.
struct Shards {
  std::vector<std::string> names;
  bool has_index = false;
};

class DirectoryReader {
 public:
  DirectoryReader(const std::string& path, const std::string& prefix) : path_(path) {
    directory_.prefix = prefix;
  }

  Result<ModelDirectory> Read() && {
    CAIRN_TRY(List());
    for (auto& [folder, stems] : folders_) CAIRN_TRY(ReadWeights(folder, stems));
    if (directory_.weights.empty()) {
      return Refused(
          "the directory has no *.safetensors file; import files of other formats by name", path_);
    }
    for (const std::string& name : names_) CAIRN_TRY(ReadFile(name));
    return std::move(directory_);
  }

 private:
  Result<void> List() {
    std::error_code error;
    fs::recursive_directory_iterator entries(path_, error);
    for (; !error && entries != fs::recursive_directory_iterator(); entries.increment(error)) {
      const std::string name = entries->path().lexically_relative(path_).generic_string();
      std::error_code ignored;
      if (entries->path().filename().string().starts_with('.')) {
        entries.disable_recursion_pending();
      } else if (!entries->is_directory(ignored)) {
        CAIRN_TRY(Add(name));
      } else if (entries->is_symlink(ignored)) {  // it may contain this directory
        directory_.left_out.push_back(name + ": links to directories are not followed");
      }
    }
    if (error) return Fail(SystemError(error.value(), "reading the directory", path_.string()));
    std::ranges::sort(names_);
    return {};
  }

  Result<void> Add(const std::string& name) {
    if (!IsModelFileName(name))
      return Refused("a file has a name that cannot be kept", path_ / name);
    std::error_code error;
    if (!fs::is_regular_file(path_ / name, error)) {
      directory_.left_out.push_back(name + ": it is not a regular file");
      return {};
    }
    const size_t slash = name.rfind('/');
    const bool in_folder = slash != std::string::npos;
    const std::string folder = in_folder ? name.substr(0, slash) : "";
    const std::string_view file = std::string_view(name).substr(in_folder ? slash + 1 : 0);
    if (file.ends_with(kShardIndexSuffix)) {
      folders_[folder][std::string(file.substr(0, file.size() - kShardIndexSuffix.size()))]
          .has_index = true;
    } else if (file.ends_with(kSafetensorsSuffix)) {
      const std::string_view stem =
          internal::WithoutShard(file.substr(0, file.size() - kSafetensorsSuffix.size()));
      folders_[folder][std::string(stem)].names.emplace_back(file);
    } else if (IsOtherWeights(file)) {
      directory_.left_out.push_back(name + ": only weights in safetensors files are imported");
    } else {
      names_.push_back(name);
    }
    if (names_.size() > kMaxModelFiles) {
      return Refused(fmt::format("the directory has more than {} files", kMaxModelFiles), path_);
    }
    return {};
  }

  // Returns the stem that libraries open.
  Result<std::string> Select(const std::string& folder,
                             const std::map<std::string, Shards>& stems) {
    if (stems.size() == 1) return stems.begin()->first;
    for (const std::string_view usual : kUsualStems) {
      if (stems.contains(std::string(usual))) return std::string(usual);
    }
    auto second = std::next(stems.begin());
    return Refused(
        fmt::format("the folder has several weights, '{}' and '{}'; move one of them away",
                    stems.begin()->first, second->first),
        path_ / folder);
  }

  Result<void> ReadWeights(const std::string& folder, std::map<std::string, Shards>& stems) {
    CAIRN_TRY_ASSIGN(const std::string chosen, Select(folder, stems));
    for (const auto& [stem, shards] : stems) {
      if (stem == chosen) continue;
      directory_.left_out.push_back(
          fmt::format("{}: the weights next to it are imported",
                      Joined(folder, stem + std::string(kSafetensorsSuffix), '/')));
    }
    ModelDirectory::Weights weights{
        .description = {.stem = Joined(folder, chosen, '/'), .prefix = folder, .metadata = {}},
        .folder = folder,
        .files = {}};
    if (!directory_.prefix.empty()) {
      weights.description.prefix =
          folder.empty() ? directory_.prefix : directory_.prefix + "." + folder;
    }
    std::map<std::string, std::string> promised;
    std::vector<std::string> names = stems.at(chosen).names;
    const fs::path index = path_ / folder / (chosen + std::string(kShardIndexSuffix));
    if (stems.at(chosen).has_index) {
      CAIRN_TRY_ASSIGN(promised, ReadShardIndex(index.string()));
      std::set<std::string> shards;
      for (const auto& [tensor, shard] : promised) shards.insert(shard);
      names.assign(shards.begin(), shards.end());
    }
    std::ranges::sort(names);
    for (const std::string& name : names) {
      CAIRN_TRY_ASSIGN(auto file, SafetensorsFile::Open((path_ / folder / name).string()));
      for (const SafetensorsTensor& tensor : file.tensors()) promised.erase(tensor.name);
      if (weights.files.empty()) weights.description.metadata = file.metadata();
      weights.files.push_back(std::move(file));
    }
    if (!promised.empty()) {
      return Fail(Error{.code = ErrorCode::kDataLoss,
                        .hint = Hint::kFetchFile,
                        .message = "the index names a tensor that is in no shard",
                        .key = promised.begin()->first,
                        .file = index.string()});
    }
    directory_.weights.push_back(std::move(weights));
    return {};
  }

  Result<void> ReadFile(const std::string& name) {
    const fs::path path = path_ / name;
    std::error_code error;
    const uint64_t bytes = fs::file_size(path, error);
    if (error) return Fail(SystemError(error.value(), "cannot examine the file", path.string()));
    all_bytes_ += bytes;
    if (bytes > kMaxModelFileBytes || all_bytes_ > kMaxAllModelFileBytes) {
      return Refused(
          fmt::format(
              "a file of {} bytes, in files of {} bytes together, is more than a step keeps "
              "of a model; move it away",
              bytes, all_bytes_),
          path);
    }
    ModelDirectory::File file{.name = name, .bytes = std::vector<std::byte>(bytes)};
    std::ifstream stream(path, std::ios::binary);
    stream.read(reinterpret_cast<char*>(file.bytes.data()), static_cast<std::streamsize>(bytes));
    if (!stream || static_cast<uint64_t>(stream.gcount()) != bytes) {
      return Fail(Error{.code = ErrorCode::kUnavailable,
                        .message = "the file cannot be read, or has become shorter",
                        .file = path.string()});
    }
    directory_.files.push_back(std::move(file));
    return {};
  }

  fs::path path_;
  std::map<std::string, std::map<std::string, Shards>> folders_;  // by folder and stem
  std::vector<std::string> names_;                                // names of all other files
  uint64_t all_bytes_ = 0;
  ModelDirectory directory_;
};

Result<void> CheckName(std::span<const ModelWeights> all, const ModelWeights& own,
                       const std::string& name) {
  const ModelWeights* const found = FindModelWeights(all, own.fqn_prefix() + name);
  if (found != nullptr && found->stem == own.stem) return {};
  return Fail(Error{.code = ErrorCode::kInvalidArgument,
                    .message = fmt::format(
                        "the name of this tensor of '{}' is reserved, or is that of a tensor of {}",
                        own.stem, found == nullptr ? "a file" : found->stem),
                    .key = name});
}

}  // namespace

Result<ModelDirectory> ReadModelDirectory(const std::string& path, const std::string& prefix) {
  return DirectoryReader(path, prefix).Read();
}

Result<StateDict> ModelDirectoryState(const ModelDirectory& directory) {
  std::vector<ModelWeights> all;
  for (const ModelDirectory::Weights& weights : directory.weights) {
    all.push_back(weights.description);
  }
  StateDict state;
  auto top = directory.prefix.empty() ? state.root() : state.root().Map(directory.prefix);
  for (const ModelDirectory::Weights& weights : directory.weights) {
    auto map = weights.folder.empty() ? top : top.Map(weights.folder);
    for (const SafetensorsFile& file : weights.files) {
      for (const SafetensorsTensor& tensor : file.tensors()) {
        CAIRN_TRY(CheckName(all, weights.description, tensor.name));
        map.Tensor(tensor.name, {.dtype = tensor.dtype,
                                 .shape = tensor.shape,
                                 .strides = {},
                                 .data = tensor.bytes.data()});
      }
    }
  }
  auto files = state.root().Map(kModelFilesKey);
  for (const ModelDirectory::File& file : directory.files) {
    if (file.bytes.size() <= kMaxModelFileValueBytes) {
      files.Value(file.name, Bytes{file.bytes});
    } else {
      files.Tensor(file.name, {.dtype = DType::kUInt8,
                               .shape = {file.bytes.size()},
                               .strides = {},
                               .data = file.bytes.data()});
    }
  }
  CAIRN_TRY_ASSIGN(std::string description, EncodeModelWeights(all));
  state.root().Value(kModelWeightsKey, std::move(description));
  return state;
}

}  // namespace cairn::core
