// Edits of the keys of a step. The result must be what a save of the edited state stores, without
// any payload being written, and must not depend on its sources.

#include <gmock/gmock.h>

#include <memory>
#include <utility>
#include <vector>

#include "core/inspect/compare.h"
#include "core/rewrite/step_edit.h"
#include "core/state_dict/key_name.h"
#include "core/step/contents.h"
#include "tests/core/tensor/test_tensor.h"
#include "tests/support/fake_s3.h"

namespace cairn::core {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::IsError;

class EditTest : public StoreTest {
 protected:
  kv::StepInfo Edit(uint64_t source, uint64_t into, const StepEdit& edit) {
    auto made = store->Edit(source, into, edit);
    EXPECT_TRUE(testing::IsOk(made));
    return made.value_or(kv::StepInfo{});
  }

  // Checks `step` against a save of `expected`, after the other steps have been deleted. VerifyAll
  // also compares the live bytes that the store records with the extents of the chunks.
  void ExpectIs(uint64_t step, const StateDict& expected) {
    EXPECT_EQ(Step(step).written_bytes, 0u);
    std::vector<uint64_t> others;
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto steps, store->Steps());
    for (const kv::StepInfo& info : steps) {
      if (info.step != step) others.push_back(info.step);
    }
    if (!others.empty()) Delete(others);
    Reopen();
    EXPECT_THAT(VerifyAll(), IsEmpty());
    Save(1000, expected, {.incremental = false});
    CAIRN_ASSERT_OK_AND_ASSIGN(const Diff diff, CompareSteps(store->kv(), step, 1000));
    for (const KeyChange& change : diff.changes) ADD_FAILURE() << change.fqn << change.detail;
    CAIRN_ASSERT_OK_AND_ASSIGN(const Contents made, store->List(step));
    CAIRN_ASSERT_OK_AND_ASSIGN(const Contents saved, store->List(1000));
    EXPECT_EQ(made.tree, saved.tree);
    EXPECT_EQ(made.step.tensor_count, saved.step.tensor_count);
    EXPECT_EQ(made.step.value_count, saved.step.value_count);
    EXPECT_EQ(made.step.chunk_count, saved.step.chunk_count);
    for (const TensorInfo& tensor : saved.tensors) {
      if (tensor.hidden) continue;
      EXPECT_EQ(LoadBytes(step, tensor.fqn), LoadBytes(1000, tensor.fqn)) << tensor.fqn;
    }
  }

  void Delete(const std::vector<uint64_t>& steps) {
    EXPECT_TRUE(testing::IsOk(store->Delete(steps, false)));
  }

  void AddLayers(StateDict::Builder parent, int64_t count) {
    auto layers = parent.List("layers");
    for (int64_t i = 0; i < count; ++i) {
      auto layer = layers.Map("");
      layer.Tensor("w", layers_[static_cast<size_t>(i)].view());
      layer.Value("note", i);
    }
  }

  // model: {wte, layers: [{w, note}, ...], head}, lr
  StateDict Sample(const std::string& model_key = "model") {
    StateDict state;
    auto model = state.root().Map(model_key, NodeKind::kOrderedDict);
    model.Tensor("wte", wte_.view());
    AddLayers(model, 3);
    model.Tensor("head", head_.view());
    state.root().Value("lr", 0.5);
    return state;
  }

  TestTensor wte_{DType::kFloat32, {300, 100}, 1};
  TestTensor layers_[3] = {
      {DType::kBFloat16, {90}, 2}, {DType::kBFloat16, {90}, 3}, {DType::kBFloat16, {90}, 4}};
  TestTensor head_{DType::kUInt8, {500'000}, 5};
};

TEST_F(EditTest, WithoutChangesTheStepIsACopy) {
  Save(1, Sample(), {.chunk_bytes = 100'000});
  const kv::StepInfo made = Edit(1, 2, {});
  EXPECT_EQ(made.generation, Step(2).generation);
  EXPECT_EQ(made.written_bytes, 0u);
  Delete({1});
  EXPECT_THAT(VerifyAll(), IsEmpty());
  EXPECT_EQ(LoadBytes(2, "model.head"), head_.bytes);
}

TEST_F(EditTest, RenamesAPrefix) {
  Save(1, Sample());
  Edit(1, 2, {.rename = {{"model", "net"}}});
  ExpectIs(2, Sample("net"));
}

TEST_F(EditTest, CountsRecordsAndCanBeCancelled) {
  Save(1, Sample(), {.chunk_bytes = 100'000});
  std::vector<std::pair<uint64_t, uint64_t>> seen;
  StepEdit edit{.drop = {}, .rename = {{"model", "net"}}};
  edit.progress = [&](uint64_t done, uint64_t total) {
    seen.emplace_back(done, total);
    return true;
  };
  Edit(1, 2, edit);
  ASSERT_FALSE(seen.empty());
  const uint64_t records = Step(1).chunk_count + 5;
  EXPECT_EQ(seen.front(), std::pair(uint64_t{1}, records));
  EXPECT_EQ(seen.back(), std::pair(records, records));

  edit.progress = [](uint64_t, uint64_t) { return false; };
  EXPECT_THAT(store->Edit(1, 3, edit), IsError(ErrorCode::kCancelled, ""));
  EXPECT_EQ(store->Steps()->size(), 2u);
  EXPECT_THAT(VerifyAll(), IsEmpty());
}

TEST_F(EditTest, SwapsTwoKeys) {
  Save(1, Sample());
  Edit(1, 2, {.rename = {{"model.wte", "model.head"}, {"model.head", "model.wte"}}});
  Delete({1});
  EXPECT_EQ(LoadBytes(2, "model.wte"), head_.bytes);
  EXPECT_EQ(LoadBytes(2, "model.head"), wte_.bytes);
  EXPECT_THAT(VerifyAll(), IsEmpty());
}

TEST_F(EditTest, MovesKeysToNewDicts) {
  Save(1, Sample());
  Edit(1, 2, {.rename = {{"model.layers", "decoder.stack.layers"}, {"lr", "model.lr"}}});
  StateDict expected;
  auto model = expected.root().Map("model", NodeKind::kOrderedDict);
  model.Tensor("wte", wte_.view());
  model.Tensor("head", head_.view());
  model.Value("lr", 0.5);
  AddLayers(expected.root().Map("decoder").Map("stack"), 3);
  ExpectIs(2, expected);
}

TEST_F(EditTest, KeysWithDotsStayKeysOfTheirDict) {
  StateDict state, expected;
  auto model = state.root().Map("model");
  model.Tensor("wte.weight", wte_.view());
  model.Tensor("head.weight", head_.view());
  Save(1, state);
  Edit(1, 2, {.rename = {{"model.wte", "model.embedding.tokens"}}});
  auto renamed = expected.root().Map("model");
  renamed.Tensor("embedding.tokens.weight", wte_.view());
  renamed.Tensor("head.weight", head_.view());
  ExpectIs(2, expected);
}

TEST_F(EditTest, EscapedKeysAreNamedAsTheyAreStored) {
  StateDict state;
  state.root().Tensor("a.b", wte_.view());
  auto a = state.root().Map("a");
  a.Tensor("b", head_.view());
  EscapeEqualNames(state.tree);
  Save(1, state);
  const auto names_after = [&](uint64_t to, const StepEdit& edit) {
    Edit(1, to, edit);
    std::vector<std::string> names;
    const auto contents = store->List(to);
    EXPECT_TRUE(testing::IsOk(contents));
    for (const TensorInfo& tensor : contents->tensors) names.push_back(tensor.fqn);
    return names;
  };
  EXPECT_THAT(names_after(2, {.drop = {"a.b"}}), ElementsAre("a\\.b"));
  EXPECT_EQ(LoadBytes(2, "a\\.b"), wte_.bytes);
  EXPECT_THAT(names_after(3, {.drop = {"a\\.b"}}), ElementsAre("a.b"));
  EXPECT_EQ(LoadBytes(3, "a.b"), head_.bytes);
  EXPECT_THAT(names_after(4, {.rename = {{"a\\.b", "c"}}}), ElementsAre("a.b", "c"));
  EXPECT_THAT(names_after(5, {.rename = {{"a.b", "d.e\\.f"}}}), ElementsAre("a\\.b", "d.e\\.f"));
  EXPECT_EQ(LoadBytes(5, "d.e\\.f"), head_.bytes);
  EXPECT_THAT(VerifyAll(), IsEmpty());
}

TEST_F(EditTest, Drops) {
  Save(1, Sample());
  Edit(1, 2, {.drop = {"model.layers.2", "model.head", "lr"}});
  StateDict expected;
  auto model = expected.root().Map("model", NodeKind::kOrderedDict);
  model.Tensor("wte", wte_.view());
  AddLayers(model, 2);
  ExpectIs(2, expected);
}

TEST_F(EditTest, RefusesWhatCannotBeExpressed) {
  Save(1, Sample());
  const auto edit = [&](const StepEdit& change) { return store->Edit(1, 2, change); };
  EXPECT_THAT(edit({.drop = {"model.layers.1"}}),
              IsError(ErrorCode::kInvalidArgument, "model.layers.1"));
  EXPECT_THAT(edit({.drop = {"model.layer"}}), IsError(ErrorCode::kNotFound, "model.layer"));
  EXPECT_THAT(edit({.rename = {{"mod", "net"}}}), IsError(ErrorCode::kNotFound, "mod"));
  EXPECT_THAT(edit({.rename = {{"model.wte", "model.head"}}}),
              IsError(ErrorCode::kInvalidArgument, "model.head"));
  EXPECT_THAT(edit({.rename = {{"model.wte", "lr.x"}}}),
              IsError(ErrorCode::kInvalidArgument, "lr"));
  EXPECT_THAT(edit({.rename = {{"model.wte", "model.layers.x"}}}),
              IsError(ErrorCode::kInvalidArgument, "model.layers.x"));
  EXPECT_THAT(edit({.graft = Graft{.step = 7}}), IsError(ErrorCode::kNotFound, "7"));
  EXPECT_THAT(store->Edit(9, 2, {}), IsError(ErrorCode::kNotFound, "9"));
  EXPECT_THAT(store->Edit(1, 1, {.drop = {"lr"}}), IsError(ErrorCode::kConflict, "1"));
  EXPECT_EQ(store->Steps()->size(), 1u);
}

TEST_F(EditTest, ReplacesItsOwnSourceIfAllowed) {
  Save(1, Sample());
  Edit(1, 1, {.rename = {{"model", "net"}}, .overwrite = true});
  ExpectIs(1, Sample("net"));
}

TEST_F(EditTest, AStepThatGetsARecordKeepsItsDescription) {
  Save(1, Sample(), {.metrics = {{.name = "loss", .value = 2.5}}, .note = "a note"});
  const StepEdit edit{.records = {{"eval", std::vector<std::byte>(3)}}, .overwrite = true};
  const kv::StepInfo replaced = Edit(1, 1, edit);
  EXPECT_THAT(replaced.metrics, ElementsAre(::testing::Field(&kv::Metric::value, 2.5)));
  EXPECT_EQ(replaced.note, "a note");
  EXPECT_EQ(Edit(1, 2, edit).note, "");  // another step
  Delete({2});
  ExpectIs(1, Sample());
}

TEST_F(EditTest, RefusesALongRecordBeforeAnythingElse) {
  const std::vector<std::byte> too_long(kMaxApplicationRecordBytes + 1);
  EXPECT_THAT(store->Edit(9, 2, {.records = {{"eval", too_long}}}),
              IsError(ErrorCode::kInvalidArgument, "16777217 bytes"));
}

/// Records of applications, in a directory and in a bucket.
class RecordsTest : public EditTest, public ::testing::WithParamInterface<bool> {
 protected:
  void SetUp() override {
    EditTest::SetUp();
    if (!GetParam()) return;
    server_ = std::make_unique<testing::FakeS3>();
    CAIRN_ASSERT_OK_AND_ASSIGN(
        store, CheckpointStore::Open(testing::OpenBucket(*server_), kv::OpenMode::kWrite));
  }
  void TearDown() override { store.reset(); }  // before the server

  using Names = std::vector<std::string>;
  static std::vector<std::byte> Data(uint8_t value) { return {std::byte{value}, std::byte{0}}; }
  ApplicationRecords Records(uint64_t step) {
    ApplicationRecords records;
    CAIRN_EXPECT_OK(store->ListRecords(Step(step)));
    for (const std::string& name : store->ListRecords(Step(step)).value_or(Names())) {
      records[name] = store->ReadRecord(Step(step), name).value();
    }
    return records;
  }

  std::unique_ptr<testing::FakeS3> server_;
};
INSTANTIATE_TEST_SUITE_P(, RecordsTest, ::testing::Bool());

// A save of the same state is committed with the records of its base, unless that has these.
TEST_P(RecordsTest, AStepHasTheRecordsOfItsSaveAndNoOthers) {
  const ApplicationRecords a = {{"a", Data(1)}, {"shared", Data(2)}}, b = {{"shared", Data(3)}};
  Save(1, Sample(), {.records = a});
  Save(2, Sample(), {.records = b});
  Save(3, Sample());
  Save(4, Sample());
  Edit(4, 4, {.records = {{"a", Data(4)}}, .overwrite = true});
  Save(5, Sample());
  Edit(2, 6, {.rename = {{"model", "net"}}, .records = {{"shared", std::nullopt}}});
  Edit(1, 7, {.records = {{"a", std::nullopt}, {"shared", Data(5)}, {"new", Data(6)}}});
  Edit(1, 8, {});
  EXPECT_EQ(Records(1), a);
  EXPECT_EQ(Records(2), b);
  EXPECT_THAT(Records(3), IsEmpty());
  EXPECT_EQ(Records(4), (ApplicationRecords{{"a", Data(4)}}));
  EXPECT_THAT(Records(5), IsEmpty());
  EXPECT_THAT(Records(6), IsEmpty());
  EXPECT_EQ(Records(7), (ApplicationRecords{{"shared", Data(5)}, {"new", Data(6)}}));
  EXPECT_EQ(Records(8), a);
  EXPECT_THAT(store->ReadRecord(Step(3), "a"), IsError(ErrorCode::kNotFound, "'a'"));
  EXPECT_THAT(VerifyAll(), IsEmpty());
}

TEST_F(EditTest, GraftsReplaceEqualKeysAndAddOthers) {
  Save(1, Sample());
  TestTensor other_head(DType::kFloat16, {70, 30}, 9), bias(DType::kFloat32, {11}, 8);
  StateDict other;
  auto other_model = other.root().Map("model");
  other_model.Tensor("head", other_head.view());
  other_model.Tensor("bias", bias.view());
  other.root().Value("lr", 0.25);
  Save(5, other, {.incremental = false});
  Edit(1, 6, {.graft = Graft{.step = 5, .patterns = {"model"}}});

  StateDict expected;
  auto model = expected.root().Map("model", NodeKind::kOrderedDict);
  model.Tensor("wte", wte_.view());
  AddLayers(model, 3);
  model.Tensor("head", other_head.view());
  model.Tensor("bias", bias.view());
  expected.root().Value("lr", 0.5);
  ExpectIs(6, expected);
}

TEST_F(EditTest, GraftsBelowAKey) {
  StateDict student;
  student.root().Map("student").Tensor("w", wte_.view());
  Save(1, student);
  Save(2, Sample(), {.incremental = false});
  Edit(1, 3, {.graft = Graft{.step = 2, .patterns = {"model.layers", "lr"}, .under = "a.teacher"}});
  StateDict expected;
  expected.root().Map("student").Tensor("w", wte_.view());
  auto teacher = expected.root().Map("a").Map("teacher");
  AddLayers(teacher.Map("model", NodeKind::kOrderedDict), 3);
  teacher.Value("lr", 0.5);
  ExpectIs(3, expected);
}

TEST_F(EditTest, GraftsBelowAKeyThatIsNamedAsItIsStored) {
  StateDict dotted, nested, other;
  dotted.root().Map("a.b").Tensor("w", wte_.view());
  nested.root().Map("a").Map("b").Tensor("w", wte_.view());
  other.root().Tensor("w", head_.view());
  other.root().Map("c").Tensor("v", head_.view());
  Save(1, dotted);
  Save(2, nested, {.incremental = false});
  Save(3, other, {.incremental = false});
  const auto graft = [](std::string under) {
    return StepEdit{.graft = Graft{.step = 3, .patterns = {}, .under = std::move(under)}};
  };
  Edit(1, 4, graft("a.b"));  // the dict that exists
  CAIRN_ASSERT_OK_AND_ASSIGN(const Contents same, store->List(4));
  EXPECT_EQ(same.tree.nodes.size(), 5u);
  EXPECT_EQ(LoadBytes(4, "a.b.w"), head_.bytes);
  EXPECT_EQ(LoadBytes(4, "a.b.c.v"), head_.bytes);
  Edit(2, 5, graft("a\\.b"));  // another one, whose key is escaped
  EXPECT_EQ(LoadBytes(5, "a.b.w"), wte_.bytes);
  EXPECT_EQ(LoadBytes(5, "a\\.b.w"), head_.bytes);
  EXPECT_THAT(VerifyAll(), IsEmpty());
  for (const auto& [under, words] : std::vector<std::pair<std::string, std::string>>{
           {"a\\", "escape"}, {"a\\.b", "twice"}, {"a.b.w", "leaf"}}) {
    EXPECT_THAT(store->Edit(1, 6, graft(under)), IsError(ErrorCode::kInvalidArgument, words));
  }
}

TEST_F(EditTest, ChunksKeepTheirDeltas) {
  TestTensor w(DType::kBFloat16, {400'000});
  const auto state = [&](const std::string& key) { return StateOf({{key, w.view()}}); };
  for (uint64_t step = 1; step <= 3; ++step) {
    for (size_t i = step; i < w.bytes.size(); i += 200) w.bytes[i] ^= std::byte{1};
    Save(step, state("w"), {.max_deltas = 4});
  }
  EXPECT_LT(Step(3).written_bytes, w.bytes.size() / 4);
  Edit(3, 4, {.rename = {{"w", "v"}}});
  ExpectIs(4, state("v"));
}

class SharedBytesTest : public EditTest {
 protected:
  // Three tensors with the same bytes, one of which has only a part of them.
  void SaveTied() { Save(1, StateOf({{"a", wte_.view()}, {"b", wte_.view()}, {"part", Part()}})); }
  TensorView Part() const { return {DType::kFloat32, {7, 100}, {}, wte_.bytes.data() + 4000}; }

  TensorInfo Info(uint64_t step, const std::string& fqn) {
    const auto info = store->FindTensor(Step(step), fqn);
    EXPECT_TRUE(testing::IsOk(info));
    return info.value_or(TensorInfo{});
  }
};

TEST_F(SharedBytesTest, AliasesFollowTheirOwner) {
  SaveTied();
  Edit(1, 2, {.rename = {{"a", "z"}}});
  EXPECT_EQ(Info(2, "b").alias_of, "z");
  EXPECT_EQ(Info(2, "part").alias_of, "z");
  ExpectIs(2, StateOf({{"z", wte_.view()}, {"b", wte_.view()}, {"part", Part()}}));
}

TEST_F(SharedBytesTest, ACompleteAliasReplacesADroppedOwner) {
  SaveTied();
  Edit(1, 2, {.drop = {"a"}});
  EXPECT_EQ(Info(2, "b").alias_of, std::nullopt);
  EXPECT_EQ(Info(2, "part").alias_of, "b");
  ExpectIs(2, StateOf({{"b", wte_.view()}, {"part", Part()}}));
}

TEST_F(SharedBytesTest, ThePartOfADroppedOwnerKeepsItsBytes) {
  SaveTied();
  Edit(1, 2, {.drop = {"a", "b"}});
  Delete({1});
  Reopen();
  EXPECT_THAT(VerifyAll(), IsEmpty());
  const std::vector<std::byte> bytes = LoadBytes(2, "part");
  EXPECT_TRUE(std::ranges::equal(bytes, std::span(wte_.bytes).subspan(4000, 2800)));
  // And so after a second edit, which renames what remains.
  Edit(2, 3, {.rename = {{"part", "whole"}}});
  EXPECT_EQ(LoadBytes(3, "whole"), bytes);
  CAIRN_ASSERT_OK_AND_ASSIGN(const Contents contents, store->List(3));
  EXPECT_EQ(FlattenTree(contents.tree)->size(), 1u);
}

TEST_F(SharedBytesTest, AGraftedAliasBringsItsBytes) {
  SaveTied();
  Save(2, Sample(), {.incremental = false});
  Edit(2, 3, {.graft = Graft{.step = 1, .patterns = {"part"}}});
  Delete({1, 2});
  Reopen();
  EXPECT_THAT(VerifyAll(), IsEmpty());
  EXPECT_EQ(LoadBytes(3, "part").size(), 2800u);
  EXPECT_EQ(LoadBytes(3, "model.head"), head_.bytes);
}

}  // namespace
}  // namespace cairn::core
