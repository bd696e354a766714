#include "core/base/advice.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/support/scoped_temp_dir.h"

namespace cairn::core {
namespace {

void Touch(const std::filesystem::path& path) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path) << "x";
}

Error NoStore(const std::string& file) {
  return {.code = ErrorCode::kNotFound, .message = "there is no store here", .file = file};
}

Error NotAStore(const std::string& file) {
  return {.code = ErrorCode::kInvalidArgument,
          .message = "this directory is not a Cairn store",
          .file = file};
}

Error Damage(const std::string& file) {
  return {.code = ErrorCode::kDataLoss, .message = "it is damaged", .file = file};
}

TEST(AdviceTest, NamesTheStoreThatWasMeant) {
  const testing::ScopedTempDir dir;
  Touch(dir.path() + "/gpt/CAIRN");
  Touch(dir.path() + "/gpz/other");

  EXPECT_EQ(Advise(NoStore(dir.path() + "/gpx"), {}), "did you mean " + dir.path() + "/gpt?");
}

TEST(AdviceTest, NamesWhatCreatesAStoreInTheTermsOfTheReader) {
  const testing::ScopedTempDir dir;

  EXPECT_EQ(Advise(NoStore(dir.path() + "/gpt"), {}),
            "kv-admin import and kv-admin push create stores");
  EXPECT_EQ(Advise(NoStore(dir.path() + "/gpt"), {.is_python = true}), "mode=\"a\" creates one");
  EXPECT_EQ(Advise(NoStore("s3://bucket/gpt"), {.is_python = true}), "mode=\"a\" creates one");
}

TEST(AdviceTest, NamesTheImportOfCheckpointsOfOtherFormats) {
  const testing::ScopedTempDir dir;
  const std::string path = dir.path();
  Touch(path + "/model/config.json");
  Touch(path + "/model/model.safetensors");
  Touch(path + "/dcp/.metadata");
  Touch(path + "/one/a.safetensors");
  Touch(path + "/orbax/_CHECKPOINT_METADATA");
  Touch(path + "/deepspeed/latest");
  const auto imports = [](const std::string& what) {
    return "run kv-admin import STORE --step N " + what + " to import it";
  };

  EXPECT_EQ(Advise(NotAStore(path + "/model/"), {}), imports(path + "/model --format hf"));
  EXPECT_EQ(Advise(NotAStore(path + "/dcp"), {}), imports(path + "/dcp"));
  EXPECT_EQ(Advise(NotAStore(path + "/one"), {}), imports(path + "/one/a.safetensors"));
  EXPECT_EQ(Advise(NotAStore(path + "/orbax"), {}),
            "cairn.jax.import_orbax('" + path + "/orbax', STORE, N) imports it");
  EXPECT_EQ(Advise(NotAStore(path + "/deepspeed"), {}),
            "cairn.trainers.deepspeed_import.import_checkpoint('" + path +
                "/deepspeed', STORE, N) imports it");
}

TEST(AdviceTest, TakesTheStoreFromTheDamagedObjectUnlessItIsGiven) {
  EXPECT_EQ(Advise(Damage("runs/gpt/roots/0.root"), {}), "run kv-admin rebuild runs/gpt");
  EXPECT_EQ(Advise(Damage("s3://bucket/gpt/roots/0.root"), {.store = "s3://bucket/gpt?region=x"}),
            "run kv-admin rebuild 's3://bucket/gpt?region=x'");
  EXPECT_TRUE(Advise(Damage("runs/gpt/segments/0.seg"), {})
                  .starts_with("run kv-dump verify runs/gpt to list all damage"));
  EXPECT_TRUE(Advise(Damage("runs/gpt/CAIRN"), {}).starts_with("restore this file"));
}

TEST(AdviceTest, QuotesWhatTheShellWouldRead) {
  EXPECT_EQ(Advise(Damage("my runs/it's/roots/0.root"), {}),
            "run kv-admin rebuild 'my runs/it'\\''s'");
}

TEST(AdviceTest, AddsNothingToAnErrorThatNamesAProgram) {
  Error error = Damage("runs/gpt/roots/0.root");
  error.message = "run kv-admin repair first";

  EXPECT_EQ(Advise(error, {}), "");
}

TEST(AdviceTest, AsksForAReportOfADefectAndNothingElse) {
  EXPECT_EQ(Advise({.code = ErrorCode::kInternal, .message = "x"}, {}),
            "this is a defect of Cairn; please report it");
  EXPECT_EQ(Advise({.code = ErrorCode::kUnavailable, .message = "x"}, {}), "");
}

}  // namespace
}  // namespace cairn::core
