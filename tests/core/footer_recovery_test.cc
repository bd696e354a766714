// What Rebuild recovers from the footers of segments when roots and tables are lost.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "core/save/save_options.h"
#include "core/state_dict/key_name.h"
#include "core/step/contents.h"
#include "core/step/internal/tensor_records.h"
#include "kv/base/options.h"
#include "kv/read/snapshot.h"
#include "kv/segment/internal/segment_format.h"
#include "kv/store.h"
#include "tests/core/tensor/test_tensor.h"
#include "tests/kv/sample_step.h"
#include "tests/support/thread_communicator.h"

namespace cairn::core {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Tensors = std::map<std::string, std::vector<std::byte>>;  // bytes by FQN

StateDict StateOfBytes(const Tensors& tensors) {
  StateDict state;
  for (const auto& [fqn, bytes] : tensors) {
    state.root().Tensor(fqn, {DType::kUInt8, {bytes.size()}, {}, bytes.data()});
  }
  return state;
}

class FooterRecoveryTest : public StoreTest {
 protected:
  std::string path() const { return directory.path() + "/store"; }

  /// Closes the store and removes all but CAIRN and the segments.
  void LoseAllRecords() {
    store.reset();
    for (const char* name : {"roots", "tables", "pages", "hint"}) {
      std::filesystem::remove_all(path() + "/" + name);
    }
  }

  kv::RebuildReport Rebuild() {
    store.reset();
    auto report = kv::Store::Rebuild(path());
    EXPECT_TRUE(testing::IsOk(report));
    Reopen();
    return report.value_or(kv::RebuildReport{});
  }

  SaveReport SaveFull(uint64_t step, const Tensors& tensors, bool overwrite = false) {
    return Save(step, StateOfBytes(tensors),
                {.overwrite = overwrite, .incremental = false, .chunk_bytes = 70'000});
  }

  /// Loads all tensors of a step that are leaves of its tree.
  Tensors LoadAll(uint64_t step) {
    Tensors tensors;
    const auto contents = store->List(step);
    EXPECT_TRUE(testing::IsOk(contents));
    if (!contents) return tensors;
    for (const TensorInfo& tensor : contents->tensors) {
      EXPECT_FALSE(tensor.hidden || tensor.alias_of) << tensor.fqn;
      tensors[tensor.fqn] = LoadBytes(step, tensor.fqn);
    }
    EXPECT_EQ(contents->tree.nodes.size(), tensors.size() + 1);
    EXPECT_THAT(contents->values, IsEmpty());
    return tensors;
  }

  std::vector<std::string> SegmentsOf(uint64_t step) {
    std::vector<std::string> names;
    const auto snapshot = store->kv().Latest();
    EXPECT_TRUE(testing::IsOk(snapshot));
    const auto segments = (*snapshot)->Segments();
    EXPECT_TRUE(testing::IsOk(segments));
    for (const kv::SegmentInfo& segment : *segments) {
      if (segment.step == step) names.push_back(path() + "/segments/" + segment.name);
    }
    return names;
  }
};

Tensors SomeTensors(uint64_t seed) {
  return {{"b.w", kv::testing::RandomBytes(seed, 200'000)},
          {"b.w.x", kv::testing::RandomBytes(seed + 1, 1)},
          {"c", kv::testing::RandomBytes(seed + 2, 70'001)}};
}

TEST_F(FooterRecoveryTest, FullStepsAreRecoveredBitForBit) {
  for (const uint64_t step : {10, 20, 30}) {
    const Tensors tensors = SomeTensors(step);
    StateDict state = StateOfBytes(tensors);
    state.root().Value("epoch", int64_t{3});
    Save(step, state, {.incremental = false, .chunk_bytes = 70'000});
  }
  LoseAllRecords();
  const kv::RebuildReport report = Rebuild();
  EXPECT_EQ(report.steps, 3u);
  EXPECT_THAT(report.lost, IsEmpty());
  ASSERT_EQ(report.notes.size(), 3u);
  EXPECT_EQ(report.notes[0].step, 10u);
  EXPECT_THAT(report.notes[0].message, HasSubstr("3 tensors from the footers"));
  std::set<uint64_t> generations;
  for (const uint64_t step : {10, 20, 30}) {
    EXPECT_TRUE(LoadAll(step) == SomeTensors(step)) << step;
    generations.insert(Step(step).generation);
    EXPECT_EQ(Step(step).logical_bytes, 270'002u);
    EXPECT_EQ(Step(step).written_bytes, 270'002u);
  }
  EXPECT_EQ(generations.size(), 3u);  // by which snapshots find open steps
  EXPECT_THAT(VerifyAll(), IsEmpty());
}

// An FQN cannot be divided into keys: `a\.b` as a key in plain form would be stored as `a\\.b`, and
// if it was one in escaped form, the dict could have two equal keys.
TEST_F(FooterRecoveryTest, EscapedKeysAreRecoveredAsTheirNames) {
  const auto bytes = kv::testing::RandomBytes(1, 7);
  const auto others = kv::testing::RandomBytes(2, 7);
  const TensorView view{DType::kUInt8, {7}, {}, bytes.data()};
  const TensorView other{DType::kUInt8, {7}, {}, others.data()};
  StateDict state;
  state.root().Tensor("a.b", view);
  auto a = state.root().Map("a");
  a.Tensor("b", other);
  const auto third = kv::testing::RandomBytes(3, 7);  // tied tensors would not be recovered
  state.root().Tensor("a\\.b", {DType::kUInt8, {7}, {}, third.data()});
  EscapeEqualNames(state.tree);
  Save(1, state, {.incremental = false});
  LoseAllRecords();
  EXPECT_THAT(Rebuild().lost, IsEmpty());
  const Tensors recovered = LoadAll(1);
  EXPECT_TRUE(recovered == (Tensors{{"a\\.b", bytes}, {"a.b", others}, {"a\\\\.b", third}}));
  CAIRN_ASSERT_OK_AND_ASSIGN(const Contents contents, store->List(1));
  std::set<std::string> keys;
  for (const Node& node : contents.tree.nodes) keys.insert(node.key);
  EXPECT_EQ(keys, (std::set<std::string>{"", "a\\.b", "a.b", "a\\\\.b"}));
  EXPECT_THAT(VerifyAll(), IsEmpty());
}

// An open for writing would otherwise create roots, and later opens would remove the segments.
TEST_F(FooterRecoveryTest, StoreWithNothingButSegmentsIsNotTakenForAnEmptyOne) {
  SaveFull(1, SomeTensors(1));
  LoseAllRecords();
  for (const kv::OpenMode mode : {kv::OpenMode::kRead, kv::OpenMode::kWrite}) {
    const auto opened = kv::Store::Open(path(), mode);
    EXPECT_THAT(opened, testing::IsError(ErrorCode::kDataLoss, "roots"));
    EXPECT_THAT(opened, testing::HasHint(Hint::kRebuild));
  }
}

TEST_F(FooterRecoveryTest, RecoveredStepIsTheBaseOfTheNext) {
  SaveFull(1, SomeTensors(1));
  LoseAllRecords();
  Rebuild();
  Tensors tensors = SomeTensors(1);
  tensors["c"] = kv::testing::RandomBytes(99, 70'001);
  EXPECT_EQ(Save(2, StateOfBytes(tensors), {.chunk_bytes = 70'000}).written_bytes, 70'001u);
  CAIRN_ASSERT_OK(store->Delete(std::array{uint64_t{1}}));
  EXPECT_TRUE(LoadAll(2) == tensors);
  EXPECT_THAT(VerifyAll(), IsEmpty());
}

// The footer of a rank counts only the chunks of this rank.
TEST_F(FooterRecoveryTest, StepOfSeveralRanksIsRecoveredBitForBit) {
  store.reset();
  constexpr uint64_t kRankBytes = 5'000;
  Tensors tensors = SomeTensors(5);
  const std::vector<std::byte> whole = kv::testing::RandomBytes(3, 3 * kRankBytes);
  testing::RunRanks(3, [&](Communicator& communicator) {
    CAIRN_ASSERT_OK_AND_ASSIGN(
        const auto shared, CheckpointStore::OpenShared(path(), kv::OpenMode::kWrite, communicator));
    const uint64_t begin = shared->rank() * kRankBytes;
    const TensorView own{DType::kUInt8, {kRankBytes}, {}, whole.data() + begin};
    StateDict state = StateOfBytes(tensors);
    state.root().Sharded("w", own,
                         {.global_shape = {whole.size()},
                          .mesh = nullptr,
                          .placements = {},
                          .parts = {{.box = {{begin}, {kRankBytes}}, .view = own}}});
    CAIRN_ASSERT_OK(shared->Save(5, state, {.chunk_bytes = 70'000}));
    CAIRN_ASSERT_OK(shared->Close());
  });
  LoseAllRecords();
  const kv::RebuildReport report = Rebuild();
  EXPECT_EQ(report.steps, 1u);
  EXPECT_THAT(report.lost, IsEmpty());
  tensors["w"] = whole;
  EXPECT_TRUE(LoadAll(5) == tensors);
  EXPECT_EQ(Step(5).world_size, 3u);
  EXPECT_EQ(store->FindTensor(Step(5), "w")->chunk_count, 3u);
  EXPECT_THAT(VerifyAll(), IsEmpty());
}

TEST_F(FooterRecoveryTest, IncrementalStepHasOnlyTheTensorsThatItWroteCompletely) {
  Tensors tensors = {{"kept", kv::testing::RandomBytes(1, 1'000)},
                     {"part", kv::testing::RandomBytes(2, 210'000)},
                     {"pages", kv::testing::RandomBytes(3, 70'000)},
                     {"whole", kv::testing::RandomBytes(4, 1'000)}};
  const Tensors first = tensors;
  SaveFull(1, tensors);
  tensors["part"][0] ^= std::byte{1};        // one of three chunks
  tensors["pages"][69'999] ^= std::byte{1};  // the second page of the only chunk
  tensors["whole"] = kv::testing::RandomBytes(5, 1'000);
  Save(2, StateOfBytes(tensors), {.chunk_bytes = 70'000});
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto chunks, store->Chunks(Step(2), "pages"));
  ASSERT_EQ(chunks[0].extents.size(), 2u);  // the first of them in the segment of step 1
  LoseAllRecords();

  const kv::RebuildReport report = Rebuild();
  EXPECT_EQ(report.steps, 2u);
  ASSERT_EQ(report.lost.size(), 1u);
  EXPECT_EQ(report.lost[0].step, 2u);
  EXPECT_THAT(report.lost[0].message, AllOf(HasSubstr("1 tensors"), HasSubstr(": part")));
  EXPECT_TRUE(LoadAll(1) == first);
  tensors.erase("kept");
  tensors.erase("part");
  EXPECT_TRUE(LoadAll(2) == tensors);
  EXPECT_THAT(VerifyAll(), IsEmpty());
}

TEST_F(FooterRecoveryTest, StepWithADamagedFooterIsReportedAndOthersAreRecovered) {
  SaveFull(1, SomeTensors(1));
  SaveFull(2, SomeTensors(2));
  const std::vector<std::string> segments = SegmentsOf(2);
  ASSERT_EQ(segments.size(), 1u);
  {
    std::fstream file(segments[0], std::ios::in | std::ios::out | std::ios::binary);
    std::array<std::byte, kv::internal::kSegmentTrailerBytes> bytes;
    const uint64_t file_bytes = std::filesystem::file_size(segments[0]);
    file.seekg(static_cast<std::streamoff>(file_bytes - bytes.size()));
    file.read(reinterpret_cast<char*>(bytes.data()), bytes.size());
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto trailer,
                               kv::internal::DecodeSegmentTrailer(bytes, file_bytes));
    file.seekp(static_cast<std::streamoff>(trailer.footer_offset_bytes() + 50));
    file.put('\x7f');
  }
  LoseAllRecords();
  const kv::RebuildReport report = Rebuild();
  EXPECT_EQ(report.steps, 1u);
  EXPECT_THAT(report.lost,
              ElementsAre(AllOf(Field(&Error::step, 2u), Field(&Error::file, segments[0]),
                                Field(&Error::code, ErrorCode::kDataLoss),
                                Field(&Error::message, HasSubstr("footer")))));
  EXPECT_TRUE(LoadAll(1) == SomeTensors(1));
  EXPECT_TRUE(std::filesystem::exists(segments[0]));  // also after the open for writing
}

TEST_F(FooterRecoveryTest, FilesThatAreNotSegmentsAreIgnored) {
  SaveFull(1, SomeTensors(1));
  LoseAllRecords();
  std::ofstream(path() + "/segments/README") << "not a segment";
  std::ofstream(path() + "/segments/1.seg") << "not a segment";
  const std::string unsealed = path() + "/segments/00000001-0123456789abcdef00000000.seg";
  std::ofstream(unsealed) << "never sealed";
  const kv::RebuildReport report = Rebuild();
  EXPECT_EQ(report.steps, 1u);
  EXPECT_THAT(report.lost, ElementsAre(Field(&Error::file, unsealed)));  // it has their names
  EXPECT_TRUE(LoadAll(1) == SomeTensors(1));
}

TEST_F(FooterRecoveryTest, OnlyTheStepWhoseTableIsLostIsRecoveredIfTheRootIsNot) {
  const TestTensor w(DType::kFloat32, {100});
  StateDict state;
  state.root().Value("epoch", int64_t{3});
  state.root().Tensor("w", w.view());
  for (const uint64_t step : {1, 2, 3}) Save(step, state, {.incremental = false});
  CAIRN_ASSERT_OK(store->Delete(std::array{uint64_t{1}}));  // its segment stays for a minute
  std::set<std::filesystem::path> tables;
  for (const auto& entry : std::filesystem::directory_iterator(path() + "/tables")) {
    tables.insert(entry.path());
  }
  for (const auto& table : tables) {
    // Names are random: find the one that step 2 needs.
    std::filesystem::rename(table, table.string() + ".away");
    store.reset();
    Reopen();
    const bool of_step_2 = store->List(3) && !store->List(2);
    if (of_step_2) break;
    std::filesystem::rename(table.string() + ".away", table);
  }
  const kv::RebuildReport report = Rebuild();
  EXPECT_EQ(report.steps, 2u);
  EXPECT_THAT(report.lost, ElementsAre(Field(&Error::step, 2u)));
  EXPECT_THAT(report.notes, ElementsAre(Field(&Error::step, 2u)));
  EXPECT_EQ(LoadAll(2), (Tensors{{"w", w.bytes}}));
  CAIRN_ASSERT_OK_AND_ASSIGN(const Contents third, store->List(3));
  EXPECT_EQ(third.values.size(), 1u);
  EXPECT_THAT(VerifyAll(), IsEmpty());
}

TEST_F(FooterRecoveryTest, StepWhoseTableIsReadableIsNotReplacedByAPartOfIt) {
  SaveFull(1, SomeTensors(1));
  Tensors tensors = SomeTensors(1);
  tensors["c"] = kv::testing::RandomBytes(99, 70'001);
  Save(2, StateOfBytes(tensors), {.chunk_bytes = 70'000});
  for (const std::string& segment : SegmentsOf(1)) std::filesystem::remove(segment);
  store.reset();
  std::filesystem::remove_all(path() + "/roots");
  const kv::RebuildReport report = Rebuild();
  EXPECT_EQ(report.steps, 0u);
  EXPECT_THAT(report.lost, ElementsAre(Field(&Error::step, 1u), Field(&Error::step, 2u)));
}

TEST_F(FooterRecoveryTest, TensorsThatShareMemoryAreRecoveredAsTheirOwner) {
  const TestTensor storage(DType::kUInt8, {300});
  StateDict state = StateOf({{"a", {DType::kUInt8, {200}, {}, storage.bytes.data()}},
                             {"b", {DType::kUInt8, {200}, {}, storage.bytes.data() + 100}}});
  const TestTensor tied(DType::kFloat32, {50}, 2);
  state.root().Tensor("head", tied.view());
  state.root().Tensor("wte", tied.view());
  Save(1, state);
  LoseAllRecords();
  const kv::RebuildReport report = Rebuild();
  EXPECT_THAT(report.lost, IsEmpty());
  EXPECT_EQ(LoadAll(1), (Tensors{{"a.__storage__", storage.bytes}, {"head", tied.bytes}}));
  EXPECT_THAT(VerifyAll(), IsEmpty());
}

TEST_F(FooterRecoveryTest, MergeOfOldStepsIsNotTheLatest) {
  for (uint64_t step = 1; step <= 3; ++step) {
    const std::vector<float> values(1000, static_cast<float>(step * step));
    StateDict state;
    state.root().Tensor(
        "w",
        {DType::kFloat32, {values.size()}, {}, reinterpret_cast<const std::byte*>(values.data())});
    Save(step, state);
  }
  const std::array<uint64_t, 2> merged{1, 2};
  CAIRN_ASSERT_OK(store->Merge(merged, 9, {}));
  CAIRN_ASSERT_OK_AND_ASSIGN(const Contents before, store->List({}));
  EXPECT_EQ(before.step.step, 3u);
  LoseAllRecords();
  EXPECT_EQ(Rebuild().steps, 4u);
  CAIRN_ASSERT_OK_AND_ASSIGN(const Contents after, store->List({}));
  EXPECT_EQ(after.step.step, 3u);
}

TEST_F(FooterRecoveryTest, OfTwoAttemptsAtAStepTheOneWithMoreBytesOrTheLaterIsTaken) {
  SaveFull(1, SomeTensors(1));
  SaveFull(1, SomeTensors(2), /*overwrite=*/true);
  SaveFull(2, SomeTensors(3));
  SaveFull(2, {{"c", kv::testing::RandomBytes(9, 10)}}, /*overwrite=*/true);
  LoseAllRecords();
  const kv::RebuildReport report = Rebuild();
  EXPECT_EQ(report.steps, 2u);
  EXPECT_THAT(report.notes, Contains(AllOf(Field(&Error::step, 1u),
                                           Field(&Error::message, HasSubstr("left out")))));
  EXPECT_TRUE(LoadAll(1) == SomeTensors(2));
  EXPECT_TRUE(LoadAll(2) == SomeTensors(3));
}

}  // namespace
}  // namespace cairn::core
