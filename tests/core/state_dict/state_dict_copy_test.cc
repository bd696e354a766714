// Copies of state dicts, and comparisons of their structure.

#include "core/state_dict/state_dict_copy.h"

#include <gmock/gmock.h>

#include "tests/core/tensor/strided_fixture.h"
#include "tests/core/tensor/test_tensor.h"
#include "tests/support/result_matchers.h"

namespace cairn::core {
namespace {

using cairn::testing::IsError;
using cairn::testing::SeededRandom;

TensorView Meta(DType dtype, Shape shape) { return {.dtype = dtype, .shape = std::move(shape)}; }

std::shared_ptr<const DeviceMesh> MeshOf(uint32_t ranks) {
  return std::make_shared<const DeviceMesh>(*DeviceMesh::Make({{"dp", ranks}}));
}

TEST(SameStructureTest, OrderOfKeysAndKindsOfSequencesDoNotMatter) {
  StateDict a;
  a.root().Map("m").Tensor("w", Meta(DType::kFloat32, {2}));
  a.root().List("l").Value("", int64_t{1});
  StateDict b;
  b.root().List("l", NodeKind::kTuple).Value("", std::string("other"));
  b.root().Map("m", NodeKind::kOrderedDict).Tensor("w", Meta(DType::kFloat32, {2}));
  CAIRN_EXPECT_OK(SameStructure(a, b));
  CAIRN_EXPECT_OK(SameStructure(b, a));
}

TEST(SameStructureTest, NamesTheFirstKeyThatDiffers) {
  const auto build = [](auto fill) {
    StateDict state;
    auto m = state.root().Map("m");
    m.Tensor("first", Meta(DType::kFloat32, {2}));
    fill(m);
    return state;
  };
  const StateDict a = build([](auto& m) { m.Tensor("w", Meta(DType::kFloat32, {2, 3})); });
  const auto differs = [&](auto fill, const std::string& how) {
    EXPECT_THAT(SameStructure(a, build(fill)), IsError(ErrorCode::kInvalidArgument, how));
    EXPECT_THAT(SameStructure(a, build(fill)), IsError(ErrorCode::kInvalidArgument, "m.w"));
  };
  differs([](auto& m) { m.Tensor("w", Meta(DType::kFloat16, {2, 3})); }, "float16 [2, 3]");
  differs([](auto& m) { m.Tensor("w", Meta(DType::kFloat32, {3, 2})); }, "float32 [3, 2]");
  differs([](auto& m) { m.Value("w", int64_t{1}); }, "a tensor and a plain value");
  differs([](auto& m) { m.Map("w"); }, "a tensor and a dict");
  differs([](auto&) {}, "only the first has this key");
  differs(
      [](auto& m) {
        m.Tensor("w", Meta(DType::kFloat32, {2, 3}));
        m.Value("w2", int64_t{1});
      },
      "only the second has this key");
}

TEST(SameStructureTest, KeysOfOtherKindsAndListsOfOtherLengthsDiffer) {
  StateDict strings;
  strings.root().Value("0", int64_t{1});
  StateDict ints;
  ints.root().WithKeyKind(KeyKind::kInt).Value("0", int64_t{1});
  EXPECT_THAT(SameStructure(strings, ints), IsError(ErrorCode::kInvalidArgument, "only the first"));
  StateDict one;
  one.root().List("l").Value("", int64_t{1});
  StateDict two;
  auto list = two.root().List("l");
  list.Value("", int64_t{1});
  list.Value("", int64_t{1});
  EXPECT_THAT(SameStructure(one, two), IsError(ErrorCode::kInvalidArgument, "1 and 2 items"));
}

// These are equal as flat dicts, but not as trees.
TEST(SameStructureTest, DotsInKeysAreNoLevels) {
  StateDict nested;
  nested.root().Map("a").Value("b", int64_t{1});
  StateDict dotted;
  dotted.root().Value("a.b", int64_t{1});
  EXPECT_THAT(SameStructure(nested, dotted), IsError(ErrorCode::kInvalidArgument, "key"));
}

TEST(SameStructureTest, ShardingsMustAgree) {
  const auto build = [](Placement placement, uint64_t global, uint32_t ranks) {
    StateDict state;
    state.root().Sharded(
        "w", Meta(DType::kFloat32, {2}),
        {.global_shape = {global}, .mesh = MeshOf(ranks), .placements = {placement}, .parts = {}});
    return state;
  };
  const StateDict a = build(Placement::Shard(0), 4, 2);
  CAIRN_EXPECT_OK(SameStructure(a, build(Placement::Shard(0), 4, 2)));
  EXPECT_THAT(SameStructure(a, build(Placement::StridedShard(0, 2), 4, 2)),
              IsError(ErrorCode::kInvalidArgument, "placements"));
  EXPECT_THAT(SameStructure(a, build(Placement::Shard(0), 3, 2)),
              IsError(ErrorCode::kInvalidArgument, "global shapes [4] and [3]"));
  EXPECT_THAT(SameStructure(a, build(Placement::Shard(0), 4, 3)),
              IsError(ErrorCode::kInvalidArgument, "meshes"));
  StateDict whole;
  whole.root().Tensor("w", Meta(DType::kFloat32, {2}));
  EXPECT_THAT(SameStructure(a, whole), IsError(ErrorCode::kInvalidArgument, "one is sharded"));
}

TEST(CopyStateDictTest, MismatchesAreNamedBeforeAnythingIsWritten) {
  TestTensor first(DType::kFloat32, {4}, 1), second(DType::kFloat32, {4}, 2);
  StateDict source;
  source.root().Tensor("first", first.view());
  source.root().Tensor("second", second.view());
  TestTensor into(DType::kFloat32, {4}, 3), wrong(DType::kFloat32, {5}, 4);
  const auto before = into.bytes;
  StateDict target;
  target.root().Tensor("first", into.view());
  target.root().Tensor("second", wrong.view());
  EXPECT_THAT(CopyStateDict(source, StateTarget(target)),
              IsError(ErrorCode::kInvalidArgument, "second"));
  target.tensors[1] = Meta(DType::kFloat32, {4});  // no memory
  EXPECT_THAT(CopyStateDict(source, StateTarget(target)),
              IsError(ErrorCode::kInvalidArgument, "second"));
  EXPECT_EQ(into.bytes, before);
}

TEST(CopyStateDictTest, ATensorMayBeCopiedToItself) {
  TestTensor tensor(DType::kFloat32, {4});
  const auto before = tensor.bytes;
  StateDict state;
  state.root().Tensor("w", tensor.view());
  CAIRN_ASSERT_OK(CopyStateDict(state, StateTarget(state)));
  EXPECT_EQ(tensor.bytes, before);
}

TEST(OffloadStateDictTest, PartsAndValuesAreCopied) {
  TestTensor part(DType::kInt16, {2, 2});
  StateDict state;
  Sharding sharding{.global_shape = {4, 2}, .mesh = nullptr, .placements = {}, .parts = {}};
  sharding.parts = {{.box = {{1, 0}, {2, 2}}, .view = part.view()}};
  state.root().Sharded("boxes", Meta(DType::kInt16, {}), sharding);
  state.root().Value("step", int64_t{9});
  CAIRN_ASSERT_OK_AND_ASSIGN(const HostState copy, OffloadStateDict(state));
  const auto& copied = copy.state().shardings.at(0).parts[0].view;
  EXPECT_NE(copied.data, part.view().data);
  EXPECT_EQ(NaiveRowMajor(copied), part.bytes);
  EXPECT_EQ(copy.state().values[0], Value(int64_t{9}));
}

// Copies random strided tensors with random keys to a state with another order.
TEST(CopyStateDictTest, RandomStatesArriveWhole) {
  SeededRandom random;
  for (int round = 0; round < 300; ++round) {
    SCOPED_TRACE(round);
    std::vector<StridedTensor> sources;
    const size_t count = random.Between(0, 6);
    for (size_t i = 0; i < count; ++i) sources.push_back(RandomStrided(random, true));
    StateDict source, like;
    for (size_t i = 0; i < count; ++i) {
      source.root().Tensor(std::to_string(i), sources[i].view());
      const StridedTensor& other = sources[count - 1 - i];
      like.root().Tensor(std::to_string(count - 1 - i), Meta(other.dtype, other.shape));
    }
    CAIRN_ASSERT_OK_AND_ASSIGN(HostState companion, CreateCpuStateDict(like));
    CAIRN_ASSERT_OK(CopyStateDict(source, companion.target()));
    for (size_t i = 0; i < count; ++i) {
      ASSERT_EQ(NaiveRowMajor(companion.state().tensors[count - 1 - i]),
                NaiveRowMajor(sources[i].view()));
    }
    // From strided to strided memory: gaps of the target do not change.
    if (count == 0) continue;
    StridedTensor target = RandomStrided(random, false);
    StridedTensor again = target;
    random.Fill(again.memory);
    StateDict one, into;
    one.root().Tensor("w", again.view());
    into.root().Tensor("w", target.view());
    StridedTensor expected = target;
    NaiveCopyBox(NaiveRowMajor(again.view()), WholeBox(target.shape), expected,
                 WholeBox(target.shape), WholeBox(target.shape));
    CAIRN_ASSERT_OK(CopyStateDict(one, StateTarget(into)));
    ASSERT_EQ(target.memory, expected.memory);
  }
}

}  // namespace
}  // namespace cairn::core
