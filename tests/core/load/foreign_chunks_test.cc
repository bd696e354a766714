// Chunks as other programs may divide tensors: any tiling, and pages of 4 KiB to 1 MiB
// (docs/format/chunk.md). This program writes neither, and reads both.

#include "tests/core/foreign_chunks.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "core/async_save.h"
#include "core/inspect/check_state.h"
#include "core/inspect/compare.h"
#include "core/step/contents.h"
#include "core/upkeep/repair.h"
#include "kv/compact.h"
#include "kv/copy_steps.h"
#include "kv/step_writer.h"
#include "tests/core/tensor/test_tensor.h"
#include "tests/kv/byte_payload.h"

namespace cairn::core {
namespace {

using kv::testing::CopiedPayload;
using ::testing::IsEmpty;
using testing::IsError;

// Boxes of no grid: no line divides the square.
const std::vector<Box> kPinwheel = {{{0, 0}, {100, 200}},
                                    {{0, 200}, {200, 100}},
                                    {{100, 0}, {200, 100}},
                                    {{100, 100}, {100, 100}},
                                    {{200, 100}, {100, 200}}};

class ForeignChunksTest : public StoreTest {
 protected:
  void Write(uint64_t step, const TestTensor& tensor, const std::vector<Box>& boxes,
             uint8_t page_bits = kv::kPageBits) {
    CAIRN_ASSERT_OK(WriteForeign(*store, step, tensor.view(), boxes, page_bits));
  }

  void ExpectBox(uint64_t step, const TestTensor& tensor, const Box& box) {
    TestTensor target(tensor.dtype, box.sizes, 99);
    CAIRN_EXPECT_OK(Load(step, {{.fqn = "w", .box = box, .target = target.target()}}));
    EXPECT_EQ(target.bytes, BytesOf(tensor.view(), box));
  }

  uint64_t Changed(uint64_t a, uint64_t b) {
    const auto diff = CompareSteps(store->kv(), a, b);
    EXPECT_TRUE(testing::IsOk(diff));
    return diff && !diff->changes.empty() ? diff->changes.front().changed_bytes : 0;
  }
};

TEST_F(ForeignChunksTest, AnyTilingIsReadVerifiedComparedAndSavedAnew) {
  TestTensor tensor(DType::kFloat32, {300, 300});
  Write(1, tensor, kPinwheel);
  EXPECT_EQ(LoadBytes(1, "w"), tensor.bytes);
  ExpectBox(1, tensor, {{90, 190}, {130, 20}});
  EXPECT_THAT(VerifyAll(), IsEmpty());
  const SaveReport report = Save(2, StateOf({{"w", tensor.view()}}));
  EXPECT_EQ(report.chunks_reused, 0u);  // other boxes
  EXPECT_EQ(Changed(1, 2), 0u);
  tensor.bytes[0] ^= std::byte{1};
  Save(3, StateOf({{"w", tensor.view()}}));
  EXPECT_GT(Changed(1, 3), 0u);
}

TEST_F(ForeignChunksTest, MemoryIsCheckedInPagesOfAnySize) {
  TestTensor tensor(DType::kFloat32, {300, 300});
  const auto check = [&](uint64_t step, const TensorView& view, Sharding sharding = {}) {
    StateDict state;
    if (sharding.global_shape.empty()) {
      state.root().Tensor("w", view);
    } else {
      state.root().Sharded("w", view, std::move(sharding));
    }
    const auto contents = store->List(step);
    EXPECT_TRUE(testing::IsOk(contents));
    auto checked = CheckState(store->kv(), *contents, state, 0);
    EXPECT_TRUE(testing::IsOk(checked));
    return checked.value_or(StateCheck{});
  };
  uint64_t step = 0;
  for (const uint8_t page_bits : {12, 16, 20}) {
    Write(++step, tensor, kPinwheel, page_bits);
    EXPECT_THAT(check(step, tensor.view()).different, IsEmpty());
    EXPECT_EQ(check(step, tensor.view()).bytes_read, 0u);
    const Box part{{50, 0}, {200, 300}};
    const Sharding sharding{.global_shape = {300, 300},
                            .mesh = nullptr,
                            .placements = {},
                            .parts = {{.box = part, .view = Narrow(tensor.view(), part)}}};
    EXPECT_THAT(check(step, {.dtype = tensor.dtype, .shape = {0}}, sharding).different, IsEmpty());
    const size_t place = (150 * 300 + 299) * 4;
    tensor.bytes[place] ^= std::byte{1};
    EXPECT_THAT(check(step, tensor.view()).different, ::testing::SizeIs(1));
    EXPECT_THAT(check(step, {.dtype = tensor.dtype, .shape = {0}}, sharding).different,
                ::testing::SizeIs(1));
    tensor.bytes[place] ^= std::byte{1};
  }
}

TEST_F(ForeignChunksTest, GapsAndOverlapsAreDamage) {
  const TestTensor tensor(DType::kFloat32, {300, 300});
  auto gap = kPinwheel;
  gap.erase(gap.begin() + 3);
  auto overlap = kPinwheel;
  overlap[3].sizes = {100, 101};
  uint64_t step = 0;
  for (const auto& boxes : {gap, overlap}) {
    Write(++step, tensor, boxes);
    TestTensor target(tensor.dtype, tensor.shape, 99);
    EXPECT_THAT(Load(step, {WholeRequest("w", target)}), IsError(ErrorCode::kDataLoss, "once"));
    EXPECT_FALSE(VerifyAll(step).empty());
  }
}

// Its digest is the same with pages of 64 KiB, but saves and deltas need such pages.
TEST_F(ForeignChunksTest, AChunkOfOneLargePageIsNoBase) {
  const TestTensor tensor(DType::kUInt8, {60'000});
  const StateDict state = StateOf({{"w", tensor.view()}});
  const SaveOptions options{.max_deltas = 8};
  Write(1, tensor, {WholeBox(tensor.shape)}, kv::kMaxPageBits);
  EXPECT_EQ(OnlyChunk(1).digest, kv::PayloadDigest(tensor.bytes));
  CAIRN_ASSERT_OK(store->Save(2, state, options));
  Write(3, tensor, {WholeBox(tensor.shape)}, kv::kMaxPageBits);
  AsyncSaver saver(store.get());
  CAIRN_ASSERT_OK(SaveAndWait(saver, 4, state, options));
  for (const uint64_t step : {2, 4}) {
    EXPECT_EQ(OnlyChunk(step).extents.page_bytes(), kv::kPageBytes);
    EXPECT_THAT(OnlyChunk(step).deltas, IsEmpty());
    EXPECT_EQ(LoadBytes(step, "w"), tensor.bytes);
  }
  EXPECT_THAT(VerifyAll(), IsEmpty());
}

class PageSizeTest : public ForeignChunksTest, public ::testing::WithParamInterface<int> {
 protected:
  uint8_t page_bits() const { return static_cast<uint8_t>(GetParam()); }
  uint64_t page_bytes() const { return uint64_t{1} << page_bits(); }
  // Several pages of each size, and a short last one.
  TestTensor tensor = TestTensor(DType::kUInt8, {(3 << 20) + 77});
  const std::vector<Box> whole = {{{0}, {(3 << 20) + 77}}};
};

TEST_P(PageSizeTest, ChunksAreReadCompletelyInPartAndMapped) {
  Write(1, tensor, whole, page_bits());
  EXPECT_EQ(OnlyChunk(1).extents.page_bytes(), page_bytes());
  EXPECT_EQ(LoadBytes(1, "w"), tensor.bytes);
  TestTensor target(DType::kUInt8, {10}, 99);
  CAIRN_ASSERT_OK_AND_ASSIGN(
      const LoadReport report,
      Load(1, {{.fqn = "w", .box = {{(2 << 20) + 5}, {10}}, .target = target.target()}}));
  EXPECT_EQ(target.bytes, BytesOf(tensor.view(), {{(2 << 20) + 5}, {10}}));
  EXPECT_LE(report.bytes_read, page_bytes() + 8 * 1024 + 2 * 8192);  // a page, and all digests
  const std::vector<std::string> fqns = {"w"};
  CAIRN_EXPECT_OK(store->Map(Step(1), fqns));
  EXPECT_THAT(VerifyAll(), IsEmpty());
}

TEST_P(PageSizeTest, ADamagedPageIsFoundAtItsPlace) {
  Write(1, tensor, whole, page_bits());
  const kv::Extent extent = OnlyChunk(1).extents.front();
  const uint64_t page = (2 << 20) / page_bytes();
  FlipByte(FileOf(extent), extent.offset_bytes + (2 << 20) + 1);
  TestTensor target(tensor.dtype, tensor.shape, 99);
  EXPECT_THAT(Load(1, {WholeRequest("w", target)}),
              IsError(ErrorCode::kDataLoss, "page " + std::to_string(page)));
  const std::vector<std::string> fqns = {"w"};
  EXPECT_THAT(store->Map(Step(1), fqns), IsError(ErrorCode::kDataLoss, "digest"));
  const std::vector<Error> found = VerifyAll();
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].offset_bytes, extent.offset_bytes + page * page_bytes());
  ExpectBox(1, tensor, {{0}, {10}});  // other pages are intact
}

TEST_P(PageSizeTest, ASaveWritesChunksWithItsOwnPages) {
  Write(1, tensor, whole, page_bits());
  SaveOptions options{.max_deltas = 8, .chunk_bytes = 4 << 20};
  options.unchanged = {"w"};  // has no effect on chunks that a save cannot refer to
  EXPECT_EQ(Save(2, StateOf({{"w", tensor.view()}}), options).written_bytes,
            page_bytes() == kv::kPageBytes ? 0 : tensor.bytes.size());
  EXPECT_EQ(OnlyChunk(2).extents.page_bytes(), kv::kPageBytes);
  EXPECT_EQ(Save(3, StateOf({{"w", tensor.view()}}), options).written_bytes, 0u);
  EXPECT_EQ(LoadBytes(3, "w"), tensor.bytes);
  EXPECT_EQ(Changed(1, 3), 0u);  // the same bytes in other pages: compared by reading
  tensor.bytes[5] ^= std::byte{1};
  EXPECT_GT(Save(4, StateOf({{"w", tensor.view()}}), {.base_step = 1, .chunk_bytes = 4 << 20})
                .written_bytes,
            0u);
  EXPECT_EQ(LoadBytes(4, "w"), tensor.bytes);
  EXPECT_GT(Changed(1, 4), 0u);
  EXPECT_THAT(VerifyAll(), IsEmpty());
}

TEST_P(PageSizeTest, AnUpdateReadsTheChangedPages) {
  Write(1, tensor, whole, page_bits());
  TestTensor target(tensor.dtype, tensor.shape, 99);
  CAIRN_ASSERT_OK(Load(1, {WholeRequest("w", target)}));
  tensor.bytes[5] ^= std::byte{1};
  Write(2, tensor, whole, page_bits());
  Save(3, StateOf({{"w", tensor.view()}}),
       {.incremental = false, .compress = false, .chunk_bytes = 4 << 20});
  const std::vector<LoadRequest> requests = {WholeRequest("w", target)};
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto report, store->Update(Step(1), Step(2), requests));
  EXPECT_EQ(target.bytes, tensor.bytes);
  EXPECT_LE(report.bytes_read, page_bytes() + 16 * 1024);
  CAIRN_ASSERT_OK(store->Update(Step(2), Step(3), requests));  // other pages
  EXPECT_EQ(target.bytes, tensor.bytes);
}

TEST_P(PageSizeTest, SeveralExtentsSurviveACompaction) {
  Write(1, tensor, whole, page_bits());
  const ChunkInfo base = OnlyChunk(1);
  tensor.bytes[page_bytes() + 1] ^= std::byte{1};
  std::vector<uint64_t> page_digests;
  kv::AppendPageDigests(tensor.bytes, page_digests, page_bytes());
  CAIRN_ASSERT_OK_AND_ASSIGN(auto writer, BeginForeign(*store, 2, tensor.view(), 1));
  writer->ReferTo(Step(1));
  const CopiedPayload payload(tensor.bytes);
  const std::vector<kv::PageRange> range = {{.begin_page = 1, .end_page = 2}};
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto written,
                             writer->AppendPages(payload, range, page_digests, page_bits()));
  const std::vector<kv::Extent> extents = {base.extents.front().First(page_bytes()),
                                           written.front(), base.extents.At(2 * page_bytes())};
  CAIRN_ASSERT_OK(AddForeign(*writer, whole.front(),
                             {.extents = kv::Extents(extents),
                              .digest = kv::RootDigest(page_digests, tensor.bytes.size())}));
  CAIRN_ASSERT_OK(writer->Commit({.tensor_count = 1, .logical_bytes = tensor.bytes.size()}));
  EXPECT_THAT(VerifyAll(), IsEmpty());
  const std::vector<uint64_t> old = {1};
  CAIRN_ASSERT_OK(store->Delete(old));
  CAIRN_ASSERT_OK(store->Compact({.max_dead = 0}, /*compress=*/true));
  EXPECT_EQ(OnlyChunk(2).extents.page_bytes(), page_bytes());
  EXPECT_EQ(LoadBytes(2, "w"), tensor.bytes);
  EXPECT_THAT(VerifyAll(), IsEmpty());
}

TEST_P(PageSizeTest, ACopyRepairsADamagedChunk) {
  Write(1, tensor, whole, page_bits());
  std::vector<std::unique_ptr<CheckpointStore>> copies(1);
  CAIRN_ASSERT_OK_AND_ASSIGN(
      copies[0], CheckpointStore::Open(directory.path() + "/copy", kv::OpenMode::kWrite));
  CAIRN_ASSERT_OK(kv::CopySteps(store->kv(), copies[0]->kv(), {.steps = {1}}));
  const kv::Extent extent = OnlyChunk(1).extents.front();
  FlipByte(FileOf(extent), extent.offset_bytes + (2 << 20) + 1);
  CAIRN_ASSERT_OK_AND_ASSIGN(const RepairReport report, Repair(*store, copies));
  EXPECT_EQ(report.repaired_chunks, 1u);
  EXPECT_EQ(OnlyChunk(1).extents.page_bytes(), page_bytes());
  EXPECT_EQ(LoadBytes(1, "w"), tensor.bytes);
  EXPECT_THAT(VerifyAll(), IsEmpty());
}

TEST_P(PageSizeTest, ACompactionCompressesOnlyChunksWithPagesOf64KiB) {
  std::ranges::fill(tensor.bytes, std::byte{7});
  Write(1, tensor, whole, page_bits());
  CAIRN_ASSERT_OK(store->Compact({.max_dead = 0}, /*compress=*/true));
  EXPECT_EQ(OnlyChunk(1).deltas.size(), page_bytes() == kv::kPageBytes ? 1u : 0u);
  EXPECT_EQ(LoadBytes(1, "w"), tensor.bytes);
  EXPECT_THAT(VerifyAll(), IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Sizes, PageSizeTest, ::testing::Values(12, 13, 16, 20));

}  // namespace
}  // namespace cairn::core
