#include "core/base/hint_text.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

#include "tests/support/scoped_temp_dir.h"

namespace cairn::core {
namespace {

void Touch(const std::filesystem::path& path) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path) << "x";
}

std::string TextOf(const Error& error) {
  return HintText(error, {.create_store = "create one"}, StoreOfObject(error.file));
}

std::string NoStore(const std::string& file) {
  return TextOf({.code = ErrorCode::kNotFound, .hint = Hint::kCreateStore, .file = file});
}

std::string NotAStore(const std::string& file) {
  return TextOf({.code = ErrorCode::kInvalidArgument, .hint = Hint::kFindStore, .file = file});
}

TEST(HintTextTest, NamesTheStoreThatWasMeant) {
  const testing::ScopedTempDir dir;
  Touch(dir.path() + "/gpt/CAIRN");
  Touch(dir.path() + "/gpt/roots/0.root");
  Touch(dir.path() + "/gpz/other");

  EXPECT_EQ(NoStore(dir.path() + "/gpx"), "did you mean " + dir.path() + "/gpt?");
  EXPECT_EQ(NotAStore(dir.path() + "/gpt/roots/"), "did you mean " + dir.path() + "/gpt?");
  // The store itself, whose marker is not one.
  EXPECT_FALSE(NotAStore(dir.path() + "/gpt/").contains("did you mean"));
}

TEST(HintTextTest, NamesWhatCreatesAStore) {
  const testing::ScopedTempDir dir;

  EXPECT_EQ(NoStore(dir.path() + "/gpt"), "create one");
  EXPECT_EQ(NoStore("s3://bucket/gpt"), "create one");
}

TEST(HintTextTest, NamesTheImportOfCheckpointsOfOtherFormats) {
  const testing::ScopedTempDir dir;
  const std::string path = dir.path();
  for (const char* file : {"/model/config.json", "/dcp/.metadata", "/one/a.safetensors", "/b.pt"}) {
    Touch(path + file);
  }
  const auto imports = [](const std::string& what) {
    return "run kv-admin import STORE --step N " + what + " to import it";
  };

  EXPECT_EQ(NotAStore(path + "/model/"), imports(path + "/model --format hf"));
  EXPECT_EQ(NotAStore(path + "/dcp"), imports(path + "/dcp"));
  EXPECT_EQ(NotAStore(path + "/one"), imports(path + "/one/*.safetensors"));
  EXPECT_EQ(NotAStore(path + "/b.pt"), imports(path + "/b.pt"));
}

// A rebuild is only for the damage that it can undo.
TEST(HintTextTest, ADamageWithoutAHintRecommendsNoRebuild) {
  const auto damage = [](Hint hint, const std::string& file) {
    return TextOf({.code = ErrorCode::kDataLoss, .hint = hint, .file = file});
  };

  EXPECT_EQ(damage(Hint::kRebuild, "my runs/it's/roots/0.root"),
            "run kv-admin rebuild 'my runs/it'\\''s'");
  EXPECT_EQ(damage(Hint::kStated, "gpt/roots/0.root"), "");
  for (const char* object : {"/roots/0.root", "/tables/0.sst", "/segments/0.seg", "/CAIRN", ""}) {
    EXPECT_EQ(damage(Hint::kNone, std::string("gpt") + object),
              "run kv-dump verify gpt to list all damage, and kv-admin repair gpt --from MIRROR to "
              "replace it from a mirror");
  }
}

TEST(HintTextTest, AsksForAReportOfADefectAndNothingElse) {
  EXPECT_EQ(TextOf({.code = ErrorCode::kInternal}), "this is a defect of Cairn; please report it");
  EXPECT_EQ(TextOf({.code = ErrorCode::kUnavailable}), "");
}

TEST(ErrorTest, KeepsItsFirstHintWhenItIsMoved) {
  Error error = Error{.message = "x"}.WithHint(Hint::kRebuild).WithHint(Hint::kListKeys);

  EXPECT_EQ(Error(std::move(error)).WithKey("w").WithFile("f").hint, Hint::kRebuild);
}

}  // namespace
}  // namespace cairn::core
