// SaveOptions::unchanged: what the caller states not to have changed is not read, except for one
// chunk of each save.

#include <set>
#include <span>

#include "core/async_save.h"
#include "core/save/save_options.h"
#include "core/state_dict/key_name.h"
#include "tests/core/tensor/test_tensor.h"

namespace cairn::core {
namespace {

using cairn::testing::IsError;

constexpr uint64_t kChunkBytes = 100'000;

class StatedUnchangedTest : public StoreTest {
 protected:
  StatedUnchangedTest()
      : frozen_(DType::kUInt8, {8, kChunkBytes}, 1), trained_(DType::kUInt8, {kChunkBytes}, 2) {
    state_.root().Tensor("frozen", frozen_.view());
    state_.root().Tensor("trained", trained_.view());
  }

  void Change(TestTensor& tensor, uint64_t chunk) { tensor.bytes[chunk * kChunkBytes] ^= kBit; }

  static SaveOptions Stated(const std::string& pattern) {
    return {.unchanged = {pattern}, .chunk_bytes = kChunkBytes};
  }

  static constexpr std::byte kBit{1};
  TestTensor frozen_;
  TestTensor trained_;
  StateDict state_;
};

TEST_F(StatedUnchangedTest, TheFirstSaveWritesEverything) {
  EXPECT_EQ(Save(1, state_, Stated("frozen")).written_bytes, 9 * kChunkBytes);
  EXPECT_EQ(LoadBytes(1, "frozen"), frozen_.bytes);
}

TEST_F(StatedUnchangedTest, OnlyOneChunkIsRead) {
  Save(1, state_, Stated("frozen"));
  const auto before = frozen_.bytes;
  // Step 10 compares chunk 2. A change of another chunk shows that it is not read.
  Change(frozen_, 5);
  Change(trained_, 0);
  const SaveReport report = Save(10, state_, Stated("frozen"));
  EXPECT_EQ(report.chunks_reused, 8u);
  EXPECT_EQ(LoadBytes(10, "frozen"), before);
  EXPECT_EQ(LoadBytes(10, "trained"), trained_.bytes);
  // What was stated of one save does not apply to the next one.
  Save(11, state_, {.chunk_bytes = kChunkBytes});
  EXPECT_EQ(LoadBytes(11, "frozen"), frozen_.bytes);
}

TEST_F(StatedUnchangedTest, AChangeOfTheChunkThatIsComparedFailsTheSave) {
  Save(1, state_, Stated("frozen"));
  Change(frozen_, 5);
  for (uint64_t step = 8; step < 16; ++step) {
    const auto saved = store->Save(step, state_, Stated("frozen"));
    if (step % 8 != 5) {
      CAIRN_EXPECT_OK(saved);
      continue;
    }
    ASSERT_THAT(saved, IsError(ErrorCode::kInvalidArgument, "`unchanged`"));
    EXPECT_EQ(saved.error().key, "frozen");
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto steps, store->StepNumbers());
    EXPECT_EQ(steps.back(), step - 1);
  }
}

TEST_F(StatedUnchangedTest, AnUnchangedStateIsCommittedWithTheRecordsOfItsBase) {
  Save(1, state_, Stated("**"));
  Change(frozen_, 5);
  const SaveReport report = Save(9, state_, Stated("**"));  // of 9 chunks, compares the first
  EXPECT_EQ(report.chunks_reused, 9u);
  EXPECT_EQ(report.written_bytes, 0u);
  EXPECT_THAT(store->Save(14, state_, Stated("**")),
              IsError(ErrorCode::kInvalidArgument, "differs from the base step"));
}

TEST_F(StatedUnchangedTest, WhatTheBaseDoesNotHaveIsWritten) {
  const StateDict first = StateOf({{"trained", trained_.view()}});
  Save(1, first, Stated("**"));
  Save(2, state_, Stated("**"));
  EXPECT_EQ(LoadBytes(2, "frozen"), frozen_.bytes);
  const TestTensor longer(DType::kUInt8, {9, kChunkBytes - 7}, 3);
  Save(3, StateOf({{"frozen", longer.view()}}), Stated("**"));
  EXPECT_EQ(LoadBytes(3, "frozen"), longer.bytes);
  Change(trained_, 0);
  Save(4, first, {.incremental = false, .unchanged = {"**"}});
  EXPECT_EQ(LoadBytes(4, "trained"), trained_.bytes);
}

// {"a.b": frozen, "a": {"b": other}}, then only "a.b", whose FQN was that of `other` before.
TEST_F(StatedUnchangedTest, ATensorThatGetsTheNameOfAnotherOneIsCompared) {
  const TestTensor other(DType::kUInt8, {8, kChunkBytes}, 3);
  StateDict both, one;
  both.root().Tensor("a.b", frozen_.view());
  both.root().Map("a").Tensor("b", other.view());
  EscapeEqualNames(both.tree);
  one.root().Tensor("a.b", frozen_.view());
  AsyncSaver saver(store.get());
  const auto save = [&](bool is_async, uint64_t step, const StateDict& state) {
    if (!is_async) return Save(step, state, Stated("**"));
    return SaveAndWait(saver, step, state, Stated("**")).value();
  };
  for (const bool is_async : {false, true}) {
    const uint64_t first = is_async ? 10 : 1;
    save(is_async, first, both);
    EXPECT_EQ(LoadBytes(first, "a\\.b"), frozen_.bytes);
    EXPECT_EQ(LoadBytes(first, "a.b"), other.bytes);
    save(is_async, first + 1, one);
    EXPECT_EQ(LoadBytes(first + 1, "a.b"), frozen_.bytes);
    // From then on, it has one name, and is not read.
    Change(frozen_, 5);
    EXPECT_EQ(save(is_async, first + 7, one).chunks_reused, 8u);
    EXPECT_NE(LoadBytes(first + 7, "a.b"), frozen_.bytes);
  }
}

TEST_F(StatedUnchangedTest, LongValuesAreCompared) {
  AsyncSaver saver(store.get());
  Value text = std::string(5'000, 'a');
  for (const uint64_t step : {1, 2, 3, 4, 5}) {
    if (step % 2 == 0) text = std::string(5'000, static_cast<char>('a' + step));
    if (step == 5) text = Bytes{std::vector<std::byte>(5'000)};
    StateDict state = StateOf({{"frozen", frozen_.view()}});
    state.root().Value("text", text);
    if (step == 3) {
      CAIRN_ASSERT_OK(SaveAndWait(saver, step, state, Stated("**")));
    } else {
      Save(step, state, Stated("**"));
    }
    CAIRN_ASSERT_OK_AND_ASSIGN(Contents contents, store->List(step));
    CAIRN_ASSERT_OK(store->LoadValues(contents.step, contents.values));
    EXPECT_EQ(contents.values.front().value, text) << step;
  }
}

TEST_F(StatedUnchangedTest, AnInvalidPatternIsRefused) {
  EXPECT_THAT(store->Save(1, state_, Stated("[a")), IsError(ErrorCode::kInvalidArgument, "["));
}

TEST_F(StatedUnchangedTest, AnAsyncSaveCopiesNothingOfIt) {
  AsyncSaver saver(store.get());
  const auto save = [&](uint64_t step, const SaveOptions& options) -> Result<SaveReport> {
    CAIRN_TRY_ASSIGN(const SaveHandle handle, saver.Save(step, state_, options));
    return handle.Wait();
  };
  CAIRN_ASSERT_OK(save(1, Stated("frozen")));
  const auto before = frozen_.bytes;
  Change(frozen_, 5);
  Change(trained_, 0);
  CAIRN_ASSERT_OK_AND_ASSIGN(const SaveReport report, save(10, Stated("frozen")));
  EXPECT_EQ(report.chunks_reused, 8u);
  EXPECT_EQ(LoadBytes(10, "frozen"), before);
  EXPECT_EQ(LoadBytes(10, "trained"), trained_.bytes);
  EXPECT_THAT(save(13, Stated("frozen")), IsError(ErrorCode::kInvalidArgument, "`unchanged`"));
  // The staging memory lacks the changed chunk, so the next delta must not be relative to it.
  CAIRN_ASSERT_OK(save(14, {.max_deltas = 4, .chunk_bytes = kChunkBytes}));
  EXPECT_EQ(LoadBytes(14, "frozen"), frozen_.bytes);
}

TEST_F(StatedUnchangedTest, MemoryIsHeldBeforeItIsReadAndOnlyThen) {
  const TestTensor other(DType::kUInt8, {kChunkBytes}, 3);
  state_.root().Tensor("other", other.view());
  SaveOptions options{.unchanged = {"frozen", "other"}, .chunk_bytes = kChunkBytes};
  std::set<const std::byte*> held;
  options.hold_memory = [&](std::span<const std::byte* const> addresses) -> Result<void> {
    held = {addresses.begin(), addresses.end()};
    Change(trained_, 0);
    return {};
  };
  const std::byte* const frozen = frozen_.bytes.data();
  const std::byte* const trained = trained_.bytes.data();
  AsyncSaver saver(store.get());
  CAIRN_ASSERT_OK(SaveAndWait(saver, 1, state_, options));
  EXPECT_EQ(held, std::set({frozen, trained, other.bytes.data()}));
  // Of 9 stated chunks, step 10 compares that of index 1, which is one of `frozen`.
  CAIRN_ASSERT_OK(SaveAndWait(saver, 10, state_, options));
  EXPECT_EQ(held, std::set({frozen, trained}));
  EXPECT_EQ(LoadBytes(10, "trained"), trained_.bytes);
  options.hold_memory = [](auto) -> Result<void> { return Fail(ErrorCode::kUnavailable, "freed"); };
  EXPECT_THAT(saver.Save(11, state_, options), IsError(ErrorCode::kUnavailable, "freed"));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto steps, store->StepNumbers());
  EXPECT_EQ(steps.back(), 10u);
}

TEST_F(StatedUnchangedTest, AColumnIsComparedWhenItIsStaged) {
  const StateDict state =
      StateOf({{"column", {DType::kUInt8, {8, 1000}, {kChunkBytes, 1}, frozen_.bytes.data()}}});
  AsyncSaver saver(store.get());
  CAIRN_ASSERT_OK(saver.Save(1, state, Stated("column")));
  CAIRN_ASSERT_OK(SaveAndWait(saver, 2, state, Stated("column")));
  Change(frozen_, 7);
  EXPECT_THAT(saver.Save(3, state, Stated("column")),
              IsError(ErrorCode::kInvalidArgument, "`unchanged`"));
}

}  // namespace
}  // namespace cairn::core
