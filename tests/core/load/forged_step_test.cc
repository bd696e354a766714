// Steps whose records contradict each other. No save writes such records, but whoever can write to
// a store can: every read refuses them with kDataLoss, and returns no byte that is not in the step.

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <filesystem>
#include <string>
#include <tuple>
#include <vector>

#include "core/load/load_options.h"
#include "core/step/contents.h"
#include "core/step/internal/tensor_records.h"
#include "core/upkeep/payload_reader.h"
#include "kv/base/key.h"
#include "kv/base/step_info.h"
#include "kv/step_writer.h"
#include "tests/core/tensor/test_tensor.h"
#include "tests/kv/byte_payload.h"

namespace cairn::core {
namespace {

using kv::testing::CopiedPayload;
using testing::IsError;

class ForgedStepTest : public StoreTest {
 protected:
  static TensorInfo Bytes(const std::string& fqn, Shape shape, uint64_t chunks) {
    TensorInfo info{.fqn = fqn, .dtype = DType::kUInt8, .shape = std::move(shape)};
    info.nbytes = *TensorBytes(info.dtype, info.shape);
    info.chunk_count = chunks;
    return info;
  }

  // Commits a step with the given tensors, of which the first has the given chunks.
  void Forge(uint64_t step, const std::vector<TensorInfo>& tensors, const std::vector<Box>& boxes) {
    CAIRN_ASSERT_OK_AND_ASSIGN(auto writer, store->kv().Begin(step, {}));
    StateDict tree;
    for (const TensorInfo& tensor : tensors) {
      CAIRN_ASSERT_OK(writer->AddRecord(kv::Column::kTensors, kv::FqnKey(tensor.fqn),
                                        internal::EncodeTensor(tensor)));
      tree.root().Tensor(tensor.fqn, {DType::kUInt8, {1}, {}, one_.data()});
    }
    uint64_t logical_bytes = 0;
    for (const Box& box : boxes) {
      const std::vector<std::byte> bytes(*ElementCount(box.sizes), std::byte{7});
      logical_bytes += bytes.size();
      CAIRN_ASSERT_OK_AND_ASSIGN(const auto appended,
                                 writer->Append(CopiedPayload(bytes), kv::SegmentAlignment::k64));
      CAIRN_ASSERT_OK(writer->AddChunk(kv::ChunkKey(tensors.front().fqn, box.offsets),
                                       {.sizes = box.sizes,
                                        .extents = {appended.extent},
                                        .digest = appended.digest,
                                        .since_step = step},
                                       /*reused=*/false));
    }
    CAIRN_ASSERT_OK(writer->SetStructure(EncodeTree(tree.tree)));
    CAIRN_ASSERT_OK(writer->Commit(
        {.tensor_count = tensors.size(), .value_count = 0, .logical_bytes = logical_bytes}));
  }

  Result<LoadReport> Load(const std::string& fqn, const Box& box) {
    TestTensor target(DType::kUInt8, box.sizes, 9);
    return StoreTest::Load(1, {{.fqn = fqn, .box = box, .target = target.target()}});
  }

  void ExpectRefused(const std::string& fqn, const Shape& shape) {
    EXPECT_THAT(Load(fqn, WholeBox(shape)), IsError(ErrorCode::kDataLoss, ""));
    EXPECT_FALSE(VerifyAll().empty());
  }

  std::vector<std::byte> one_ = std::vector<std::byte>(1);
};

TEST_F(ForgedStepTest, AChunkTwiceInsteadOfAnotherIsRefused) {
  // Elements 50 to 99 are in two chunks, and 150 to 199 in none.
  Forge(1, {Bytes("w", {200}, 2)}, {{{0}, {100}}, {{50}, {100}}});
  ExpectRefused("w", {200});
  EXPECT_THAT(Load("w", {{40}, {160}}), IsError(ErrorCode::kDataLoss, "exactly once"));
}

TEST_F(ForgedStepTest, OverlappingBoxesAreRefused) {
  Forge(1, {Bytes("w", {4, 4}, 4)},
        {{{0, 0}, {2, 2}}, {{0, 2}, {2, 2}}, {{1, 2}, {2, 2}}, {{2, 0}, {2, 2}}});
  ExpectRefused("w", {4, 4});
  // Also where each byte of the part is in one chunk.
  EXPECT_THAT(Load("w", {{0, 0}, {1, 4}}), IsError(ErrorCode::kDataLoss, "exactly once"));
}

TEST_F(ForgedStepTest, ATensorWithoutChunksIsRefused) {
  Forge(1, {Bytes("w", {4, 4}, 0)}, {});
  ExpectRefused("w", {4, 4});
}

TEST_F(ForgedStepTest, ValuesWithoutChunksAreRefusedBeforeTheyHaveMemory) {
  CAIRN_ASSERT_OK_AND_ASSIGN(ChunkedValue chunked, WithoutBytes(core::Bytes{one_}));
  chunked.length_bytes = kMaxValueBytes;
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto record, EncodeValue(chunked));
  CAIRN_ASSERT_OK_AND_ASSIGN(auto writer, store->kv().Begin(1, {}));
  StateDict tree;
  for (const std::string fqn : {"a", "b"}) {
    TensorInfo bytes = Bytes(fqn, {kMaxValueBytes}, 256);
    bytes.hidden = true;
    CAIRN_ASSERT_OK(
        writer->AddRecord(kv::Column::kTensors, kv::FqnKey(fqn), internal::EncodeTensor(bytes)));
    CAIRN_ASSERT_OK(writer->AddRecord(kv::Column::kValues, kv::FqnKey(fqn), record));
    tree.root().Value(fqn, true);
  }
  CAIRN_ASSERT_OK(writer->SetStructure(EncodeTree(tree.tree)));
  CAIRN_ASSERT_OK(writer->Commit({.tensor_count = 0, .value_count = 2, .logical_bytes = 0}));
  CAIRN_ASSERT_OK_AND_ASSIGN(Contents contents, store->List(1));
  const auto peak_bytes = [] {
    rusage usage{};
    EXPECT_EQ(getrusage(RUSAGE_SELF, &usage), 0);
    return static_cast<uint64_t>(usage.ru_maxrss) << 10;
  };
  const uint64_t before = peak_bytes();
  EXPECT_THAT(store->LoadValues(contents.step, contents.values),
              IsError(ErrorCode::kDataLoss, "0 of the tensor's 256 chunks"));
  EXPECT_LT(peak_bytes() - before, kMaxValueBytes / 2);
}

TEST_F(ForgedStepTest, MapsAndListsOfChunksRefuseOverlaps) {
  Forge(1, {Bytes("w", {200}, 2)}, {{{0}, {100}}, {{50}, {100}}});
  const std::vector<std::string> fqns = {"w"};
  EXPECT_THAT(store->Map(Step(1), fqns), IsError(ErrorCode::kDataLoss, "exactly once"));
  EXPECT_THAT(store->Chunks(Step(1), "w"), IsError(ErrorCode::kDataLoss, "exactly once"));
}

// A chunk in very many places: each page is the same one page of a segment.
TEST_F(ForgedStepTest, AChunkOfVeryManyExtentsIsReadInLinearTime) {
  constexpr uint64_t kPages = 32'768;
  const TensorInfo tensor = Bytes("w", {kPages * kv::kPageBytes}, 1);
  CAIRN_ASSERT_OK_AND_ASSIGN(auto writer, store->kv().Begin(1, {}));
  CAIRN_ASSERT_OK(writer->AddRecord(kv::Column::kTensors, kv::FqnKey(tensor.fqn),
                                    internal::EncodeTensor(tensor)));
  const std::vector<std::byte> page(kv::kPageBytes, std::byte{7});
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto appended,
                             writer->Append(CopiedPayload(page), kv::SegmentAlignment::k64));
  const std::vector<kv::Extent> extents(kPages, appended.extent);
  CAIRN_ASSERT_OK(writer->AddChunk(kv::ChunkKey("w", Shape{0}),
                                   {.sizes = tensor.shape,
                                    .extents = kv::Extents(extents),
                                    .digest = appended.digest,
                                    .since_step = 1},
                                   /*reused=*/false));
  const StateDict tree = StateOf({{"w", {DType::kUInt8, {1}, {}, one_.data()}}});
  CAIRN_ASSERT_OK(writer->SetStructure(EncodeTree(tree.tree)));
  CAIRN_ASSERT_OK(
      writer->Commit({.tensor_count = 1, .value_count = 0, .logical_bytes = tensor.nbytes}));
  // The digest is not that of the chunk.
  EXPECT_FALSE(VerifyAll().empty());
  EXPECT_THAT(Load("w", {{tensor.shape[0] - 100}, {100}}), IsError(ErrorCode::kDataLoss, ""));
}

TEST_F(ForgedStepTest, AnAliasBeyondItsOwnerIsRefused) {
  for (const auto& [offset, strides, shape] :
       std::vector<std::tuple<uint64_t, std::vector<uint64_t>, Shape>>{
           {1, {1}, {200}},                // ends one byte after it
           {UINT64_MAX, {1}, {2}},         // overflows
           {0, {uint64_t{1} << 63}, {3}},  // overflows
           {0, {200, 1}, {2, 200}}}) {     // a second row
    TensorInfo alias = Bytes("alias", shape, 0);
    alias.alias_of = "w";
    alias.alias_offset_bytes = offset;
    alias.alias_strides = strides;
    store.reset();
    std::filesystem::remove_all(directory.path() + "/store");
    Reopen();
    Forge(1, {Bytes("w", {200}, 1), alias}, {{{0}, {200}}});
    ExpectRefused("alias", shape);
    EXPECT_THAT(store->List(1), IsError(ErrorCode::kDataLoss, "beyond"));
  }
}

}  // namespace
}  // namespace cairn::core
