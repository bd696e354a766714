// Chunks with equal bytes are stored once, whatever their keys are.

#include <gmock/gmock.h>

#include <filesystem>
#include <string>

#include "core/checkpoint_store.h"
#include "core/save/save_options.h"
#include "kv/read/segment_space.h"
#include "kv/storage/open/open_storage.h"
#include "kv/store.h"
#include "tests/core/tensor/test_tensor.h"

namespace cairn::core {
namespace {

using kv::kPageBytes;
using ::testing::Lt;

const SaveOptions kShare{.share_equal = true, .chunk_bytes = 4 * kPageBytes};

class EqualChunksTest : public StoreTest {
 protected:
  EqualChunksTest() {
    random_.Fill(weights_.bytes);
    random_.Fill(other_.bytes);
    copy_.bytes = weights_.bytes;
  }
  testing::SeededRandom random_;
  TestTensor weights_{DType::kBFloat16, {500, 1000}};
  TestTensor copy_{DType::kBFloat16, {500, 1000}};
  TestTensor other_{DType::kBFloat16, {500, 1000}};
};

TEST_F(EqualChunksTest, CopiesOfATensorAreStoredOnce) {
  const SaveReport report =
      SaveAndKeep(1, {{"a", &weights_}, {"b", &other_}, {"ema", &copy_}}, kShare);
  EXPECT_EQ(report.written_bytes, 2 * weights_.bytes.size());
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto a, store->Chunks(Step(1), "a"));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto ema, store->Chunks(Step(1), "ema"));
  EXPECT_EQ(a.front().extents, ema.front().extents);
  ExpectAllSteps();
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto snapshot, store->kv().Latest());
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto spaces, kv::MeasureSegments(*snapshot));
  ASSERT_EQ(spaces.size(), 1u);
  EXPECT_EQ(spaces[0].live_bytes, report.written_bytes);
  // One of them changes.
  copy_.bytes[5] ^= std::byte{1};
  EXPECT_THAT(
      SaveAndKeep(2, {{"a", &weights_}, {"b", &other_}, {"ema", &copy_}}, kShare).written_bytes,
      Lt(5 * kPageBytes));
  ExpectAllSteps();
}

TEST_F(EqualChunksTest, TensorsThatWereRenamedAreFoundInTheBase) {
  SaveAndKeep(1, {{"old", &weights_}, {"b", &other_}}, kShare);
  EXPECT_EQ(SaveAndKeep(2, {{"new", &copy_}, {"b", &other_}}, kShare).written_bytes, 0u);
  DeleteKept({1});
  ExpectAllSteps();
  Reopen();
  ExpectAllSteps();
}

TEST_F(EqualChunksTest, WithoutTheOptionNothingIsShared) {
  const SaveReport report = SaveAndKeep(1, {{"a", &weights_}, {"ema", &copy_}});
  EXPECT_EQ(report.written_bytes, 2 * weights_.bytes.size());
  EXPECT_EQ(SaveAndKeep(2, {{"new", &copy_}}).written_bytes, weights_.bytes.size());
  ExpectAllSteps();
}

TEST_F(EqualChunksTest, DeltasAndCompressedChunksAreShared) {
  for (size_t i = 1; i < weights_.bytes.size(); i += 2) weights_.bytes[i] = std::byte{0x3c};
  copy_.bytes = weights_.bytes;
  SaveOptions options = kShare;
  options.compress = true;
  options.max_deltas = 4;
  EXPECT_THAT(SaveAndKeep(1, {{"a", &weights_}, {"ema", &copy_}}, options).written_bytes,
              Lt(weights_.bytes.size()));
  for (size_t i = 0; i < weights_.bytes.size(); i += 500) weights_.bytes[i] ^= std::byte{1};
  copy_.bytes = weights_.bytes;
  SaveAndKeep(2, {{"a", &weights_}, {"ema", &copy_}}, options);
  EXPECT_EQ(SaveAndKeep(3, {{"x", &weights_}, {"y", &copy_}}, options).written_bytes, 0u);
  ExpectAllSteps();
  DeleteKept({1, 2});
  CAIRN_ASSERT_OK(store->Compact({.max_dead = 0, .fold_all = true}));
  ExpectAllSteps();
}

TEST_F(EqualChunksTest, SharedChunksAreRecoveredFromTheSegmentAlone) {
  SaveAndKeep(1, {{"a", &weights_}, {"ema", &copy_}}, kShare);
  CAIRN_ASSERT_OK(store->Close());
  store.reset();
  for (const char* const folder : {"roots", "tables"}) {
    const std::string path = directory.path() + "/store/" + folder;
    std::filesystem::remove_all(path);
    std::filesystem::create_directory(path);
  }
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto storage, kv::OpenStorage(directory.path() + "/store"));
  CAIRN_ASSERT_OK(kv::Store::Rebuild(storage));
  Reopen();
  EXPECT_TRUE(LoadBytes(1, "a") == weights_.bytes);
  EXPECT_TRUE(LoadBytes(1, "ema") == weights_.bytes);
}

}  // namespace
}  // namespace cairn::core
