// Lists of changed elements that are found on the device are those that the host finds.

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "cuda/backend.h"
#include "kv/digest.h"
#include "tests/cuda/device_tensor.h"
#include "tests/support/result_matchers.h"

namespace cairn::cuda {
namespace {

using core::PageComparison;
using kv::kPageBytes;
using testing::DeviceBytes;
using testing::RandomBytes;
using testing::SeededRandom;

class CompareTest : public ::testing::Test {
 protected:
  void SetUp() override {
    CAIRN_SKIP_WITHOUT_GPU();
    auto backend = FindBackend();
    CAIRN_ASSERT_OK(backend);
    auto queue = (*backend)->OpenQueue(0);
    CAIRN_ASSERT_OK(queue);
    queue_ = *std::move(queue);
  }

  // Two versions of some bytes, on the host and on the device.
  struct Versions {
    std::vector<std::byte> base;
    std::vector<std::byte> page;
    DeviceBytes device_base{base};
    DeviceBytes device_page{page};
  };
  // Changes about `density` of the bytes.
  static Versions Make(uint64_t length_bytes, double density, uint64_t seed) {
    SeededRandom random(seed);
    std::vector<std::byte> base = RandomBytes(length_bytes, seed);
    std::vector<std::byte> page = base;
    for (std::byte& byte : page) {
      if (random.Chance(density)) byte ^= static_cast<std::byte>(random.Between(1, 255));
    }
    return {.base = std::move(base), .page = std::move(page)};
  }

  // The numbers of the elements that differ, and their differences.
  struct List {
    uint32_t count = 0;
    std::vector<std::byte> bytes;  // as FetchChanges returns them
  };
  template <typename T>
  static List Expected(std::span<const std::byte> base, std::span<const std::byte> page) {
    std::vector<uint16_t> positions;
    std::vector<T> differences;
    for (size_t i = 0; i < page.size() / sizeof(T); ++i) {
      T before;
      T now;
      std::memcpy(&before, base.data() + i * sizeof(T), sizeof(T));
      std::memcpy(&now, page.data() + i * sizeof(T), sizeof(T));
      if (before == now) continue;
      positions.push_back(static_cast<uint16_t>(i));
      differences.push_back(static_cast<T>(now - before));
    }
    List list{.count = static_cast<uint32_t>(positions.size()), .bytes = {}};
    for (const auto bytes :
         {std::as_bytes(std::span(positions)), std::as_bytes(std::span(differences))}) {
      list.bytes.insert(list.bytes.end(), bytes.begin(), bytes.end());
    }
    if (list.bytes.size() > page.size() / 2) {
      return {.count = core::kMostlyChanged, .bytes = {page.begin(), page.end()}};
    }
    return list;
  }
  static List Expected(uint32_t element_bytes, std::span<const std::byte> base,
                       std::span<const std::byte> page) {
    if (element_bytes == 1) return Expected<uint8_t>(base, page);
    if (element_bytes == 2) return Expected<uint16_t>(base, page);
    if (element_bytes == 4) return Expected<uint32_t>(base, page);
    return Expected<uint64_t>(base, page);
  }

  // Compares ranges of the versions in one call.
  struct Range {
    uint64_t begin_bytes = 0;
    uint64_t length_bytes = 0;
    uint32_t element_bytes = 0;
  };
  void ExpectLists(const Versions& versions, std::span<const Range> ranges) {
    std::vector<PageComparison> pages;
    std::vector<uint32_t> numbers;
    std::vector<uint32_t> counts;
    std::vector<std::byte> bytes;
    std::vector<std::byte> base_after = versions.base;
    for (const Range& range : ranges) {
      const auto at = static_cast<ptrdiff_t>(range.begin_bytes);
      pages.push_back({.page = versions.device_page.data() + at,
                       .base = versions.device_base.data() + at,
                       .length_bytes = static_cast<uint32_t>(range.length_bytes),
                       .element_bytes = range.element_bytes});
      numbers.push_back(static_cast<uint32_t>(numbers.size()));
      const List list =
          Expected(range.element_bytes,
                   std::span(versions.base).subspan(range.begin_bytes, range.length_bytes),
                   std::span(versions.page).subspan(range.begin_bytes, range.length_bytes));
      counts.push_back(list.count);
      bytes.insert(bytes.end(), list.bytes.begin(), list.bytes.end());
      std::copy_n(versions.page.begin() + at, range.length_bytes, base_after.begin() + at);
    }
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto found, queue_->ListChanges(pages));
    EXPECT_EQ(found, counts);
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto fetched, queue_->FetchChanges(numbers));
    EXPECT_TRUE(std::ranges::equal(fetched, bytes));
    EXPECT_TRUE(versions.device_base.Read() == base_after) << "pages become the next base";
    EXPECT_TRUE(versions.device_page.Read() == versions.page);
  }

  std::shared_ptr<core::DeviceQueue> queue_;
};

TEST_F(CompareTest, FindsWhatTheHostFindsAtEveryDensity) {
  for (const uint32_t element_bytes : {1, 2, 4, 8}) {
    for (const double density : {0.0, 0.0001, 0.004, 0.05, 0.11, 0.13, 0.25, 1.0}) {
      SCOPED_TRACE(::testing::Message() << element_bytes << " bytes, density " << density);
      const Versions versions = Make(2 * kPageBytes, density, element_bytes);
      ExpectLists(versions, std::vector<Range>{{0, kPageBytes, element_bytes},
                                               {kPageBytes, kPageBytes, element_bytes}});
    }
  }
}

TEST_F(CompareTest, AcceptsEveryLengthAndAddress) {
  const Versions versions = Make(1 << 20, 0.03, 11);
  std::vector<Range> ranges;
  uint64_t begin = 0;
  for (const uint32_t element_bytes : {1, 2, 4, 8}) {
    for (const uint64_t elements : {1, 2, 3, 7, 8, 9, 31, 63, 64, 65, 127, 513, 1000}) {
      for (const uint64_t odd : {0, 1, 2, 8}) {
        begin = (begin + 15) / 16 * 16 + odd;
        ranges.push_back({begin, elements * element_bytes, element_bytes});
        begin += elements * element_bytes;
      }
    }
  }
  ASSERT_LE(begin, versions.page.size());
  ExpectLists(versions, ranges);
}

TEST_F(CompareTest, ListsExactlyAsManyElementsAsHalfThePageHolds) {
  for (const uint32_t element_bytes : {1, 2, 4, 8}) {
    const auto most = static_cast<uint32_t>(kPageBytes / 2 / (2 + element_bytes));
    for (const uint32_t count : {most - 1, most, most + 1}) {
      const std::vector<std::byte> base = RandomBytes(kPageBytes, count);
      std::vector<std::byte> page = base;
      for (uint32_t i = 0; i < count; ++i) page[i * element_bytes] ^= std::byte{1};
      ExpectLists({.base = base, .page = page}, std::vector<Range>{{0, kPageBytes, element_bytes}});
    }
  }
}

TEST_F(CompareTest, ComparesAFullBatch) {
  const Versions versions = Make(core::DeviceQueue::kMaxComparedPages * 512, 0.01, 3);
  std::vector<Range> ranges;
  for (uint64_t i = 0; i < core::DeviceQueue::kMaxComparedPages; ++i)
    ranges.push_back({i * 512, 512, 2});
  ExpectLists(versions, ranges);
}

TEST_F(CompareTest, FetchesOnlyWhatIsWanted) {
  const Versions versions = Make(3 * kPageBytes, 0.01, 5);
  std::vector<PageComparison> pages;
  for (uint64_t at = 0; at < 3 * kPageBytes; at += kPageBytes) {
    pages.push_back({.page = versions.device_page.data() + at,
                     .base = versions.device_base.data() + at,
                     .length_bytes = kPageBytes,
                     .element_bytes = 2});
  }
  CAIRN_ASSERT_OK(queue_->ListChanges(pages));
  const List list = Expected(2, std::span(versions.base).subspan(kPageBytes, kPageBytes),
                             std::span(versions.page).subspan(kPageBytes, kPageBytes));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto fetched, queue_->FetchChanges(std::vector<uint32_t>{1}));
  EXPECT_TRUE(std::ranges::equal(fetched, list.bytes));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto nothing, queue_->FetchChanges({}));
  EXPECT_TRUE(nothing.empty());
}

}  // namespace
}  // namespace cairn::cuda
