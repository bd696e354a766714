// What the writer refuses; what torch reads is tested with torch.

#include "core/interop/archive/internal/pickle_writer.h"

#include <gtest/gtest.h>

#include "core/interop/archive/internal/pickle_reader.h"
#include "tests/support/result_matchers.h"

namespace cairn::core::internal {
namespace {

using cairn::testing::IsError;

TEST(PickleWriterTest, RecallsMemoizedValues) {
  PickleWriter writer;
  writer.Mark();
  writer.Text("twice");
  const uint32_t number = writer.Memoize();
  writer.Recall(number);
  writer.Tuple();
  CAIRN_ASSERT_OK_AND_ASSIGN(const std::string pickle, std::move(writer).Finish());
  CAIRN_ASSERT_OK_AND_ASSIGN(const PickleTree tree, ReadPickle(std::as_bytes(std::span(pickle))));
  const auto elements = tree.children(tree.root());
  ASSERT_EQ(elements.size(), 2u);
  EXPECT_EQ(elements[0], elements[1]);
  EXPECT_EQ(tree.text(elements[0]), "twice");
}

TEST(PickleWriterTest, RefusesTextThatIsNotUtf8) {
  PickleWriter writer;
  writer.Text("\xff");
  EXPECT_THAT(std::move(writer).Finish(), IsError(ErrorCode::kInvalidArgument, "not UTF-8"));
}

TEST(PickleWriterTest, RefusesAnInconsistentStack) {
  PickleWriter writer;
  writer.None();
  writer.None();
  EXPECT_THAT(std::move(writer).Finish(), IsError(ErrorCode::kInvalidArgument, "values left"));
}

TEST(PickleWriterTest, RefusesLongIntsOfMoreThan255Bytes) {
  PickleWriter writer;
  EXPECT_FALSE(writer.Long(std::vector<std::byte>(256)));
  EXPECT_TRUE(writer.Long(std::vector<std::byte>(255)));
  CAIRN_EXPECT_OK(std::move(writer).Finish());
}

}  // namespace
}  // namespace cairn::core::internal
