// Flipped bits are found by every read that touches them and by Verify, which name key, segment and
// offset.

#include <fmt/format.h>

#include <filesystem>
#include <thread>
#include <vector>

#include "core/load/load_options.h"
#include "core/load/map.h"
#include "core/step/contents.h"
#include "kv/base/options.h"
#include "kv/base/step_info.h"
#include "tests/core/tensor/test_tensor.h"

namespace cairn::core {
namespace {

using cairn::testing::IsError;
using ::testing::Contains;
using ::testing::Field;
using ::testing::HasSubstr;

class DamageTest : public StoreTest {
 protected:
  DamageTest() : tensor_(DType::kFloat32, {100, 4096}), other_(DType::kInt8, {5000}, 2) {}

  // Chunks of 1 MiB: 64 rows of 16 KiB, 4 rows per page.
  void SaveSample() {
    Save(1, StateOf({{"w", tensor_.view()}, {"other", other_.view()}}), {.chunk_bytes = 1 << 20});
    CAIRN_ASSERT_OK_AND_ASSIGN(chunks_, store->Chunks(Step(1), "w"));
    ASSERT_EQ(chunks_.size(), 2u);
    segment_ = FileOf(chunks_[0].extents.front());
  }

  void Flip(uint64_t offset_bytes) {
    // A separate reader: the open store may have the file's pages in memory.
    store.reset();
    FlipByte(segment_, offset_bytes);
    Reopen(kv::OpenMode::kRead);
  }

  Result<LoadReport> LoadBox(Box box) {
    TestTensor target(DType::kFloat32, box.sizes, 9);
    return Load(1, {{.fqn = "w", .box = box, .target = target.target()}});
  }

  // The error must contain everything that is needed to repair the store.
  void ExpectPageError(const Error& error, uint64_t offset_bytes) {
    EXPECT_EQ(error.code, ErrorCode::kDataLoss);
    EXPECT_EQ(error.key, "w");
    EXPECT_EQ(error.step, 1u);
    EXPECT_THAT(error.file, HasSubstr(segment_));
    EXPECT_EQ(error.offset_bytes, offset_bytes);
  }

  TestTensor tensor_;
  TestTensor other_;
  std::vector<ChunkInfo> chunks_;
  std::string segment_;  // its file
};

TEST_F(DamageTest, AWholeLoadNamesThePage) {
  SaveSample();
  const uint64_t page_begin = chunks_[0].extents.front().offset_bytes + 3 * kv::kPageBytes;
  Flip(page_begin + 777);
  const auto report = LoadBox(WholeBox(tensor_.shape));
  ASSERT_THAT(report, IsError(ErrorCode::kDataLoss,
                              "page 3 of chunk [0, 0] does not match its digest; the bytes on disk "
                              "have changed"));
  ExpectPageError(report.error(), page_begin);
  EXPECT_EQ(LoadBytes(1, "other"), other_.bytes);
}

TEST_F(DamageTest, APartialLoadNamesThePageIfItTouchesIt) {
  SaveSample();
  const uint64_t page_begin = chunks_[0].extents.front().offset_bytes + 3 * kv::kPageBytes;
  Flip(page_begin + kv::kPageBytes - 1);
  CAIRN_EXPECT_OK(LoadBox({{0, 0}, {12, 4096}}));
  const auto report = LoadBox({{12, 5}, {2, 7}});
  ASSERT_THAT(report, IsError(ErrorCode::kDataLoss, "page 3 of chunk [0, 0]"));
  ExpectPageError(report.error(), page_begin);
  CAIRN_EXPECT_OK(LoadBox({{16, 0}, {84, 4096}}));
}

TEST_F(DamageTest, AStridedWholeLoadNamesThePage) {
  SaveSample();
  const uint64_t page_begin = chunks_[1].extents.front().offset_bytes;
  Flip(page_begin);
  TestTensor target(DType::kFloat32, {4096, 100}, 9);
  const auto report =
      Load(1, {{.fqn = "w",
                .box = WholeBox(tensor_.shape),
                .target = {DType::kFloat32, tensor_.shape, {1, 100}, target.bytes.data()}}});
  ASSERT_THAT(report, IsError(ErrorCode::kDataLoss, "page 0 of chunk [64, 0]"));
  ExpectPageError(report.error(), page_begin);
}

TEST_F(DamageTest, DamagedPageDigestsAreToldFromDamagedPages) {
  SaveSample();
  Flip(chunks_[0].extents.front().page_digests_offset_bytes + 8);
  // A complete load needs only the digest of the chunk, which is correct.
  CAIRN_EXPECT_OK(LoadBox(WholeBox(tensor_.shape)));
  const auto report = LoadBox({{0, 0}, {1, 1}});
  ASSERT_THAT(report, IsError(ErrorCode::kDataLoss, "page digests of chunk [0, 0]"));
  ExpectPageError(report.error(), chunks_[0].extents.front().page_digests_offset_bytes);
}

TEST_F(DamageTest, ALoadOfManyChunksEndsAtTheFirstThatIsDamaged) {
  // Far more chunks than are planned ahead of the reading.
  const TestTensor tensor(DType::kInt8, {30'000, 128});
  Save(1, StateOf({{"w", tensor.view()}}), {.chunk_bytes = 128});
  CAIRN_ASSERT_OK_AND_ASSIGN(chunks_, store->Chunks(Step(1), "w"));
  ASSERT_EQ(chunks_.size(), 30'000u);
  EXPECT_EQ(LoadBytes(1, "w"), tensor.bytes);
  segment_ = FileOf(chunks_[3].extents.front());
  Flip(chunks_[3].extents.front().offset_bytes);
  TestTensor target(DType::kInt8, {30'000, 128}, 9);
  const auto report =
      Load(1, {{.fqn = "w", .box = WholeBox(tensor.shape), .target = target.target()}});
  ASSERT_THAT(report, IsError(ErrorCode::kDataLoss, "page 0 of chunk [3, 0]"));
  ExpectPageError(report.error(), chunks_[3].extents.front().offset_bytes);
}

TEST_F(DamageTest, AMapChecksUnlessToldNotTo) {
  SaveSample();
  Flip(chunks_[1].extents.front().offset_bytes + 99);
  const std::string fqn = "w";
  EXPECT_THAT(store->Map(Step(1), {&fqn, 1}), IsError(ErrorCode::kDataLoss, "chunk [64, 0]"));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto mapped, store->Map(Step(1), {&fqn, 1}, /*verify=*/false));
  ASSERT_TRUE(mapped.front().has_value());
  EXPECT_FALSE(std::ranges::equal(mapped.front()->bytes, tensor_.bytes));
}

TEST_F(DamageTest, TheCheckOfAMapMayRunAfterStepAndStoreAreGone) {
  SaveSample();
  const std::vector<std::string> fqns = {"w", "other"};
  CAIRN_ASSERT_OK_AND_ASSIGN(const UncheckedMap sound, store->MapUnchecked(Step(1), fqns));
  ASSERT_TRUE(sound.tensors[0] && sound.tensors[1]);
  Flip(chunks_[1].extents.front().offset_bytes + 99);
  CAIRN_ASSERT_OK_AND_ASSIGN(const UncheckedMap damaged, store->MapUnchecked(Step(1), fqns));
  Reopen();
  CAIRN_ASSERT_OK(store->Delete(std::vector<uint64_t>{1}));
  store.reset();
  // Both map the same file.
  EXPECT_THAT(sound.check->Run(), IsError(ErrorCode::kDataLoss, "chunk [64, 0]"));
  EXPECT_THAT(damaged.check->Run(), IsError(ErrorCode::kDataLoss, "chunk [64, 0]"));
}

TEST_F(DamageTest, TheCheckOfASoundMapSucceeds) {
  SaveSample();
  const std::string fqn = "w";
  CAIRN_ASSERT_OK_AND_ASSIGN(const UncheckedMap mapped, store->MapUnchecked(Step(1), {&fqn, 1}));
  store.reset();
  CAIRN_EXPECT_OK(mapped.check->Run());
  EXPECT_THAT(mapped.check->Run([](uint64_t, uint64_t) { return false; }),
              IsError(ErrorCode::kCancelled, ""));
  EXPECT_TRUE(std::ranges::equal(mapped.tensors.front()->bytes, tensor_.bytes));
}

TEST_F(DamageTest, ChecksOfOneMapThatRunAtTheSameTimeFindTheSameDamage) {
  const TestTensor large(DType::kInt8, {40, 1 << 20});
  Save(1, StateOf({{"large", large.view()}}), {.chunk_bytes = 1 << 20});
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto chunks, store->Chunks(Step(1), "large"));
  segment_ = FileOf(chunks[33].extents.front());
  const std::string fqn = "large";
  const auto run_in_all = [&](const MapCheck& check) {
    std::vector<Result<void>> found(4);
    {
      std::vector<std::jthread> threads;
      for (Result<void>& one : found) threads.emplace_back([&] { one = check.Run(); });
      // One that stops does not stop the others.
      threads.emplace_back([&] { (void)check.Run([](uint64_t, uint64_t) { return false; }); });
    }
    return found;
  };
  CAIRN_ASSERT_OK_AND_ASSIGN(const UncheckedMap mapped, store->MapUnchecked(Step(1), {&fqn, 1}));
  for (const Result<void>& sound : run_in_all(*mapped.check)) CAIRN_EXPECT_OK(sound);
  Flip(chunks[33].extents.front().offset_bytes + 5);
  for (const Result<void>& damaged : run_in_all(*mapped.check)) {
    EXPECT_THAT(damaged, IsError(ErrorCode::kDataLoss, "chunk [33, 0]"));
  }
}

TEST_F(DamageTest, AMapOfManyNamesTheFirstThatIsDamaged) {
  const TestTensor layers(DType::kInt8, {300, 5000});
  StateDict state;
  std::vector<std::string> fqns;
  for (int i = 0; i < 300; ++i) {
    fqns.push_back(fmt::format("layer{:03}", i));
    state.root().Tensor(fqns.back(), {DType::kInt8, {5000}, {}, layers.bytes.data() + i * 5000});
  }
  Save(1, state);
  uint64_t first_offset_bytes = 0;
  for (const char* fqn : {"layer250", "layer123"}) {
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto chunks, store->Chunks(Step(1), fqn));
    segment_ = FileOf(chunks[0].extents.front());
    first_offset_bytes = chunks[0].extents.front().offset_bytes;
    Flip(first_offset_bytes + 5);
  }
  const auto mapped = store->Map(Step(1), fqns);
  ASSERT_THAT(mapped, IsError(ErrorCode::kDataLoss, "does not match its digest"));
  EXPECT_EQ(mapped.error().key, "layer123");
  EXPECT_EQ(mapped.error().offset_bytes, first_offset_bytes);
  std::erase(fqns, "layer123");
  std::erase(fqns, "layer250");
  CAIRN_EXPECT_OK(store->Map(Step(1), fqns));
}

TEST_F(DamageTest, AMapOfManyMegabytesNamesTheChunkThatIsDamaged) {
  const TestTensor large(DType::kInt8, {13, 1 << 20});
  Save(1, StateOf({{"large", large.view()}}), {.chunk_bytes = 1 << 20});
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto chunks, store->Chunks(Step(1), "large"));
  ASSERT_EQ(chunks.size(), 13u);
  const kv::Extent& damaged = chunks[9].extents.front();
  segment_ = FileOf(damaged);
  const std::string fqn = "large";
  CAIRN_ASSERT_OK(store->Map(Step(1), {&fqn, 1}));
  Flip(damaged.offset_bytes + 77);
  const auto mapped = store->Map(Step(1), {&fqn, 1});
  ASSERT_THAT(mapped, IsError(ErrorCode::kDataLoss, "chunk [9, 0] does not match its digest"));
  EXPECT_EQ(mapped.error().offset_bytes, damaged.offset_bytes);
}

TEST_F(DamageTest, VerifyOfACleanStoreFindsNothing) {
  SaveSample();
  StateDict second = StateOf({{"w", tensor_.view()}});
  second.root().Value("v", int64_t{1});
  Save(2, second, {.chunk_bytes = 1 << 20});
  EXPECT_TRUE(VerifyAll().empty());
  EXPECT_TRUE(VerifyAll(2).empty());
  CAIRN_ASSERT_OK_AND_ASSIGN(const uint64_t bytes, store->Verify({}, [](const kv::Damage&) {}));
  EXPECT_EQ(bytes, tensor_.bytes.size() + other_.bytes.size()) << "shared bytes are read once";
  EXPECT_THAT(store->Verify(9, [](const kv::Damage&) {}), IsError(ErrorCode::kNotFound, ""));
}

TEST_F(DamageTest, VerifyGoesOnAfterDamageAndNamesEachPage) {
  SaveSample();
  const uint64_t first = chunks_[0].extents.front().offset_bytes + 2 * kv::kPageBytes;
  const uint64_t second = chunks_[1].extents.front().offset_bytes + kv::kPageBytes;
  Flip(first + 5);
  Flip(second + 6);
  const std::vector<Error> found = VerifyAll();
  for (const uint64_t offset : {first, second}) {
    const auto at = std::ranges::find(found, std::optional(offset), &Error::offset_bytes);
    ASSERT_NE(at, found.end());
    ExpectPageError(*at, offset);
  }
}

// A bit anywhere in the segment: payload, padding, digests, header or footer.
TEST_F(DamageTest, VerifyFindsAFlippedBitAnywhereInASegment) {
  SaveSample();
  testing::SeededRandom random;
  const auto size = std::filesystem::file_size(segment_);
  for (int round = 0; round < 40; ++round) {
    const uint64_t offset = random.Between(0, size - 1);
    Flip(offset);
    EXPECT_FALSE(VerifyAll().empty()) << "bit flipped at " << offset << " of " << size;
    Flip(offset);  // restores the byte
  }
  EXPECT_TRUE(VerifyAll().empty());
}

TEST_F(DamageTest, AMissingSegmentIsDamageAndNamesKeys) {
  SaveSample();
  store.reset();
  std::filesystem::remove(segment_);
  Reopen(kv::OpenMode::kRead);
  EXPECT_THAT(LoadBox(WholeBox(tensor_.shape)), IsError(ErrorCode::kDataLoss, segment_));
  EXPECT_THAT(VerifyAll(), Contains(Field(&Error::key, "w")));
}

TEST_F(DamageTest, ATruncatedSegmentIsDamage) {
  SaveSample();
  store.reset();
  std::filesystem::resize_file(segment_, chunks_[1].extents.front().offset_bytes + 10);
  Reopen(kv::OpenMode::kRead);
  EXPECT_THAT(LoadBox(WholeBox(tensor_.shape)), IsError(ErrorCode::kDataLoss, segment_));
  const std::string fqn = "w";
  EXPECT_THAT(store->Map(Step(1), {&fqn, 1}), IsError(ErrorCode::kDataLoss, segment_));
  EXPECT_FALSE(VerifyAll().empty());
}

}  // namespace
}  // namespace cairn::core
