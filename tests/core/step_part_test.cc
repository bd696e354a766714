// Steps that are written in parts: portions, nesting, extensions, and what is refused. The ranks
// are two stores of this process; in tests/python/dcp/ they are processes.

#include "core/upkeep/step_part.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <optional>

#include "core/checkpoint_store.h"
#include "core/device/device.h"
#include "core/state_dict/key_name.h"
#include "tests/core/tensor/test_tensor.h"

namespace cairn::core {
namespace {

using cairn::testing::IsError;
using cairn::testing::IsOk;
using cairn::testing::ScopedTempDir;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr uint64_t kStep = 7;

// A state of rows [begin, end) of a matrix as an explicit box.
StateDict Rows(const std::string& fqn, const TestTensor& whole, uint64_t begin, uint64_t end) {
  const uint64_t columns = whole.shape[1];
  const uint64_t row_bytes = whole.bytes.size() / whole.shape[0];
  Sharding sharding{.global_shape = whole.shape, .mesh = nullptr, .placements = {}, .parts = {}};
  sharding.parts.push_back({.box = {.offsets = {begin, 0}, .sizes = {end - begin, columns}},
                            .view = {.dtype = whole.dtype,
                                     .shape = {end - begin, columns},
                                     .strides = {},
                                     .data = whole.bytes.data() + begin * row_bytes}});
  StateDict state;
  state.root().Sharded(fqn, {.dtype = whole.dtype, .shape = whole.shape, .strides = {}, .data = {}},
                       std::move(sharding));
  return state;
}

std::vector<std::byte> Bytes(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

std::vector<std::string> FqnsOf(const StateTree& tree) {
  std::vector<std::string> fqns;
  const auto leaves = FlattenTree(tree);
  EXPECT_TRUE(IsOk(leaves));
  for (const Leaf& leaf : *leaves) fqns.push_back(leaf.fqn);
  return fqns;
}

class StepPartTest : public ::testing::Test {
 protected:
  void SetUp() override {
    CAIRN_ASSERT_OK_AND_ASSIGN(first_, CheckpointStore::Open(path(), kv::OpenMode::kWrite));
    CAIRN_ASSERT_OK_AND_ASSIGN(ticket_, StepPart::OpenSession(*first_, kStep, 2));
    kv::StoreOptions options;
    options.session = ticket_.session;
    CAIRN_ASSERT_OK_AND_ASSIGN(second_,
                               CheckpointStore::Open(path(), kv::OpenMode::kJoinSession, options));
  }

  std::string path() const { return directory_.path() + "/store"; }

  std::unique_ptr<StepPart> Begin(uint32_t rank, const SaveOptions& options = {}) {
    auto part = StepPart::Begin(rank == 0 ? *first_ : *second_, ticket_, rank, options);
    EXPECT_TRUE(IsOk(part));
    return part ? *std::move(part) : nullptr;
  }

  void ExpectStored(const std::string& fqn, const TestTensor& whole) {
    TestTensor loaded(whole.dtype, whole.shape, 0);
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto steps, first_->Steps());
    CAIRN_ASSERT_OK(first_->Load(steps.back(), std::array{WholeRequest(fqn, loaded)}));
    EXPECT_EQ(loaded.bytes, whole.bytes);
  }

  ScopedTempDir directory_;
  std::unique_ptr<CheckpointStore> first_;
  std::unique_ptr<CheckpointStore> second_;
  StepTicket ticket_;
};

TEST_F(StepPartTest, CallsOfOtherRolesAreRefusedAndThePartCanBeContinued) {
  const TestTensor matrix(DType::kFloat32, {6, 4}, 1);
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto reader, CheckpointStore::Open(path(), kv::OpenMode::kRead));
  EXPECT_THAT(StepPart::OpenSession(*reader, kStep, 2),
              IsError(ErrorCode::kFailedPrecondition, "for reading only"));
  StepTicket forged = ticket_;
  forged.attempt = "../../elsewhere";
  EXPECT_THAT(StepPart::Begin(*first_, forged, 0, {}),
              IsError(ErrorCode::kInvalidArgument, "not an attempt"));
  for (const auto deadline : {std::chrono::milliseconds::max(), std::chrono::milliseconds::min()}) {
    auto part = Begin(0, {.deadline = deadline});
  }
  ticket_.attempt = first_->kv().NextAttempt(kStep);
  auto own = Begin(0, {.deadline = std::chrono::milliseconds::max()});
  auto other = Begin(1, {.deadline = std::chrono::milliseconds::max()});
  CAIRN_ASSERT_OK(own->Add(Rows("w", matrix, 0, 2)));
  CAIRN_ASSERT_OK(other->Add(Rows("w", matrix, 2, 6)));
  EXPECT_THAT(own->Prepare(), IsError(ErrorCode::kFailedPrecondition, "rank 0 commits"));
  EXPECT_THAT(other->Commit({}), IsError(ErrorCode::kFailedPrecondition, "rank 0"));
  CAIRN_ASSERT_OK(other->Prepare());
  CAIRN_ASSERT_OK(own->Commit({.paths = {{"w", {}}}, .extensions = {}}));
  EXPECT_THAT(own->Commit({}), IsError(ErrorCode::kFailedPrecondition, "committed"));
  ExpectStored("w", matrix);
}

TEST_F(StepPartTest, PortionsOfBothRanksMakeOneNestedStep) {
  const TestTensor matrix(DType::kFloat32, {6, 4}, 1);
  const TestTensor vector(DType::kInt64, {5}, 2);
  auto own = Begin(0);
  auto other = Begin(1);
  StateDict last = Rows("layers.0.w", matrix, 2, 6);
  last.root().Value("lr", 0.5);
  CAIRN_ASSERT_OK(own->Add(Rows("layers.0.w", matrix, 0, 2)));
  CAIRN_ASSERT_OK(own->Add(StateOf({{"layers.1.v", vector.view()}})));
  CAIRN_ASSERT_OK(other->Add(std::move(last)));
  CAIRN_ASSERT_OK(other->Prepare());
  StepFrame frame;
  frame.paths["layers.0.w"] = {{.text = "layers"}, {.text = "0", .is_position = true}, {"w"}};
  frame.paths["layers.1.v"] = {{.text = "layers"}, {.text = "1", .is_position = true}, {"v"}};
  frame.extensions = {{.name = "note", .data = Bytes("hello")}};

  CAIRN_ASSERT_OK(own->Commit(frame));

  CAIRN_ASSERT_OK_AND_ASSIGN(const Contents contents, first_->List(kStep));
  EXPECT_THAT(FqnsOf(contents.tree), ElementsAre("layers.0.w", "layers.1.v", "lr"));
  EXPECT_EQ(contents.tree.nodes[1].kind, NodeKind::kList);
  EXPECT_EQ(contents.step.world_size, 2u);
  ExpectStored("layers.0.w", matrix);
  ExpectStored("layers.1.v", vector);
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto note, first_->FindExtension(contents.step, "note"));
  EXPECT_EQ(note, Bytes("hello"));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto nothing, first_->FindExtension(contents.step, "other"));
  EXPECT_EQ(nothing, std::nullopt);
}

TEST_F(StepPartTest, AMissingPartIsRefusedAndTheOldStepStays) {
  const TestTensor old(DType::kFloat32, {6, 4}, 1);
  CAIRN_ASSERT_OK(first_->Save(kStep, StateOf({{"w", old.view()}})));
  const TestTensor matrix(DType::kFloat32, {6, 4}, 2);
  {
    auto own = Begin(0, {.overwrite = true});
    auto other = Begin(1, {.overwrite = true});
    CAIRN_ASSERT_OK(own->Add(Rows("w", matrix, 0, 2)));
    CAIRN_ASSERT_OK(other->Add(Rows("w", matrix, 3, 6)));
    CAIRN_ASSERT_OK(other->Prepare());

    EXPECT_THAT(own->Commit({}),
                IsError(ErrorCode::kInvalidArgument, "no rank wrote element [2, 0]"));
  }
  ExpectStored("w", old);
}

TEST_F(StepPartTest, ARankThatGivesUpIsNamed) {
  auto own = Begin(0);
  auto other = Begin(1);
  other->Abort({.code = ErrorCode::kInvalidArgument, .message = "no disk"});

  EXPECT_THAT(own->Commit({}), IsError(ErrorCode::kInvalidArgument, "no disk"));
  own.reset();
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto steps, first_->Steps());
  EXPECT_THAT(steps, IsEmpty());
}

TEST_F(StepPartTest, PartsThatAreDroppedLeaveNothing) {
  {
    const TestTensor matrix(DType::kFloat32, {6, 4}, 1);
    auto own = Begin(0);
    CAIRN_ASSERT_OK(own->Add(Rows("w", matrix, 0, 6)));
  }
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto steps, first_->Steps());
  EXPECT_THAT(steps, IsEmpty());
  StateDict state;
  state.root().Value("v", int64_t{1});
  CAIRN_ASSERT_OK(first_->Save(kStep, state));
}

TEST_F(StepPartTest, TwoPortionsWithOneTensorAreRefused) {
  const TestTensor matrix(DType::kFloat32, {6, 4}, 1);
  auto own = Begin(0);
  CAIRN_ASSERT_OK(own->Add(Rows("w", matrix, 0, 2)));
  EXPECT_THAT(own->Add(Rows("w", matrix, 2, 6)), IsError(ErrorCode::kInvalidArgument, "in common"));
}

TEST_F(StepPartTest, OneRankAloneKeepsSharedMemoryShared) {
  const TestTensor tied(DType::kFloat32, {64, 64}, 1);
  CAIRN_ASSERT_OK_AND_ASSIGN(ticket_, StepPart::OpenSession(*first_, kStep, 1));
  auto own = Begin(0);
  CAIRN_ASSERT_OK(own->Add(StateOf({{"a", tied.view()}, {"b", tied.view()}})));
  CAIRN_ASSERT_OK_AND_ASSIGN(const SaveReport report, own->Commit({}));
  EXPECT_EQ(report.written_bytes, tied.bytes.size());
  ExpectStored("b", tied);
}

TEST_F(StepPartTest, TheMemoryOfAPortionIsTheCallersAgain) {
  // Large and aligned, so that it is written directly from its memory.
  const TestTensor whole(DType::kUInt8, {96 << 20}, 1);
  CAIRN_ASSERT_OK_AND_ASSIGN(const HostMemory lent, HostMemory::Allocate(whole.bytes.size()));
  std::ranges::copy(whole.bytes, lent.bytes().begin());
  CAIRN_ASSERT_OK_AND_ASSIGN(ticket_, StepPart::OpenSession(*first_, kStep, 1));
  auto own = Begin(0);
  TensorView view = whole.view();
  view.data = lent.bytes().data();
  CAIRN_ASSERT_OK(own->Add(StateOf({{"w", view}})));
  // The bytes that were submitted last, which are the least likely to have been written already.
  std::ranges::fill(lent.bytes().last(8 << 20), std::byte{0xee});
  CAIRN_ASSERT_OK(own->Commit({}));
  ExpectStored("w", whole);
}

TEST_F(StepPartTest, AfterAPortionThatFailedNothingIsCommitted) {
  const TestTensor matrix(DType::kFloat32, {6, 4}, 1);
  CAIRN_ASSERT_OK_AND_ASSIGN(ticket_, StepPart::OpenSession(*first_, kStep, 1));
  auto own = Begin(0);
  StateDict bad;
  TensorView view = matrix.view();
  view.strides = {1};
  bad.root().Tensor("v", view);
  CAIRN_ASSERT_OK(own->Add(Rows("w", matrix, 0, 6)));
  const auto added = own->Add(std::move(bad));
  ASSERT_FALSE(added.has_value());
  EXPECT_THAT(own->Commit({}), IsError(added.error().code, added.error().message));
  EXPECT_THAT(own->Add(StateDict()), IsError(added.error().code, added.error().message));
  own.reset();
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto steps, first_->Steps());
  EXPECT_THAT(steps, IsEmpty());
}

TEST(NestTreeTest, PathsThatContradictEachOtherAreAnError) {
  StateDict state;
  state.root().Value("a", int64_t{1});
  state.root().Value("a.b", int64_t{2});
  const std::map<std::string, std::vector<PathElement>> paths = {
      {"a", {{.text = "a"}}}, {"a.b", {{.text = "a"}, {.text = "b"}}}};
  EXPECT_THAT(NestTree(state.tree, paths), IsError(ErrorCode::kInvalidArgument, "a"));
}

TEST(NestTreeTest, APathThatDoesNotSpellItsKeyIsPassedOver) {
  StateDict state;
  state.root().Value("a.b", int64_t{2});
  CAIRN_ASSERT_OK_AND_ASSIGN(const StateTree nested,
                             NestTree(state.tree, {{"a.b", {{.text = "x"}, {.text = "b"}}}}));
  EXPECT_EQ(nested, state.tree);
}

TEST(NestTreeTest, AKeyWithoutAPathKeepsItsKindAndForm) {
  StateDict state;
  state.root().WithKeyKind(KeyKind::kInt).Value("1", int64_t{1});
  state.root().Value("1", int64_t{2});
  EscapeEqualNames(state.tree);
  CAIRN_ASSERT_OK_AND_ASSIGN(const StateTree nested, NestTree(state.tree, {}));
  EXPECT_EQ(nested, state.tree);
}

}  // namespace
}  // namespace cairn::core
