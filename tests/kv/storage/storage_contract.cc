// What every storage promises.

#include "tests/kv/storage/storage_contract.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <set>
#include <string>
#include <thread>

#include "kv/io/file_descriptor.h"
#include "tests/support/result_matchers.h"
#include "tests/support/seeded_random.h"
#include "tests/support/upload_bytes.h"

namespace cairn::testing {
namespace {

using kv::ObjectExists;
using kv::ObjectWriter;
using kv::Storage;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr uint64_t kLimitBytes = 64 << 20;

std::span<const std::byte> Bytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

std::string Text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

void StorageContractTest::Put(std::string_view name, std::string_view bytes) {
  CAIRN_EXPECT_OK(storage_->Put(name, Bytes(bytes)));
}

std::string StorageContractTest::Read(std::string_view name) {
  const Result<std::vector<std::byte>> bytes = storage_->Read(name, kLimitBytes);
  CAIRN_EXPECT_OK(bytes);
  return bytes ? Text(*bytes) : "(error)";
}

std::vector<std::string> StorageContractTest::List(std::string_view prefix) {
  Result<std::vector<std::string>> names = storage_->List(prefix);
  CAIRN_EXPECT_OK(names);
  if (!names) return {};
  std::ranges::sort(*names);
  return *std::move(names);
}

TEST_P(StorageContractTest, PutsCreateAndReplace) {
  for (const auto put : {&Storage::Put, &Storage::PutVolatile, &Storage::Overwrite}) {
    for (const std::string_view bytes : {"one", "a longer one", ""}) {
      CAIRN_ASSERT_OK(((*storage_).*put)("leases/a", Bytes(bytes)));
      EXPECT_EQ(Read("leases/a"), bytes);
    }
    EXPECT_THAT(List(""), ElementsAre("leases/a"));
  }
}

TEST_P(StorageContractTest, PutsOfAbsentObjectsKeepAnExistingOne) {
  for (const auto put : {&Storage::PutIfAbsent, &Storage::PutIfAbsentVolatile}) {
    const auto name = fmt::format("pending/a/{}.part", List("").size());
    CAIRN_ASSERT_OK(((*storage_).*put)(name, Bytes("first")));
    EXPECT_THAT(((*storage_).*put)(name, Bytes("second")), IsError(ErrorCode::kConflict, name));
    EXPECT_EQ(Read(name), "first");
    Put(name, "put");
    EXPECT_THAT(((*storage_).*put)(name, Bytes("")), IsError(ErrorCode::kConflict, name));
    EXPECT_EQ(Read(name), "put");
  }
}

TEST_P(StorageContractTest, ExactlyOneOfManyThreadsPutsAnAbsentObject) {
  constexpr int kThreads = 8;
  const int rounds = GetParam().race_count;
  std::vector<std::atomic<int>> winner_counts(rounds);
  std::vector<std::atomic<int>> winners(rounds);
  std::barrier start(kThreads);
  std::vector<std::jthread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      const std::shared_ptr<kv::Storage> storage = open_();
      for (int round = 0; round < rounds; ++round) {
        start.arrive_and_wait();
        const Result<void> put = storage->PutIfAbsent(fmt::format("roots/{}.root", round),
                                                      Bytes(std::to_string(thread)));
        if (put) {
          ++winner_counts[round];
          winners[round] = thread;
        } else {
          EXPECT_THAT(put, IsError(ErrorCode::kConflict, ""));
        }
      }
    });
  }
  threads.clear();  // joins
  for (int round = 0; round < rounds; ++round) {
    EXPECT_EQ(winner_counts[round], 1) << "round " << round;
    EXPECT_EQ(Read(fmt::format("roots/{}.root", round)), std::to_string(winners[round]));
  }
  EXPECT_EQ(List("").size(), static_cast<size_t>(rounds));
}

TEST_P(StorageContractTest, AnotherAccessSeesWritesAtOnce) {
  const std::shared_ptr<kv::Storage> other = open_();
  for (int i = 0; i < 20; ++i) {
    const std::string name = fmt::format("tables/{}.sst", i);
    CAIRN_ASSERT_OK(storage_->PutIfAbsent(name, Bytes("x")));
    CAIRN_ASSERT_OK_AND_ASSIGN(const bool exists, ObjectExists(*other, name));
    EXPECT_TRUE(exists);
    CAIRN_ASSERT_OK(other->Remove(name));
    CAIRN_ASSERT_OK_AND_ASSIGN(const bool still_exists, ObjectExists(*storage_, name));
    EXPECT_FALSE(still_exists);
  }
}

TEST_P(StorageContractTest, ReadsEveryRangeOfAnObject) {
  const std::string text = "0123456789";
  Put("pages/a.steps", text);
  for (size_t begin = 0; begin <= text.size(); ++begin) {
    for (size_t end = begin; end <= text.size(); ++end) {
      std::vector<std::byte> target(end - begin);
      CAIRN_ASSERT_OK(storage_->ReadRange("pages/a.steps", begin, target));
      EXPECT_EQ(Text(target), text.substr(begin, end - begin));
    }
  }
}

TEST_P(StorageContractTest, RangesBeyondTheEndAreDataLoss) {
  Put("pages/a.steps", "0123456789");
  Put("pages/empty.steps", "");
  std::array<std::byte, 4> target = {};
  for (const uint64_t offset_bytes : {7ULL, 9ULL, 10ULL, 11ULL, 1ULL << 40}) {
    EXPECT_THAT(storage_->ReadRange("pages/a.steps", offset_bytes, target),
                IsError(ErrorCode::kDataLoss, "pages/a.steps"))
        << offset_bytes;
  }
  EXPECT_THAT(storage_->ReadRange("pages/empty.steps", 0, target),
              IsError(ErrorCode::kDataLoss, "pages/empty.steps"));
}

TEST_P(StorageContractTest, AMissingObjectIsNotFound) {
  Put("pages/a.steps", "0");
  std::array<std::byte, 1> target = {};
  for (const char* name : {"pages/b.steps", "pages2/a.steps", "pages/a", "none"}) {
    EXPECT_THAT(storage_->ReadRange(name, 0, target), IsError(ErrorCode::kNotFound, name));
    EXPECT_THAT(storage_->Size(name), IsError(ErrorCode::kNotFound, name));
    EXPECT_THAT(storage_->Read(name, 10), IsError(ErrorCode::kNotFound, name));
    CAIRN_ASSERT_OK_AND_ASSIGN(const bool exists, ObjectExists(*storage_, name));
    EXPECT_FALSE(exists);
  }
}

TEST_P(StorageContractTest, SizeIsTheLength) {
  for (const size_t size_bytes : {0u, 1u, 4095u, 4096u, 1u << 20}) {
    Put("segments/a.seg", std::string(size_bytes, 'x'));
    CAIRN_ASSERT_OK_AND_ASSIGN(const uint64_t found_bytes, storage_->Size("segments/a.seg"));
    EXPECT_EQ(found_bytes, size_bytes);
  }
}

TEST_P(StorageContractTest, ReadRefusesMoreThanItsLimit) {
  Put("CAIRN", "0123456789");
  EXPECT_THAT(storage_->Read("CAIRN", 9), IsError(ErrorCode::kDataLoss, "limit of 9"));
  CAIRN_ASSERT_OK_AND_ASSIGN(const std::vector<std::byte> bytes, storage_->Read("CAIRN", 10));
  EXPECT_EQ(Text(bytes), "0123456789");
}

TEST_P(StorageContractTest, ListsByPrefix) {
  EXPECT_THAT(List(""), IsEmpty());
  EXPECT_THAT(List("roots/"), IsEmpty());
  for (const char* name : {"CAIRN", "roots/1", "roots/2", "roots2/1", "pending/a/part-1",
                           "pending/a/messages/1-2", "pending/b/part-1"}) {
    Put(name, name);
  }
  EXPECT_THAT(List("roots/"), ElementsAre("roots/1", "roots/2"));
  EXPECT_THAT(List("pending/a/"), ElementsAre("pending/a/messages/1-2", "pending/a/part-1"));
  EXPECT_THAT(List("pending/"),
              ElementsAre("pending/a/messages/1-2", "pending/a/part-1", "pending/b/part-1"));
  EXPECT_THAT(List("pending/c/"), IsEmpty());
  EXPECT_THAT(List("root/"), IsEmpty());
  EXPECT_EQ(List("").size(), 7u);
}

TEST_P(StorageContractTest, RemovesAnObjectOnce) {
  Put("pending/a/1", "1");
  Put("pending/a/2", "2");
  for (int i = 0; i < 2; ++i) {
    CAIRN_EXPECT_OK(storage_->Remove("pending/a/1"));
    EXPECT_THAT(List(""), ElementsAre("pending/a/2"));
  }
  CAIRN_EXPECT_OK(storage_->Remove("pending/a/2"));
  CAIRN_EXPECT_OK(storage_->Remove("pending/never/1"));
  EXPECT_THAT(List(""), IsEmpty());
  CAIRN_EXPECT_OK(storage_->PutIfAbsent("pending/a/1", Bytes("again")));
  EXPECT_EQ(Read("pending/a/1"), "again");
}

TEST_P(StorageContractTest, WritesAnObjectInPieces) {
  SeededRandom random;
  std::vector<std::byte> bytes = random.Bytes((5 << 20) + 17);
  CAIRN_ASSERT_OK_AND_ASSIGN(std::unique_ptr<ObjectWriter> writer,
                             storage_->Create("tables/a.sst"));
  std::span<const std::byte> left = bytes;
  while (!left.empty()) {
    const size_t size = std::min<size_t>(left.size(), random.Between(0, 1 << 20));
    CAIRN_ASSERT_OK(writer->Append(left.first(size)));
    left = left.subspan(size);
  }
  if (storage_->local_files() == nullptr) {
    EXPECT_THAT(List(""), IsEmpty());
    EXPECT_THAT(storage_->Size("tables/a.sst"), IsError(ErrorCode::kNotFound, "tables/a.sst"));
  }
  CAIRN_ASSERT_OK(writer->Finish());
  writer.reset();
  CAIRN_ASSERT_OK_AND_ASSIGN(const std::vector<std::byte> found,
                             storage_->Read("tables/a.sst", kLimitBytes));
  EXPECT_TRUE(found == bytes);
  EXPECT_THAT(List("tables/"), ElementsAre("tables/a.sst"));
}

TEST_P(StorageContractTest, WritesAnEmptyObject) {
  CAIRN_ASSERT_OK_AND_ASSIGN(std::unique_ptr<ObjectWriter> writer,
                             storage_->Create("tables/a.sst"));
  CAIRN_ASSERT_OK(writer->Finish());
  EXPECT_EQ(Read("tables/a.sst"), "");
}

TEST_P(StorageContractTest, AnObjectWithoutFinishIsDiscarded) {
  CAIRN_ASSERT_OK_AND_ASSIGN(std::unique_ptr<ObjectWriter> writer,
                             storage_->Create("tables/a.sst"));
  CAIRN_ASSERT_OK(writer->Append(Bytes("bytes")));
  writer.reset();
  EXPECT_THAT(List(""), IsEmpty());
  EXPECT_THAT(storage_->Size("tables/a.sst"), IsError(ErrorCode::kNotFound, "tables/a.sst"));
  CAIRN_EXPECT_OK(storage_->PutIfAbsent("tables/a.sst", Bytes("other")));
  EXPECT_EQ(Read("tables/a.sst"), "other");
}

TEST_P(StorageContractTest, UploadsWritesOfAnyLengthAndReadsRangesThroughAQueue) {
  SeededRandom random;
  // S3 has no parts of less than 5 MiB.
  for (const uint64_t write_bytes : {uint64_t{1000}, uint64_t{4} << 20}) {
    for (const uint64_t size :
         {write_bytes / 2, write_bytes, 2 * write_bytes, 3 * write_bytes, 4 * write_bytes + 17}) {
      SCOPED_TRACE(fmt::format("{} bytes in writes of {}", size, write_bytes));
      std::vector<std::byte> bytes = random.Bytes(size);
      CAIRN_ASSERT_OK(UploadBytes(*storage_, "segments/a.seg", bytes, write_bytes, 3));
      CAIRN_ASSERT_OK_AND_ASSIGN(const std::vector<std::byte> found,
                                 storage_->Read("segments/a.seg", 1 << 30));
      EXPECT_TRUE(found == bytes);

      CAIRN_ASSERT_OK_AND_ASSIGN(const auto queue, storage_->MakeQueue(4));
      std::vector<std::byte> read(size);
      for (uint64_t i = 0; i < 4; ++i) {
        CAIRN_ASSERT_OK(queue->Submit({.object = "segments/a.seg",
                                       .data = read.data() + i * (size / 4),
                                       .length_bytes = i < 3 ? size / 4 : size - 3 * (size / 4),
                                       .offset_bytes = i * (size / 4),
                                       .tag = i}));
      }
      std::set<uint64_t> tags;
      while (queue->in_flight() > 0) {
        CAIRN_ASSERT_OK_AND_ASSIGN(const kv::IoCompletion completion, queue->Wait());
        EXPECT_FALSE(completion.error);
        EXPECT_EQ(completion.done_bytes, completion.request.length_bytes);
        tags.insert(completion.request.tag);
      }
      EXPECT_EQ(tags.size(), 4u);
      EXPECT_TRUE(read == bytes);
      CAIRN_ASSERT_OK(storage_->Remove("segments/a.seg"));
    }
  }
}

TEST_P(StorageContractTest, AQueueThatScattersFillsTheSlicesOfAReadAndDiscardsTheRest) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto queue, storage_->MakeQueue(2));
  if (!queue->can_scatter()) GTEST_SKIP() << "the queue " << queue->name() << " cannot scatter";
  SeededRandom random;
  std::vector<std::byte> bytes = random.Bytes(3 << 20);
  CAIRN_ASSERT_OK(storage_->Put("segments/a.seg", bytes));
  std::vector<std::byte> first(1'000'001), second(17);
  const std::array<kv::IoSlice, 3> slices = {
      kv::IoSlice{.data = first.data(), .length_bytes = first.size()},
      kv::IoSlice{.data = nullptr, .length_bytes = 1'500'000},
      kv::IoSlice{.data = second.data(), .length_bytes = second.size()}};
  constexpr uint64_t kOffset = 12'345;
  CAIRN_ASSERT_OK(queue->Submit({.object = "segments/a.seg",
                                 .slices = slices,
                                 .length_bytes = 2'500'018,
                                 .offset_bytes = kOffset}));
  CAIRN_ASSERT_OK_AND_ASSIGN(const kv::IoCompletion completion, queue->Wait());
  EXPECT_FALSE(completion.error);
  EXPECT_EQ(completion.done_bytes, 2'500'018u);
  EXPECT_TRUE(std::ranges::equal(first, std::span(bytes).subspan(kOffset, first.size())));
  EXPECT_TRUE(
      std::ranges::equal(second, std::span(bytes).subspan(kOffset + 2'500'001, second.size())));
}

TEST_P(StorageContractTest, AnUploadWithoutFinishIsDiscarded) {
  for (const uint64_t write_bytes : {uint64_t{1000}, uint64_t{4} << 20}) {
    for (const uint64_t size : {write_bytes / 2, 3 * write_bytes + 1}) {
      std::vector<std::byte> bytes(size);
      CAIRN_ASSERT_OK(
          UploadBytes(*storage_, "segments/a.seg", bytes, write_bytes, 3, /*finish=*/false));
      EXPECT_THAT(List("segments/"), IsEmpty());
      EXPECT_THAT(storage_->Size("segments/a.seg"),
                  IsError(ErrorCode::kNotFound, "segments/a.seg"));
    }
  }
}

TEST_P(StorageContractTest, AQueueReportsTheErrorsOfItsRequests) {
  Put("segments/a.seg", "0123456789");
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto queue, storage_->MakeQueue(2));
  std::array<std::byte, 8> target{};
  CAIRN_ASSERT_OK(queue->Submit({.object = "segments/missing.seg",
                                 .data = target.data(),
                                 .length_bytes = target.size(),
                                 .tag = 1}));
  CAIRN_ASSERT_OK(queue->Submit({.object = "segments/a.seg",
                                 .data = target.data(),
                                 .length_bytes = target.size(),
                                 .offset_bytes = 4,
                                 .tag = 2}));
  while (queue->in_flight() > 0) {
    CAIRN_ASSERT_OK_AND_ASSIGN(const kv::IoCompletion completion, queue->Wait());
    ASSERT_TRUE(completion.error) << completion.request.tag;
    const bool is_missing = completion.request.tag == 1;
    EXPECT_THAT(Result<void>(Fail(*completion.error)),
                IsError(is_missing ? ErrorCode::kNotFound : ErrorCode::kDataLoss,
                        is_missing ? "segments/missing.seg" : "segments/a.seg"));
  }
}

TEST_P(StorageContractTest, AcceptsEveryAllowedCharacter) {
  const std::string element = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_..x";
  const std::string name = fmt::format("{0}/-{0}/{0}{0}_.", element);
  Put(name, "1");
  Put("a", "lower");
  Put("A", "upper");
  EXPECT_EQ(Read(name), "1");
  EXPECT_EQ(Read("a"), "lower");
  EXPECT_THAT(List(element + "/"), ElementsAre(name));
  CAIRN_EXPECT_OK(storage_->Remove(name));
  EXPECT_THAT(List(""), ElementsAre("A", "a"));
}

TEST_P(StorageContractTest, ReadersSeeTheOldOrTheNewBytesOfAPut) {
  constexpr size_t kSizeBytes = 100'000;
  Put("lease", std::string(kSizeBytes, 'a'));
  std::atomic<bool> done = false;
  std::vector<std::jthread> readers;
  for (int i = 0; i < 2; ++i) {
    readers.emplace_back([&] {
      const std::shared_ptr<kv::Storage> storage = open_();
      while (!done) {
        const Result<std::vector<std::byte>> bytes = storage->Read("lease", kLimitBytes);
        CAIRN_EXPECT_OK(bytes);
        if (!bytes) return;
        EXPECT_EQ(bytes->size(), kSizeBytes);
        EXPECT_TRUE(std::ranges::all_of(*bytes, [&](std::byte b) { return b == bytes->front(); }));
      }
    });
  }
  for (int i = 0; i < 60; ++i) Put("lease", std::string(kSizeBytes, static_cast<char>('a' + i)));
  done = true;
}

TEST_P(StorageContractTest, AwaitChangeReturnsAtItsTimeout) {
  const auto begin = std::chrono::steady_clock::now();
  storage_->AwaitChange("pending/a/", std::chrono::milliseconds(20));
  storage_->AwaitChange("", std::chrono::milliseconds(0));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
}

TEST_P(StorageContractTest, RemoveLeftoversKeepsObjects) {
  Put("CAIRN", "1");
  Put("pending/a/part", "2");
  CAIRN_ASSERT_OK(storage_->RemoveLeftovers(~0u));
  EXPECT_THAT(List(""), ElementsAre("CAIRN", "pending/a/part"));
}

TEST_P(StorageContractTest, ObjectsAreTheirFiles) {
  kv::LocalFiles* files = storage_->local_files();
  if (files == nullptr) GTEST_SKIP() << "objects of this storage are not files";
  CAIRN_ASSERT_OK(files->PrepareFile("segments/a.seg"));
  CAIRN_ASSERT_OK_AND_ASSIGN(const kv::FilePlace place, files->PlaceOf("segments/a.seg"));
  EXPECT_EQ(place.path, storage_->address() + "/segments/a.seg");
  {
    kv::FileDescriptor file(
        ::openat(place.directory, place.name.c_str(), O_CREAT | O_EXCL | O_WRONLY, 0644));
    ASSERT_TRUE(file.is_open()) << place.path;
    ASSERT_EQ(::write(file.get(), "bytes", 5), 5);
    ASSERT_EQ(::fsync(file.get()), 0);
  }
  CAIRN_ASSERT_OK(files->SyncNames("segments/"));
  EXPECT_EQ(Read("segments/a.seg"), "bytes");
  EXPECT_THAT(List("segments/"), ElementsAre("segments/a.seg"));
  CAIRN_ASSERT_OK(storage_->Remove("segments/a.seg"));
  EXPECT_NE(::faccessat(place.directory, place.name.c_str(), F_OK, 0), 0);
}

}  // namespace cairn::testing
