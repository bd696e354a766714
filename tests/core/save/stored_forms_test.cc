// What does not depend on the form in which saves store a changed chunk: only its changed pages,
// deltas, or compressed bytes.

#include <gmock/gmock.h>

#include <filesystem>
#include <ostream>
#include <string>
#include <vector>

#include "core/inspect/compare.h"
#include "core/step/contents.h"
#include "kv/copy_steps.h"
#include "kv/store.h"
#include "tests/core/tensor/strided_fixture.h"
#include "tests/core/tensor/test_tensor.h"

namespace cairn::core {
namespace {

using kv::kPageBytes;
using ::testing::IsEmpty;
using testing::IsError;
using ::testing::Not;
using ::testing::SizeIs;

constexpr uint64_t kRows = 21, kColumns = 4 * kPageBytes / 2 / 8;  // 8 rows are 4 pages

struct Form {
  const char* name;
  SaveOptions options;
  bool changes_one_page;  // instead of scattered elements
  size_t last_segments;   // segments that step 4 uses

  friend void PrintTo(const Form& form, std::ostream* out) { *out << form.name; }
};
const Form kForms[] = {
    {"Pages", {}, true, 4},
    {"Deltas", {.max_deltas = 4}, false, 4},
    {"Compressed", {.compress = true}, false, 1},
    {"CompressedWithDeltas", {.max_deltas = 4, .compress = true}, false, 4},
};

/// Steps 1 to 4 have a tensor of one chunk, of 10 pages and a short one.
class StoredFormTest : public StoreTest, public ::testing::WithParamInterface<Form> {
 protected:
  void SetUp() override {
    StoreTest::SetUp();
    MakeCompressible(tensor_.bytes);
    for (uint64_t step = 1; step <= 4; ++step) {
      if (step > 1) Change(tensor_.bytes, step);
      SaveAndKeep(step, {{"w", &tensor_}}, GetParam().options);
    }
    const ChunkInfo last = OnlyChunk(4);
    EXPECT_EQ(last.extents.size() > 1, GetParam().changes_one_page);
    EXPECT_EQ(last.stored().is_compressed(), GetParam().options.compress.value_or(false));
    EXPECT_EQ(last.deltas.size() > 1, GetParam().options.max_deltas > 0);
  }

  /// Elements of two bytes with exponents in a short range.
  static void MakeCompressible(std::span<std::byte> bytes) {
    for (size_t i = 1; i < bytes.size(); i += 2) {
      bytes[i] = (bytes[i] & std::byte{0x80}) | std::byte{0x3c};
    }
  }
  void Change(std::span<std::byte> bytes, uint64_t step) {
    if (GetParam().changes_one_page) {
      bytes[(3 * step % 10) * kPageBytes + 7] ^= std::byte{1};
      return;
    }
    for (uint64_t i = random_.Between(0, 64); i < bytes.size() / 2; i += random_.Between(1, 128)) {
      bytes[2 * i] ^= std::byte{1};
    }
  }

  testing::SeededRandom random_;
  TestTensor tensor_{DType::kBFloat16, {kRows, kColumns}};
};

INSTANTIATE_TEST_SUITE_P(Forms, StoredFormTest, ::testing::ValuesIn(kForms),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(StoredFormTest, BoxesAreLoaded) {
  std::vector<Box> boxes = {
      {{0, 0}, {kRows, 1}}, {{5, 100}, {9, 3000}}, {{20, 0}, {1, 7}}, {{3, 0}, {4, kColumns}}};
  for (uint64_t row = 1; row < kRows; ++row) {  // across the beginning of each page
    boxes.push_back({{row - 1, row % 2 * (kColumns - 2)}, {2, 2}});
  }
  for (const Box& box : boxes) {
    TestTensor part(DType::kBFloat16, box.sizes, 99);
    CAIRN_ASSERT_OK(Load(4, {{.fqn = "w", .box = box, .target = part.target()}}));
    const uint64_t origin = 2 * (box.offsets[0] * kColumns + box.offsets[1]);
    EXPECT_EQ(
        part.bytes,
        NaiveRowMajor({DType::kBFloat16, box.sizes, {kColumns, 1}, kept[4]["w"].data() + origin}));
  }
}

TEST_P(StoredFormTest, ItIsNotMapped) {
  const std::string fqns[] = {"w"};
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto mapped, store->Map(Step(4), fqns));
  EXPECT_FALSE(mapped[0].has_value());
}

TEST_P(StoredFormTest, StepsAreCompared) {
  Save(5, StateOf({{"w", tensor_.view()}}), {.incremental = false});
  CAIRN_ASSERT_OK_AND_ASSIGN(const Diff changed, CompareSteps(store->kv(), 1, 4));
  EXPECT_THAT(changed.changes, SizeIs(1));
  CAIRN_ASSERT_OK_AND_ASSIGN(const Diff same, CompareSteps(store->kv(), 4, 5));
  EXPECT_THAT(same.changes, IsEmpty());
}

TEST_P(StoredFormTest, AnUpdateLeadsFromAnyStepToAnyOther) {
  for (auto& [from, before] : kept) {
    for (auto& [to, after] : kept) {
      TestTensor model = tensor_;
      model.bytes = before["w"];
      CAIRN_ASSERT_OK(store->Update(Step(from), Step(to), std::array{WholeRequest("w", model)}));
      EXPECT_TRUE(model.bytes == after["w"]) << from << " to " << to;
    }
  }
}

TEST_P(StoredFormTest, WhatAStepUsesOutlivesTheStepThatWroteIt) {
  DeleteKept({1, 2, 3});
  ExpectAllSteps();
  Reopen();
  ExpectAllSteps();
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto snapshot, store->kv().Latest());
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto segments, snapshot->Segments());
  EXPECT_THAT(segments, SizeIs(GetParam().last_segments));
}

TEST_P(StoredFormTest, StepsAreRecoveredFromTheirTablesAndFromFooters) {
  for (const char* const lost : {"roots", "tables"}) {
    store.reset();
    const std::string path = directory / "store";
    std::filesystem::remove_all(path + "/roots");
    std::filesystem::remove_all(path + "/" + lost);
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto report, kv::Store::Rebuild(path));
    EXPECT_THAT(report.lost, IsEmpty());
    Reopen();
    ExpectAllSteps();
  }
}

TEST_P(StoredFormTest, StepsAreCopied) {
  const std::string copy = directory / "copy";
  {
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto target, kv::Store::Open(copy, kv::OpenMode::kWrite));
    CAIRN_ASSERT_OK(kv::CopySteps(store->kv(), *target, {.steps = {1, 2, 3, 4}}));
  }
  CAIRN_ASSERT_OK_AND_ASSIGN(store, CheckpointStore::Open(copy, kv::OpenMode::kRead));
  ExpectAllSteps();
}

TEST_P(StoredFormTest, DamageOfAnythingThatAStepUsesIsFoundAndNamed) {
  std::vector<kv::Extent> extents;
  OnlyChunk(4).stored().ForEach([&](const kv::Extent& extent) { extents.push_back(extent); });
  for (const kv::Extent& extent : extents) {
    const std::string file = FileOf(extent);
    // Of a delta, a byte of the header: one of a compressed stream may have no effect at all, and
    // then the bytes of the chunk are right.
    const uint64_t at = extent.offset_bytes + 8;
    FlipByte(file, at);
    TestTensor target = tensor_;
    const auto loaded = Load(4, {WholeRequest("w", target)});
    ASSERT_THAT(loaded, IsError(ErrorCode::kDataLoss, ""));
    EXPECT_EQ(loaded.error().key, "w");
    EXPECT_EQ(loaded.error().file, file);
    EXPECT_EQ(loaded.error().offset_bytes, extent.offset_bytes);
    const auto damage = VerifyAll(4);
    ASSERT_THAT(damage, Not(IsEmpty()));
    EXPECT_EQ(damage[0].file, file) << damage[0].ToString();
    FlipByte(file, at);
  }
  ExpectAllSteps();
}

TEST_P(StoredFormTest, StridedTensorsAreStoredInIt) {
  const uint64_t side = 512;
  TestTensor square(DType::kBFloat16, {side, side});
  MakeCompressible(square.bytes);
  const TensorView transposed{DType::kBFloat16, {side, side}, {1, side}, square.bytes.data()};
  const StateDict state = StateOf({{"w", transposed}});
  Save(5, state, GetParam().options);
  Change(square.bytes, 1);
  EXPECT_LT(Save(6, state, GetParam().options).written_bytes, square.bytes.size());
  EXPECT_TRUE(LoadBytes(6, "w") == NaiveRowMajor(transposed));
}

}  // namespace
}  // namespace cairn::core
