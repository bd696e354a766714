// Each object has one name, and nothing else is taken for a name.

#include "kv/storage/internal/object_names.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace cairn::kv::internal {
namespace {

TEST(ObjectNamesTest, NamesHaveFixedLengths) {
  const ObjectId id{.epoch = 0x12, .id = 0xabc, .id_tail = 0xd};

  EXPECT_EQ(ObjectName(ObjectKind::kSegment, id), "segments/00000012-0000000000000abc0000000d.seg");
  EXPECT_EQ(ObjectName(ObjectKind::kTable, id), "tables/00000012-0000000000000abc0000000d.sst");
  EXPECT_EQ(ObjectName(ObjectKind::kPage, id), "pages/00000012-0000000000000abc0000000d.steps");
  EXPECT_EQ(RootName(0), "roots/ffffffffffffffff.root");
  EXPECT_EQ(RootName(17), "roots/ffffffffffffffee.root");
}

TEST(ObjectNamesTest, NamesAreParsed) {
  for (const ObjectKind kind : {ObjectKind::kSegment, ObjectKind::kTable, ObjectKind::kPage}) {
    for (const ObjectId id : {ObjectId{}, ObjectId{~0u, ~0ull, ~0u}, NewObjectId(7)}) {
      const std::string name = ObjectName(kind, id);
      EXPECT_TRUE(name.starts_with(ObjectFolder(kind)));
      EXPECT_EQ(ParseObjectName(name), (ParsedObjectName{kind, id}));
    }
  }
  for (const uint64_t number : {uint64_t{0}, uint64_t{1}, ~uint64_t{0}}) {
    EXPECT_EQ(ParseRootName(RootName(number)), number);
  }
}

TEST(ObjectNamesTest, NewerRootsSortFirst) { EXPECT_LT(RootName(256), RootName(255)); }

TEST(ObjectNamesTest, OtherNamesAreNotParsed) {
  for (const char* name :
       {"", "segments/", "segments/.seg", "CAIRN", "tables/00000012-0000000000000abc00000000.seg",
        "segments/00000012-0000000000000ABC00000000.seg",
        "segments/00000012-0000000000000abc00000000.seg.tmp",
        "segments/00000012_0000000000000abc00000000.seg", "segments/12-abc.seg",
        "segments/00000012-0000000000000abc.seg", "segments/00000012-0000000000000abc000000000.seg",
        "segments/-0000012-0000000000000abc00000000.seg",
        "segments/0x000012-0000000000000abc00000000.seg",
        "x/segments/00000012-0000000000000abc00000000.seg"}) {
    EXPECT_FALSE(ParseObjectName(name).has_value()) << name;
  }
  for (const char* name : {"", "roots/", "roots/.root", "roots/ff.root", "hint",
                           "roots/FFFFFFFFFFFFFFFF.root", "roots/ffffffffffffffff.root2",
                           "roots/-fffffffffffffff.root", "roots/fffffffffffffffff.root"}) {
    EXPECT_FALSE(ParseRootName(name).has_value()) << name;
  }
}

TEST(ObjectNamesTest, NewIdsDiffer) {
  std::set<ObjectId> ids;
  for (int i = 0; i < 1000; ++i) ids.insert(NewObjectId(3));

  EXPECT_EQ(ids.size(), 1000u);
  EXPECT_EQ(ids.begin()->epoch, 3u);
}

}  // namespace
}  // namespace cairn::kv::internal
