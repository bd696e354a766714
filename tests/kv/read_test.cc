// Reads many ranges and compares them with the bytes that were written, with every kind of I/O.

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <thread>

#include "kv/base/options.h"
#include "kv/base/read_range.h"
#include "kv/io/file_descriptor.h"
#include "kv/io/internal/file.h"
#include "kv/step_writer.h"
#include "kv/store.h"
#include "tests/kv/byte_payload.h"
#include "tests/kv/sample_step.h"
#include "tests/support/fault_hook.h"
#include "tests/support/result_matchers.h"
#include "tests/support/scoped_temp_dir.h"
#include "tests/support/seeded_random.h"

namespace cairn::kv {
namespace {

using cairn::testing::FailAt;
using cairn::testing::IsError;
using cairn::testing::ScopedFaults;
using cairn::testing::ScopedTempDir;
using cairn::testing::SeededRandom;
using namespace cairn::kv::testing;  // NOLINT(google-build-using-namespace)
namespace fs = std::filesystem;

/// A committed step of raw payloads, and the extents of the payloads.
struct Written {
  std::vector<std::vector<std::byte>> payloads;
  std::vector<Extent> extents;
};

Result<Written> WritePayloads(const std::string& path, const StoreOptions& options,
                              const std::vector<uint64_t>& lengths) {
  constexpr SegmentAlignment kAlignments[] = {SegmentAlignment::kNone, SegmentAlignment::k64,
                                              SegmentAlignment::k4096};
  CAIRN_TRY_ASSIGN(const auto store, Store::Open(path, OpenMode::kWrite, options));
  CAIRN_TRY_ASSIGN(const auto writer, store->Begin(1, {}));
  Written written;
  for (size_t i = 0; i < lengths.size(); ++i) {
    written.payloads.push_back(RandomBytes(i + 1, lengths[i]));
    const std::string key = ChunkKey(fmt::format("p{}", i), std::array{uint64_t{0}});
    CAIRN_TRY_ASSIGN(
        const Extent extent,
        SaveChunk(*writer, 1, key, CopiedPayload(written.payloads.back()), kAlignments[i % 3]));
    written.extents.push_back(extent);
  }
  CAIRN_TRY(writer->SetStructure(internal::AsBytes("any bytes")));
  CAIRN_TRY(writer->Commit({}));
  return written;
}

/// The bytes of `extent` from `begin` on that fit into `target`.
ReadRange RangeOf(const Extent& extent, std::span<std::byte> target, uint64_t begin = 0) {
  return {.segment_id = extent.segment_id,
          .offset_bytes = extent.offset_bytes + begin,
          .target = target};
}

constexpr auto kAccept = [](size_t, auto) -> Result<void> { return {}; };

/// Drops the segments from the page cache.
void DropCache(const std::string& path) {
  for (const auto& entry : fs::directory_iterator(path + "/segments")) {
    const FileDescriptor file(::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC));
    ASSERT_EQ(::fdatasync(file.get()), 0);
    ASSERT_EQ(::posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED), 0);
  }
}

struct ReadCase {
  const char* name;
  const char* parent;  // of the temporary directory; empty: the default
  bool direct;
  bool uring;
  uint64_t block_bytes;
  uint32_t queue_depth;
};

class ReadTest : public ::testing::TestWithParam<ReadCase> {
 protected:
  void SetUp() override {
    if (*GetParam().parent != 0 && !fs::exists(GetParam().parent)) {
      GTEST_SKIP() << "there is no " << GetParam().parent;
    }
    options_.io = {.direct = GetParam().direct,
                   .uring = GetParam().uring,
                   .block_bytes = GetParam().block_bytes,
                   .queue_depth = GetParam().queue_depth};
    options_.grace = std::chrono::milliseconds(0);  // deleted files vanish at once
  }
  ScopedTempDir dir_{GetParam().parent};
  const std::string path_ = dir_ / "store";
  StoreOptions options_;
};

TEST_P(ReadTest, RandomRangesHoldTheBytesThatWereWritten) {
  SeededRandom random;
  const std::vector<uint64_t> lengths = {
      1, 2, 63, 64, 4096, 5000, 100'000, 65'536, 65'537, 400'000, 1'000'003, 7, 12'288, 5, 1 << 20};
  CAIRN_ASSERT_OK_AND_ASSIGN(const Written written, WritePayloads(path_, options_, lengths));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto snapshot, ReadLatest(path_, options_));
  for (int round = 0; round < 8; ++round) {
    SCOPED_TRACE(fmt::format("round {}", round));
    if (round % 2 == 0) DropCache(path_);
    struct Wanted {
      size_t payload;
      uint64_t begin, length, shift;
    };
    std::vector<Wanted> wanted;
    const uint64_t count = random.Between(1, 60);
    for (uint64_t i = 0; i < count; ++i) {
      Wanted one{
          .payload = random.Between(0, lengths.size() - 1), .begin = 0, .length = 0, .shift = 0};
      const uint64_t whole = lengths[one.payload];
      one.begin = random.Chance(0.4) ? 0 : random.Between(0, whole);
      one.length = random.Chance(0.4) ? whole - one.begin : random.Between(0, whole - one.begin);
      // The alignment that devices require of addresses, or none.
      constexpr uint64_t kAligns[] = {1, 4, 512, 4096};
      const uint64_t align = kAligns[random.Between(0, 3)];
      one.shift = random.Between(0, 4095) / align * align;
      wanted.push_back(one);
    }
    // Each target is in separate memory, aligned or not, with a fence on either side.
    constexpr uint64_t kFence = 64;
    std::vector<std::byte*> memory;
    std::vector<ReadRange> ranges;
    for (const Wanted& one : wanted) {
      const uint64_t need = RoundUp(4096 + one.shift + one.length + kFence, 4096);
      memory.push_back(static_cast<std::byte*>(std::aligned_alloc(4096, need)));
      std::fill_n(memory.back(), need, std::byte{0xEE});
      ranges.push_back(RangeOf(written.extents[one.payload],
                               {memory.back() + 4096 + one.shift, one.length}, one.begin));
    }
    std::vector<int> arrivals(ranges.size());
    const auto result = snapshot->Read(ranges, 1, [&](size_t i, auto) -> Result<void> {
      ++arrivals[i];
      const auto& payload = written.payloads[wanted[i].payload];
      const auto expected = std::span(payload).subspan(wanted[i].begin, wanted[i].length);
      EXPECT_TRUE(std::ranges::equal(ranges[i].target, expected))
          << "range " << i << " when it arrived";
      return {};
    });
    ASSERT_TRUE(cairn::testing::IsOk(result));
    EXPECT_THAT(arrivals, ::testing::Each(1));
    for (size_t i = 0; i < ranges.size(); ++i) {
      const std::byte* begin = ranges[i].target.data();
      const std::byte* end = begin + ranges[i].target.size();
      const auto untouched = [](std::byte b) { return b == std::byte{0xEE}; };
      EXPECT_TRUE(std::all_of(begin - kFence, begin, untouched)) << "bytes before range " << i;
      EXPECT_TRUE(std::all_of(end, end + kFence, untouched)) << "bytes after range " << i;
      std::free(memory[i]);
    }
  }
}

// Small tensors are adjacent in the file and in memory. Not all of them are in the page cache.
TEST_P(ReadTest, AdjacentRangesWithAdjacentTargetsAreWhatWasWritten) {
  SeededRandom random;
  const uint64_t length = 3 << 20;
  CAIRN_ASSERT_OK_AND_ASSIGN(const Written written, WritePayloads(path_, options_, {length}));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto snapshot, ReadLatest(path_, options_));
  const Extent& extent = written.extents.front();
  for (int round = 0; round < 6; ++round) {
    SCOPED_TRACE(fmt::format("round {}", round));
    if (round % 3 == 0) DropCache(path_);
    std::vector<std::byte> memory(2 * length);
    std::vector<std::byte> expected(memory.size());
    std::vector<ReadRange> ranges;
    uint64_t target = 0;
    for (uint64_t at = 0; at < length;) {
      const uint64_t bytes = std::min(random.Between(1, 60'000), length - at);
      // Most ranges follow the one before them in both; some only in the file, or only in memory.
      if (random.Chance(0.1)) target += random.Between(1, 5000);
      ranges.push_back(RangeOf(extent, std::span(memory).subspan(target, bytes), at));
      std::memcpy(expected.data() + target, written.payloads.front().data() + at, bytes);
      target += bytes;
      at += bytes;
      if (random.Chance(0.1)) at += random.Between(1, 5000);
    }
    std::vector<int> arrivals(ranges.size(), 0);
    CAIRN_ASSERT_OK(snapshot->Read(ranges, 1, [&](size_t i, auto bytes) -> Result<void> {
      EXPECT_EQ(bytes.data(), ranges[i].target.data());
      ++arrivals[i];
      return {};
    }));
    EXPECT_THAT(arrivals, ::testing::Each(1));
    EXPECT_EQ(memory, expected);
  }
}

TEST_P(ReadTest, PayloadFromAnyAddressIsWhatWasWritten) {
  constexpr uint64_t kBytes = 700'000;
  constexpr uint64_t kShifts[] = {0, 512, 64, 4, 3584, 1};
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto store, Store::Open(path_, OpenMode::kWrite, options_));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto writer, store->Begin(1, {}));
  const std::unique_ptr<std::byte, void (*)(void*)> memory(
      static_cast<std::byte*>(std::aligned_alloc(4096, 4096 * 200)), std::free);
  SeededRandom random;
  random.Fill({memory.get(), 4096 * 200});
  std::vector<Extent> extents;
  for (const uint64_t shift : kShifts) {
    const std::span<const std::byte> payload(memory.get() + shift, kBytes);
    const std::string key = ChunkKey(fmt::format("p{}", shift), std::array{uint64_t{0}});
    CAIRN_ASSERT_OK_AND_ASSIGN(
        const Extent extent,
        SaveChunk(*writer, 1, key, BorrowedPayload(payload), SegmentAlignment::k4096));
    extents.push_back(extent);
  }
  CAIRN_ASSERT_OK(writer->SetStructure(internal::AsBytes("any bytes")));
  CAIRN_ASSERT_OK(writer->Commit({}));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto snapshot, store->Latest());
  for (size_t i = 0; i < extents.size(); ++i) {
    std::vector<std::byte> read(kBytes);
    const ReadRange range = RangeOf(extents[i], read);
    CAIRN_ASSERT_OK(snapshot->Read({&range, 1}, 1, kAccept));
    EXPECT_EQ(std::memcmp(read.data(), memory.get() + kShifts[i], kBytes), 0)
        << "from an address that is " << kShifts[i] << " after the start of a page";
  }
}

TEST_P(ReadTest, RangesOfZerosAreFilledAndLent) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const Written written, WritePayloads(path_, options_, {200'000}));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto snapshot, ReadLatest(path_, options_));
  for (const uint32_t threads : {1u, 4u}) {
    std::vector<std::vector<std::byte>> targets(20, std::vector<std::byte>(30'000, std::byte{9}));
    std::vector<ReadRange> ranges;
    for (auto& target : targets) ranges.push_back({.target = target});  // of segment 0
    ranges[7] = RangeOf(written.extents[0], targets[7]);
    ranges[11] = {.target = {}, .lent_bytes = 500'000};
    std::vector<std::atomic<int>> calls(ranges.size());
    CAIRN_ASSERT_OK(snapshot->Read(ranges, threads, [&](size_t i, auto bytes) -> Result<void> {
      ++calls[i];
      EXPECT_EQ(bytes.size(), ranges[i].length_bytes());
      if (i == 7) {
        EXPECT_EQ(std::memcmp(bytes.data(), written.payloads[0].data(), bytes.size()), 0);
      } else {
        EXPECT_TRUE(std::ranges::all_of(bytes, [](std::byte b) { return b == std::byte{0}; })) << i;
      }
      return {};
    }));
    for (size_t i = 0; i < calls.size(); ++i) EXPECT_EQ(calls[i], 1) << i;
    EXPECT_EQ(targets[0], std::vector<std::byte>(30'000));
    const auto failed = snapshot->Read(ranges, threads, [&](size_t i, auto) -> Result<void> {
      if (i != 3) return {};
      return Fail(ErrorCode::kCancelled, "stopped by the callback");
    });
    EXPECT_THAT(failed, IsError(ErrorCode::kCancelled, "by the callback"));
  }
}

TEST_P(ReadTest, SeveralThreadsFillEveryRangeOnce) {
  std::vector<uint64_t> lengths(40, 3000);
  lengths.insert(lengths.end(), {9'000'000, 600'000, 1, 5'000'000, 6'000'001});
  CAIRN_ASSERT_OK_AND_ASSIGN(const Written written, WritePayloads(path_, options_, lengths));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto snapshot, ReadLatest(path_, options_));
  std::vector<std::vector<std::byte>> targets;
  std::vector<ReadRange> ranges;
  for (const Extent& extent : written.extents) {
    targets.emplace_back(extent.length_bytes);
    ranges.push_back(RangeOf(extent, targets.back()));
  }
  for (const bool cold : {true, false}) {
    if (cold) DropCache(path_);
    for (auto& target : targets) std::ranges::fill(target, std::byte{0});
    std::vector<std::atomic<int>> arrivals(ranges.size());
    CAIRN_ASSERT_OK(snapshot->Read(ranges, 3, [&](size_t i, auto) -> Result<void> {
      ++arrivals[i];
      return {};
    }));
    for (const auto& count : arrivals) EXPECT_EQ(count, 1);
    EXPECT_EQ(targets, written.payloads);
  }
  // If any thread fails, the read fails.
  const auto refuse_last = [&](size_t i, auto) -> Result<void> {
    if (i + 1 == ranges.size()) return Fail(ErrorCode::kCancelled, "enough");
    return {};
  };
  EXPECT_THAT(snapshot->Read(ranges, 3, refuse_last), IsError(ErrorCode::kCancelled, "enough"));
}

TEST_P(ReadTest, MapShowsTheSameBytes) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const Written written,
                             WritePayloads(path_, options_, {10, 70'000, 4096, 1, 333}));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto store, Store::Open(path_, OpenMode::kWrite, options_));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto snapshot, store->Latest());
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto mapping, snapshot->Map(written.extents[0].segment_id));
  const auto expect_same = [&] {
    for (size_t i = 0; i < written.extents.size(); ++i) {
      const Extent& extent = written.extents[i];
      EXPECT_TRUE(std::ranges::equal(
          mapping->bytes().subspan(extent.offset_bytes, extent.length_bytes), written.payloads[i]));
    }
  };
  expect_same();
  // The mapping remains valid when the file is removed.
  CAIRN_ASSERT_OK(store->Delete(std::array<uint64_t, 1>{1}));
  EXPECT_TRUE(fs::is_empty(path_ + "/segments"));
  expect_same();
}

TEST_P(ReadTest, TruncatedSegmentIsDataLossWithFileAndOffset) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const Written written,
                             WritePayloads(path_, options_, {50'000, 300'000}));
  const std::string segment = fs::directory_iterator(path_ + "/segments")->path();
  fs::resize_file(segment, 100'001);
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto snapshot, ReadLatest(path_, options_));
  std::vector<std::byte> target(300'000);
  const ReadRange range = RangeOf(written.extents[1], target);
  const auto result = snapshot->Read({&range, 1}, 1, kAccept);
  EXPECT_THAT(result, IsError(ErrorCode::kDataLoss, segment));
  EXPECT_TRUE(result.error().offset_bytes);
  // The rest of the file can be read.
  const ReadRange first = RangeOf(written.extents[0], std::span(target).first(50'000));
  CAIRN_EXPECT_OK(snapshot->Read({&first, 1}, 1, kAccept));
}

TEST_P(ReadTest, ErrorsEndTheReadAndTheNextOneWorks) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const Written written,
                             WritePayloads(path_, options_, {200'000, 200'000}));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto snapshot, ReadLatest(path_, options_));
  std::vector<std::byte> targets[2];
  std::vector<ReadRange> ranges;
  for (int i = 0; i < 2; ++i) {
    targets[i].resize(200'000);
    ranges.push_back(RangeOf(written.extents[i], targets[i]));
  }
  EXPECT_THAT(
      snapshot->Read(ranges, 1, [](size_t, auto) { return Fail(ErrorCode::kCancelled, "enough"); }),
      IsError(ErrorCode::kCancelled, "enough"));
  {
    ScopedFaults faults(FailAt("segment.read", 1, EIO));
    EXPECT_THAT(snapshot->Read(ranges, 1, kAccept),
                IsError(ErrorCode::kDataLoss, "cannot read the segment"));
  }
  CAIRN_EXPECT_OK(snapshot->Read(ranges, 1, kAccept));
  EXPECT_EQ(targets[1], written.payloads[1]);
  const ReadRange unknown{.segment_id = 12345, .offset_bytes = 4096, .target = targets[0]};
  EXPECT_THAT(snapshot->Read(std::span(&unknown, 1), 1, kAccept),
              IsError(ErrorCode::kDataLoss, "no step uses a segment"));
}

INSTANTIATE_TEST_SUITE_P(
    Every, ReadTest,
    ::testing::Values(ReadCase{"direct_uring", "", true, true, 8 << 20, 8},
                      ReadCase{"direct_threads", "", true, false, 1 << 20, 4},
                      ReadCase{"buffered_uring", "", false, true, 256 << 10, 8},
                      ReadCase{"buffered_threads", "", false, false, 8 << 20, 1},
                      ReadCase{"tiny_blocks", "", true, true, 4096, 2},
                      ReadCase{"one_tiny_block", "", true, false, 4096, 1},
                      ReadCase{"odd_blocks", "", true, true, 12'288, 3},
                      ReadCase{"tmpfs", "/dev/shm", true, true, 1 << 20, 8}),
    [](const auto& info) { return info.param.name; });

// A fixed bug: if the longer of two overlapping ranges had filled a block, the shorter one was
// copied from memory before the block.
TEST(OverlappingReadTest, RangeInsideALongerOneIsComplete) {
  ScopedTempDir dir;
  const std::string path = dir / "store";
  StoreOptions options;
  options.io = {.block_bytes = 8192};
  CAIRN_ASSERT_OK_AND_ASSIGN(const Written written, WritePayloads(path, options, {1, 1, 100'000}));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto snapshot, ReadLatest(path, options));
  const Extent& extent = written.extents[2];
  std::vector<std::byte> whole(100'000), inside(500), same(100'000);
  const ReadRange ranges[] = {RangeOf(extent, whole), RangeOf(extent, inside, 100),
                              RangeOf(extent, same)};
  CAIRN_ASSERT_OK(snapshot->Read(ranges, 1, kAccept));
  EXPECT_EQ(whole, written.payloads[2]);
  EXPECT_EQ(same, written.payloads[2]);
  EXPECT_TRUE(std::ranges::equal(inside, std::span(written.payloads[2]).subspan(100, 500)));
}

TEST(ReadAmountTest, SmallPartOfALargePayloadReadsLittle) {
  ScopedTempDir dir;
  const std::string path = dir / "store";
  CAIRN_ASSERT_OK_AND_ASSIGN(const Written written, WritePayloads(path, {}, {1, 1, 8 << 20}));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto snapshot, ReadLatest(path));
  for (const bool cold : {true, false}) {
    if (cold) DropCache(path);
    std::vector<std::byte> target(64 << 10);
    const ReadRange range = RangeOf(written.extents[2], target, 3 << 20);
    CAIRN_ASSERT_OK_AND_ASSIGN(const uint64_t read_bytes, snapshot->Read({&range, 1}, 1, kAccept));
    EXPECT_GE(read_bytes, target.size());
    EXPECT_LE(read_bytes, target.size() + 8192);
  }
}

TEST(ReadManyTest, SnapshotIsReadFromManyThreadsAtOnce) {
  ScopedTempDir dir;
  const std::string path = dir / "store";
  StoreOptions options;
  // Fewer blocks than threads, so that threads wait for each other's blocks.
  options.io = {.block_bytes = 64 << 10, .queue_depth = 2};
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto store, Store::Open(path, OpenMode::kWrite, options));
  CAIRN_ASSERT_OK(SaveSample(*store, MakeSample(1)));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto snapshot, store->Latest());
  std::vector<std::thread> threads;
  std::atomic<int> right = 0;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 5; ++round) {
        const auto loaded = LoadSample(*snapshot);
        if (loaded && *loaded == MakeSample(1)) ++right;
      }
    });
  }
  // Concurrently with a writer that uses the same pool.
  for (const uint64_t step : {2, 3}) CAIRN_EXPECT_OK(SaveSample(*store, MakeSample(step)));
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, 20);
}

/// Returns how many files below `directory` this process has open although they were removed.
size_t CountOpenRemoved(const std::string& directory) {
  size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::string path = std::filesystem::read_symlink(entry.path(), gone);
    count += path.starts_with(directory) && path.ends_with("(deleted)") ? 1 : 0;
  }
  return count;
}

TEST(LongReaderTest, DoesNotKeepTheSpaceOfRemovedFiles) {
  ScopedTempDir directory;
  const std::string path = directory / "store";
  StoreOptions options;
  options.grace = std::chrono::milliseconds(0);
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto writer, Store::Open(path, OpenMode::kWrite, options));
  CAIRN_ASSERT_OK(SaveSample(*writer, MakeSample(1)));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto reader, Store::Open(path, OpenMode::kRead));
  for (uint64_t step = 2; step < 10; ++step) {
    CAIRN_ASSERT_OK(SaveSample(*writer, MakeSample(step)));
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto snapshot, reader->Latest());
    CAIRN_ASSERT_OK_AND_ASSIGN(const SampleStep found, LoadSample(*snapshot));
    EXPECT_EQ(found, MakeSample(step));
    CAIRN_ASSERT_OK(writer->Delete(std::array<uint64_t, 1>{step}));
  }
  EXPECT_GT(CountOpenRemoved(path), 0u);
  CAIRN_ASSERT_OK(reader->Latest());
  EXPECT_EQ(CountOpenRemoved(path), 0u);
}

}  // namespace
}  // namespace cairn::kv
