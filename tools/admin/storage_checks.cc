// The checks of storages, in the order of the table at the end.

#include "tools/admin/storage_checks.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <latch>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "kv/base/catch_exhaustion.h"
#include "kv/io/file_descriptor.h"
#include "kv/io/worker_pool.h"
#include "tools/common/quantities.h"

namespace cairn::tools {
namespace {

using std::chrono::steady_clock;

constexpr uint64_t kMaxObjectBytes = 64 << 20;
constexpr uint64_t kPageBytes = 4096;
constexpr uint64_t kFileBytes = 4 << 20;
constexpr uint64_t kLeastRounds = 20;  // also of a slow check
constexpr uint64_t kRacerCount = 6;
constexpr double kLongestLagSeconds = 20;
constexpr auto kPollInterval = std::chrono::milliseconds(5);

double SecondsSince(steady_clock::time_point begin) {
  return std::chrono::duration<double>(steady_clock::now() - begin).count();
}

/// Returns bytes that depend on the seed.
std::vector<std::byte> CheckBytes(uint64_t size_bytes, uint64_t seed) {
  std::vector<std::byte> bytes(size_bytes);
  // The increment of SplitMix64, for bytes that differ from seed to seed and from word to word.
  uint64_t word = (seed + 1) * 0x9e3779b97f4a7c15;
  for (uint64_t i = 0; i < size_bytes; i += sizeof(word)) {
    word += 0x9e3779b97f4a7c15;
    const uint64_t mixed = word ^ (word >> 29);
    std::memcpy(bytes.data() + i, &mixed, std::min<uint64_t>(sizeof(mixed), size_bytes - i));
  }
  return bytes;
}

/// Returns the storage of a racer, or of a round.
kv::Storage& Alternating(const CheckedStorages& storages, uint64_t number) {
  return number % 2 == 0 ? storages.first : storages.second;
}

/// Calls `run(i)` for the rounds i = 0, 1, ... until it returns false, all rounds are done, or the
/// deadline has passed after kLeastRounds. kCancelled: the user has asked to stop.
Result<void> ForEachRound(const CheckedStorages& storages,
                          const std::function<Result<bool>(uint64_t round)>& run) {
  for (uint64_t round = 0; round <= storages.rounds; ++round) {
    if (!storages.progress(round, storages.rounds)) {
      return Fail(ErrorCode::kCancelled, "interrupted");
    }
    const bool is_late = steady_clock::now() >= storages.deadline;
    if (round == storages.rounds || (is_late && round >= kLeastRounds)) break;
    CAIRN_TRY_ASSIGN(const bool more, run(round));
    if (!more) break;
  }
  return {};
}

// --- The operations of any storage, on objects that are written once

/// Small and large objects, and ranges of them, are read through both storages.
Result<CheckResult> CheckPutAndRead(const CheckedStorages& storages) {
  constexpr std::array<uint64_t, 5> kSizes = {0, 1, 4095, 4096, (1 << 20) + 1};
  for (const uint64_t size : kSizes) {
    const std::string name = fmt::format("objects/{}", size);
    const std::vector<std::byte> bytes = CheckBytes(size, size);
    CAIRN_TRY(storages.first.Put(name, bytes));
    for (kv::Storage* storage : {&storages.first, &storages.second}) {
      CAIRN_TRY_ASSIGN(const auto found, storage->Read(name, kMaxObjectBytes));
      if (found != bytes) {
        return CheckResult::Failed(fmt::format("an object of {} bytes differs", size));
      }
      std::vector<std::byte> range(size / 3);
      CAIRN_TRY(storage->ReadRange(name, size / 2, range));
      if (!std::ranges::equal(range, std::span(bytes).subspan(size / 2, range.size()))) {
        return CheckResult::Failed(fmt::format("a range of an object of {} bytes differs", size));
      }
      std::vector<std::byte> beyond(size + 1);
      const auto read = storage->ReadRange(name, 0, beyond);
      if (read || read.error().code != ErrorCode::kDataLoss) {
        return CheckResult::Failed("a read beyond the end of an object does not fail as it must");
      }
    }
  }
  const auto absent = storages.first.Size("objects/absent");
  if (absent || absent.error().code != ErrorCode::kNotFound) {
    return CheckResult::Failed("an absent object is not reported as absent");
  }
  CAIRN_TRY(storages.first.Remove("objects/absent"));
  return CheckResult::Ok("objects of 0 B to 1 MiB");
}

/// A large object that is written in pieces, as segments and tables are.
Result<CheckResult> CheckPieces(const CheckedStorages& storages) {
  constexpr uint64_t kPieceBytes = 1 << 20;
  constexpr uint64_t kPieceCount = 16;
  const std::vector<std::byte> bytes = CheckBytes(kPieceBytes * kPieceCount + 5, 7);
  CAIRN_TRY_ASSIGN(auto writer, storages.first.Create("pieces/whole"));
  for (uint64_t begin = 0; begin < bytes.size(); begin += kPieceBytes) {
    const uint64_t piece_bytes = std::min<uint64_t>(kPieceBytes, bytes.size() - begin);
    CAIRN_TRY(writer->Append(std::span(bytes).subspan(begin, piece_bytes)));
  }
  CAIRN_TRY(writer->Finish());
  for (kv::Storage* storage : {&storages.second, &storages.first}) {
    CAIRN_TRY_ASSIGN(const auto found, storage->Read("pieces/whole", kMaxObjectBytes));
    if (found != bytes) return CheckResult::Failed("an object that was written in pieces differs");
  }
  {
    CAIRN_TRY_ASSIGN(const auto discarded, storages.first.Create("pieces/discarded"));
    CAIRN_TRY(discarded->Append(std::span(bytes).first(kPieceBytes)));
  }
  CAIRN_TRY_ASSIGN(const bool remains, kv::ObjectExists(storages.first, "pieces/discarded"));
  if (remains) return CheckResult::Failed("an object that was not finished remains");
  return CheckResult::Ok(HumanBytes(bytes.size()));
}

/// The second of two puts is refused, and changes nothing.
Result<CheckResult> CheckPutIfAbsent(const CheckedStorages& storages) {
  constexpr uint64_t kRounds = 40;
  const std::vector<std::byte> bytes = CheckBytes(100, 1);
  for (uint64_t round = 0; round < kRounds; ++round) {
    const std::string name = fmt::format("absent/{}", round);
    CAIRN_TRY(Alternating(storages, round / 2).PutIfAbsent(name, bytes));
    const auto second = Alternating(storages, round).PutIfAbsent(name, CheckBytes(100, 2));
    if (second) return CheckResult::Failed("replaced an object that exists");
    if (second.error().code != ErrorCode::kConflict) return Fail(second.error());
    for (kv::Storage* storage : {&storages.first, &storages.second}) {
      CAIRN_TRY_ASSIGN(const auto found, storage->Read(name, kMaxObjectBytes));
      if (found != bytes) return CheckResult::Failed("a refused put has changed the object");
    }
  }
  return CheckResult::Ok("a second put of the same name is refused");
}

/// Runs `attempt(racer)` on kRacerCount threads that start together, and returns which of them
/// returned true: the winners.
Result<std::vector<bool>> Race(const std::function<Result<bool>(uint64_t racer)>& attempt) {
  std::array<Result<bool>, kRacerCount> results;
  CAIRN_TRY(kv::CatchExhaustion("the racers", [&]() -> Result<void> {
    std::latch start(1);
    std::vector<std::jthread> racers;
    // Before the racers are joined, also if not all of them can be started.
    const std::unique_ptr<std::latch, void (*)(std::latch*)> go(
        &start, [](std::latch* waiting) { waiting->count_down(); });
    for (uint64_t racer = 0; racer < kRacerCount; ++racer) {
      racers.emplace_back([&, racer] {
        start.wait();
        results[racer] = attempt(racer);
      });
    }
    return {};
  }));
  std::vector<bool> won;
  for (const Result<bool>& result : results) {
    CAIRN_TRY_ASSIGN(const bool has_won, result);
    won.push_back(has_won);
  }
  return won;
}

std::vector<std::byte> ContentsOf(uint64_t racer) { return CheckBytes(256, 1000 + racer); }

/// Several racers, half of them on each storage, create the same name at the same time. Exactly one
/// may win, and the object must have its contents, which are ContentsOf(racer).
Result<CheckResult> CheckRaces(
    const CheckedStorages& storages, std::string_view folder,
    const std::function<Result<bool>(kv::Storage&, uint64_t racer, const std::string& name)>&
        attempt) {
  uint64_t rounds = 0;
  uint64_t several_winners = 0;
  uint64_t wrong_contents = 0;
  CAIRN_TRY(ForEachRound(storages, [&](uint64_t round) -> Result<bool> {
    ++rounds;
    const std::string name = fmt::format("{}/{}", folder, round);
    CAIRN_TRY_ASSIGN(const auto won, Race([&](uint64_t racer) {
                       return attempt(Alternating(storages, racer), racer, name);
                     }));
    CAIRN_TRY_ASSIGN(const auto found, storages.first.Read(name, kMaxObjectBytes));
    CAIRN_TRY_ASSIGN(const auto other, storages.second.Read(name, kMaxObjectBytes));
    const auto winners = std::ranges::count(won, true);
    uint64_t author = 0;
    while (author < kRacerCount && found != ContentsOf(author)) ++author;
    if (winners > 1) ++several_winners;
    // A call whose response was lost wins without knowing it, but its bytes are there.
    const bool is_known = author < kRacerCount && (winners == 0 || won[author]);
    if (found != other || (winners <= 1 && !is_known)) ++wrong_contents;
    return true;
  }));
  if (several_winners + wrong_contents == 0) {
    return CheckResult::Ok(
        fmt::format("one winner in {} rounds of {} racers", rounds, kRacerCount));
  }
  return CheckResult::Failed(fmt::format(
      "several winners in {} of {}, contents that are not the winner's in {}, {} racers",
      several_winners, Plural(rounds, "round"), wrong_contents, kRacerCount));
}

/// The put that commits.
Result<CheckResult> CheckPutRaces(const CheckedStorages& storages) {
  return CheckRaces(
      storages, "races",
      [](kv::Storage& storage, uint64_t racer, const std::string& name) -> Result<bool> {
        const auto put = storage.PutIfAbsent(name, ContentsOf(racer));
        if (!put && put.error().code != ErrorCode::kConflict) return Fail(put.error());
        return put.has_value();
      });
}

/// How long a durable put takes; the commit of a step needs several.
Result<CheckResult> CheckSyncTime(const CheckedStorages& storages) {
  constexpr uint64_t kPuts = 51;
  std::vector<double> seconds;
  for (uint64_t i = 0; i < kPuts; ++i) {
    const auto begin = steady_clock::now();
    CAIRN_TRY(storages.first.Put(fmt::format("sync/{}", i), CheckBytes(4096, i)));
    seconds.push_back(SecondsSince(begin));
  }
  std::ranges::sort(seconds);
  return CheckResult::Ok(fmt::format("4 KiB in {} (median of {}), {} at most",
                                     HumanSeconds(seconds[kPuts / 2]), kPuts,
                                     HumanSeconds(seconds.back())));
}

// --- What one machine sees of the changes that another one has made, and when

/// Returns whether `storage` has the object, by its size or by a read of its first byte.
Result<bool> Sees(kv::Storage& storage, const std::string& name, bool by_size) {
  if (by_size) return kv::ObjectExists(storage, name);
  std::byte first;
  const auto read = storage.ReadRange(name, 0, {&first, 1});
  if (read) return true;
  if (read.error().code == ErrorCode::kNotFound) return false;
  return Fail(read.error());
}

/// A name that the reader has found to be absent exists for it as soon as it was put: it finds the
/// next root in this way. If `removes`, an object that the reader has seen is absent for it as soon
/// as it was removed.
Result<CheckResult> CheckVisibility(const CheckedStorages& storages, bool removes) {
  uint64_t rounds = 0;
  uint64_t late = 0;
  double longest_seconds = 0;
  CAIRN_TRY(ForEachRound(storages, [&](uint64_t round) -> Result<bool> {
    kv::Storage& writer = Alternating(storages, round);
    kv::Storage& reader = Alternating(storages, round + 1);
    const std::string name = fmt::format("{}/{}", removes ? "removed" : "visible", round);
    const bool by_size = round % 4 < 2;
    if (removes) CAIRN_TRY(writer.PutIfAbsent(name, CheckBytes(64, 1)));
    CAIRN_TRY_ASSIGN(const bool early, Sees(reader, name, by_size));
    if (!removes) {
      if (early) return Fail(ErrorCode::kUnavailable, "an object exists that was not put");
      CAIRN_TRY(writer.PutIfAbsent(name, CheckBytes(64, 1)));
    } else {
      CAIRN_TRY(writer.Remove(name));
    }
    ++rounds;
    const auto begin = steady_clock::now();
    CAIRN_TRY_ASSIGN(bool sees, Sees(reader, name, by_size));
    if (sees != removes) return true;
    ++late;
    while (sees == removes && SecondsSince(begin) < kLongestLagSeconds) {
      std::this_thread::sleep_for(kPollInterval);
      CAIRN_TRY_ASSIGN(sees, Sees(reader, name, by_size));
    }
    longest_seconds = std::max(longest_seconds, SecondsSince(begin));
    return late < 5;  // on a bad file system each round takes long
  }));
  if (late == 0) return CheckResult::Ok(fmt::format("in {} rounds", rounds));
  return CheckResult::Failed(
      fmt::format("{} in {} of {}, for up to {}{}",
                  removes ? "a removed object was found" : "a new object was not found", late,
                  Plural(rounds, "round"), longest_seconds < kLongestLagSeconds ? "" : "more than ",
                  HumanSeconds(longest_seconds)));
}

constexpr uint64_t kVersionBytes = 64 << 10;
constexpr std::string_view kReplacedName = "replaced/object";

std::vector<std::byte> VersionBytes(uint64_t version) {
  std::vector<std::byte> bytes(kVersionBytes);
  for (uint64_t i = 0; i < bytes.size(); i += sizeof(version)) {
    std::memcpy(bytes.data() + i, &version, sizeof(version));
  }
  return bytes;
}

/// Counts what readers find while an object is replaced.
struct ReplaceCount {
  std::atomic<uint64_t> acknowledged = 0;  // the version that every reader must see at least
  std::atomic<bool> stopped = false;
  std::atomic<uint64_t> reads = 0, torn = 0, stale = 0, errors = 0;

  void ReadOnce(kv::Storage& storage) {
    const uint64_t least = acknowledged;
    std::vector<std::byte> bytes(kVersionBytes);
    ++reads;
    if (!storage.ReadRange(kReplacedName, 0, bytes)) {
      ++errors;
      return;
    }
    uint64_t version = 0;
    std::memcpy(&version, bytes.data(), sizeof(version));
    if (bytes != VersionBytes(version)) {
      ++torn;
    } else if (version < least) {
      ++stale;
    }
  }
  CheckResult Describe() const {
    const std::string counts =
        fmt::format("{} during {} replacements", Plural(reads, "read"), acknowledged.load());
    if (torn + stale + errors == 0) return CheckResult::Ok(counts);
    return CheckResult::Failed(
        fmt::format("{}: {} mixed two versions, {} returned an old one, {} failed", counts,
                    torn.load(), stale.load(), errors.load()));
  }
};

/// Readers see the old or the new object, and the new one as soon as it was put.
Result<CheckResult> CheckReplacements(const CheckedStorages& storages) {
  ReplaceCount count;
  CAIRN_TRY(storages.first.Put(kReplacedName, VersionBytes(0)));
  const auto run = [&]() -> Result<void> {
    std::vector<std::jthread> readers;
    // Before the readers are joined, also if not all of them can be started.
    const std::unique_ptr<ReplaceCount, void (*)(ReplaceCount*)> stop(
        &count, [](ReplaceCount* running) { running->stopped = true; });
    for (kv::Storage* storage : {&storages.first, &storages.second}) {
      readers.emplace_back([&count, storage] {
        while (!count.stopped) count.ReadOnce(*storage);
      });
    }
    return ForEachRound(storages, [&](uint64_t round) -> Result<bool> {
      const uint64_t version = round + 1;
      CAIRN_TRY(Alternating(storages, version).Put(kReplacedName, VersionBytes(version)));
      count.acknowledged = version;
      count.ReadOnce(Alternating(storages, version + 1));
      return true;
    });
  };
  CAIRN_TRY(kv::CatchExhaustion("the readers", run));
  return count.Describe();
}

/// Returns how long it takes until `storage` lists exactly `names`, which ascend; nothing if it
/// never does.
Result<std::optional<double>> AwaitListing(kv::Storage& storage,
                                           const std::vector<std::string>& names) {
  const auto begin = steady_clock::now();
  double lag_seconds = 0;
  while (true) {
    CAIRN_TRY_ASSIGN(auto found, storage.List("listing/"));
    std::ranges::sort(found);
    if (std::ranges::adjacent_find(found) != found.end()) {
      return Fail(ErrorCode::kUnavailable, "a listing contains a name twice");
    }
    if (found == names) return lag_seconds;
    if (lag_seconds > kLongestLagSeconds) return std::nullopt;
    std::this_thread::sleep_for(kPollInterval);
    lag_seconds = SecondsSince(begin);
  }
}

/// Runs `change(name)` for all names on several threads.
Result<void> ChangeAll(const std::vector<std::string>& names,
                       const std::function<Result<void>(const std::string&)>& change) {
  return kv::RunOnThreads(
      names.size(), "the changes", [&](size_t i) { return change(names[i]); }, 8);
}

/// A long listing is complete, if need be after a while.
Result<CheckResult> CheckListing(const CheckedStorages& storages) {
  std::vector<std::string> names;
  for (uint64_t i = 0; i < storages.rounds * 5; ++i) {
    names.push_back(fmt::format("listing/object-with-a-long-name-{:012}.root", i));
  }
  CAIRN_TRY(ChangeAll(names, [&](const std::string& name) {
    return storages.first.PutIfAbsent(name, CheckBytes(16, 1));
  }));
  CAIRN_TRY_ASSIGN(const auto put_seconds, AwaitListing(storages.second, names));
  if (!put_seconds) return CheckResult::Failed("a listing remains incomplete");
  CAIRN_TRY(ChangeAll(names, [&](const std::string& name) { return storages.first.Remove(name); }));
  CAIRN_TRY_ASSIGN(const auto remove_seconds, AwaitListing(storages.second, {}));
  if (!remove_seconds) {
    return CheckResult::Failed("a listing contains names that were removed");
  }
  const double lag_seconds = std::max(*put_seconds, *remove_seconds);
  if (lag_seconds == 0) return CheckResult::Ok(Plural(names.size(), "name"));
  return CheckResult::Note(fmt::format("{}, complete after {}, which Cairn allows",
                                       Plural(names.size(), "name"), HumanSeconds(lag_seconds)));
}

// --- The files of a directory, which stores use without the operations of a storage

Result<kv::FileDescriptor> Open(const std::string& path, int flags) {
  kv::FileDescriptor file(::open(path.c_str(), flags | O_CLOEXEC, 0666));
  if (!file.is_open()) return Fail(SystemError(errno, "cannot open", path));
  return file;
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

/// Creates a file with O_DIRECT through the first storage and makes it durable, in the way of
/// segments. Requires the length of a page or a multiple of it.
Result<void> CreateDirectly(const CheckedStorages& storages, const std::string& name,
                            std::span<const std::byte> bytes) {
  kv::LocalFiles& files = *storages.first.local_files();
  CAIRN_TRY(files.PrepareFile(name));
  const std::string path = PathOf(storages.first, name);
  CAIRN_TRY_ASSIGN(const auto file, Open(path, O_WRONLY | O_CREAT | O_EXCL | O_DIRECT));
  const ssize_t written = ::write(file.get(), bytes.data(), bytes.size());
  if (written != static_cast<ssize_t>(bytes.size())) {
    return Fail(SystemError(written < 0 ? errno : EIO, "cannot write", path));
  }
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
    CAIRN_TRY(Alternating(storages, racer).Put(source(racer), ContentsOf(racer)));
  }
  return CheckRaces(
      storages, "links",
      [&](kv::Storage& storage, uint64_t racer, const std::string& name) -> Result<bool> {
        const std::string path = PathOf(storage, name);
        if (::link(PathOf(storage, source(racer)).c_str(), path.c_str()) == 0) return true;
        if (errno == EEXIST) return false;
        return Fail(SystemError(errno, "cannot link", path));
      });
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
  const Result<void> written = CreateDirectly(storages, "direct/written", bytes);
  if (!written) {
    return CheckResult::Note("refused, so Cairn uses the page cache: " + written.error().message);
  }
  for (const int flags : {0, O_DIRECT}) {
    CAIRN_TRY_ASSIGN(const bool same, SecondReads(storages, "direct/written", flags, bytes));
    if (!same) return CheckResult::Failed("bytes written with O_DIRECT differ");
  }
  CAIRN_TRY(storages.first.Put("direct/cached", bytes));
  CAIRN_TRY_ASSIGN(const bool same, SecondReads(storages, "direct/cached", O_DIRECT, bytes));
  if (!same) return CheckResult::Failed("bytes read with O_DIRECT differ");
  return CheckResult::Ok("supported");
}

Result<CheckResult> CheckMapping(const CheckedStorages& storages) {
  const std::vector<std::byte> bytes = CheckBytes(kFileBytes, 4);
  CAIRN_TRY(storages.first.Put("mapped/file", bytes));
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
  CAIRN_TRY(storages.first.Put("open/file", bytes));
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

constexpr bool kNeedsFiles = true;
constexpr std::array kChecks = {
    StorageCheck{"put and read", CheckPutAndRead},
    StorageCheck{"put in pieces", CheckPieces},
    StorageCheck{"put if absent", CheckPutIfAbsent},
    StorageCheck{"put if absent, raced", CheckPutRaces},
    StorageCheck{"durable put", CheckSyncTime},
    StorageCheck{"puts are visible",
                 [](const CheckedStorages& storages) { return CheckVisibility(storages, false); }},
    StorageCheck{"removals are visible",
                 [](const CheckedStorages& storages) { return CheckVisibility(storages, true); }},
    StorageCheck{"replace atomically", CheckReplacements},
    StorageCheck{"list", CheckListing},
    StorageCheck{"link, raced", CheckLinkRaces, kNeedsFiles},
    StorageCheck{"directory sync", CheckDirectorySync, kNeedsFiles},
    StorageCheck{"direct I/O", CheckDirectIo, kNeedsFiles},
    StorageCheck{"memory mapping", CheckMapping, kNeedsFiles},
    StorageCheck{"read after removal", CheckReadAfterRemoval, kNeedsFiles},
};

}  // namespace

std::span<const StorageCheck> StorageChecks() { return kChecks; }

}  // namespace cairn::tools
