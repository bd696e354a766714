// Goal: the reader cache saves requests, and never changes the bytes that a reader gets.

#include "kv/storage/cache/internal/cached_storage.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>

#include "tests/kv/storage/cache/cached_storage_fixture.h"
#include "tests/kv/storage/storage_contract.h"
#include "tests/support/result_matchers.h"
#include "tests/support/scoped_temp_dir.h"
#include "tests/support/seeded_random.h"

namespace cairn::kv::internal {
namespace {

using cairn::testing::IsError;
using cairn::testing::OpenSameStorage;
using cairn::testing::ScopedTempDir;
using cairn::testing::StorageContractTest;
using cairn::testing::StorageParam;
using kv::testing::RandomBytes;
using ::testing::IsEmpty;
using ::testing::SizeIs;

namespace fs = std::filesystem;

OpenSameStorage MakeCachedMemory() {
  const auto base = std::make_shared<MemoryStorage>("test");
  const auto dir = std::make_shared<ScopedTempDir>();
  return [base, dir] {
    return std::make_shared<CachedStorage>(base, CacheOptions{.directory = dir->path()});
  };
}
INSTANTIATE_TEST_SUITE_P(Cached, StorageContractTest,
                         ::testing::Values(StorageParam{&MakeCachedMemory}));

TEST_F(CachedStorageTest, SecondReadMakesNoRequest) {
  const Bytes bytes = PutSegment(1, 100'000);
  ExpectRange(*Open(), 1, bytes, 0, bytes.size());
  remote_->Restart();
  const auto storage = Open();
  ExpectRange(*storage, 1, bytes, 0, bytes.size());
  ExpectRange(*storage, 1, bytes, 5'000, 5'001);
  ExpectRange(*storage, 1, bytes, 99'999, 100'000);
  EXPECT_THAT(remote_->Calls(), IsEmpty());
}

TEST_F(CachedStorageTest, ReadsOfAQueueAreCachedToo) {
  const Bytes bytes = PutSegment(1, 1 << 20);
  const std::string name = SegmentName(1);
  for (int load = 0; load < 2; ++load) {
    remote_->Restart();
    const auto storage = Open();
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto queue, storage->MakeQueue(4));
    Bytes target(bytes.size());
    constexpr uint64_t kPart = 1 << 18;
    for (uint64_t at = 0; at < bytes.size(); at += kPart) {
      CAIRN_ASSERT_OK(queue->Submit({.object = name,
                                     .data = target.data() + at,
                                     .length_bytes = kPart,
                                     .offset_bytes = at,
                                     .tag = at}));
    }
    EXPECT_EQ(queue->in_flight(), 4u);
    while (queue->in_flight() > 0) {
      CAIRN_ASSERT_OK_AND_ASSIGN(const IoCompletion completion, queue->Wait());
      EXPECT_FALSE(completion.error.has_value());
      EXPECT_EQ(completion.done_bytes, kPart);
    }
    EXPECT_TRUE(target == bytes);
    EXPECT_THAT(remote_->Calls(), SizeIs(load == 0 ? 4 : 0));
  }
}

TEST_F(CachedStorageTest, AReadThatFailsReachesTheCaller) {
  const auto storage = Open();
  Bytes target(10);
  EXPECT_THAT(storage->ReadRange(SegmentName(1), 0, target), IsError(ErrorCode::kNotFound, "seg"));
  PutSegment(1, 5);
  EXPECT_THAT(storage->ReadRange(SegmentName(1), 0, target), IsError(ErrorCode::kDataLoss, "seg"));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto queue, storage->MakeQueue(1));
  const std::string name = SegmentName(2);
  CAIRN_ASSERT_OK(queue->Submit({.object = name, .data = target.data(), .length_bytes = 10}));
  CAIRN_ASSERT_OK_AND_ASSIGN(const IoCompletion completion, queue->Wait());
  ASSERT_TRUE(completion.error.has_value());
  EXPECT_EQ(completion.error->code, ErrorCode::kNotFound);
}

TEST_F(CachedStorageTest, RangesThatMeetInAGranuleAreJoined) {
  const Bytes bytes = PutSegment(1, 20'000);
  const auto storage = Open();
  ExpectRange(*storage, 1, bytes, 100, 5'000);
  ExpectRange(*storage, 1, bytes, 5'000, 9'000);
  ExpectRange(*storage, 1, bytes, 13'000, 14'000);
  remote_->Restart();
  ExpectRange(*storage, 1, bytes, 100, 9'000);
  ExpectRange(*storage, 1, bytes, 13'100, 13'900);
  EXPECT_THAT(remote_->Calls(), IsEmpty());
  ExpectRange(*storage, 1, bytes, 99, 200);
  ExpectRange(*storage, 1, bytes, 8'000, 13'500);
  EXPECT_THAT(remote_->Calls(), SizeIs(2));
}

TEST_F(CachedStorageTest, RandomRangesReturnWhatTheStorageHas) {
  const Bytes bytes = PutSegment(1, 60'000);
  cairn::testing::SeededRandom random;
  const auto storage = Open();
  for (int i = 0; i < 2'000; ++i) {
    const uint64_t begin = random.Between(0, bytes.size() - 1);
    const uint64_t end = random.Between(begin + 1, std::min(bytes.size(), begin + 9'000));
    ExpectRange(*storage, 1, bytes, begin, end);
  }
  EXPECT_LT(remote_->Calls().size(), 1'000u) << "few ranges were read from the cache";
}

TEST_F(CachedStorageTest, DamagedBytesAreReadFromTheStorageAgain) {
  const Bytes bytes = PutSegment(1, 12'000);
  ExpectRange(*Open(), 1, bytes, 0, 12'000);
  for (const uint64_t at : {0, 4'095, 8'192, 11'999}) {
    FlipByte(Files(".seg").front(), at);
    remote_->Restart();
    const auto storage = Open();
    ExpectRange(*storage, 1, bytes, 0, 12'000);
    EXPECT_THAT(remote_->Calls(), SizeIs(1)) << at;
    ExpectRange(*storage, 1, bytes, 0, 12'000);
    EXPECT_THAT(remote_->Calls(), SizeIs(1)) << "the cache was not repaired";
  }
  // Every byte of the digests, of which those of entry 0 are unused.
  for (uint64_t at = 16; at < 64; ++at) {
    FlipByte(Files(".xxh3").front(), at);
    remote_->Restart();
    ExpectRange(*Open(), 1, bytes, 0, 12'000);
    EXPECT_THAT(remote_->Calls(), SizeIs(1)) << at;
  }
}

TEST_F(CachedStorageTest, BytesOfAnotherObjectDoNotMatch) {
  const Bytes one = PutSegment(1, 5'000);
  const Bytes two = PutSegment(2, 5'000);
  ExpectRange(*Open(), 1, one, 0, 5'000);
  ExpectRange(*Open(), 2, two, 0, 5'000);
  const std::vector<std::string> paths = Files(".seg");
  ASSERT_THAT(paths, SizeIs(2));
  for (const char* suffix : {"", ".xxh3"}) {
    fs::rename(paths[0] + suffix, dir_ / "swap");
    fs::rename(paths[1] + suffix, paths[0] + suffix);
    fs::rename(dir_ / "swap", paths[1] + suffix);
  }
  ExpectRange(*Open(), 1, one, 0, 5'000);
  ExpectRange(*Open(), 2, two, 0, 5'000);
}

TEST_F(CachedStorageTest, CompleteObjectsAreCached) {
  const std::string name = ObjectName(ObjectKind::kPage, {1, 7});
  const Bytes bytes = RandomBytes(7, 9'000);
  CAIRN_ASSERT_OK(base_->Put(name, bytes));
  CAIRN_ASSERT_OK(Open()->Read(name, 1 << 20));
  remote_->Restart();
  CAIRN_ASSERT_OK_AND_ASSIGN(const Bytes cached, Open()->Read(name, 1 << 20));
  EXPECT_TRUE(cached == bytes);
  EXPECT_THAT(remote_->Calls(), IsEmpty());
  EXPECT_THAT(Open()->Read(name, 8'999), IsError(ErrorCode::kDataLoss, "limit"));
}

TEST_F(CachedStorageTest, ObjectsWhoseNamesAreUsedAgainAreNotCached) {
  const auto storage = Open();
  for (const std::string& name : {std::string("CAIRN"), std::string("hint"), RootName(3),
                                  std::string("leases/00000001000000010000000000000000"),
                                  std::string("pending/a/1.part"), std::string("segments/a.seg")}) {
    for (const uint64_t seed : {1, 2}) {
      const Bytes bytes = RandomBytes(seed, 100);
      CAIRN_ASSERT_OK(base_->Put(name, bytes));
      CAIRN_ASSERT_OK_AND_ASSIGN(const auto names, storage->List("roots/"));
      CAIRN_ASSERT_OK_AND_ASSIGN(const Bytes read, storage->Read(name, 100));
      EXPECT_TRUE(read == bytes) << name;
      Bytes range(50);
      CAIRN_ASSERT_OK(storage->ReadRange(name, 50, range));
      EXPECT_TRUE(std::equal(range.begin(), range.end(), bytes.begin() + 50)) << name;
    }
  }
  EXPECT_THAT(storage->Size("none"), IsError(ErrorCode::kNotFound, "none"));
}

TEST_F(CachedStorageTest, TheBoundHoldsAndTheOldestObjectsAreEvicted) {
  constexpr uint64_t kBound = 8 << 20;
  constexpr uint64_t kObject = 1 << 18;
  std::vector<Bytes> objects;
  for (uint64_t id = 0; id < 60; ++id) objects.push_back(PutSegment(id, kObject));
  const auto storage = Open(kBound);
  for (uint64_t id = 0; id < 60; ++id) {
    ExpectRange(*storage, id, objects[id], 0, kObject);
    EXPECT_LE(AllocatedBytes(), kBound);
    // Timestamps have the resolution of the kernel's clock: state the order of the uses.
    const std::string path =
        fmt::format("{}.xxh3", Files(fmt::format("{:016x}00000000.seg", id)).front());
    const struct timespec used{.tv_sec = static_cast<time_t>(1'000 + id), .tv_nsec = 0};
    const struct timespec times[] = {used, used};
    ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
    // Another process uses object 0 all the time.
    if (id > 0) ExpectRange(*Open(kBound), 0, objects[0], 0, 10);
  }
  EXPECT_GT(AllocatedBytes(), kBound / 2);
  remote_->Restart();
  ExpectRange(*storage, 0, objects[0], 0, kObject);
  ExpectRange(*storage, 59, objects[59], 0, kObject);
  EXPECT_THAT(remote_->Calls(), IsEmpty()) << "recently used objects were evicted";
  ExpectRange(*storage, 1, objects[1], 0, kObject);
  EXPECT_THAT(remote_->Calls(), SizeIs(1)) << "the oldest object was not evicted";
}

TEST_F(CachedStorageTest, FilesThatWereRemovedAreWrittenAgain) {
  const Bytes bytes = PutSegment(1, 10'000);
  const auto storage = Open();
  ExpectRange(*storage, 1, bytes, 0, 10'000);
  fs::remove_all(dir_ / fs::directory_iterator(dir_.path())->path().filename().string());
  ExpectRange(*storage, 1, bytes, 0, 10'000);
  remote_->Restart();
  ExpectRange(*Open(), 1, bytes, 0, 10'000);
  EXPECT_THAT(remote_->Calls(), IsEmpty());
}

/// Returns the tree below a path: the mode, and the bytes or the target, of each entry.
std::map<std::string, std::string> TreeOf(const std::string& path) {
  std::map<std::string, std::string> tree;
  for (const auto& entry : fs::recursive_directory_iterator(path)) {
    std::string& text = tree[entry.path()];
    struct stat status;
    EXPECT_EQ(::lstat(entry.path().c_str(), &status), 0);
    text = fmt::format("{:o} ", status.st_mode);
    if (entry.is_symlink()) {
      text += fs::read_symlink(entry.path()).string();
    } else if (entry.is_regular_file()) {
      std::ifstream file(entry.path());
      text.append(std::istreambuf_iterator<char>(file), {});
    }
  }
  return tree;
}

TEST_F(CachedStorageTest, FilesThatAreNotItsOwnAreNeitherRemovedNorChanged) {
  const auto write = [](const std::string& path) {
    fs::create_directories(fs::path(path).parent_path());
    std::ofstream(path) << std::string(1 << 20, 'x');
    const struct timespec times[2] = {};  // the oldest of all
    EXPECT_EQ(::utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
  };
  const auto flat = [](uint64_t id) {
    return fmt::format("segments-00000001-{:016x}00000000.seg", id);
  };
  CAIRN_ASSERT_OK(Open()->CheckCache());
  const std::string folder = fs::directory_iterator(dir_.path())->path();
  std::string storage;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.is_directory()) storage = entry.path();
  }
  for (const std::string& parent : {dir_ / "foreign", dir_ / "0123456789abcdef", folder,
                                    folder + "/0123456789ABCDEF", folder + "/data"}) {
    write(parent + "/" + flat(3));
  }
  for (const char* name : {"file", ".0123456789abcdef.tmp", "segments-1.seg", "roots-1.root"}) {
    write(storage + "/" + name);
  }
  fs::create_symlink(dir_ / "foreign", folder + "/fedcba9876543210");
  fs::create_symlink(dir_ / "foreign/" + flat(3), storage + "/" + flat(1));
  const std::string second_name = storage + "/" + flat(2);
  fs::create_hard_link(dir_ / "foreign/" + flat(3), second_name);
  auto tree = TreeOf(dir_.path());

  for (uint64_t id : {1, 2}) ExpectRange(*Open(), id, PutSegment(id, 9'000), 0, 9'000);
  const auto bounded = Open(1 << 20);
  for (uint64_t id = 3; id < 30; ++id) {
    ExpectRange(*bounded, id, PutSegment(id, 200'000), 0, 200'000);
  }
  EXPECT_FALSE(fs::exists(storage + "/" + flat(3))) << "nothing was evicted";

  tree.erase(second_name);  // which is one that the cache gives; the bytes have another name
  const auto after = TreeOf(dir_.path());
  for (const auto& [path, text] : tree) {
    EXPECT_TRUE(after.contains(path) && after.at(path) == text) << path;
  }
}

TEST_F(CachedStorageTest, AFolderThatOthersMayChangeOrThatItDidNotCreateIsRefused) {
  const auto folder_of = [&](const std::string& directory) {
    return fmt::format("{}/cairn-cache-{}", directory, ::geteuid());
  };
  const auto expect_refused = [&](const std::string& directory, const char* why) {
    const auto before = TreeOf(directory);
    CachedStorage storage(remote_, CacheOptions{.directory = directory});
    EXPECT_THAT(storage.CheckCache(), IsError(ErrorCode::kFailedPrecondition, why));
    const Bytes bytes = PutSegment(1, 10'000);
    ExpectRange(storage, 1, bytes, 0, 10'000);
    EXPECT_TRUE(TreeOf(directory) == before);
  };
  fs::create_directories(folder_of(dir_ / "foreign"));
  fs::permissions(folder_of(dir_ / "foreign"), fs::perms(0700));
  std::ofstream(folder_of(dir_ / "foreign") + "/file") << "x";
  expect_refused(dir_ / "foreign", "but other files");

  fs::create_directory(dir_ / "file");
  std::ofstream(folder_of(dir_ / "file")) << "x";
  expect_refused(dir_ / "file", "needs this name");

  fs::create_directory(dir_ / "link");
  fs::create_directory(dir_ / "target");
  fs::create_symlink(dir_ / "target", folder_of(dir_ / "link"));
  expect_refused(dir_ / "link", "needs this name");

  CAIRN_ASSERT_OK(CachedStorage(remote_, {.directory = dir_ / "open"}).CheckCache());
  fs::permissions(folder_of(dir_ / "open"), fs::perms(0750));
  expect_refused(dir_ / "open", "mode 0750 and not 0700");

  CAIRN_ASSERT_OK(CachedStorage(remote_, {.directory = dir_ / "inside"}).CheckCache());
  for (const auto& entry : fs::directory_iterator(folder_of(dir_ / "inside"))) {
    if (entry.is_directory()) fs::permissions(entry.path(), fs::perms(0755));
  }
  expect_refused(dir_ / "inside", "mode 0755 and not 0700");

  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a folder to another user";
  CAIRN_ASSERT_OK(CachedStorage(remote_, {.directory = dir_ / "other"}).CheckCache());
  ASSERT_EQ(::chown(folder_of(dir_ / "other").c_str(), 12'345, 12'345), 0);
  expect_refused(dir_ / "other", "belongs to another user");
}

TEST_F(CachedStorageTest, ItsFoldersAreForOneUserWhateverTheMaskIs) {
  const mode_t mask = ::umask(0);
  const Bytes bytes = PutSegment(1, 10'000);
  ExpectRange(*Open(), 1, bytes, 0, 10'000);
  ::umask(mask);
  for (const auto& entry : fs::recursive_directory_iterator(dir_.path())) {
    EXPECT_EQ(entry.status().permissions() & fs::perms(077), fs::perms::none) << entry.path();
  }
}

TEST_F(CachedStorageTest, RemovingAnObjectFreesItsSpace) {
  PutSegment(1, 1 << 20);
  const auto storage = Open();
  Bytes target(1 << 20);
  CAIRN_ASSERT_OK(storage->ReadRange(SegmentName(1), 0, target));
  EXPECT_GE(AllocatedBytes(), 1u << 20);
  CAIRN_ASSERT_OK(storage->Remove(SegmentName(1)));
  EXPECT_THAT(Files(".seg"), IsEmpty());
  EXPECT_THAT(storage->ReadRange(SegmentName(1), 0, target), IsError(ErrorCode::kNotFound, "seg"));
}

TEST_F(CachedStorageTest, ADirectoryThatCannotBeCreatedIsBypassed) {
  std::ofstream(dir_ / "file") << "not a directory";
  const Bytes bytes = PutSegment(1, 10'000);
  CachedStorage storage(remote_, CacheOptions{.directory = dir_ / "file"});
  for (int i = 0; i < 3; ++i) ExpectRange(storage, 1, bytes, 0, 10'000);
  EXPECT_THAT(remote_->Calls(), SizeIs(3));
}

}  // namespace
}  // namespace cairn::kv::internal
