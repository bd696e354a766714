// Steps that are cut into items, and exports that are interrupted. tests/tools/test_dcp_export.py
// tests with torch what torch reads.

#include "core/interop/dcp/dcp_export.h"

#include <filesystem>
#include <fstream>
#include <string>

#include "core/interop/dcp/dcp_checkpoint.h"
#include "core/interop/dcp/internal/dcp_items.h"
#include "core/interop/torch/internal/torch_pickler.h"
#include "core/step/contents.h"
#include "tests/core/tensor/strided_fixture.h"
#include "tests/core/tensor/test_tensor.h"

namespace cairn::core {
namespace {

using cairn::testing::IsError;
using internal::CutIntoDcpItems;

class DcpExportTest : public StoreTest {
 protected:
  std::vector<std::string> FilesOf(const std::string& folder) {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      names.push_back(entry.path().filename().string());
    }
    std::ranges::sort(names);
    return names;
  }
};

TEST_F(DcpExportTest, AnExportThatIsCancelledLeavesTheOldCheckpointOrNothing) {
  const TestTensor small(DType::kFloat32, {10}), large(DType::kFloat32, {1000, 1000});
  StateDict first, second;
  first.root().Tensor("a", small.view());
  second.root().Tensor("a", large.view());
  second.root().Tensor("b", large.view());
  Save(1, first);
  Save(2, second);
  CAIRN_ASSERT_OK_AND_ASSIGN(const Contents old, store->List(1));
  CAIRN_ASSERT_OK_AND_ASSIGN(const Contents contents, store->List(2));
  const DcpExportOptions stopped{.max_file_bytes = 1 << 20,
                                 .progress = [](uint64_t, uint64_t) { return false; }};
  EXPECT_THAT(ExportDcp(*store, contents, directory / "deep/out", stopped),
              IsError(ErrorCode::kCancelled, ""));
  EXPECT_FALSE(std::filesystem::exists(directory / "deep"));

  CAIRN_ASSERT_OK(ExportDcp(*store, old, directory / "out"));
  const std::vector<std::string> before = FilesOf(directory / "out");
  EXPECT_THAT(ExportDcp(*store, contents, directory / "out", stopped),
              IsError(ErrorCode::kCancelled, ""));
  EXPECT_EQ(FilesOf(directory / "out"), before);
  CAIRN_ASSERT_OK(ReadDcpCheckpoint(directory / "out", {}));
}

TEST_F(DcpExportTest, NamesDirectoriesThatCannotBeCreated) {
  const TestTensor tensor(DType::kFloat32, {10});
  StateDict state;
  state.root().Tensor("a", tensor.view());
  Save(1, state);
  CAIRN_ASSERT_OK_AND_ASSIGN(const Contents contents, store->List(1));
  std::ofstream(directory / "file") << "text";
  EXPECT_THAT(ExportDcp(*store, contents, directory / "file"),
              IsError(ErrorCode::kInvalidArgument, "this is a file"));
  EXPECT_FALSE(ExportDcp(*store, contents, directory / "file/below"));
  EXPECT_FALSE(ExportDcp(*store, contents, ""));
}

TEST(DcpItemsTest, TreesOfDamagedStepsAreRefused) {
  const Node dict{.kind = NodeKind::kDict, .child_count = 2};
  const Node leaf{.kind = NodeKind::kTensor, .key_kind = KeyKind::kString, .key = "a"};
  EXPECT_THAT(CutIntoDcpItems({{dict, leaf}}), IsError(ErrorCode::kDataLoss, "cut off"));
  EXPECT_THAT(CutIntoDcpItems({{leaf, leaf}}), IsError(ErrorCode::kDataLoss, "root"));
  EXPECT_THAT(CutIntoDcpItems({}), IsError(ErrorCode::kDataLoss, "root"));
  EXPECT_THAT(CutIntoDcpItems({{leaf}}), IsError(ErrorCode::kInvalidArgument, "not a dict"));
}

TEST(DcpItemsTest, NestingIsBounded) {
  const Node dict{
      .kind = NodeKind::kDict, .key_kind = KeyKind::kString, .key = "d", .child_count = 1};
  const Node list{.kind = NodeKind::kList, .key_kind = KeyKind::kString, .key = "l"};
  StateTree tree{std::vector<Node>(internal::kMaxTreeDepth, dict)};
  tree.nodes.push_back(list);
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto items, CutIntoDcpItems(tree));
  ASSERT_EQ(items.size(), 1u);
  EXPECT_EQ(items[0].path.size(), internal::kMaxTreeDepth);
  tree.nodes.insert(tree.nodes.begin(), 100'000, dict);
  EXPECT_THAT(CutIntoDcpItems(tree), IsError(ErrorCode::kDataLoss, "deeper"));
}

}  // namespace
}  // namespace cairn::core
