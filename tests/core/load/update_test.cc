// Tensors are updated in place from one step to another, and only what differs is read.

#include <fmt/format.h>

#include "core/state_dict/key_name.h"
#include "tests/core/tensor/strided_fixture.h"
#include "tests/core/tensor/test_tensor.h"

namespace cairn::core {
namespace {

using cairn::testing::IsError;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr uint64_t kPage = 64 << 10;

class UpdateTest : public StoreTest {
 protected:
  void SetUp() override {
    StoreTest::SetUp();
    for (int i = 0; i < 4; ++i) {
      tensors.emplace_back(DType::kInt8, Shape{32, kPage}, static_cast<uint64_t>(i));
    }
  }

  static std::string Name(size_t i) { return fmt::format("t{}", i); }
  StateDict State() const { return NumberedState(tensors); }
  Result<UpdateReport> Update(uint64_t since, uint64_t step) {
    std::vector<LoadRequest> requests;
    for (size_t i = 0; i < model.size(); ++i) requests.push_back(WholeRequest(Name(i), model[i]));
    return store->Update(Step(since), Step(step), requests);
  }
  void ExpectModelIs(const std::vector<TestTensor>& expected) {
    for (size_t i = 0; i < model.size(); ++i) EXPECT_EQ(model[i].bytes, expected[i].bytes) << i;
  }

  std::vector<TestTensor> tensors;  // that are saved
  std::vector<TestTensor> model;    // that is updated
};

TEST_F(UpdateTest, OnlyChangedPagesAreRead) {
  Save(1, State());
  model = tensors;
  tensors[1].bytes[3 * kPage + 7] ^= std::byte{1};
  tensors[1].bytes[31 * kPage] ^= std::byte{1};
  tensors[3].bytes.front() ^= std::byte{1};
  Save(2, State());

  CAIRN_ASSERT_OK_AND_ASSIGN(const UpdateReport report, Update(1, 2));

  EXPECT_THAT(report.changed, ElementsAre("t1", "t3"));
  EXPECT_EQ(report.compared_bytes, 4 * 32 * kPage);
  EXPECT_GE(report.bytes_read, 3 * kPage);
  EXPECT_LE(report.bytes_read, 3 * kPage + 4096 * 4);  // and the page digests of two chunks
  ExpectModelIs(tensors);
  CAIRN_ASSERT_OK_AND_ASSIGN(const UpdateReport again, Update(2, 2));
  EXPECT_THAT(again.changed, IsEmpty());
  EXPECT_EQ(again.bytes_read, 0u);
}

TEST_F(UpdateTest, MemoryThatIsNotTheBaseIsRefusedAndUnchanged) {
  Save(1, State());
  model = tensors;
  tensors[0].bytes[5] ^= std::byte{1};
  Save(2, State());
  // In a tensor that does not differ, and in one that does.
  for (const size_t wrong : {2, 0}) {
    SCOPED_TRACE(wrong);
    model[wrong].bytes[9 * kPage] ^= std::byte{1};
    const std::vector<TestTensor> before = model;
    EXPECT_THAT(Update(1, 2), IsError(ErrorCode::kInvalidArgument, "the bytes of step 1"));
    EXPECT_EQ(Update(1, 2).error().key, Name(wrong));
    ExpectModelIs(before);
    model[wrong].bytes[9 * kPage] ^= std::byte{1};
  }
  CAIRN_ASSERT_OK(Update(1, 2));
  ExpectModelIs(tensors);
}

TEST_F(UpdateTest, TensorsThatTheBaseLacksAreReadCompletely) {
  Save(1, StateOf({{Name(0), tensors[0].view()},
                   {Name(1), {DType::kInt8, {kPage, 32}, {}, tensors[1].bytes.data()}},
                   {Name(2), {DType::kUInt8, {32, kPage}, {}, tensors[2].bytes.data()}}}));
  Save(2, State(), {.chunk_bytes = 5 * kPage});
  model = tensors;
  for (TestTensor& tensor : model) std::ranges::fill(tensor.bytes, std::byte{9});

  CAIRN_ASSERT_OK_AND_ASSIGN(const UpdateReport report, Update(1, 2));

  EXPECT_THAT(report.changed, ElementsAre("t0", "t1", "t2", "t3"));
  ExpectModelIs(tensors);
}

// "a.b" is the FQN of tensors[1] in step 1, and of the tensor that was "a\\.b" in step 2.
TEST_F(UpdateTest, ATensorThatGetsTheNameOfAnotherOneIsReadCompletely) {
  StateDict both;
  both.root().Tensor("a.b", tensors[0].view());
  both.root().Map("a").Tensor("b", tensors[1].view());
  EscapeEqualNames(both.tree);
  Save(1, both);
  Save(2, StateOf({{"a.b", tensors[1].view()}}));
  TestTensor target = tensors[0];
  const std::vector<LoadRequest> requests = {WholeRequest("a.b", target)};
  CAIRN_ASSERT_OK_AND_ASSIGN(const UpdateReport report, store->Update(Step(1), Step(2), requests));
  EXPECT_EQ(report.compared_bytes, 0u);
  EXPECT_EQ(target.bytes, tensors[1].bytes);
}

TEST_F(UpdateTest, AliasesAndStridedTargetsAreReadIfTheyDiffer) {
  const TensorView second_half{DType::kInt8, {16, kPage}, {}, tensors[0].bytes.data() + 16 * kPage};
  StateDict state = State();
  state.root().Tensor("half", second_half);
  Save(1, state);
  std::vector<std::byte> half(second_half.data, second_half.data + 16 * kPage);
  std::vector<std::byte> transposed(32 * kPage);
  const auto requests = [&] {
    return std::vector<LoadRequest>{
        {.fqn = "half",
         .box = WholeBox(second_half.shape),
         .target = {DType::kInt8, {16, kPage}, {}, half.data()}},
        {.fqn = "t2",
         .box = WholeBox(tensors[2].shape),
         .target = {DType::kInt8, {32, kPage}, {1, 32}, transposed.data()}}};
  };
  CAIRN_ASSERT_OK(store->Load(Step(1), requests()));
  tensors[0].bytes.back() ^= std::byte{1};
  tensors[2].bytes.back() ^= std::byte{1};
  Save(2, state);

  CAIRN_ASSERT_OK_AND_ASSIGN(const UpdateReport report,
                             store->Update(Step(1), Step(2), requests()));

  EXPECT_THAT(report.changed, ElementsAre("half", "t2"));
  EXPECT_EQ(report.compared_bytes, 0u);
  EXPECT_TRUE(std::ranges::equal(half, std::span(second_half.data, half.size())));
  EXPECT_EQ(transposed.back(), tensors[2].bytes.back());
  EXPECT_EQ(NaiveRowMajor({DType::kInt8, {32, kPage}, {1, 32}, transposed.data()}),
            tensors[2].bytes);
}

TEST_F(UpdateTest, TensorsThatBecomeAliasesAreRead) {
  StateDict untied = State();
  const TestTensor other(DType::kInt8, {32, kPage}, 77);
  untied.root().Tensor("x", other.view());
  Save(1, untied);
  StateDict tied = State();
  tied.root().Tensor("x", tensors[0].view());
  Save(2, tied);
  TestTensor x = other;
  CAIRN_ASSERT_OK_AND_ASSIGN(const UpdateReport report,
                             store->Update(Step(1), Step(2), std::array{WholeRequest("x", x)}));

  EXPECT_THAT(report.changed, ElementsAre("x"));
  EXPECT_EQ(x.bytes, tensors[0].bytes);
}

TEST_F(UpdateTest, DamagedBytesAreFoundAndNamed) {
  Save(1, State());
  model = tensors;
  tensors[1].bytes[3 * kPage] ^= std::byte{1};
  Save(2, State());
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto chunks, store->Chunks(Step(2), "t1"));
  const kv::Extent page = chunks.front().extents.At(3 * kPage);
  FlipByte(FileOf(page), page.offset_bytes + 100);
  Reopen(kv::OpenMode::kRead);
  EXPECT_THAT(Update(1, 2), IsError(ErrorCode::kDataLoss, "page 3"));
  EXPECT_EQ(Update(1, 2).error().key, "t1");
}

TEST_F(UpdateTest, BothStepsMustExist) {
  Save(1, State());
  const kv::StepInfo first = Step(1);
  Save(2, State());
  model = tensors;
  CAIRN_ASSERT_OK(store->Delete(std::vector<uint64_t>{1}));
  const LoadRequest request = WholeRequest("t0", model[0]);
  EXPECT_THAT(store->Update(first, Step(2), {&request, 1}), IsError(ErrorCode::kNotFound, ""));
  EXPECT_THAT(store->Update(Step(2), first, {&request, 1}), IsError(ErrorCode::kNotFound, ""));
}

TEST_F(UpdateTest, ContinuesIfACompactionRemovesSegmentsThatItReads) {
  store.reset();
  const std::string path = directory.path() + "/store";
  CAIRN_ASSERT_OK_AND_ASSIGN(store, CheckpointStore::Open(path, kv::OpenMode::kWrite,
                                                          {.grace = std::chrono::milliseconds(0)}));
  Save(1, State(), {.max_deltas = 4});
  model = tensors;
  for (TestTensor& tensor : tensors) {
    for (size_t at = 0; at < tensor.bytes.size(); at += 700) tensor.bytes[at] ^= std::byte{1};
  }
  // Half of the tensors with deltas, half of them without.
  for (size_t i = 2; i < tensors.size(); ++i) {
    tensors[i] = TestTensor(DType::kInt8, {32, kPage}, 100 + i);
  }
  // Step 2 has the bytes of step 10, whose segment also contains bytes that no step needs.
  const TestTensor junk(DType::kInt8, {64, kPage}, 5);
  StateDict more = State();
  more.root().Tensor("junk", junk.view());
  Save(10, more, {.max_deltas = 4});
  Save(2, State(), {.max_deltas = 4});
  CAIRN_ASSERT_OK(store->Delete(std::vector<uint64_t>{10}));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto reader, CheckpointStore::Open(path, kv::OpenMode::kRead));
  CAIRN_ASSERT_OK_AND_ASSIGN(const std::vector<kv::StepInfo> steps, reader->Steps());
  std::vector<LoadRequest> requests;
  for (size_t i = 0; i < model.size(); ++i) requests.push_back(WholeRequest(Name(i), model[i]));
  int calls = 0;
  const auto compact = [&](uint64_t, uint64_t) {
    if (++calls > 1) return true;
    const auto report = store->Compact({.max_dead = 0, .fold_all = true});
    EXPECT_TRUE(testing::IsOk(report));
    EXPECT_GT(report->old_segments, 0u);
    return true;
  };
  CAIRN_ASSERT_OK(reader->Update(steps[0], steps[1], requests, compact));
  EXPECT_GT(calls, 1);
  ExpectModelIs(tensors);
}

TEST_F(UpdateTest, ProgressMayCancel) {
  Save(1, State());
  model = tensors;
  tensors[0].bytes[0] ^= std::byte{1};
  Save(2, State());
  EXPECT_THAT(store->Update(Step(1), Step(2), std::array{WholeRequest("t0", model[0])},
                            [](auto, auto) { return false; }),
              IsError(ErrorCode::kCancelled, ""));
}

}  // namespace
}  // namespace cairn::core
