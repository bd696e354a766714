// Tensors that another thread changes while they are saved: the save fails, or stores bytes that
// have the digests in its records.

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstring>
#include <thread>

#include "core/async_save.h"
#include "core/save/save_options.h"
#include "kv/base/digest.h"
#include "tests/core/tensor/test_tensor.h"

namespace cairn::core {
namespace {

using testing::IsError;

class ChangingTensorTest : public StoreTest {
 protected:
  static constexpr uint64_t kChunkBytes = 1 << 20;

  StateDict State() { return StateOf({{"a", first_.view()}, {"b", last_.view()}}); }

  // Changes the last pages of `b` when the first chunk has been written.
  SaveOptions ChangeAfterFirstChunk(SaveOptions options) {
    has_changed_ = false;
    options.chunk_bytes = kChunkBytes;
    options.progress = [this](uint64_t, uint64_t) {
      if (!has_changed_) last_.bytes.back() ^= std::byte{0x41};
      has_changed_ = true;
      return true;
    };
    return options;
  }

  void ChangeOnePageOfEachChunk() {
    for (TestTensor* const tensor : {&first_, &last_}) {
      for (uint64_t at = 0; at < tensor->bytes.size(); at += kChunkBytes) {
        tensor->bytes[at + 5] ^= std::byte{3};
      }
      tensor->bytes.back() ^= std::byte{3};
    }
  }

  void ExpectRefused(SaveOptions options) {
    Save(1, State(), {.chunk_bytes = kChunkBytes});
    ChangeOnePageOfEachChunk();
    const auto saved = store->Save(2, State(), ChangeAfterFirstChunk(std::move(options)));
    ASSERT_THAT(saved, IsError(ErrorCode::kInvalidArgument, "changed while it was being saved"));
    EXPECT_EQ(saved.error().key, "b");
    EXPECT_TRUE(has_changed_);
    Save(2, State(), {.chunk_bytes = kChunkBytes});
    EXPECT_EQ(LoadBytes(2, "b"), last_.bytes);
    EXPECT_TRUE(VerifyAll().empty());
  }

  TestTensor first_{DType::kBFloat16, {3 * kChunkBytes / 2}};
  TestTensor last_{DType::kBFloat16, {3 * kChunkBytes / 2 + 10'000}};
  bool has_changed_ = false;
};

TEST_F(ChangingTensorTest, AChangeAfterTheComparisonWithTheBaseIsRefused) { ExpectRefused({}); }

TEST_F(ChangingTensorTest, AChangeBeforeCompressionIsRefused) { ExpectRefused({.compress = true}); }

TEST_F(ChangingTensorTest, AChangeAfterStatisticsIsRefused) { ExpectRefused({.statistics = true}); }

TEST_F(ChangingTensorTest, ADeltaThatWasEncodedBeforeIsThatOfTheOldBytes) {
  Save(1, State(), {.chunk_bytes = kChunkBytes});
  ChangeOnePageOfEachChunk();
  const std::vector<std::byte> before = last_.bytes;
  Save(2, State(), ChangeAfterFirstChunk({.max_deltas = 4}));
  EXPECT_TRUE(has_changed_);
  EXPECT_EQ(LoadBytes(2, "b"), before);
  EXPECT_TRUE(VerifyAll().empty());
}

TEST_F(ChangingTensorTest, AStagedStateIsThatOfTheMomentOfStaging) {
  Save(1, State(), {.chunk_bytes = kChunkBytes});
  ChangeOnePageOfEachChunk();
  const std::vector<std::byte> before = last_.bytes;
  AsyncSaver saver(store.get());
  CAIRN_ASSERT_OK_AND_ASSIGN(auto pending, saver.Save(2, State(), {.chunk_bytes = kChunkBytes}));
  last_.bytes.back() ^= std::byte{0x41};
  CAIRN_ASSERT_OK(pending.Wait());
  EXPECT_EQ(LoadBytes(2, "b"), before);
}

// Changes all pages of a tensor again and again.
class Changer {
 public:
  explicit Changer(std::vector<std::byte>& bytes) : bytes_(bytes), thread_([this] { Run(); }) {}
  ~Changer() {
    stop_ = true;
    thread_.join();
  }
  Changer(const Changer&) = delete;
  Changer& operator=(const Changer&) = delete;

 private:
  void Run() {
    for (uint64_t value = 1; !stop_; ++value) {
      for (size_t at = value % 512; at + sizeof(value) <= bytes_.size(); at += 4096) {
        std::memcpy(bytes_.data() + at, &value, sizeof(value));
      }
    }
  }

  std::vector<std::byte>& bytes_;
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

TEST_F(ChangingTensorTest, WhatIsAcknowledgedCanBeRead) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the race is the caller's, and what is tested";
#endif
  TestTensor tensor(DType::kBFloat16, {8 << 20});
  const StateDict state = StateOf({{"w", tensor.view()}});
  const std::array<SaveOptions, 6> all_options = {
      SaveOptions{.incremental = false}, SaveOptions{},
      SaveOptions{.max_deltas = 4},      SaveOptions{.share_equal = true},
      SaveOptions{.compress = true},     SaveOptions{.statistics = true}};
  int acknowledged = 0;
  {
    const Changer changer(tensor.bytes);
    AsyncSaver saver(store.get());
    uint64_t step = 0;
    for (int round = 0; round < 3; ++round) {
      for (const SaveOptions& options : all_options) {
        const auto saved = store->Save(++step, state, options);
        if (saved) {
          ++acknowledged;
        } else {
          EXPECT_THAT(saved, IsError(ErrorCode::kInvalidArgument, "changed while"));
        }
        CAIRN_ASSERT_OK(SaveAndWait(saver, ++step, state, options));
      }
    }
  }
  EXPECT_GE(acknowledged, 3);  // saves without a base read each page once
  EXPECT_TRUE(VerifyAll().empty());
}

}  // namespace
}  // namespace cairn::core
