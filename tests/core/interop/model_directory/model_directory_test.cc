// Model directories that are read, saved and exported again, and what is refused.

#include "core/interop/model_directory/model_directory.h"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "core/interop/model_directory/model_export.h"
#include "core/interop/safetensors/safetensors_writer.h"
#include "tests/core/tensor/test_tensor.h"

namespace cairn::core {
namespace {

namespace fs = std::filesystem;
using cairn::testing::IsError;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr const char* kShard = "model-{:05}-of-00002.safetensors";

std::string ReadText(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The regular files below a directory, by relative path.
std::map<std::string, std::string> Files(const fs::path& directory) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(directory)) {
    if (!entry.is_regular_file()) continue;
    files[entry.path().lexically_relative(directory).generic_string()] = ReadText(entry.path());
  }
  return files;
}

class ModelDirectoryTest : public StoreTest {
 protected:
  std::string Path(const std::string& name) { return directory.path() + "/" + name; }

  void WriteText(const std::string& name, const std::string& text) {
    fs::create_directories(fs::path(Path(name)).parent_path());
    std::ofstream(Path(name), std::ios::binary) << text;
  }

  void WriteWeights(const std::string& file, const std::vector<std::string>& names) {
    fs::create_directories(fs::path(Path(file)).parent_path());
    std::vector<SafetensorsEntry> entries;
    for (const std::string& name : names) entries.push_back({name, DType::kFloat32, {3, 2}});
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto writer, SafetensorsWriter::Create(Path(file), entries));
    for (size_t i = 0; i < names.size(); ++i) {
      const TestTensor tensor(DType::kFloat32, {3, 2}, static_cast<uint8_t>(names[i].size()));
      CAIRN_EXPECT_OK(writer->Append(tensor.bytes));
    }
    CAIRN_EXPECT_OK(writer->Finish());
  }

  // Two shards with an index, a part of a pipeline in a folder, and other files, one of which is
  // too long for a value.
  void WriteModel() {
    WriteWeights(fmt::format(fmt::runtime("model/" + std::string(kShard)), 1), {"a.weight"});
    WriteWeights(fmt::format(fmt::runtime("model/" + std::string(kShard)), 2), {"b.weight"});
    WriteText(
        "model/model.safetensors.index.json",
        fmt::format(R"({{"weight_map": {{"a.weight": "{}", "b.weight": "{}"}}}})",
                    fmt::format(fmt::runtime(kShard), 1), fmt::format(fmt::runtime(kShard), 2)));
    WriteWeights("model/unet/diffusion_pytorch_model.safetensors", {"conv"});
    WriteText("model/config.json", "{}\n");
    WriteText("model/tokenizer/vocabulary.txt", std::string(kMaxModelFileValueBytes + 1, 'v'));
    WriteText("model/pytorch_model.bin", "other weights");
    WriteText("model/.hidden", "hidden");
  }

  void SaveDirectory(uint64_t step, const std::string& prefix = {}) {
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto model, ReadModelDirectory(Path("model"), prefix));
    CAIRN_ASSERT_OK_AND_ASSIGN(const StateDict state, ModelDirectoryState(model));
    Save(step, state);
  }

  Result<ModelExportReport> Export(uint64_t step, const std::string& to,
                                   const ModelExportOptions& options = {}) {
    CAIRN_TRY_ASSIGN(const Contents contents, store->List(step));
    return ExportModelDirectory(*store, contents, Path(to), options);
  }
};

TEST_F(ModelDirectoryTest, AnExportHasTheFilesThatWereImported) {
  WriteModel();
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto model, ReadModelDirectory(Path("model")));
  EXPECT_THAT(model.left_out, ElementsAre(HasSubstr("pytorch_model.bin")));
  for (const std::string prefix : {"", "ema"}) {
    const uint64_t step = prefix.size();
    SaveDirectory(step, prefix);
    uint64_t done = 0;
    ModelExportOptions options{.max_shard_bytes = 24};
    options.progress = [&](uint64_t done_bytes, uint64_t) {
      done = done_bytes;
      return true;
    };
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto report, Export(step, "out" + prefix, options));
    EXPECT_EQ(report.tensors, 3u);
    EXPECT_EQ(report.bytes, 72u);
    EXPECT_EQ(done, 72u);
    EXPECT_EQ(report.files.size(), 6u);

    const auto written = Files(Path("out" + prefix)), given = Files(Path("model"));
    ASSERT_EQ(written.size(), 6u);
    for (const auto& [name, bytes] : written) {
      // The index has more than the given one: the sizes of the tensors.
      if (name.ends_with(".index.json")) continue;
      EXPECT_EQ(bytes, given.at(name)) << name;
    }
  }
  CAIRN_EXPECT_OK(ReadModelDirectory(Path("out")));
}

TEST_F(ModelDirectoryTest, AnExportReplacesOnlyTheDirectoryOfAModel) {
  WriteModel();
  SaveDirectory(1);
  WriteText("other/notes.txt", "mine");
  EXPECT_THAT(Export(1, "other"), IsError(ErrorCode::kConflict, "not empty"));
  EXPECT_THAT(Export(1, "other", {.overwrite = true}),
              IsError(ErrorCode::kConflict, "not that of a model"));
  EXPECT_THAT(Export(1, "other/notes.txt"), IsError(ErrorCode::kInvalidArgument, "this is a file"));
  CAIRN_EXPECT_OK(Export(1, "copy"));
  WriteText("copy/old.txt", "of the old model");
  CAIRN_EXPECT_OK(Export(1, "copy", {.overwrite = true}));
  EXPECT_FALSE(fs::exists(Path("copy/old.txt")));
  WriteText("copy/.git/HEAD", "hidden");
  EXPECT_THAT(Export(1, "copy", {.overwrite = true}), IsError(ErrorCode::kConflict, "hidden"));
  fs::remove_all(Path("copy/.git"));
  WriteText("copy/CAIRN", "a store");
  EXPECT_THAT(Export(1, "copy", {.overwrite = true}), IsError(ErrorCode::kConflict, "store"));
  EXPECT_EQ(ReadText(Path("other/notes.txt")), "mine");
}

TEST_F(ModelDirectoryTest, RefusesStepsThatAreNotAModel) {
  const TestTensor tensor(DType::kFloat32, {3, 2});
  auto refused = [&, step = uint64_t{0}](const std::string& weights, const char* file,
                                         const Value& contents = Bytes{}) mutable {
    StateDict state;
    state.root().Tensor("w", tensor.view());
    if (!weights.empty()) state.root().Value(kModelWeightsKey, weights);
    if (file != nullptr) state.root().Map(kModelFilesKey).Value(file, contents);
    Save(++step, state);
    const auto report = Export(step, "out");
    EXPECT_FALSE(fs::exists(Path("out")));
    return report;
  };
  const std::string good = R"({"model": {"prefix": "", "metadata": {}}})";
  EXPECT_THAT(refused("", nullptr), IsError(ErrorCode::kInvalidArgument, "not saved as a model"));
  const std::string deep(100'000, '[');
  for (const char* damaged :
       {"[]", "{", R"({"../model": {"prefix": "", "metadata": {}}})", R"({"model": {}})",
        R"({"model": {"prefix": "", "metadata": {"a": 1}}})",
        R"({"a": {"prefix": "", "metadata": {}}, "b": {"prefix": "", "metadata": {}}})",
        deep.c_str()}) {
    EXPECT_THAT(refused(damaged, nullptr), IsError(ErrorCode::kDataLoss, "weights"));
  }
  for (const char* name :
       {"../outside", "a/../../outside", "/absolute", "folder//file", ".hidden", "line\n"}) {
    EXPECT_THAT(refused(good, name), IsError(ErrorCode::kDataLoss, "inside of the"));
  }
  EXPECT_THAT(refused(good, "a.safetensors"), IsError(ErrorCode::kDataLoss, "weights"));
  EXPECT_THAT(refused(good, "a.txt", std::string("text")), IsError(ErrorCode::kDataLoss, "bytes"));

  StateDict floats;
  floats.root().Value(kModelWeightsKey, good);
  floats.root().Map(kModelFilesKey).Tensor("a.txt", tensor.view());
  Save(100, floats);
  EXPECT_THAT(Export(100, "out"), IsError(ErrorCode::kDataLoss, "bytes"));
  StateDict numbers;
  numbers.root().Tensor("w", tensor.view());
  numbers.root().Value(kModelWeightsKey, int64_t{7});
  Save(101, numbers);
  EXPECT_THAT(Export(101, "out"), IsError(ErrorCode::kDataLoss, "weights"));
}

TEST_F(ModelDirectoryTest, RefusesDirectoriesThatCannotBeReadCompletely) {
  EXPECT_THAT(ReadModelDirectory(Path("none")), IsError(ErrorCode::kNotFound, "none"));
  WriteText("model/config.json", "{}");
  EXPECT_THAT(ReadModelDirectory(Path("model")),
              IsError(ErrorCode::kInvalidArgument, "no *.safetensors"));
  WriteWeights("model/first.safetensors", {"a"});
  WriteWeights("model/second.safetensors", {"a"});
  EXPECT_THAT(ReadModelDirectory(Path("model")),
              IsError(ErrorCode::kInvalidArgument, "several weights"));
  WriteWeights("model/model.safetensors", {"a"});
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto model, ReadModelDirectory(Path("model")));
  EXPECT_EQ(model.left_out.size(), 2u);
  WriteText("model/model.safetensors.index.json",
            R"({"weight_map": {"a": "model.safetensors", "lost": "model.safetensors"}})");
  EXPECT_THAT(ReadModelDirectory(Path("model")), IsError(ErrorCode::kDataLoss, "no shard"));
  WriteText("model/model.safetensors.index.json", R"({"weight_map": {"a": "../x"}})");
  EXPECT_THAT(ReadModelDirectory(Path("model")), IsError(ErrorCode::kDataLoss, ""));
}

TEST_F(ModelDirectoryTest, RefusesTensorsWithReservedNames) {
  for (const char* name : {"__weights__", "__files__", "__files__.x"}) {
    WriteWeights("model/model.safetensors", {name});
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto reserved, ReadModelDirectory(Path("model")));
    EXPECT_THAT(ModelDirectoryState(reserved), IsError(ErrorCode::kInvalidArgument, "reserved"));
  }
  WriteWeights("model/model.safetensors", {"unet.conv"});
  WriteWeights("model/unet/model.safetensors", {"conv"});
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto ambiguous, ReadModelDirectory(Path("model")));
  EXPECT_THAT(ModelDirectoryState(ambiguous),
              IsError(ErrorCode::kInvalidArgument, "a tensor of unet/model"));
}

}  // namespace
}  // namespace cairn::core
