// Digests that are computed on the device are bit-equal to those that are computed on the host.

#include "kv/base/digest.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "core/tensor/strided_copy.h"
#include "cuda/backend.h"
#include "tests/cuda/device_tensor.h"
#include "tests/support/result_matchers.h"

namespace cairn::cuda {
namespace {

using core::DigestJob;
using core::TensorView;
using testing::DeviceBytes;
using testing::RandomBytes;

class DigestTest : public ::testing::Test {
 protected:
  void SetUp() override {
    CAIRN_SKIP_WITHOUT_GPU();
    auto backend = FindBackend();
    CAIRN_ASSERT_OK(backend);
    auto queue = (*backend)->OpenQueue(0);
    CAIRN_ASSERT_OK(queue);
    queue_ = *std::move(queue);
  }

  static uint64_t PageCountOf(const core::DeviceQueue::Digests& digests) {
    return digests.page_digests.length_bytes() / sizeof(uint64_t);
  }
  std::vector<uint64_t> LeavesOf(const core::DeviceQueue::Digests& digests) {
    auto page_digests = queue_->FetchPageDigests(digests.page_digests,
                                                 {{{.first = 0, .count = PageCountOf(digests)}}});
    CAIRN_EXPECT_OK(page_digests);
    return page_digests ? *page_digests : std::vector<uint64_t>();
  }

  std::shared_ptr<core::DeviceQueue> queue_;
};

TEST_F(DigestTest, EqualsTheHostsForEveryLengthAndAddress) {
  // Includes the first and last length of every branch of XXH3, and the ends of pages.
  std::vector<uint64_t> lengths;
  for (uint64_t length = 1; length <= 260; ++length) lengths.push_back(length);
  for (const uint64_t around : {512, 1024, 1025, 2048, 4096, 4160, 5120, 65536, 131072, 200000}) {
    for (int64_t off = -2; off <= 2; ++off) lengths.push_back(around + static_cast<uint64_t>(off));
  }
  const std::vector<std::byte> bytes = RandomBytes(200002 + 64, 7);
  const DeviceBytes device(bytes);
  std::vector<DigestJob> jobs;
  std::vector<uint64_t> expected;
  for (const uint64_t length : lengths) {
    for (const uint64_t at : {0, 1, 2, 4, 8, 16, 24}) {
      if (length > 5200 && at > 1) continue;  // complete pages are slow on the simulation
      jobs.push_back({.source = device.View(), .begin_bytes = at, .length_bytes = length});
      kv::AppendPageDigests(std::span(bytes).subspan(at, length), expected);
    }
  }
  auto digests = queue_->Digest(jobs, {});
  CAIRN_ASSERT_OK(digests);
  ASSERT_EQ(PageCountOf(*digests), expected.size());
  const std::vector<uint64_t> page_digests = LeavesOf(*digests);
  ASSERT_EQ(page_digests.size(), expected.size());
  uint64_t page = 0;
  for (const DigestJob& job : jobs) {
    for (uint64_t i = 0; i < kv::PageCount(job.length_bytes); ++i, ++page) {
      ASSERT_EQ(page_digests[page], expected[page])
          << "page " << i << " of " << job.length_bytes << " bytes at " << job.begin_bytes;
      EXPECT_TRUE(digests->IsChanged(page));
    }
  }
}

TEST_F(DigestTest, DigestsStridedTensorsAsTheirRowMajorForm) {
  const std::vector<std::byte> bytes = RandomBytes(600 * 700 * 2, 8);
  const DeviceBytes device(bytes);
  const TensorView host{.dtype = core::DType::kBFloat16,
                        .shape = {700, 300},
                        .strides = {1, 1400},
                        .data = bytes.data()};
  TensorView transposed = host;
  transposed.data = device.data();
  transposed.device = 0;
  const uint64_t length = 700 * 300 * 2;
  std::vector<std::byte> row_major(length);
  core::GatherBytes(host, 0, row_major);
  std::vector<uint64_t> expected;
  kv::AppendPageDigests(row_major, expected);
  const std::vector<std::byte> tail(row_major.begin() + 100'002, row_major.end());
  kv::AppendPageDigests(tail, expected);
  kv::AppendPageDigests(bytes, expected);

  auto digests = queue_->Digest(
      std::vector<DigestJob>{
          {.source = transposed, .begin_bytes = 0, .length_bytes = length},
          {.source = transposed, .begin_bytes = 100'002, .length_bytes = length - 100'002},
          {.source = device.View(), .begin_bytes = 0, .length_bytes = bytes.size()}},
      {});
  CAIRN_ASSERT_OK(digests);
  EXPECT_EQ(LeavesOf(*digests), expected);
}

TEST_F(DigestTest, ReportsWhichPagesChanged) {
  std::vector<std::byte> bytes = RandomBytes(100 * kv::kPageBytes + 5, 9);
  DeviceBytes device(bytes);
  std::vector<DigestJob> jobs{
      {.source = device.View(), .begin_bytes = 0, .length_bytes = 60 * kv::kPageBytes},
      {.source = device.View(),
       .begin_bytes = 60 * kv::kPageBytes,
       .length_bytes = bytes.size() - 60 * kv::kPageBytes}};
  auto before = queue_->Digest(jobs, {});
  CAIRN_ASSERT_OK(before);
  for (const uint64_t page : {0, 31, 32, 63, 99}) {
    std::byte& first = bytes[page * kv::kPageBytes];
    first ^= std::byte{1};
    device.Write({&first, 1}, page * kv::kPageBytes);
  }
  bytes.back() ^= std::byte{0x80};
  device.Write({&bytes.back(), 1}, bytes.size() - 1);

  // The second job is compared with its previous position; the first has no base.
  jobs[1].base_page = 60;
  auto after = queue_->Digest(jobs, before->page_digests);
  CAIRN_ASSERT_OK(after);
  for (uint64_t page = 0; page < 101; ++page) {
    const bool expected = page < 60 || page == 63 || page == 99 || page == 100;
    EXPECT_EQ(after->IsChanged(page), expected) << page;
  }
  jobs[0].base_page = 0;
  after = queue_->Digest(jobs, before->page_digests);
  CAIRN_ASSERT_OK(after);
  for (uint64_t page = 0; page < 101; ++page) {
    const bool expected =
        page == 0 || page == 31 || page == 32 || page == 63 || page == 99 || page == 100;
    EXPECT_EQ(after->IsChanged(page), expected) << page;
  }
}

TEST_F(DigestTest, FindsTheJobOfEveryPageAmongMany) {
  // More jobs than a warp searches in two steps, most with one page, some with several.
  const std::vector<std::byte> bytes = RandomBytes(200'000, 10);
  const DeviceBytes device(bytes);
  std::vector<DigestJob> jobs;
  std::vector<uint64_t> expected;
  for (uint64_t i = 0; i < 1500; ++i) {
    const uint64_t length = i % 400 == 0 ? 140'000 : 1 + i % 77;
    jobs.push_back({.source = device.View(), .begin_bytes = i, .length_bytes = length});
    kv::AppendPageDigests(std::span(bytes).subspan(i, length), expected);
  }
  auto digests = queue_->Digest(jobs, {});
  CAIRN_ASSERT_OK(digests);
  EXPECT_EQ(LeavesOf(*digests), expected);
}

TEST_F(DigestTest, NoJobsHaveNoDigests) {
  auto digests = queue_->Digest({}, {});
  CAIRN_ASSERT_OK(digests);
  EXPECT_EQ(PageCountOf(*digests), 0u);
}

}  // namespace
}  // namespace cairn::cuda
