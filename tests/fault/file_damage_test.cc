// Goal: whatever happens to the files of a small store (any byte is changed, any file ends at any
// length, files are exchanged, removed, duplicated, or replaced by those of another store, and two
// of these at once), an open, a verify or a load reports it, or everything is loaded as it was
// saved.
//
// By default, a part of the bytes and lengths is tested, and 300 pairs of damages.
// CAIRN_FAULT_ALL tests every byte and every length, and 20,000 pairs.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "kv/store.h"
#include "tests/fault/examine.h"
#include "tests/fault/operations.h"
#include "tests/support/result_matchers.h"
#include "tests/support/scoped_temp_dir.h"
#include "tests/support/seeded_random.h"

namespace cairn::kv {
namespace {

using cairn::testing::FastDirectory;
using cairn::testing::IsOk;
using cairn::testing::ScopedTempDir;
using cairn::testing::SeededRandom;
using namespace cairn::kv::testing;  // NOLINT(google-build-using-namespace)
namespace fs = std::filesystem;

using Files = std::map<std::string, std::string>;  // contents by relative path

constexpr SampleShape kSmall{.tensor_count = 2, .largest_bytes = 300};

bool TestsAll() { return std::getenv("CAIRN_FAULT_ALL") != nullptr; }

Files ReadFiles(const std::string& path) {
  Files files;
  for (const auto& entry : fs::recursive_directory_iterator(path)) {
    if (entry.is_regular_file()) {
      files[fs::relative(entry.path(), path)] = ReadText(entry.path());
    }
  }
  return files;
}

void WriteFiles(const Files& files, const std::string& path) {
  fs::remove_all(path);
  for (const auto& [name, text] : files) {
    fs::create_directories(fs::path(path + "/" + name).parent_path());
    WriteText(path + "/" + name, text);
  }
}

class FileDamageTest : public ::testing::Test {
 protected:
  void SetUp() override {
    expected_ = Make(dir_ / "store", 0);
    files_ = ReadFiles(dir_ / "store");
    Make(dir_ / "other", 7);
    others_ = ReadFiles(dir_ / "other");
  }

  /// Two steps, of which the second refers to the first. Roots before the newest are not read.
  Steps Make(const std::string& path, uint64_t version) {
    Steps steps;
    const auto store = Store::Open(path, OpenMode::kWrite, SmallBlocks());
    EXPECT_TRUE(IsOk(store));
    for (const uint64_t step : {1, 2}) {
      steps[step] = MakeSample(step, version, kSmall);
      EXPECT_TRUE(IsOk(SaveSample(**store, steps[step])));
    }
    EXPECT_TRUE(IsOk((*store)->Close()));
    return steps;
  }

  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const auto& [name, text] : files_) names.push_back(name);
    return names;
  }
  const std::string& AnyName() {
    const auto at = static_cast<long>(random_.Between(0, files_.size() - 1));
    return std::next(files_.begin(), at)->first;
  }
  /// Returns a name in the other store in the same folder as `name`.
  const std::string& AnyOther(const std::string& name) {
    std::vector<const std::string*> names;
    for (const auto& [other, text] : others_) {
      if (fs::path(other).parent_path() == fs::path(name).parent_path()) names.push_back(&other);
    }
    return *names[random_.Between(0, names.size() - 1)];
  }

  void Judge(const Files& files, const std::string& change) {
    WriteFiles(files, dir_ / "damaged");
    const Examination found = Examine(dir_ / "damaged", expected_);
    ++judged_;
    reported_ += found.verdict == Verdict::kReported ? 1 : 0;
    if (found.verdict != Verdict::kMissed) return;
    // A store without its newest roots is the store as it was before; so is one with all files of
    // another store.
    const auto steps = ReadOrNothing(dir_ / "damaged");
    EXPECT_TRUE(IsOlder(steps)) << change << " went unnoticed";
  }
  Steps ReadOrNothing(const std::string& path) const {
    const auto store = Store::Open(path, OpenMode::kRead);
    const auto steps = store ? LoadAllFrom(**store) : Result<Steps>(Steps());
    return steps.value_or(Steps());
  }
  bool IsOlder(const Steps& steps) const {
    return steps.empty() || (steps.size() == 1 && steps.begin()->second == expected_.at(1));
  }

  /// Makes one random damage. Returns its description.
  std::string Damage(Files& files) {
    const std::string name = AnyName();
    std::string& text = files[name];
    switch (random_.Between(0, 6)) {
      case 0:
        if (text.empty()) return "nothing";
        text[random_.Between(0, text.size() - 1)] ^= static_cast<char>(1 << random_.Between(0, 7));
        return "a flip in " + name;
      case 1:
        text.resize(random_.Between(0, text.size()));
        return "a cut of " + name;
      case 2:
        text += std::string(random_.Between(1, 600), static_cast<char>(random_.Between(0, 255)));
        return "an extension of " + name;
      case 3: {
        const std::string other = AnyName();
        std::swap(text, files[other]);
        return fmt::format("{} and {} exchanged", name, other);
      }
      case 4:
        files.erase(name);
        return name + " removed";
      case 5: {
        const std::string other = AnyName();
        files[other] = files[name];
        return fmt::format("{} over {}", name, other);
      }
      default:
        text = others_.at(AnyOther(name));
        return name + " of another store";
    }
  }

  ScopedTempDir dir_{FastDirectory()};
  SeededRandom random_;
  Steps expected_;
  Files files_;
  Files others_;
  uint64_t judged_ = 0;
  uint64_t reported_ = 0;

  void TearDown() override {
    fmt::print("{} damages, of which {} were reported and the others are harmless\n", judged_,
               reported_);
    EXPECT_GT(reported_, 0u);
  }
};

TEST_F(FileDamageTest, EveryByteAndEveryLength) {
  const uint64_t stride = TestsAll() ? 1 : 41;
  for (const auto& [name, text] : files_) {
    for (uint64_t at = TestsAll() ? 0 : random_.Between(0, stride - 1); at < text.size();
         at += stride) {
      Files files = files_;
      files[name][at] = static_cast<char>(~text[at]);
      Judge(files, fmt::format("byte {} of {}", at, name));
      files[name] = text.substr(0, at);
      Judge(files, fmt::format("{} cut at {}", name, at));
      if (HasFailure()) return;
    }
  }
}

TEST_F(FileDamageTest, EveryExchangeRemovalAndDuplicate) {
  for (const std::string& a : Names()) {
    Files files = files_;
    files.erase(a);
    Judge(files, a + " removed");
    for (const std::string& b : Names()) {
      if (a == b) continue;
      files = files_;
      files[b] = files_[a];
      Judge(files, fmt::format("{} over {}", a, b));
      std::swap(files[a], files[b]);
      files[a] = files_[b];
      files[b] = files_[a];
      if (a < b) Judge(files, fmt::format("{} and {} exchanged", a, b));
    }
    for (const auto& [other, text] : others_) {
      files = files_;
      files[a] = text;
      Judge(files, fmt::format("{} replaced by {} of another store", a, other));
      files = files_;
      files[other] = text;
      if (!files_.contains(other)) Judge(files, fmt::format("{} of another store added", other));
    }
    if (HasFailure()) return;
  }
}

TEST_F(FileDamageTest, TwoDamagesAtOnce) {
  const int rounds = TestsAll() ? 20'000 : 300;
  for (int round = 0; round < rounds; ++round) {
    Files files = files_;
    const std::string first = Damage(files);
    const std::string second = Damage(files);
    Judge(files, first + " and " + second);
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace cairn::kv
