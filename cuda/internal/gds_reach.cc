// A table of file systems, and the names of disks in sysfs.

#include "cuda/internal/gds_reach.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>
#include <vector>

namespace cairn::cuda::internal {
namespace {

// CUfileDriverStatusFlags_t of cufile.h, which is not available in every build.
constexpr unsigned kLustre = 1u << 0;
constexpr unsigned kNfs = 1u << 2;
constexpr unsigned kGpfs = 1u << 3;
constexpr unsigned kNvme = 1u << 4 | 1u << 5 | 1u << 11;  // local, over fabrics, peer to peer
constexpr unsigned kScsi = 1u << 6;
constexpr unsigned kBeeGfs = 1u << 9;

struct Kind {
  uint64_t magic;
  unsigned flags;  // 0: the flags of its disks
};
constexpr std::array kKinds = {Kind{0xEF53, 0},            // ext4
                               Kind{0x58465342, 0},        // xfs
                               Kind{0x0BD00BD0, kLustre},  //
                               Kind{0x6969, kNfs},         //
                               Kind{0x47504653, kGpfs},    //
                               Kind{0x19830326, kBeeGfs}};

std::unexpected<Error> Unreachable(std::string why) {
  return Fail(ErrorCode::kFailedPrecondition, std::move(why));
}

std::string FirstLine(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

/// Returns the flags of the disk with this folder in sysfs. A partition has the flags of its disk.
Result<unsigned> FlagsOfDisk(std::filesystem::path disk) {
  std::error_code ignored;
  if (std::filesystem::exists(disk / "partition", ignored)) disk = disk.parent_path();
  const std::string name = disk.filename().string();
  if (name.starts_with("nvme")) return kNvme;
  if (name.starts_with("sd")) return kScsi;
  // RAID 0 is the only kind of array that cuFile supports.
  if (name.starts_with("md") && FirstLine(disk / "md" / "level") == "raid0") {
    unsigned flags = ~0u;
    for (const auto& slave : std::filesystem::directory_iterator(disk / "slaves", ignored)) {
      const auto target = std::filesystem::canonical(slave.path(), ignored);
      CAIRN_TRY_ASSIGN(const unsigned found, FlagsOfDisk(target));
      flags &= found;
    }
    if (flags != ~0u && flags != 0) return flags;
  }
  return Unreachable(fmt::format("cuFile supports NVMe disks and some SCSI disks, not {}", name));
}

}  // namespace

Result<FileStorage> FindStorage(int fd) {
  struct statfs system_status{};
  struct stat file_status{};
  if (::fstatfs(fd, &system_status) != 0 || ::fstat(fd, &file_status) != 0) {
    return Fail(SystemError(errno, "cannot query the file system"));
  }
  // f_type is signed, and sign-extended on some machines.
  return FileStorage{.file_system = static_cast<uint32_t>(system_status.f_type),
                     .device = file_status.st_dev};
}

Result<unsigned> FlagsThatServe(const FileStorage& storage, const std::string& sysfs) {
  const auto* const kind = std::ranges::find(kKinds, storage.file_system, &Kind::magic);
  if (kind == kKinds.end()) {
    return Unreachable(fmt::format("cuFile is not known to serve this type of file system (0x{:x})",
                                   storage.file_system));
  }
  if (kind->flags != 0) return kind->flags;
  std::error_code error;
  const auto disk = std::filesystem::canonical(
      fmt::format("{}/dev/block/{}:{}", sysfs, major(storage.device), minor(storage.device)),
      error);
  if (error) return Unreachable("the system does not report the disk of the file system");
  return FlagsOfDisk(disk);
}

}  // namespace cairn::cuda::internal
