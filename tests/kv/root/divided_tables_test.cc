// Entries of steps with divided tables: roots and pages have a newer version, so that a build that
// does not know them refuses the store; all other roots and pages are as before.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "kv/internal/root/framed_record.h"
#include "kv/internal/root/root_record.h"
#include "kv/key.h"
#include "tests/kv/root/sample_root.h"
#include "tests/support/result_matchers.h"

namespace cairn::kv {
namespace {

using cairn::testing::IsError;
using internal::DecodePage;
using internal::DecodeRoot;
using internal::EncodePage;
using internal::EncodeRoot;
using internal::Root;
using internal::StepEntry;
using testing::EmptyRoot;
using testing::SampleEntry;
using testing::Shared;

StepEntry DividedEntry(uint64_t step) {
  std::mt19937_64 random(step);
  StepEntry entry = SampleEntry(step, step + 1, random, 2, 1);
  for (const char* name : {"", "a", "b"}) {
    entry.tables.front().ranges.push_back({.begin = TableKey(Column::kChunks, name),
                                           .id = internal::NewObjectId(1),
                                           .file_bytes = 100,
                                           .record_count = 7,
                                           .digest = step});
  }
  return entry;
}

TEST(DividedTablesTest, RootAndPageAreDecodedAsTheyWereEncoded) {
  Root root = EmptyRoot(12);
  root.recent.push_back(Shared(DividedEntry(5)));

  CAIRN_ASSERT_OK_AND_ASSIGN(const auto object, EncodeRoot(root));
  CAIRN_ASSERT_OK_AND_ASSIGN(const Root decoded, DecodeRoot(object));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto page, EncodePage(root.recent));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto entries, DecodePage(page));

  ASSERT_EQ(decoded.recent.size(), 1u);
  EXPECT_EQ(decoded.recent.front()->tables, root.recent.front()->tables);
  ASSERT_EQ(entries.size(), 1u);
  EXPECT_EQ(entries.front()->tables, root.recent.front()->tables);
}

TEST(DividedTablesTest, ARangeMayBeginWithTheLongestName) {
  StepEntry entry = DividedEntry(5);
  // core/state_dict/state_dict.cc refuses longer ones.
  entry.tables.front().ranges.back().begin =
      TableKey(Column::kChunks, FqnKey(std::string(64 << 10, 'z')));
  const std::vector entries = {Shared(std::move(entry))};
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto page, EncodePage(entries));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto decoded, DecodePage(page));
  EXPECT_EQ(decoded.front()->tables, entries.front()->tables);
}

// The encoder checks its own output.
TEST(DividedTablesTest, WhatReadersRefuseIsNotEncoded) {
  StepEntry unordered = DividedEntry(5);
  unordered.tables.front().ranges[1].begin = TableKey(Column::kChunks, "c");
  StepEntry divided = DividedEntry(5);
  divided.tables.front().ranges.resize(internal::kMaxTableRanges + 1);
  StepEntry deep = DividedEntry(5);
  deep.tables.resize(internal::kMaxTables + 1);
  StepEntry wide = DividedEntry(5);
  wide.usage.resize(internal::kMaxInlineSegments + 1);
  for (const StepEntry& entry : {unordered, divided, deep, wide}) {
    EXPECT_THAT(EncodePage(std::vector{Shared(entry)}),
                IsError(ErrorCode::kInternal, "nothing was put"));
    internal::Root root = EmptyRoot(2);
    root.recent = {Shared(entry)};
    EXPECT_THAT(EncodeRoot(root), IsError(ErrorCode::kInternal, "nothing was put"));
  }
}

}  // namespace
}  // namespace cairn::kv
