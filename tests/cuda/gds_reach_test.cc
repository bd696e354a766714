// The storage that cuFile supports: types of file systems, and disks in sysfs.

#include "cuda/internal/gds_reach.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <tuple>

#include "tests/support/result_matchers.h"
#include "tests/support/scoped_temp_dir.h"

namespace cairn::cuda::internal {
namespace {

constexpr uint64_t kExt4 = 0xEF53;
constexpr uint64_t kXfs = 0x58465342;

class GdsReachTest : public ::testing::Test {
 protected:
  // Creates, as in /sys, the folder of a disk and the device number that links to it.
  void AddDisk(const std::string& folder, unsigned minor_number) {
    const std::filesystem::path path = root() / "devices" / folder;
    std::filesystem::create_directories(path);
    std::filesystem::create_directories(root() / "dev" / "block");
    std::filesystem::create_directory_symlink(
        path, root() / "dev" / "block" / fmt::format("8:{}", minor_number));
  }
  void Put(const std::string& file, const std::string& text) {
    std::filesystem::create_directories((root() / "devices" / file).parent_path());
    std::ofstream(root() / "devices" / file) << text << "\n";
  }
  void AddSlave(const std::string& array, const std::string& disk) {
    const std::filesystem::path slaves = root() / "devices" / array / "slaves";
    std::filesystem::create_directories(slaves);
    std::filesystem::create_directory_symlink(root() / "devices" / disk,
                                              slaves / std::filesystem::path(disk).filename());
  }
  Result<unsigned> Flags(uint64_t file_system, unsigned minor_number = 0) {
    return FlagsThatServe({.file_system = file_system, .device = makedev(8, minor_number)},
                          dir_.path());
  }
  std::filesystem::path root() const { return dir_.path(); }

  const testing::ScopedTempDir dir_;
};

TEST_F(GdsReachTest, LocalFileSystemsHaveTheFlagsOfTheirDisks) {
  AddDisk("pci/nvme/nvme0n1", 1);
  AddDisk("pci/nvme/nvme0n1/nvme0n1p2", 2);
  Put("pci/nvme/nvme0n1/nvme0n1p2/partition", "2");
  AddDisk("pci/virtio1/block/vda", 3);
  AddDisk("virtual/block/dm-0", 4);
  AddDisk("pci/host0/block/sda", 5);
  for (const uint64_t file_system : {kExt4, kXfs}) {
    for (const unsigned number : {1, 2}) {
      CAIRN_ASSERT_OK_AND_ASSIGN(const unsigned flags, Flags(file_system, number));
      EXPECT_EQ(flags, 1u << 4 | 1u << 5 | 1u << 11);
    }
    CAIRN_ASSERT_OK_AND_ASSIGN(const unsigned scsi, Flags(file_system, 5));
    EXPECT_EQ(scsi, 1u << 6);
    for (const unsigned number : {3, 4, 9}) {  // the last is not a disk
      const auto flags = Flags(file_system, number);
      ASSERT_FALSE(flags.has_value()) << number;
      EXPECT_EQ(flags.error().code, ErrorCode::kFailedPrecondition);
    }
  }
  EXPECT_EQ(Flags(kExt4, 3).error().message,
            "cuFile supports NVMe disks and some SCSI disks, not vda");
}

TEST_F(GdsReachTest, StripedArraysHaveTheFlagsOfTheirDisks) {
  AddDisk("pci/nvme/nvme0n1", 1);
  AddDisk("pci/nvme/nvme1n1", 2);
  AddDisk("pci/host0/block/sda", 3);
  for (const auto& [array, level, second, minor_number] :
       {std::tuple("virtual/block/md0", "raid0", "pci/nvme/nvme1n1", 10u),
        std::tuple("virtual/block/md1", "raid1", "pci/nvme/nvme1n1", 11u),
        std::tuple("virtual/block/md2", "raid0", "pci/host0/block/sda", 12u)}) {
    AddDisk(array, minor_number);
    Put(std::string(array) + "/md/level", level);
    AddSlave(array, "pci/nvme/nvme0n1");
    AddSlave(array, second);
    EXPECT_EQ(Flags(kXfs, minor_number).has_value(), minor_number == 10) << array;
  }
}

TEST_F(GdsReachTest, OtherFileSystemsAreKnownByTheirType) {
  EXPECT_EQ(Flags(0x0BD00BD0).value_or(0), 1u << 0);  // Lustre
  EXPECT_EQ(Flags(0x6969).value_or(0), 1u << 2);      // NFS
  EXPECT_EQ(Flags(0x47504653).value_or(0), 1u << 3);  // GPFS
  EXPECT_EQ(Flags(0x19830326).value_or(0), 1u << 9);  // BeeGFS
  const auto tmpfs = Flags(0x01021994);
  ASSERT_FALSE(tmpfs.has_value());
  EXPECT_NE(tmpfs.error().message.find("0x1021994"), std::string::npos);
}

TEST_F(GdsReachTest, FindsTheStorageOfAnOpenFile) {
  const int fd = ::open(dir_.path().c_str(), O_RDONLY | O_DIRECTORY);
  ASSERT_GE(fd, 0);
  CAIRN_ASSERT_OK_AND_ASSIGN(const FileStorage storage, FindStorage(fd));
  EXPECT_NE(storage.file_system, 0u);
  ::close(fd);
  EXPECT_FALSE(FindStorage(fd).has_value());
}

}  // namespace
}  // namespace cairn::cuda::internal
