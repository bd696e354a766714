// Goal: if any byte of a store changes, or any file is truncated or missing, then an open, a verify
// or a load reports it, or everything is loaded as it was saved.
//
// CAIRN_DAMAGE_POSITIONS (24) bounds the number of flipped positions per file; the "slow" variant
// flips every byte of files up to 4 KiB. Positions are random, with the seed CAIRN_TEST_SEED.

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>

#include "kv/base/options.h"
#include "kv/io/file_descriptor.h"
#include "kv/read/snapshot.h"
#include "kv/root/internal/lease.h"
#include "kv/store.h"
#include "tests/fault/examine.h"
#include "tests/fault/operations.h"
#include "tests/kv/store_checks.h"
#include "tests/support/result_matchers.h"
#include "tests/support/scoped_temp_dir.h"
#include "tests/support/seeded_random.h"

namespace cairn::kv {
namespace {

using cairn::testing::IsError;
using cairn::testing::IsOk;
using cairn::testing::ScopedTempDir;
using cairn::testing::SeededRandom;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using namespace cairn::kv::testing;  // NOLINT(google-build-using-namespace)
namespace fs = std::filesystem;

constexpr SampleShape kShape{.tensor_count = 4, .largest_bytes = 90'000};

uint64_t PositionsPerFile() {
  const char* given = std::getenv("CAIRN_DAMAGE_POSITIONS");
  return given != nullptr ? std::strtoull(given, nullptr, 10) : 24;
}

std::string KindOf(const std::string& relative) {
  if (relative.starts_with("segments/")) return "segment";
  if (relative.starts_with("tables/")) return "table";
  if (relative.starts_with("pages/")) return "page";
  if (relative.starts_with("roots/")) return "root";
  return relative.starts_with("leases/") ? "lease" : relative;
}

struct Tally {
  uint64_t files = 0, bytes = 0, changes = 0, reported = 0, harmless = 0;
};

class DamageTest : public ::testing::Test {
 protected:
  /// Saves steps with references in two sessions, overwrites one of them and deletes one. Leaves a
  /// hint, and the lease of a writer that has ended.
  void SetUp() override {
    const auto store = Store::Open(path_, OpenMode::kWrite, SmallBlocks());
    ASSERT_TRUE(IsOk(store));
    for (const auto& [step, version] : {std::pair{1, 0}, {2, 0}, {3, 0}, {2, 1}})
      Save(**store, step, version);
    ASSERT_TRUE(IsOk((*store)->Close()));
    const auto again = Store::Open(path_, OpenMode::kWrite, SmallBlocks());
    ASSERT_TRUE(IsOk(again));
    Save(**again, 4, 0);
    ASSERT_TRUE(IsOk((*again)->Delete(std::array<uint64_t, 1>{1})));
    expected_.erase(1);
    before_last_ = expected_;
    Save(**again, 5, 0);
    const std::string lease_path = path_ + "/" + internal::LeaseName((*again)->session());
    const std::string text = ReadText(lease_path);
    auto lease = internal::DecodeLease(std::as_bytes(std::span(text)));
    ASSERT_TRUE(lease);
    lease->process_start = 1;  // an earlier process with the same number
    ASSERT_TRUE(IsOk((*again)->Close()));
    const auto bytes = internal::EncodeLease(*lease);
    WriteText(lease_path, std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
    WriteText(path_ + "/hint", "3");
    ASSERT_EQ(Examine(path_, expected_).verdict, Verdict::kHarmless)
        << Examine(path_, expected_).said;
  }

  void Save(Store& store, uint64_t step, uint64_t version) {
    expected_[step] = MakeSample(step, version, kShape);
    ASSERT_TRUE(IsOk(SaveSample(store, expected_[step], /*overwrite=*/version > 0)));
  }

  /// The names of the roots, the newest first.
  std::vector<std::string> Roots() const {
    std::vector<std::string> roots = Files();
    std::erase_if(roots, [](const std::string& file) { return KindOf(file) != "root"; });
    return roots;
  }

  std::vector<std::string> Files() const {
    std::vector<std::string> files;
    for (const auto& entry : fs::recursive_directory_iterator(path_)) {
      if (entry.is_regular_file()) files.push_back(fs::relative(entry.path(), path_));
    }
    std::ranges::sort(files);
    return files;
  }

  void Judge(const std::string& file, const std::string& change, Tally& tally) {
    const Examination found = Examine(path_, expected_);
    ++tally.changes;
    if (found.verdict == Verdict::kReported) ++tally.reported;
    if (found.verdict == Verdict::kHarmless) ++tally.harmless;
    EXPECT_NE(found.verdict, Verdict::kMissed) << file << ": " << change << " went unnoticed";
    if (found.verdict == Verdict::kReported) {
      EXPECT_THAT(found.said, HasSubstr("DataLoss")) << file << ": " << change;
      EXPECT_THAT(found.said, HasSubstr("file "))
          << file << ": " << change << " is reported nowhere";
    }
    // In a segment, only payload to which no step refers any more may change without a report. Old
    // roots are not read.
    if (KindOf(file) == "table" || file == "CAIRN" || file == Roots().front()) {
      EXPECT_EQ(found.verdict, Verdict::kReported) << file << ": " << change;
    }
    if (KindOf(file) == "hint" || KindOf(file) == "lease") {
      EXPECT_EQ(found.verdict, Verdict::kHarmless) << file << ": " << change << ": " << found.said;
    }
  }

  ScopedTempDir dir_{fs::exists("/dev/shm") ? "/dev/shm" : ""};
  const std::string path_ = dir_ / "store";
  Steps expected_;
  Steps before_last_;  // before the last commit
};

void Print(const char* what, const std::map<std::string, Tally>& tallies) {
  fmt::print("{:<18}{:>6}{:>10}{:>10}{:>10}{:>10}\n", what, "files", "bytes", "changes", "found",
             "harmless");
  for (const auto& [kind, tally] : tallies) {
    fmt::print("{:<18}{:>6}{:>10}{:>10}{:>10}{:>10}\n", kind, tally.files, tally.bytes,
               tally.changes, tally.reported, tally.harmless);
  }
}

TEST_F(DamageTest, EveryFlippedBitIsFoundOrHarmless) {
  SeededRandom random;
  fmt::print("CAIRN_TEST_SEED={}\n", random.seed());
  std::map<std::string, Tally> tallies;
  for (const std::string& file : Files()) {
    Tally& tally = tallies[KindOf(file)];
    const uint64_t size = fs::file_size(path_ + "/" + file);
    ++tally.files;
    tally.bytes += size;
    std::set<uint64_t> positions;
    if (size <= std::min<uint64_t>(PositionsPerFile(), 4096)) {
      for (uint64_t at = 0; at < size; ++at) positions.insert(at);
    } else {
      while (positions.size() < std::min<uint64_t>(PositionsPerFile(), size)) {
        positions.insert(random.Between(0, size - 1));
      }
    }
    const FileDescriptor fd(::open((path_ + "/" + file).c_str(), O_RDWR | O_CLOEXEC));
    ASSERT_TRUE(fd.is_open());
    for (const uint64_t at : positions) {
      char byte;
      ASSERT_EQ(::pread(fd.get(), &byte, 1, static_cast<off_t>(at)), 1);
      const int bit = static_cast<int>(random.Between(0, 7));
      const char flipped = static_cast<char>(byte ^ (1 << bit));
      ASSERT_EQ(::pwrite(fd.get(), &flipped, 1, static_cast<off_t>(at)), 1);
      Judge(file, fmt::format("bit {} of byte {} of {} flipped", bit, at, size), tally);
      ASSERT_EQ(::pwrite(fd.get(), &byte, 1, static_cast<off_t>(at)), 1);
    }
  }
  Print("bit flips in", tallies);
}

// A fixed bug: RocksDB used a table's properties before it had checked them, and a flip of the
// highest bit of one of their counters ended the process.
TEST_F(DamageTest, HighestBitOfEveryByteOfATableDoesNotEndTheProcess) {
  for (const std::string& file : Files()) {
    if (KindOf(file) != "table") continue;
    std::string text = ReadText(path_ + "/" + file);
    Tally tally;
    for (char& byte : text) {
      byte = static_cast<char>(byte ^ 0x80);
      WriteText(path_ + "/" + file, text);
      Judge(file, fmt::format("highest bit of byte {} flipped", &byte - text.data()), tally);
      byte = static_cast<char>(byte ^ 0x80);
    }
    EXPECT_EQ(tally.reported, text.size());
    return;
  }
  FAIL() << "the store has no table";
}

TEST_F(DamageTest, TruncatedEmptyExtendedAndMissingFilesAreFoundOrHarmless) {
  std::map<std::string, Tally> tallies;
  for (const std::string& file : Files()) {
    Tally& tally = tallies[KindOf(file)];
    const std::string full = path_ + "/" + file;
    const std::string text = ReadText(full);
    ++tally.files;
    tally.bytes += text.size();
    const auto judge_as = [&](std::string_view content, const std::string& change) {
      WriteText(full, content);
      Judge(file, change, tally);
    };
    if (!text.empty()) {
      judge_as("", "emptied");
      judge_as(std::string_view(text).substr(0, text.size() / 2), "cut in half");
      judge_as(std::string_view(text).substr(0, text.size() - 1), "cut by a byte");
      judge_as(text + '\0', "extended by a zero byte");
      WriteText(full, text);
      if (KindOf(file) == "root") continue;  // see LostRootTest
      fs::rename(full, dir_ / "aside");
      Judge(file, "deleted", tally);
      fs::rename(dir_ / "aside", full);
    }
  }
  Print("cuts of", tallies);
}

TEST_F(DamageTest, ReportOfAFlippedPayloadByteNamesKeySegmentAndOffset) {
  for (const std::string& file : Files()) {
    if (KindOf(file) != "segment") continue;
    std::string text = ReadText(path_ + "/" + file);
    text[4096] ^= 1;  // the first byte after the header
    WriteText(path_ + "/" + file, text);
    break;
  }
  bool found = false;
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto store, Store::Open(path_, OpenMode::kRead));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto snapshot, store->Latest());
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
TEST_F(DamageTest, DamageOfAPageIsFound) {
  constexpr SampleShape kTiny{.tensor_count = 1, .largest_bytes = 1};
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto store, Store::Open(path_, OpenMode::kWrite, SmallBlocks()));
  for (uint64_t step = 10; step < 80; ++step) {
    expected_[step] = MakeSample(step, 0, kTiny);
    CAIRN_ASSERT_OK(SaveSample(*store, expected_[step]));
  }
  CAIRN_ASSERT_OK(store->Close());
  ASSERT_EQ(Examine(path_, expected_).verdict, Verdict::kHarmless);
  SeededRandom random;
  fmt::print("CAIRN_TEST_SEED={}\n", random.seed());
  Tally tally;
  for (const std::string& file : Files()) {
    if (KindOf(file) != "page") continue;
    ++tally.files;
    const std::string text = ReadText(path_ + "/" + file);
    for (uint64_t i = 0; i < PositionsPerFile(); ++i) {
      const uint64_t at = random.Between(0, text.size() - 1);
      std::string changed = text;
      changed[at] ^= static_cast<char>(1 << random.Between(0, 7));
      WriteText(path_ + "/" + file, changed);
      Judge(file, fmt::format("a bit of byte {} flipped", at), tally);
    }
    WriteText(path_ + "/" + file, text.substr(0, text.size() / 2));
    Judge(file, "cut in half", tally);
    fs::remove(path_ + "/" + file);
    Judge(file, "deleted", tally);
    EXPECT_EQ(tally.reported, tally.changes);
    // The steps that the root itself names do not need the page.
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto reader, Store::Open(path_, OpenMode::kRead));
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto snapshot, reader->Latest());
    CAIRN_EXPECT_OK(LoadSample(*snapshot));
    WriteText(path_ + "/" + file, text);
  }
  EXPECT_GT(tally.files, 0u);
}

// Whatever happens to a lease or to the hint, the next writer opens the store, has all steps, and
// its step is the newest.
TEST_F(DamageTest, WriterIsNotHinderedByADamagedLeaseOrHint) {
  for (const std::string& file : Files()) {
    if (KindOf(file) != "lease" && KindOf(file) != "hint") continue;
    for (const std::string_view text : {"", "{", "99999999999999999999", "18446744073709551615",
                                        "1000", "{\"version\": 1, \"pid\": -1}"}) {
      SCOPED_TRACE(fmt::format("{} contains {}", file, text));
      const std::string copy = dir_ / "copy";
      fs::remove_all(copy);
      fs::copy(path_, copy, fs::copy_options::recursive);
      WriteText(copy + "/" + file, text);
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

}  // namespace
}  // namespace cairn::kv
