// Checks of the files of a directory, which stores use without the operations of a storage.

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kv/io/file_descriptor.h"
#include "tools/admin/storage_checks.h"

namespace cairn::tools {
namespace {

constexpr uint64_t kPageBytes = 4096;
constexpr uint64_t kFileBytes = 4 << 20;

Result<kv::FileDescriptor> Open(const std::string& path, int flags) {
  kv::FileDescriptor file(::open(path.c_str(), flags | O_CLOEXEC, 0644));
  if (!file.is_open()) return Fail(SystemError(errno, "cannot open", path));
  return file;
}

Result<void> WriteAll(const kv::FileDescriptor& file, std::span<const std::byte> bytes,
                      const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(file.get(), bytes.data(), bytes.size());
    if (written <= 0) return Fail(SystemError(written < 0 ? errno : EIO, "cannot write", path));
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
  return {};
}

/// kDataLoss: the file ends before the range does.
Result<void> ReadAll(const kv::FileDescriptor& file, uint64_t offset_bytes,
                     std::span<std::byte> target, const std::string& path) {
  while (!target.empty()) {
    const ssize_t got =
        ::pread(file.get(), target.data(), target.size(), static_cast<off_t>(offset_bytes));
    if (got < 0) return Fail(SystemError(errno, "cannot read", path));
    if (got == 0) return Fail(ErrorCode::kDataLoss, "the file is too short: " + path);
    offset_bytes += static_cast<uint64_t>(got);
    target = target.subspan(static_cast<size_t>(got));
  }
  return {};
}

/// Memory for direct I/O. Ownership: frees itself.
struct AlignedBytes {
  std::unique_ptr<std::byte, decltype(&std::free)> memory{
      static_cast<std::byte*>(std::aligned_alloc(kPageBytes, kFileBytes)), &std::free};
  std::span<std::byte> bytes() const { return {memory.get(), kFileBytes}; }
};

std::string PathOf(const kv::Storage& storage, const std::string& name) {
  return fmt::format("{}/{}", storage.address(), name);
}

/// Creates a file through the first storage and makes it durable, in the way of segments.
Result<void> CreateFile(const CheckedStorages& storages, const std::string& name, int flags,
                        std::span<const std::byte> bytes) {
  kv::LocalFiles& files = *storages.first.local_files();
  CAIRN_TRY(files.PrepareFile(name));
  const std::string path = PathOf(storages.first, name);
  CAIRN_TRY_ASSIGN(const auto file, Open(path, O_WRONLY | O_CREAT | O_EXCL | flags));
  CAIRN_TRY(WriteAll(file, bytes, path));
  if (::fdatasync(file.get()) != 0) return Fail(SystemError(errno, "cannot sync", path));
  return files.SyncNames(name.substr(0, name.find('/') + 1));
}

/// Returns whether a read of the file through the second storage returns `bytes`.
Result<bool> SecondReads(const CheckedStorages& storages, const std::string& name, int flags,
                         std::span<const std::byte> bytes) {
  const std::string path = PathOf(storages.second, name);
  CAIRN_TRY_ASSIGN(const auto file, Open(path, O_RDONLY | flags));
  const AlignedBytes found;
  CAIRN_TRY(ReadAll(file, 0, found.bytes(), path));
  return std::ranges::equal(found.bytes(), bytes);
}

/// link() alone, which makes an object exist, so that the calls overlap more than in whole puts.
Result<CheckResult> CheckLinkRaces(const CheckedStorages& storages) {
  const auto source = [](uint64_t racer) { return fmt::format("links/racer-{}", racer); };
  for (uint64_t racer = 0; racer < kRacerCount; ++racer) {
    CAIRN_TRY(Alternating(storages, racer).Put(source(racer), CheckBytes(16, racer)));
  }
  RaceCount count;
  CAIRN_TRY(ForEachRound(storages, [&](uint64_t round) -> Result<bool> {
    ++count.rounds;
    const std::string name = fmt::format("links/{}", round);
    CAIRN_TRY_ASSIGN(const auto won, Race([&](uint64_t racer) -> Result<bool> {
                       const kv::Storage& storage = Alternating(storages, racer);
                       const std::string path = PathOf(storage, name);
                       if (::link(PathOf(storage, source(racer)).c_str(), path.c_str()) == 0) {
                         return true;
                       }
                       if (errno == EEXIST) return false;
                       return Fail(SystemError(errno, "cannot link", path));
                     }));
    const auto winners = std::ranges::count(won, true);
    if (winners > 1) ++count.several_winners;
    if (winners == 0) ++count.no_winner;
    return true;
  }));
  return count.Describe();
}

/// Without this, Cairn assumes that a synced file keeps its name.
Result<CheckResult> CheckDirectorySync(const CheckedStorages& storages) {
  const std::string path = storages.first.address();
  CAIRN_TRY_ASSIGN(const auto directory, Open(path, O_RDONLY | O_DIRECTORY));
  if (::fsync(directory.get()) == 0) return CheckResult::Ok("supported");
  if (errno != EINVAL) return Fail(SystemError(errno, "cannot sync the directory", path));
  return CheckResult::Note(
      "refused; a power failure of the server may lose the name of a synced file");
}

Result<CheckResult> CheckDirectIo(const CheckedStorages& storages) {
  const AlignedBytes memory;
  const std::span<std::byte> bytes = memory.bytes();
  std::ranges::copy(CheckBytes(kFileBytes, 3), bytes.begin());
  const Result<void> written = CreateFile(storages, "direct/written", O_DIRECT, bytes);
  if (!written) {
    return CheckResult::Note("refused, so Cairn uses the page cache: " + written.error().message);
  }
  for (const int flags : {0, O_DIRECT}) {
    CAIRN_TRY_ASSIGN(const bool same, SecondReads(storages, "direct/written", flags, bytes));
    if (!same) return CheckResult::Failed("bytes written with O_DIRECT differ");
  }
  CAIRN_TRY(CreateFile(storages, "direct/cached", 0, bytes));
  CAIRN_TRY_ASSIGN(const bool same, SecondReads(storages, "direct/cached", O_DIRECT, bytes));
  if (!same) return CheckResult::Failed("bytes read with O_DIRECT differ");
  return CheckResult::Ok("supported");
}

Result<CheckResult> CheckMapping(const CheckedStorages& storages) {
  const std::vector<std::byte> bytes = CheckBytes(kFileBytes, 4);
  CAIRN_TRY(CreateFile(storages, "mapped/file", 0, bytes));
  const std::string path = PathOf(storages.second, "mapped/file");
  CAIRN_TRY_ASSIGN(const auto file, Open(path, O_RDONLY));
  // The same call as in a load that maps.
  void* memory = ::mmap(nullptr, kFileBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE,
                        file.get(), 0);
  if (memory == MAP_FAILED) {
    return CheckResult::Note(fmt::format("refused, so loads cannot map: {}", std::strerror(errno)));
  }
  const bool same = std::memcmp(memory, bytes.data(), kFileBytes) == 0;
  (void)::munmap(memory, kFileBytes);  // can fail only with wrong arguments
  if (!same) return CheckResult::Failed("mapped bytes differ");
  return CheckResult::Ok("supported");
}

/// A reader that has a file open, which another machine removes.
Result<CheckResult> CheckReadAfterRemoval(const CheckedStorages& storages) {
  const std::vector<std::byte> bytes = CheckBytes(kFileBytes, 5);
  CAIRN_TRY(CreateFile(storages, "open/file", 0, bytes));
  const std::string path = PathOf(storages.second, "open/file");
  CAIRN_TRY_ASSIGN(const auto file, Open(path, O_RDONLY));
  std::vector<std::byte> found(bytes.size());
  CAIRN_TRY(ReadAll(file, 0, std::span(found).first(kPageBytes), path));
  CAIRN_TRY(storages.first.Remove("open/file"));
  // Not the bytes that the read above has brought into the cache.
  (void)::posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED);
  const auto read = ReadAll(file, 0, found, path);
  if (read && found == bytes) {
    return CheckResult::Ok("a file that a reader has open stays readable");
  }
  if (read) return CheckResult::Failed("a removed file has other bytes");
  return CheckResult::Note(
      "a removed file becomes unreadable for those who have it open; readers depend on the grace "
      "period");
}

constexpr std::array kChecks = {
    StorageCheck{"link, raced", CheckLinkRaces}, StorageCheck{"directory sync", CheckDirectorySync},
    StorageCheck{"direct I/O", CheckDirectIo}, StorageCheck{"memory mapping", CheckMapping},
    StorageCheck{"read after removal", CheckReadAfterRemoval}};

}  // namespace

std::span<const StorageCheck> FileChecks() { return kChecks; }

}  // namespace cairn::tools
