// Goal: whatever happens to the files of a store, an open, a verify or a load reports it, or
// everything is loaded as it was saved: any bit is flipped, any file ends at any length, is
// extended, exchanged, removed, duplicated, or replaced by a file of another store, and two of
// these happen at once.
//
// CAIRN_DAMAGE_POSITIONS (24) bounds the number of flipped positions per file of a store with every
// kind of file; the "slow" variant flips every byte of files up to 4 KiB. Of a small store, a part
// of the bytes and lengths is tested, and 300 pairs of damages; with CAIRN_FAULT_ALL every byte and
// every length, and 20,000 pairs. Positions are random, with the seed CAIRN_TEST_SEED.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "kv/base/options.h"
#include "kv/read/snapshot.h"
#include "kv/root/internal/lease.h"
#include "kv/store.h"
#include "tests/fault/operations.h"
#include "tests/kv/store_checks.h"
#include "tests/support/result_matchers.h"
#include "tests/support/scoped_temp_dir.h"
#include "tests/support/seeded_random.h"

namespace cairn::kv {
namespace {

using cairn::testing::FastDirectory;
using cairn::testing::IsOk;
using cairn::testing::ReadText;
using cairn::testing::ScopedTempDir;
using cairn::testing::SeededRandom;
using cairn::testing::WriteText;
using ::testing::AllOf;
using ::testing::HasSubstr;
using namespace cairn::kv::testing;  // NOLINT(google-build-using-namespace)
namespace fs = std::filesystem;

using Files = std::map<std::string, std::string>;  // contents by relative path

constexpr SampleShape kShape{.tensor_count = 4, .largest_bytes = 90'000};
constexpr SampleShape kSmall{.tensor_count = 2, .largest_bytes = 300};

bool TestsAll() { return std::getenv("CAIRN_FAULT_ALL") != nullptr; }

uint64_t PositionsPerFile() {
  const char* given = std::getenv("CAIRN_DAMAGE_POSITIONS");
  return given != nullptr ? std::strtoull(given, nullptr, 10) : 24;
}

std::string KindOf(const std::string& name) {
  const size_t folder_end = name.find('/');
  return folder_end == std::string::npos ? name : name.substr(0, folder_end);
}

Files ReadFiles(const std::string& path) {
  Files files;
  for (const auto& entry : fs::recursive_directory_iterator(path)) {
    if (entry.is_regular_file()) {
      files[fs::relative(entry.path(), path)] = ReadText(entry.path());
    }
  }
  return files;
}

std::string Flipped(std::string text, size_t at, int bit) {
  text[at] = static_cast<char>(text[at] ^ (1 << bit));
  return text;
}

/// A store, of which each test judges many damaged versions.
class DamageTest : public ::testing::Test {
 protected:
  /// Saves a version of a step in the open store.
  void Save(Store& store, uint64_t step, uint64_t version, const SampleShape& shape) {
    expected_[step] = MakeSample(step, version, shape);
    ASSERT_TRUE(IsOk(SaveSample(store, expected_[step], /*overwrite=*/version > 0)));
  }
  void Begin() {
    files_ = ReadFiles(path_);
    const auto found = Examine();
    ASSERT_TRUE(IsOk(found) && *found == expected_);
  }

  std::vector<std::string> NamesOf(const std::string& kind) const {
    std::vector<std::string> names;
    for (const auto& [name, text] : files_) {
      if (KindOf(name) == kind) names.push_back(name);
    }
    return names;
  }

  /// Opens the store, verifies it, and loads all its steps.
  Result<Steps> Examine() const {
    CAIRN_TRY_ASSIGN(const auto store, Store::Open(path_, OpenMode::kRead));
    CAIRN_TRY_ASSIGN(const auto snapshot, store->Latest());
    CAIRN_TRY_ASSIGN(const auto damage, Verify(*snapshot));
    if (!damage.empty()) return Fail(ErrorCode::kInternal, damage.front());  // has its own code
    return LoadAllFrom(*store);
  }

  /// Makes the files of the store those of `files`, which were others.
  void Write(const Files& others, const Files& files) const {
    for (const auto& [name, text] : others) {
      if (!files.contains(name)) fs::remove(path_ + "/" + name);
    }
    for (const auto& [name, text] : files) {
      const auto other = others.find(name);
      if (other != others.end() && other->second == text) continue;
      fs::create_directories(fs::path(path_ + "/" + name).parent_path());
      WriteText(path_ + "/" + name, text);
    }
  }

  /// Judges the store with these files in place of those it was made with.
  void Judge(const Files& files, const std::string& change) {
    Write(files_, files);
    const auto found = Examine();
    Write(files, files_);
    ++judged_;
    reported_ += found ? 0 : 1;
    if (!found || *found == expected_) return;
    // A store without its newest roots and its hint, or with the identity of another store, which
    // the hint does not name, is the store as it was before; so is one with all files of another
    // store.
    const auto is_as_before = [&](const char* name) {
      const auto file = files.find(name);
      return file != files.end() && file->second == files_.at(name);
    };
    EXPECT_FALSE(is_as_before("hint") && is_as_before("CAIRN")) << change;
    EXPECT_TRUE(found->empty() || *found == Steps({{1, expected_.at(1)}}))
        << change << " went unnoticed";
  }

  /// Judges the store with another text in one file, which is never an older store. Returns
  /// whether the damage is reported.
  bool JudgeText(const std::string& name, const std::string& text, const std::string& change) {
    WriteText(path_ + "/" + name, text);
    const bool is_reported = JudgeFile(name, change);
    WriteText(path_ + "/" + name, files_.at(name));
    return is_reported;
  }
  bool JudgeFlip(const std::string& name, size_t at, int bit) {
    return JudgeText(name, Flipped(files_.at(name), at, bit),
                     fmt::format("bit {} of byte {} flipped", bit, at));
  }
  /// Judges the store of which this file has been changed.
  bool JudgeFile(const std::string& name, const std::string& change) {
    const auto found = Examine();
    ++judged_;
    reported_ += found ? 0 : 1;
    const std::string kind = KindOf(name);
    if (found) {
      EXPECT_TRUE(*found == expected_) << name << ": " << change << " went unnoticed";
      // In a segment, only payload to which no step refers any more may change without a report.
      // Old roots are not read.
      EXPECT_TRUE(kind != "tables" && kind != "CAIRN" && name != NamesOf("roots").front())
          << name << ": " << change << " is reported nowhere";
    } else {
      const Error& error = found.error();
      EXPECT_THAT(fmt::format("{}: {}", ErrorCodeName(error.code), error.ToString()),
                  AllOf(HasSubstr("DataLoss"), HasSubstr("file ")))
          << name << ": " << change;
      EXPECT_TRUE(kind != "hint" && kind != "leases") << name << ": " << change;
    }
    return !found;
  }

  void TearDown() override {
    fmt::print("{} damages, of which {} were reported and the others are harmless\n", judged_,
               reported_);
  }

  ScopedTempDir dir_{FastDirectory()};
  const std::string path_ = dir_ / "store";
  SeededRandom random_;
  Steps expected_;
  Files files_;
  uint64_t judged_ = 0;
  uint64_t reported_ = 0;
};

// --- a store with every kind of file

class HistoryDamageTest : public DamageTest {
 protected:
  /// Saves steps with references in two sessions, overwrites one of them and deletes one. Leaves a
  /// hint, and the lease of a writer that has ended.
  void SetUp() override {
    const auto store = Store::Open(path_, OpenMode::kWrite, SmallBlocks());
    ASSERT_TRUE(IsOk(store));
    for (const auto& [step, version] : {std::pair{1, 0}, {2, 0}, {3, 0}, {2, 1}}) {
      Save(**store, step, version, kShape);
    }
    ASSERT_TRUE(IsOk((*store)->Close()));
    const auto again = Store::Open(path_, OpenMode::kWrite, SmallBlocks());
    ASSERT_TRUE(IsOk(again));
    Save(**again, 4, 0, kShape);
    ASSERT_TRUE(IsOk((*again)->Delete(std::array<uint64_t, 1>{1})));
    expected_.erase(1);
    Save(**again, 5, 0, kShape);
    const std::string lease_path = path_ + "/" + internal::LeaseName((*again)->session());
    const std::string text = ReadText(lease_path);
    auto lease = internal::DecodeLease(std::as_bytes(std::span(text)));
    ASSERT_TRUE(lease);
    lease->process_start = 1;  // an earlier process with the same number
    ASSERT_TRUE(IsOk((*again)->Close()));
    const auto bytes = internal::EncodeLease(*lease);
    WriteText(lease_path, std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
    Begin();
  }
};

TEST_F(HistoryDamageTest, EveryFlippedBitIsFoundOrHarmless) {
  for (const auto& [name, text] : files_) {
    std::set<uint64_t> positions;
    const uint64_t count = std::min<uint64_t>(PositionsPerFile(), text.size());
    while (positions.size() < count) positions.insert(random_.Between(0, text.size() - 1));
    for (const uint64_t at : positions)
      JudgeFlip(name, at, static_cast<int>(random_.Between(0, 7)));
  }
}

// A fixed bug: RocksDB used a table's properties before it had checked them, and a flip of the
// highest bit of one of their counters ended the process.
TEST_F(HistoryDamageTest, HighestBitOfEveryByteOfATableDoesNotEndTheProcess) {
  const std::string table = NamesOf("tables").front();
  for (size_t at = 0; at < files_[table].size(); ++at) EXPECT_TRUE(JudgeFlip(table, at, 7));
}

TEST_F(HistoryDamageTest, TruncatedEmptyExtendedAndMissingFilesAreFoundOrHarmless) {
  for (const auto& [name, text] : files_) {
    if (text.empty()) continue;
    JudgeText(name, "", "emptied");
    JudgeText(name, text.substr(0, text.size() / 2), "cut in half");
    JudgeText(name, text.substr(0, text.size() - 1), "cut by a byte");
    JudgeText(name, text + '\0', "extended by a zero byte");
    fs::remove(path_ + "/" + name);
    JudgeFile(name, "deleted");
    WriteText(path_ + "/" + name, text);
  }
}

TEST_F(HistoryDamageTest, ReportOfAFlippedPayloadByteNamesKeySegmentAndOffset) {
  const std::string segment = NamesOf("segments").front();
  WriteText(path_ + "/" + segment, Flipped(files_[segment], 4096, 0));  // after the header
  bool found = false;
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto snapshot, ReadLatest(path_));
  for (const uint64_t step : snapshot->step_numbers()) {
    const auto loaded = LoadSample(*snapshot, step);
    if (loaded) continue;
    found = true;
    EXPECT_EQ(loaded.error().code, ErrorCode::kDataLoss);
    EXPECT_THAT(loaded.error().key, HasSubstr("w00"));
    EXPECT_TRUE(loaded.error().offset_bytes);
  }
  EXPECT_TRUE(found);
}

// Pages exist only in stores of many steps.
TEST_F(HistoryDamageTest, DamageOfAPageIsFound) {
  {
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto store,
                               Store::Open(path_, OpenMode::kWrite, SmallBlocks()));
    constexpr SampleShape kTiny{.tensor_count = 1, .largest_bytes = 1};
    for (uint64_t step = 10; step < 80; ++step) Save(*store, step, 0, kTiny);
  }
  Begin();
  const std::vector<std::string> pages = NamesOf("pages");
  ASSERT_FALSE(pages.empty());
  for (const std::string& page : pages) {
    const std::string& text = files_[page];
    for (uint64_t i = 0; i < PositionsPerFile(); ++i) {
      EXPECT_TRUE(JudgeFlip(page, random_.Between(0, text.size() - 1),
                            static_cast<int>(random_.Between(0, 7))));
    }
    EXPECT_TRUE(JudgeText(page, text.substr(0, text.size() / 2), "cut in half"));
    fs::remove(path_ + "/" + page);
    EXPECT_TRUE(JudgeFile(page, "deleted"));
    // The steps that the root itself names do not need the page.
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto snapshot, ReadLatest(path_));
    CAIRN_EXPECT_OK(LoadSample(*snapshot));
    WriteText(path_ + "/" + page, text);
  }
}

// Whatever happens to a lease or to the hint, the next writer opens the store, has all steps, and
// its step is the newest.
TEST_F(HistoryDamageTest, WriterIsNotHinderedByADamagedLeaseOrHint) {
  for (const auto& [name, whole] : files_) {
    if (KindOf(name) != "leases" && name != "hint") continue;
    for (const std::string_view text : {"", "{", "99999999999999999999", "18446744073709551615",
                                        "1000", "{\"version\": 1, \"pid\": -1}"}) {
      SCOPED_TRACE(fmt::format("{} contains {}", name, text));
      const std::string copy = dir_ / "copy";
      fs::remove_all(copy);
      fs::copy(path_, copy, fs::copy_options::recursive);
      WriteText(copy + "/" + name, text);
      {
        CAIRN_ASSERT_OK_AND_ASSIGN(const auto store,
                                   Store::Open(copy, OpenMode::kWrite, SmallBlocks()));
        ExpectSteps(*store, expected_);
        CAIRN_EXPECT_OK(SaveSample(*store, MakeSample(9, 0, kShape)));
      }
      CAIRN_ASSERT_OK_AND_ASSIGN(const Steps now, LoadAll(copy));
      EXPECT_EQ(now.size(), expected_.size() + 1);
    }
  }
}

// --- a small store, and the files of another one

class FileDamageTest : public DamageTest {
 protected:
  void SetUp() override {
    MakeSmallStore(7);
    others_ = ReadFiles(path_);
    fs::remove_all(path_);
    MakeSmallStore(0);
    Begin();
  }

  /// Two steps, of which the second refers to the first. Roots before the newest are not read.
  void MakeSmallStore(uint64_t version) {
    const auto store = Store::Open(path_, OpenMode::kWrite, SmallBlocks());
    ASSERT_TRUE(IsOk(store));
    for (const uint64_t step : {1, 2}) {
      expected_[step] = MakeSample(step, version, kSmall);
      ASSERT_TRUE(IsOk(SaveSample(**store, expected_[step])));
    }
    ASSERT_TRUE(IsOk((*store)->Close()));
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

  Files others_;
};

TEST_F(FileDamageTest, EveryByteAndEveryLength) {
  const uint64_t stride = TestsAll() ? 1 : 41;
  for (const auto& [name, text] : files_) {
    for (uint64_t at = TestsAll() ? 0 : random_.Between(0, stride - 1); at < text.size();
         at += stride) {
      std::string inverted = text;
      inverted[at] = static_cast<char>(~text[at]);
      JudgeText(name, inverted, fmt::format("byte {} inverted", at));
      JudgeText(name, text.substr(0, at), fmt::format("cut at {}", at));
      if (HasFailure()) return;
    }
  }
  EXPECT_GT(reported_, 0u);
}

TEST_F(FileDamageTest, EveryExchangeRemovalAndDuplicate) {
  for (const auto& [a, text_a] : files_) {
    Files files = files_;
    files.erase(a);
    Judge(files, a + " removed");
    for (const auto& [b, text_b] : files_) {
      if (a == b) continue;
      files = files_;
      files[b] = text_a;
      Judge(files, fmt::format("{} over {}", a, b));
      files[a] = text_b;
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
  EXPECT_GT(reported_, 0u);
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
  EXPECT_GT(reported_, 0u);
}

}  // namespace
}  // namespace cairn::kv
