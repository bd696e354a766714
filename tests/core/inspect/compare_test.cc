#include "core/inspect/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <tuple>

#include "core/inspect/value_difference.h"
#include "kv/base/key.h"
#include "kv/step_writer.h"
#include "tests/core/tensor/test_tensor.h"

namespace cairn::core {
namespace {

using cairn::testing::IsError;

class CompareTest : public StoreTest {
 protected:
  Diff Compare(uint64_t a, uint64_t b, std::vector<std::string> patterns = {}) {
    auto parsed = KeyPatterns::Parse(patterns);
    auto diff = CompareSteps(store->kv(), a, b, *parsed);
    EXPECT_TRUE(testing::IsOk(diff));
    return diff.value_or(Diff{});
  }
  Result<kv::StepInfo> StepOf(uint64_t step) {
    CAIRN_TRY_ASSIGN(const auto snapshot, store->kv().Latest());
    return snapshot->FindStep(step);
  }
};

void ExpectEqual(const Diff& a, const Diff& b) {
  ASSERT_EQ(a.changes.size(), b.changes.size());
  for (size_t i = 0; i < a.changes.size(); ++i) {
    EXPECT_EQ(a.changes[i].fqn, b.changes[i].fqn);
    EXPECT_EQ(a.changes[i].kind, b.changes[i].kind);
    EXPECT_EQ(a.changes[i].detail, b.changes[i].detail);
    EXPECT_EQ(a.changes[i].changed_bytes, b.changes[i].changed_bytes);
    EXPECT_EQ(a.changes[i].total_bytes, b.changes[i].total_bytes);
  }
  EXPECT_EQ(a.unchanged_keys, b.unchanged_keys);
}

TEST_F(CompareTest, SaysWhatWasAddedRemovedAndChanged) {
  TestTensor a(DType::kFloat32, {1000, 10}), b(DType::kInt8, {5});
  StateDict first, second;
  first.root().Tensor("a", a.view());
  first.root().Tensor("gone", b.view());
  first.root().Tensor("same", b.view());
  first.root().Value("lr", 0.1);
  first.root().Value("same_value", std::string("x"));
  Save(1, first, {.chunk_bytes = 4000});
  a.bytes[4001] ^= std::byte{1};
  second.root().Tensor("a", a.view());
  second.root().Tensor("new", b.view());
  second.root().Tensor("same", b.view());
  second.root().Value("lr", 0.2);
  second.root().Value("same_value", std::string("x"));
  Save(2, second, {.chunk_bytes = 4000});

  const Diff diff = Compare(1, 2);
  ASSERT_EQ(diff.changes.size(), 4u);
  EXPECT_EQ(diff.changes[0].fqn, "a");
  EXPECT_EQ(diff.changes[0].changed_bytes, 4000u);
  EXPECT_EQ(diff.changes[0].total_bytes, 40'000u);
  EXPECT_EQ(diff.changes[1].fqn, "gone");
  EXPECT_EQ(diff.changes[1].kind, KeyChange::Kind::kRemoved);
  EXPECT_EQ(diff.changes[2].fqn, "lr");
  EXPECT_FALSE(diff.changes[2].is_tensor);
  EXPECT_EQ(diff.changes[2].detail, "0.1 -> 0.2");
  EXPECT_EQ(diff.changes[3].fqn, "new");
  EXPECT_EQ(diff.changes[3].kind, KeyChange::Kind::kAdded);
  EXPECT_EQ(diff.changes[3].detail, "int8 [5]");
  EXPECT_EQ(diff.unchanged_keys, 2u);
  EXPECT_EQ(Compare(1, 2, {"same"}).changes.size(), 0u);
  EXPECT_TRUE(Compare(1, 1).changes.empty());
  EXPECT_THAT(CompareSteps(store->kv(), 1, 7), IsError(ErrorCode::kNotFound, "7"));
}

TEST_F(CompareTest, AValueInItsRecordEqualsTheSameBytesInChunks) {
  StateDict state;
  state.root().Value("v", std::string(9'000, 'x'));
  Save(1, state);
  for (const auto& [step, last] : {std::pair(2, 'x'), std::pair(3, 'y')}) {
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto writer, store->kv().Begin(step, {}));
    const Value value = std::string(8'999, 'x') + last;
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto record, EncodeValue(value));
    CAIRN_ASSERT_OK(writer->AddRecord(kv::Column::kValues, kv::FqnKey("v"), record));
    CAIRN_ASSERT_OK(writer->SetStructure(EncodeTree(state.tree)));
    CAIRN_ASSERT_OK(writer->Commit({.value_count = 1}));
  }
  EXPECT_TRUE(Compare(1, 2).changes.empty());
  EXPECT_TRUE(Compare(2, 1).changes.empty());
  EXPECT_EQ(Compare(1, 3).changes.size(), 1u);
}

TEST_F(CompareTest, SaysHowTypesAndShapesChanged) {
  const TestTensor f(DType::kFloat32, {6}), h(DType::kInt32, {6}), s(DType::kFloat32, {2, 3});
  StateDict first, second;
  first.root().Tensor("d", f.view());
  first.root().Tensor("k", f.view());
  first.root().Tensor("s", f.view());
  Save(1, first);
  second.root().Tensor("d", h.view());
  second.root().Value("k", int64_t{3});
  second.root().Tensor("s", s.view());
  Save(2, second);
  const Diff diff = Compare(1, 2);
  ASSERT_EQ(diff.changes.size(), 3u);
  EXPECT_EQ(diff.changes[0].detail, "dtype float32 -> int32");
  EXPECT_EQ(diff.changes[1].detail, "float32 [6] -> 3");
  EXPECT_EQ(diff.changes[2].detail, "shape [6] -> [2, 3]");
}

TEST_F(CompareTest, ReadsWhereTheStepsAreCutDifferently) {
  TestTensor a(DType::kUInt8, {1'000'000});
  const StateDict state = StateOf({{"a", a.view()}});
  Save(1, state, {.chunk_bytes = 300'000});
  Save(2, state, {.chunk_bytes = 200'000});
  EXPECT_TRUE(Compare(1, 2).changes.empty());
  a.bytes[999'999] ^= std::byte{1};
  Save(3, state, {.chunk_bytes = 250'000});
  const Diff diff = Compare(1, 3);
  ASSERT_EQ(diff.changes.size(), 1u);
  EXPECT_EQ(diff.changes[0].changed_bytes, 1'000'000u % kv::kPageBytes);
}

TEST_F(CompareTest, SharedTensorsAreComparedByTheirOwnBytes) {
  TestTensor storage(DType::kUInt8, {500'000});
  const StateDict state = StateOf(
      {{"all", storage.view()}, {"head", {DType::kUInt8, {100'000}, {}, storage.bytes.data()}}});
  Save(1, state);
  storage.bytes[400'000] ^= std::byte{1};
  Save(2, state);
  const Diff diff = Compare(1, 2);
  ASSERT_EQ(diff.changes.size(), 1u);
  EXPECT_EQ(diff.changes[0].fqn, "all");
  EXPECT_EQ(diff.unchanged_keys, 1u);
}

// Of two steps that share most of their records, the keys of one are looked up and not listed. The
// result must be that of two steps that share no records.
TEST_F(CompareTest, FewCandidatesAreFoundByName) {
  TestTensor owner(DType::kUInt8, {300'000}), small(DType::kInt8, {5}), big(DType::kInt8, {700});
  StateDict first, second;
  for (StateDict* const state : {&first, &second}) {
    for (int i = 0; i < 400; ++i) {
      state->root().Tensor(fmt::format("same{}", i), small.view());
      state->root().Value(fmt::format("value{}", i), int64_t{i});
    }
  }
  first.root().Tensor("owner", owner.view());
  first.root().Tensor("part", {DType::kUInt8, {100'000}, {}, owner.bytes.data()});
  first.root().Tensor("removed", small.view());
  first.root().Tensor("becomes_value", small.view());
  first.root().Value("lr", 0.1);
  Save(1, first);
  owner.bytes[7] ^= std::byte{1};
  second.root().Tensor("owner", owner.view());
  second.root().Tensor("part", {DType::kUInt8, {100'000}, {}, owner.bytes.data()});
  second.root().Tensor("added", big.view());
  second.root().Value("becomes_value", int64_t{1});
  second.root().Value("lr", 0.2);
  Save(2, second);
  Save(3, second, {.incremental = false});  // shares no table with step 1

  for (const std::vector<std::string>& patterns :
       {std::vector<std::string>{}, {"part", "lr"}, {"same1*", "removed"}}) {
    const Diff found = Compare(1, 2, patterns);
    const Diff listed = Compare(1, 3, patterns);
    ExpectEqual(found, listed);
  }
  EXPECT_EQ(Compare(1, 2).changes.size(), 6u);
  EXPECT_EQ(Compare(1, 2).unchanged_keys, 800u);
  EXPECT_EQ(Compare(2, 1).changes.size(), 6u);
}

// From 256 keys on, the chunk records of both steps are scanned. The result must be that of
// lookups.
TEST_F(CompareTest, ManyKeysAreComparedAsFewAre) {
  std::vector<TestTensor> tensors;
  for (int i = 0; i < 300; ++i) tensors.emplace_back(DType::kUInt8, Shape{400});
  StateDict first, second;
  const auto name = [](int i) { return fmt::format("k{:03}", i); };
  for (int i = 0; i < 300; ++i) {
    if (i % 50 != 1) first.root().Tensor(name(i), tensors[i].view());
  }
  for (int i = 0; i < 300; ++i) first.root().Value(name(i) + ".value", int64_t{i});
  Save(1, first, {.chunk_bytes = 100});
  for (int i = 0; i < 300; ++i) {
    if (i % 3 == 0) tensors[i].bytes[i] ^= std::byte{1};
    if (i % 50 == 4) {
      second.root().Value(name(i), int64_t{7});
    } else if (i % 50 != 5) {
      second.root().Tensor(name(i), tensors[i].view());
    }
    second.root().Value(name(i) + ".value", int64_t{i % 60 == 0 ? -1 : i});
  }
  Save(2, second, {.incremental = false, .chunk_bytes = 100});

  const Diff all = Compare(1, 2);
  Diff parts;
  for (const char* const part : {"k0*", "k1*", "k2*"}) {
    Diff diff = Compare(1, 2, {part, std::string(part) + ".value"});
    std::ranges::move(diff.changes, std::back_inserter(parts.changes));
    parts.unchanged_keys += diff.unchanged_keys;
  }

  EXPECT_GT(all.changes.size(), 100u);
  ExpectEqual(all, parts);
}

// Keys that the steps cut differently are in between keys that are compared by their digests.
TEST_F(CompareTest, ManyKeysOfWhichSomeAreCutDifferently) {
  std::vector<TestTensor> tensors;
  for (int i = 0; i < 300; ++i)
    tensors.emplace_back(DType::kUInt8, Shape{i % 10 == 0 ? 4000u : 9u});
  StateDict state;
  for (int i = 0; i < 300; ++i) state.root().Tensor(fmt::format("k{:03}", i), tensors[i].view());
  Save(1, state, {.chunk_bytes = 1000});
  for (int i = 0; i < 300; i += 5) tensors[i].bytes[8] ^= std::byte{1};
  Save(2, state, {.incremental = false, .chunk_bytes = 2000});

  const Diff diff = Compare(1, 2);

  ASSERT_EQ(diff.changes.size(), 60u);
  for (int i = 0; i < 60; ++i) {
    EXPECT_EQ(diff.changes[i].fqn, fmt::format("k{:03}", 5 * i));
    EXPECT_EQ(diff.changes[i].changed_bytes, i % 2 == 0 ? 4000u : 9u);
  }
  EXPECT_EQ(diff.unchanged_keys, 240u);
}

TEST_F(CompareTest, ValuesOfManySmallTensorsAndOfALargeOne) {
  // More tensors than a batch has, and a tensor of several parts in the middle of one.
  constexpr size_t kCount = 2500;
  std::vector<TestTensor> tensors;
  std::vector<std::string> fqns;
  for (size_t i = 0; i < kCount; ++i) {
    tensors.emplace_back(DType::kInt32, i == 1500 ? Shape{9'000'000} : Shape{i % 3});
    fqns.push_back(fmt::format("t{:04}", i));
  }
  const auto add = [](TestTensor& tensor, size_t element, int32_t difference) {
    int32_t value;
    std::memcpy(&value, tensor.bytes.data() + 4 * element, 4);
    value += value > 0 ? -difference : difference;
    std::memcpy(tensor.bytes.data() + 4 * element, &value, 4);
  };
  for (const uint64_t step : {1, 2}) {
    StateDict state;
    for (size_t i = 0; i < kCount; ++i) state.root().Tensor(fqns[i], tensors[i].view());
    Save(step, state);
    for (size_t i = 1; i < kCount; i += 3) add(tensors[i], 0, static_cast<int32_t>(i));
    add(tensors[1500], 0, 5);
    add(tensors[1500], 8'999'999, 7);
  }
  std::vector<uint64_t> progress;
  const auto note = [&](uint64_t bytes, uint64_t) {
    progress.push_back(bytes);
    return true;
  };
  CAIRN_ASSERT_OK_AND_ASSIGN(const kv::StepInfo a, StepOf(1));
  CAIRN_ASSERT_OK_AND_ASSIGN(const kv::StepInfo b, StepOf(2));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto found, CompareValues(store->kv(), a, b, fqns, note));
  ASSERT_EQ(found.size(), kCount);
  for (size_t i = 0; i < kCount; ++i) {
    SCOPED_TRACE(i);
    ASSERT_TRUE(found[i]);
    if (i == 1500) continue;
    EXPECT_EQ(found[i]->elements, i % 3);
    EXPECT_EQ(found[i]->differing_elements, i % 3 == 1 ? 1 : 0);
    EXPECT_EQ(found[i]->largest_absolute, i % 3 == 1 ? static_cast<double>(i) : 0);
  }
  EXPECT_EQ(found[1500]->elements, 9'000'000u);
  EXPECT_EQ(found[1500]->differing_elements, 2u);
  EXPECT_EQ(found[1500]->largest_absolute, 7);
  EXPECT_TRUE(std::ranges::is_sorted(progress));

  const auto stop = [](uint64_t, uint64_t) { return false; };
  EXPECT_THAT(CompareValues(store->kv(), a, b, fqns, stop), IsError(ErrorCode::kCancelled, ""));
  fqns.push_back("u");
  EXPECT_THAT(CompareValues(store->kv(), a, b, fqns, {}), IsError(ErrorCode::kNotFound, "u"));
}

TEST_F(CompareTest, ValuesOfOtherTypesOrShapesAreNotCompared) {
  TestTensor a(DType::kFloat32, {4}), b(DType::kFloat32, {2, 2}), c(DType::kInt32, {4});
  for (const auto& [step, x, y] : {std::tuple(1, &a, &a), std::tuple(2, &b, &c)}) {
    StateDict state;
    state.root().Tensor("same", a.view());
    state.root().Tensor("shape", x->view());
    state.root().Tensor("type", y->view());
    Save(step, state);
  }
  CAIRN_ASSERT_OK_AND_ASSIGN(const kv::StepInfo first, StepOf(1));
  CAIRN_ASSERT_OK_AND_ASSIGN(const kv::StepInfo second, StepOf(2));
  const std::vector<std::string> fqns = {"same", "shape", "type"};
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto found, CompareValues(store->kv(), first, second, fqns, {}));
  ASSERT_TRUE(found[0]);
  EXPECT_EQ(found[0]->differing_elements, 0u);
  EXPECT_FALSE(found[1]);
  EXPECT_FALSE(found[2]);
}

}  // namespace
}  // namespace cairn::core
