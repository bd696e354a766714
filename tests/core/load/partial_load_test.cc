// Loads of boxes return the right bytes and read no more pages than the boxes touch.

#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/load/load_options.h"
#include "core/upkeep/payload_reader.h"
#include "tests/core/tensor/strided_fixture.h"
#include "tests/core/tensor/test_tensor.h"

namespace cairn::core {
namespace {

constexpr uint64_t kPage = kv::kPageBytes;
// O_DIRECT rounds a page or its digests to 4 KiB at either end.
constexpr uint64_t kRounding = 8192;

class PartialLoadTest : public StoreTest {
 protected:
  void SaveTensor(const TestTensor& tensor, uint64_t chunk_bytes = kDefaultChunkBytes) {
    Save(1, StateOf({{"w", tensor.view()}}), {.chunk_bytes = chunk_bytes});
  }

  // Loads `boxes` in one call and compares them with `tensor`. Returns the bytes read from storage.
  uint64_t LoadBoxes(const TestTensor& tensor, const std::vector<Box>& boxes) {
    std::vector<TestTensor> targets;
    std::vector<LoadRequest> requests;
    for (const Box& box : boxes) targets.emplace_back(tensor.dtype, box.sizes, 99);
    for (size_t i = 0; i < boxes.size(); ++i) {
      requests.push_back({.fqn = "w", .box = boxes[i], .target = targets[i].target()});
    }
    const auto report = store->Load(Step(1), requests);
    EXPECT_TRUE(testing::IsOk(report));
    const auto strides = RowMajorStrides(tensor.shape);
    for (size_t i = 0; i < boxes.size(); ++i) {
      const uint64_t origin = Dot(boxes[i].offsets, strides) * schema::ElementBytes(tensor.dtype);
      EXPECT_EQ(targets[i].bytes, NaiveRowMajor({tensor.dtype, boxes[i].sizes, strides,
                                                 tensor.bytes.data() + origin}));
    }
    return report ? report->bytes_read : 0;
  }
  uint64_t LoadBox(const TestTensor& tensor, const Box& box) { return LoadBoxes(tensor, {box}); }
};

TEST_F(PartialLoadTest, RowsReadTheirPagesOnly) {
  const TestTensor tensor(DType::kFloat32, {4096, 1024});  // 16 MiB, rows of 4 KiB
  SaveTensor(tensor);
  EXPECT_LE(LoadBox(tensor, {{100, 0}, {1, 1024}}), kPage + 2 * kRounding);
  EXPECT_LE(LoadBox(tensor, {{4095, 1000}, {1, 24}}), kPage + 2 * kRounding);
  // 64 rows (256 KiB) on both sides of a chunk's border.
  EXPECT_LE(LoadBox(tensor, {{1024 - 32, 0}, {64, 1024}}), 64 * 4096 + 4 * kRounding);
  EXPECT_EQ(LoadBox(tensor, {{64, 0}, {0, 64}}), 0u);
}

TEST_F(PartialLoadTest, AColumnOfWideRowsReadsItsPagesOnly) {
  const TestTensor tensor(DType::kFloat32, {16, 1 << 18});  // rows of 1 MiB
  SaveTensor(tensor);
  const uint64_t bytes = LoadBox(tensor, {{0, 70000}, {16, 3}});
  EXPECT_LE(bytes, 16 * (kPage + kRounding) + 4 * kRounding);
  EXPECT_GE(bytes, 16 * kPage);
}

TEST_F(PartialLoadTest, OnePercentOfTheKeysReadsLittleMoreThanTheirBytes) {
  std::vector<TestTensor> tensors;
  for (int i = 0; i < 100; ++i) tensors.emplace_back(DType::kFloat32, Shape{100, 1000}, i);
  Save(1, NumberedState(tensors));
  TestTensor target(DType::kFloat32, {100, 1000}, 200);
  CAIRN_ASSERT_OK_AND_ASSIGN(const LoadReport report, Load(1, {WholeRequest("t42", target)}));
  EXPECT_EQ(target.bytes, tensors[42].bytes);
  EXPECT_LE(report.bytes_read, 400'000 * 105 / 100);
}

// A tensor that is larger than the reader's buffers, with a target that cannot be read to directly.
TEST_F(PartialLoadTest, ALargeTransposedTargetGoesThroughBoundedMemory) {
  const TestTensor tensor(DType::kFloat64, {3000, 2000});  // 48 MB
  SaveTensor(tensor);
  TestTensor target(DType::kFloat64, {2000, 3000}, 5);
  CAIRN_ASSERT_OK(
      Load(1, {{.fqn = "w",
                .box = WholeBox(tensor.shape),
                .target = {DType::kFloat64, tensor.shape, {1, 3000}, target.bytes.data()}}}));
  for (uint64_t i = 0; i < 3000; i += 7) {
    for (uint64_t j = 0; j < 2000; j += 13) {
      ASSERT_EQ(std::memcmp(target.bytes.data() + (j * 3000 + i) * 8,
                            tensor.bytes.data() + (i * 2000 + j) * 8, 8),
                0);
    }
  }
}

// One chunk that is larger than the reader's buffers, read in part: its pages are in several
// batches.
TEST_F(PartialLoadTest, AChunkLargerThanTheArena) {
  const TestTensor tensor(DType::kComplex128, {600, 6250});  // 60 MB
  SaveTensor(tensor, 100 << 20);
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto chunks, store->Chunks(Step(1), "w"));
  ASSERT_EQ(chunks.size(), 1u);
  LoadBox(tensor, {{1, 0}, {598, 6249}});
  LoadBox(tensor, WholeBox(tensor.shape));
}

TEST_F(PartialLoadTest, RandomBoxesOfRandomTensorsAndChunks) {
  testing::SeededRandom random;
  for (int round = 0; round < 25; ++round) {
    Shape shape(random.Between(1, 4));
    for (uint64_t& size : shape) size = random.Between(1, 30);
    const TestTensor tensor(random.Chance(0.5) ? DType::kComplex128 : DType::kInt8, shape);
    Save(1, StateOf({{"w", tensor.view()}}),
         {.overwrite = true, .chunk_bytes = uint64_t{1} << random.Between(4, 18)});
    std::vector<Box> boxes;
    for (int i = 0; i < 10; ++i) {
      Box box = WholeBox(shape);
      for (size_t d = 0; d < shape.size(); ++d) {
        box.offsets[d] = random.Between(0, shape[d]);
        box.sizes[d] = random.Between(0, shape[d] - box.offsets[d]);
      }
      LoadBox(tensor, box);
      boxes.push_back(box);
      if (HasFailure()) return;
    }
    LoadBoxes(tensor, boxes);
  }
}

// The caller has listed the step, and passes all tensors that it found, some of them, or none.
TEST_F(PartialLoadTest, KnownTensorsMakeNoDifference) {
  std::vector<TestTensor> tensors;
  for (uint64_t i = 0; i < 6; ++i) tensors.emplace_back(DType::kInt16, Shape{3 + i, 5}, i);
  StateDict state = NumberedState(tensors);
  state.root().Tensor("tied", tensors[2].view());
  Save(1, state);
  CAIRN_ASSERT_OK_AND_ASSIGN(const Contents contents, store->List(1));
  const std::vector<std::pair<std::string, size_t>> wanted = {{"t5", 5}, {"tied", 2}, {"t0", 0},
                                                              {"t1", 1}, {"t2", 2},   {"t1", 1}};
  for (size_t count = 0; count <= contents.tensors.size(); ++count) {
    SCOPED_TRACE(count);
    std::vector<TestTensor> targets;
    std::vector<LoadRequest> requests;
    for (const auto& [fqn, i] : wanted) targets.emplace_back(DType::kInt16, tensors[i].shape, 99);
    for (size_t i = 0; i < wanted.size(); ++i) {
      requests.push_back(WholeRequest(wanted[i].first, targets[i]));
    }
    CAIRN_ASSERT_OK(
        store->Load(contents.step, requests, {}, {}, std::span(contents.tensors).first(count)));
    for (size_t i = 0; i < wanted.size(); ++i) {
      EXPECT_EQ(targets[i].bytes, tensors[wanted[i].second].bytes);
    }
    requests.front().fqn = "t6";
    EXPECT_THAT(
        store->Load(contents.step, requests, {}, {}, std::span(contents.tensors).first(count)),
        testing::IsError(ErrorCode::kNotFound, "no such tensor"));
  }
}

TEST_F(PartialLoadTest, AReaderOfPayloadVisitsTheBytesOfManyTensorsInOrder) {
  const TestTensor large(DType::kFloat64, {6'000'000}), small(DType::kInt8, {3});  // 48 MB
  Save(1, StateOf({{"large", large.view()}, {"small", small.view()}}));
  CAIRN_ASSERT_OK_AND_ASSIGN(const Contents contents, store->List(1));
  std::vector<std::byte> seen[2];
  CAIRN_ASSERT_OK_AND_ASSIGN(
      const uint64_t bytes_read,
      ReadRowMajor(LoaderOf(*store, contents.step), contents.tensors,
                   [&](size_t tensor, uint64_t offset, std::span<const std::byte> bytes) {
                     EXPECT_EQ(offset, seen[tensor].size());
                     seen[tensor].insert(seen[tensor].end(), bytes.begin(), bytes.end());
                     return Result<void>();
                   }));
  EXPECT_EQ(seen[0], large.bytes);
  EXPECT_EQ(seen[1], small.bytes);
  EXPECT_LE(bytes_read, large.bytes.size() + 64 * 1024);
}

}  // namespace
}  // namespace cairn::core
