// Payload from tensors in host memory: contiguous tensors are borrowed, others are gathered, and
// both have the same bytes and digests.

#include "core/save/internal/tensor_payload.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "kv/base/digest.h"
#include "tests/core/tensor/strided_fixture.h"
#include "tests/core/tensor/test_tensor.h"

namespace cairn::core::internal {
namespace {

using ::testing::ElementsAreArray;
using ::testing::IsEmpty;

/// A matrix in column-major memory, with a gap after each column.
StridedTensor ColumnMajor(uint64_t rows, uint64_t columns) {
  StridedTensor tensor{
      .dtype = DType::kUInt16, .shape = {rows, columns}, .strides = {1, rows + 3}, .memory = {}};
  tensor.memory = TestTensor(DType::kUInt16, {columns * (rows + 3)}).bytes;
  return tensor;
}

std::vector<uint64_t> PageDigestsOf(const HostPayload& payload) {
  std::vector<std::byte> scratch(kv::kPageBytes);
  std::vector<uint64_t> digests;
  for (uint64_t page = 0; page < kv::PageCount(payload.length_bytes()); ++page) {
    digests.push_back(kv::PageDigest(payload.Page(page, scratch)));
  }
  return digests;
}

TEST(HostPayloadTest, ContiguousMemoryIsBorrowed) {
  const TestTensor tensor(DType::kFloat32, {10, 10});
  const TensorView view = tensor.view();
  const HostPayload payload(view, 40, 80);
  EXPECT_EQ(payload.length_bytes(), 80u);
  EXPECT_EQ(payload.memory().data(), tensor.bytes.data() + 40);
  EXPECT_EQ(payload.memory().size(), 80u);
  EXPECT_EQ(payload.queue(), nullptr);
}

TEST(HostPayloadTest, StridedMemoryIsNotBorrowed) {
  const StridedTensor tensor = ColumnMajor(10, 10);
  const TensorView view = tensor.view();
  EXPECT_THAT(HostPayload(view, 0, 200).memory(), IsEmpty());
}

TEST(HostPayloadTest, CopiesRangesOfTheRowMajorForm) {
  const StridedTensor tensor = ColumnMajor(30, 20);
  const TensorView view = tensor.view();
  const std::vector<std::byte> row_major = NaiveRowMajor(view);
  const HostPayload payload(view, 100, 700);
  std::vector<std::byte> copied(333);
  CAIRN_ASSERT_OK(payload.CopyTo(50, copied));
  EXPECT_THAT(copied, ElementsAreArray(row_major.begin() + 150, row_major.begin() + 483));
}

TEST(HostPayloadTest, PageDigestsAreThoseOfTheRowMajorBytes) {
  const StridedTensor strided = ColumnMajor(300, 250);  // three pages, the last one short
  const TensorView strided_view = strided.view();
  const std::vector<std::byte> row_major = NaiveRowMajor(strided_view);
  const TensorView view{.dtype = strided.dtype, .shape = strided.shape, .data = row_major.data()};
  std::vector<uint64_t> expected;
  kv::AppendPageDigests(row_major, expected);
  ASSERT_EQ(expected.size(), 3u);

  EXPECT_EQ(PageDigestsOf(HostPayload(view, 0, row_major.size())), expected);
  EXPECT_EQ(PageDigestsOf(HostPayload(strided_view, 0, row_major.size())), expected);
}

TEST(HostPayloadTest, PagesAreCountedFromTheBeginningOfThePayload) {
  const StridedTensor strided = ColumnMajor(300, 250);
  const TensorView view = strided.view();
  const std::vector<std::byte> row_major = NaiveRowMajor(view);
  const uint64_t begin = 500;  // not the beginning of a page of the tensor
  std::vector<uint64_t> expected;
  kv::AppendPageDigests(std::span(row_major).subspan(begin, 100'000), expected);
  EXPECT_EQ(PageDigestsOf(HostPayload(view, begin, 100'000)), expected);
}

}  // namespace
}  // namespace cairn::core::internal
