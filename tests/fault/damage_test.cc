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

#include "kv/file_descriptor.h"
#include "kv/options.h"
#include "kv/snapshot.h"
#include "kv/step_info.h"
#include "kv/store.h"
#include "tests/fault/operations.h"
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

std::string ReadText(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}
void WriteText(const std::string& path, std::string_view text) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
}

std::string KindOf(const std::string& relative) {
  if (relative.starts_with("segments/")) return "segment";
  if (relative.starts_with("commits/")) return "manifest";
  if (relative.ends_with(".sst")) return "index table";
  if (relative.starts_with("index/MANIFEST")) return "index MANIFEST";
  if (relative.starts_with("index/OPTIONS")) return "index OPTIONS";
  return relative.starts_with("index/") && relative.ends_with(".log") ? "index log" : relative;
}

enum class Verdict { kReported, kHarmless, kMissed };

struct Examination {
  Verdict verdict = Verdict::kMissed;
  std::string said;
};

/// Opens the store, verifies it and loads all its steps.
Examination Examine(const std::string& path, const Steps& expected) {
  const auto says = [](const Error& error) {
    return Examination{Verdict::kReported,
                       fmt::format("{}: {}", ErrorCodeName(error.code), error.ToString())};
  };
  const auto store = Store::Open(path, OpenMode::kRead);
  if (!store) return says(store.error());
  const auto snapshot = (*store)->Latest();
  if (!snapshot) return says(snapshot.error());
  const auto damage = Verify(**snapshot);
  if (!damage) return says(damage.error());
  if (!damage->empty()) return {Verdict::kReported, damage->front()};
  Steps found;
  for (const StepInfo& info : (*snapshot)->steps()) {
    auto loaded = LoadSample(**snapshot, info.step);
    if (!loaded) return says(loaded.error());
    found[info.step] = *std::move(loaded);
  }
  return {found == expected ? Verdict::kHarmless : Verdict::kMissed, ""};
}

struct Tally {
  uint64_t files = 0, bytes = 0, changes = 0, reported = 0, harmless = 0;
};

class DamageTest : public ::testing::Test {
 protected:
  /// Saves steps with references in two sessions, overwrites one of them and deletes one.
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
    Save(**again, 5, 0);
    ASSERT_TRUE(IsOk((*again)->Close()));
    ASSERT_EQ(Examine(path_, expected_).verdict, Verdict::kHarmless)
        << Examine(path_, expected_).said;
  }

  void Save(Store& store, uint64_t step, uint64_t version) {
    expected_[step] = MakeSample(step, version, kShape);
    ASSERT_TRUE(IsOk(SaveSample(store, expected_[step], /*overwrite=*/version > 0)));
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
    // In a segment, only payload to which no step refers any more may change without a report.
    if (KindOf(file) == "manifest" || file == "CAIRN") {
      EXPECT_EQ(found.verdict, Verdict::kReported) << file << ": " << change;
    }
  }

  ScopedTempDir dir_{fs::exists("/dev/shm") ? "/dev/shm" : ""};
  const std::string path_ = dir_ / "store";
  Steps expected_;
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
    if (KindOf(file) != "index table") continue;
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
  FAIL() << "the store has no index table";
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
  for (const StepInfo& info : snapshot->steps()) {
    const auto loaded = LoadSample(*snapshot, info.step);
    if (loaded) continue;
    found = true;
    EXPECT_EQ(loaded.error().code, ErrorCode::kDataLoss);
    EXPECT_THAT(loaded.error().key, HasSubstr("w00"));
    EXPECT_TRUE(loaded.error().offset_bytes);
  }
  EXPECT_TRUE(found);
}

// Whatever the damage of the index is: if a writer opens the store, saves and closes it,
// RebuildIndex can restore everything, and no load returns other bytes than those that were saved.
TEST_F(DamageTest, WriterOnADamagedIndexDestroysNothing) {
  SeededRandom random;
  fmt::print("CAIRN_TEST_SEED={}\n", random.seed());
  uint64_t opened = 0, refused = 0;
  for (const std::string& file : Files()) {
    const uint64_t size = fs::file_size(path_ + "/" + file);
    if (!file.starts_with("index/") || size == 0 || KindOf(file) == "index OPTIONS") continue;
    for (uint64_t i = 0; i < std::min<uint64_t>(1 + PositionsPerFile() / 8, 30); ++i) {
      const uint64_t at = random.Between(0, size - 1);
      SCOPED_TRACE(fmt::format("byte {} of {} in {}", at, size, file));
      const std::string copy = dir_ / "copy";
      fs::remove_all(copy);
      fs::copy(path_, copy, fs::copy_options::recursive);
      std::string text = ReadText(copy + "/" + file);
      text[at] ^= static_cast<char>(1 << random.Between(0, 7));
      WriteText(copy + "/" + file, text);
      Steps expected = expected_;
      if (auto writer = Store::Open(copy, OpenMode::kWrite)) {
        ++opened;
        const auto snapshot = (*writer)->Latest();
        ASSERT_TRUE(IsOk(snapshot));
        for (const auto& [step, sample] : expected) {
          const auto loaded = LoadSample(**snapshot, step);
          if (loaded) {
            EXPECT_TRUE(*loaded == sample) << "step " << step;
          } else {
            EXPECT_EQ(loaded.error().code, ErrorCode::kDataLoss) << loaded.error().ToString();
          }
        }
        if (SaveSample(**writer, MakeSample(9, 0, kShape))) expected[9] = MakeSample(9, 0, kShape);
      } else {
        ++refused;
        EXPECT_EQ(writer.error().code, ErrorCode::kDataLoss) << writer.error().ToString();
      }
      const auto report = Store::RebuildIndex(copy);
      if (report) {
        EXPECT_THAT(report->lost, IsEmpty());
      } else {
        EXPECT_THAT(report, IsError(ErrorCode::kFailedPrecondition, "nothing to rebuild"));
      }
      CAIRN_ASSERT_OK_AND_ASSIGN(const Steps rebuilt, LoadAll(copy));
      EXPECT_TRUE(rebuilt == expected);
      if (HasFailure()) return;
    }
  }
  fmt::print("{} damaged stores opened for writing, {} refused\n", opened, refused);
}

// --- a lost tail of RocksDB's manifest

/// Three commits, too few for a compaction, so that the tail contains only commits.
class LostTailTest : public DamageTest {
 protected:
  void SetUp() override {
    const auto store = Store::Open(path_, OpenMode::kWrite, SmallBlocks());
    ASSERT_TRUE(IsOk(store));
    for (const uint64_t step : {1, 2, 3}) Save(**store, step, 0);
    ASSERT_TRUE(IsOk((*store)->Close()));
  }

  std::string IndexManifest() const {
    for (const std::string& file : Files()) {
      if (KindOf(file) == "index MANIFEST") return file;
    }
    return "";
  }

  /// Checks that every step that was not deleted exists and is complete. Deleted steps may exist
  /// again, and may be damaged.
  void ExpectNothingDropped(const Snapshot& snapshot) {
    std::set<uint64_t> there;
    for (const StepInfo& info : snapshot.steps()) there.insert(info.step);
    for (const auto& [step, sample] : expected_) {
      ASSERT_TRUE(there.contains(step)) << "step " << step << " was dropped silently";
      const auto loaded = LoadSample(snapshot, step);
      ASSERT_TRUE(IsOk(loaded));
      EXPECT_TRUE(*loaded == sample) << "step " << step;
      there.erase(step);
    }
    if (deleted_) there.erase(*deleted_);  // a restored step is better than a lost one
    EXPECT_THAT(there, IsEmpty());
  }

  enum class Outcome { kUnharmed, kPutBack, kRebuilt };

  void Cut(uint64_t cut_bytes, std::map<Outcome, uint64_t>& outcomes) {
    const std::string copy = dir_ / "cut";
    fs::remove_all(copy);
    fs::copy(path_, copy, fs::copy_options::recursive);
    const std::string manifest = copy + "/" + IndexManifest();
    fs::resize_file(manifest, fs::file_size(manifest) - cut_bytes);
    bool lost = false;
    {
      const auto reader = Store::Open(copy, OpenMode::kRead);
      if (reader) {
        CAIRN_ASSERT_OK_AND_ASSIGN(const auto snapshot, (*reader)->Latest());
        ExpectNothingDropped(*snapshot);
      } else {
        lost = true;
        EXPECT_EQ(reader.error().code, ErrorCode::kDataLoss) << reader.error().ToString();
        EXPECT_THAT(reader.error().file,
                    ::testing::AnyOf(HasSubstr("/commits/"), HasSubstr("/index")));
      }
    }
    auto writer = Store::Open(copy, OpenMode::kWrite);
    Outcome outcome = lost ? Outcome::kPutBack : Outcome::kUnharmed;
    if (!writer) {
      EXPECT_EQ(writer.error().code, ErrorCode::kDataLoss) << writer.error().ToString();
      CAIRN_ASSERT_OK_AND_ASSIGN(const auto report, Store::RebuildIndex(copy));
      EXPECT_THAT(report.lost, IsEmpty());
      writer = Store::Open(copy, OpenMode::kWrite);
      ASSERT_TRUE(IsOk(writer));
      outcome = Outcome::kRebuilt;
    } else if (lost) {
      EXPECT_FALSE((*writer)->recovery_notes().empty());
    }
    ++outcomes[outcome];
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto snapshot, (*writer)->Latest());
    ExpectNothingDropped(*snapshot);
    if (HasFailure()) return;
    // A deleted step that was restored can be deleted again; then the store is as before.
    if (deleted_ && snapshot->FindStep(deleted_)) {
      CAIRN_EXPECT_OK((*writer)->Delete(std::array{*deleted_}));
    }
    CAIRN_EXPECT_OK(SaveSample(**writer, MakeSample(9)));
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto now, (*writer)->Latest());
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto damage, Verify(*now));
    EXPECT_THAT(damage, IsEmpty());
  }

  /// The lengths of the cuts: all up to a quarter of their number, and random ones.
  std::map<Outcome, uint64_t> CutMany() {
    SeededRandom random;
    fmt::print("CAIRN_TEST_SEED={}\n", random.seed());
    std::map<Outcome, uint64_t> outcomes;
    const uint64_t size = fs::file_size(path_ + "/" + IndexManifest());
    const uint64_t count = std::min(size, 4 * PositionsPerFile());
    std::set<uint64_t> cuts;
    for (uint64_t i = 1; i <= count / 4; ++i) cuts.insert(i);
    while (cuts.size() < count) cuts.insert(random.Between(1, size));
    for (const uint64_t cut_bytes : cuts) {
      SCOPED_TRACE(fmt::format("{} of {} bytes cut", cut_bytes, size));
      Cut(cut_bytes, outcomes);
      if (HasFailure()) break;
    }
    fmt::print("{} cuts: {} unharmed, {} restored by a writer, {} after RebuildIndex\n",
               cuts.size(), outcomes[Outcome::kUnharmed], outcomes[Outcome::kPutBack],
               outcomes[Outcome::kRebuilt]);
    return outcomes;
  }

  std::optional<uint64_t> deleted_;
};

TEST_F(LostTailTest, NoCutOfTheIndexManifestDropsACommitSilently) {
  EXPECT_GT(CutMany()[Outcome::kPutBack], 0u);
}

TEST_F(LostTailTest, NorDoesACutAfterADeleteAndACompaction) {
  {
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto store,
                               Store::Open(path_, OpenMode::kWrite, SmallBlocks()));
    Save(*store, 2, 1);
    Save(*store, 4, 0);
    CAIRN_ASSERT_OK(store->Delete(std::array<uint64_t, 1>{1}));
    Save(*store, 5, 0);
  }
  deleted_ = 1;
  expected_.erase(1);
  CutMany();
}

TEST_F(LostTailTest, ReaderNamesTheManifestOfTheLostStepAndMayTolerateIt) {
  const std::string manifest = path_ + "/" + IndexManifest();
  fs::resize_file(manifest, fs::file_size(manifest) - 1);
  const auto reader = Store::Open(path_, OpenMode::kRead);
  ASSERT_FALSE(reader);
  EXPECT_EQ(reader.error().code, ErrorCode::kDataLoss);
  EXPECT_THAT(reader.error().file, HasSubstr("/commits/"));
  EXPECT_THAT(reader.error().message, HasSubstr("open the store for writing"));
  StoreOptions tolerant;
  tolerant.tolerate_lost_steps = true;
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto store, Store::Open(path_, OpenMode::kRead, tolerant));
  EXPECT_EQ(store->recovery_notes().size(), 1u);
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto snapshot, store->Latest());
  EXPECT_TRUE(IsOk(LoadSample(*snapshot, 2)));
}

TEST_F(LostTailTest, LostStepWhoseManifestIsDamagedPreventsTheSweep) {
  const std::string index_manifest = path_ + "/" + IndexManifest();
  fs::resize_file(index_manifest, fs::file_size(index_manifest) - 1);
  const auto reader = Store::Open(path_, OpenMode::kRead);
  ASSERT_FALSE(reader);
  const std::string manifest = reader.error().file;
  std::string text = ReadText(manifest);
  const std::string original = text;
  text[text.size() / 2] ^= 4;
  WriteText(manifest, text);
  const auto segment_count = [this] {
    return std::ranges::count_if(Files(),
                                 [](const std::string& file) { return KindOf(file) == "segment"; });
  };
  const auto before = segment_count();
  {
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto writer, Store::Open(path_, OpenMode::kWrite));
    ASSERT_EQ(writer->recovery_notes().size(), 1u);
    EXPECT_THAT(writer->recovery_notes()[0].message, HasSubstr("cannot be restored"));
    EXPECT_EQ(segment_count(), before);
  }
  // After the manifest is repaired, the complete step is restored.
  WriteText(manifest, original);
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto writer, Store::Open(path_, OpenMode::kWrite));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto snapshot, writer->Latest());
  ExpectNothingDropped(*snapshot);
}

}  // namespace
}  // namespace cairn::kv
