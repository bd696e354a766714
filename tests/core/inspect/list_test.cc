#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "core/step/contents.h"
#include "tests/core/tensor/test_tensor.h"
#include "tests/support/seeded_random.h"

namespace cairn::core {
namespace {

using cairn::testing::IsError;
using cairn::testing::SeededRandom;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::SizeIs;

class ListTest : public StoreTest {
 protected:
  void SaveSample() {
    StateDict state;
    auto model = state.root().Map("model");
    auto layers = model.List("layers");
    for (int i = 0; i < 11; ++i) {
      auto layer = layers.Map("");
      layer.Tensor("w", tensor_.view());
      layer.Value("note", int64_t{i});
    }
    model.Tensor("wte", {DType::kInt8, {0}, {}, nullptr});
    Save(1, state);
  }
  std::vector<std::string> List(std::vector<std::string> patterns) {
    const auto parsed = KeyPatterns::Parse(patterns);
    EXPECT_TRUE(testing::IsOk(parsed));
    const auto contents = store->List(1, *parsed);
    EXPECT_TRUE(testing::IsOk(contents));
    std::vector<std::string> fqns;
    for (const TensorInfo& tensor : contents->tensors) fqns.push_back(tensor.fqn);
    for (const ValueInfo& value : contents->values) fqns.push_back(value.fqn);
    // The tree names the same keys.
    const auto leaves = FlattenTree(contents->tree);
    EXPECT_EQ(leaves->size(), fqns.size());
    return fqns;
  }
  /// Returns the keys of step 1 that ForEachKey visits, in order.
  std::vector<std::string> Visited(const std::vector<std::string>& patterns) {
    std::vector<std::string> fqns;
    const auto visit_tensor = [&](const TensorInfo& tensor) -> Result<void> {
      fqns.push_back(tensor.hidden ? "hidden" : tensor.fqn);
      return {};
    };
    const auto visit_value = [&](const ValueInfo& value) -> Result<void> {
      fqns.push_back(value.fqn);
      return {};
    };
    EXPECT_TRUE(testing::IsOk(store->ForEachKey(Step(1), KeyPatterns::Parse(patterns).value(),
                                                visit_tensor, visit_value)));
    return fqns;
  }
  /// Saves two overlapping tensors, whose bytes a hidden one owns, and another one.
  void SaveOverlap() {
    TestTensor memory(DType::kInt8, {8});
    Save(1, StateOf({{"a", {DType::kInt8, {5}, {}, memory.bytes.data()}},
                     {"b", {DType::kInt8, {5}, {}, memory.bytes.data() + 3}},
                     {"c", tensor_.view()}}));
  }
  /// Damages the last long record of each table.
  void DamageStructure() {
    for (const auto& file :
         std::filesystem::directory_iterator(directory.path() + "/store/tables")) {
      std::fstream table(file.path(), std::ios::in | std::ios::out | std::ios::binary);
      table.seekp(static_cast<std::streamoff>(file.file_size() / 4 * 3));
      table << std::string(1000, 'x');
    }
  }

  /// 400 letters, which sort before "value".
  static std::string LongKey(SeededRandom& random) {
    std::string key(400, ' ');
    for (char& c : key) c = static_cast<char>(random.Between('a', 'u'));
    return key;
  }

  TestTensor tensor_{DType::kInt8, {2}};
};

TEST_F(ListTest, ListsWhatPatternsSelectOnce) {
  SaveSample();
  EXPECT_THAT(List({"model.layers.1"}), ElementsAre("model.layers.1.w", "model.layers.1.note"));
  EXPECT_THAT(List({"model.layers.3", "!model.layers.3.w"}), ElementsAre("model.layers.3.note"));
  EXPECT_TRUE(List({"model.wte", "!model"}).empty());
  EXPECT_THAT(List({"model.layers.?.w", "!model.layers.[0-7].*"}),
              ElementsAre("model.layers.8.w", "model.layers.9.w"));
  EXPECT_THAT(List({"!model.layers"}), ElementsAre("model.wte"));
  EXPECT_TRUE(List({"nothing"}).empty());
  EXPECT_THAT(List({"model.wte", "model.w*", "model.wte"}), ElementsAre("model.wte"));
  EXPECT_THAT(store->List(2), IsError(ErrorCode::kNotFound, "1"));
}

TEST_F(ListTest, LiteralsListTheSameAsWildcards) {
  SaveSample();
  const std::vector<std::vector<std::string>> selections = {
      {"model.wte"}, {"model.layers.7.note"}, {"model.layers.1", "model.layers.10.w"}, {"model"}};
  for (const std::vector<std::string>& literals : selections) {
    std::vector<std::string> wildcards = literals;
    // Matches nothing, but is not a literal.
    wildcards.push_back("nothing*");
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto exact, KeyPatterns::Parse(literals));
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto others, KeyPatterns::Parse(wildcards));
    CAIRN_ASSERT_OK_AND_ASSIGN(const Contents a, store->List(1, exact));
    CAIRN_ASSERT_OK_AND_ASSIGN(const Contents b, store->List(1, others));
    EXPECT_EQ(a.tree, b.tree);
    EXPECT_EQ(List(literals), List(wildcards));
  }
}

TEST_F(ListTest, AnAliasIsListedWithTheHiddenTensorThatOwnsItsBytes) {
  SaveOverlap();
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto patterns, KeyPatterns::Parse({"b"}));
  CAIRN_ASSERT_OK_AND_ASSIGN(const Contents contents, store->List(1, patterns));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto leaves, FlattenTree(contents.tree));
  EXPECT_EQ(leaves.size(), 1u);
  ASSERT_EQ(contents.tensors.size(), 2u);
  EXPECT_EQ(std::ranges::count_if(contents.tensors, &TensorInfo::hidden), 1);
  // Hidden tensors are visited last.
  EXPECT_THAT(Visited({}), ElementsAre("a", "b", "c", "hidden"));
  EXPECT_THAT(Visited({"b"}), ElementsAre("b", "hidden"));
  EXPECT_THAT(Visited({"c"}), ElementsAre("c"));
}

TEST_F(ListTest, ForEachKeyVisitsWhatPatternsSelectInOrder) {
  SaveSample();
  std::vector<std::string> listed = List({});
  std::ranges::sort(listed);
  EXPECT_EQ(Visited({}), listed);
  EXPECT_THAT(Visited({"model.layers.1"}), ElementsAre("model.layers.1.note", "model.layers.1.w"));
  EXPECT_THAT(Visited({"model.w*", "**.9.w", "model.layers.10.note"}),
              ElementsAre("model.layers.10.note", "model.layers.9.w", "model.wte"));
  EXPECT_THAT(Visited({"!model.layers"}), ElementsAre("model.wte"));
  EXPECT_TRUE(Visited({"model.layer"}).empty());
  const auto stop = [](const auto&) { return Result<void>(Fail(ErrorCode::kCancelled, "stop")); };
  EXPECT_THAT(store->ForEachKey(Step(1), {}, stop, stop), IsError(ErrorCode::kCancelled, ""));
}

// A scan leaps over the chunks of other tensors.
TEST_F(ListTest, ForEachChunkFindsTheChunksOfTensorsThatAreFarApart) {
  constexpr int kTensors = 200;
  StateDict state;
  for (int i = 0; i < kTensors; ++i) state.root().Tensor(fmt::format("{:03}", i), tensor_.view());
  Save(1, state, {.chunk_bytes = 1});
  CAIRN_ASSERT_OK_AND_ASSIGN(const Contents contents, store->List(1));
  for (size_t stride = 1; stride <= kTensors; ++stride) {
    std::vector<TensorInfo> some;
    for (size_t i = stride - 1; i < contents.tensors.size(); i += stride) {
      some.push_back(contents.tensors[i]);
    }
    std::vector<uint64_t> chunks(some.size());
    CAIRN_ASSERT_OK(store->ForEachChunk(contents.step, some,
                                        [&](size_t tensor, const ChunkInfo&) -> Result<void> {
                                          ++chunks[tensor];
                                          return {};
                                        }));
    uint64_t expected = 0;
    for (const TensorInfo& tensor : some) expected += tensor.chunk_count;
    EXPECT_EQ(std::accumulate(chunks.begin(), chunks.end(), uint64_t{0}), expected) << stride;
  }
}

TEST_F(ListTest, ForEachChunkVisitsTheChunksOfEachTensor) {
  TestTensor other(DType::kInt8, {3});
  Save(1, StateOf({{"a", tensor_.view()},
                   {"alias", tensor_.view()},
                   {"empty", {DType::kInt8, {0}, {}, nullptr}},
                   {"other", other.view()}}));
  CAIRN_ASSERT_OK_AND_ASSIGN(const Contents contents, store->List(1));
  std::vector<std::pair<std::string, uint64_t>> visited;
  CAIRN_ASSERT_OK(store->ForEachChunk(
      contents.step, contents.tensors, [&](size_t tensor, const ChunkInfo& chunk) -> Result<void> {
        visited.emplace_back(contents.tensors[tensor].fqn, chunk.length_bytes());
        return {};
      }));
  EXPECT_THAT(visited, ElementsAre(std::pair("a", 2), std::pair("other", 3)));
}

// The structure is the last long record of the table. It is longer than what a table keeps of its
// blocks, so each read of it is a read of the file.
TEST_F(ListTest, LiteralsReadTheStructureOnce) {
  SeededRandom random;
  StateDict state;
  state.root().Value("key", int64_t{7});
  for (int i = 0; i < 5000; ++i) state.root().Value(LongKey(random), int64_t{i});
  Save(1, state);
  EXPECT_THAT(List({"key"}), ElementsAre("key"));
  DamageStructure();
  EXPECT_THAT(List({"key"}), ElementsAre("key"));
  EXPECT_THAT(List({"nothing"}), ElementsAre());
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto wildcard, KeyPatterns::Parse({"ke?"}));
  EXPECT_THAT(store->List(1, wildcard), IsError(ErrorCode::kDataLoss, ""));
  Reopen(kv::OpenMode::kRead);
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto literal, KeyPatterns::Parse({"key"}));
  EXPECT_THAT(store->List(1, literal), IsError(ErrorCode::kDataLoss, ""));
}

// A block of the table contains the structure alone, so that the values before it are found without
// it.
TEST_F(ListTest, ForEachKeyDoesNotReadTheStructure) {
  SeededRandom random;
  StateDict state;
  state.root().Value("value", int64_t{7});
  for (int i = 0; i < 2000; ++i) {
    state.root().Tensor(LongKey(random), {DType::kInt8, {0}, {}, nullptr});
  }
  Save(1, state);
  DamageStructure();
  Reopen(kv::OpenMode::kRead);
  EXPECT_THAT(store->List(1), IsError(ErrorCode::kDataLoss, ""));
  EXPECT_THAT(Visited({}), AllOf(SizeIs(2001), Contains("value")));
}

}  // namespace
}  // namespace cairn::core
