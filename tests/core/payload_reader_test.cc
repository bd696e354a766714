#include "core/upkeep/payload_reader.h"

#include "tests/core/tensor/test_tensor.h"

namespace cairn::core {
namespace {

class PayloadReaderTest : public StoreTest {};

TEST_F(PayloadReaderTest, ReadsTheBytesOfManyTensorsInOrder) {
  const TestTensor large(DType::kFloat64, {6'000'000}), small(DType::kInt8, {3});  // 48 MB
  Save(1, StateOf({{"large", large.view()}, {"small", small.view()}}));
  CAIRN_ASSERT_OK_AND_ASSIGN(const Contents contents, store->List(1));
  std::vector<std::byte> seen[2];
  CAIRN_ASSERT_OK_AND_ASSIGN(
      const uint64_t bytes_read,
      ReadRowMajor(LoaderOf(*store, contents.step), contents.tensors,
                   [&](size_t tensor, uint64_t offset, std::span<const std::byte> bytes) {
                     EXPECT_EQ(offset, seen[tensor].size());
                     seen[tensor].insert(seen[tensor].end(), bytes.begin(), bytes.end());
                     return Result<void>();
                   }));
  EXPECT_EQ(seen[0], large.bytes);
  EXPECT_EQ(seen[1], small.bytes);
  EXPECT_LE(bytes_read, large.bytes.size() + 64 * 1024);
}

}  // namespace
}  // namespace cairn::core
