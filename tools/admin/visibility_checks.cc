// Checks of what one machine sees of the changes that another one has made.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "kv/base/catch_exhaustion.h"
#include "kv/io/worker_pool.h"
#include "tools/admin/storage_checks.h"
#include "tools/common/quantities.h"

namespace cairn::tools {
namespace {

using std::chrono::steady_clock;

constexpr double kLongestLagSeconds = 20;
constexpr auto kPollInterval = std::chrono::milliseconds(5);

double SecondsSince(steady_clock::time_point begin) {
  return std::chrono::duration<double>(steady_clock::now() - begin).count();
}

/// The changes through one storage that a reader of the other sees.
struct LagCount {
  uint64_t rounds = 0;
  uint64_t late = 0;
  double longest_seconds = 0;

  CheckResult Describe(const char* what) const {
    if (late == 0) return CheckResult::Ok(fmt::format("in {} rounds", rounds));
    return CheckResult::Failed(fmt::format(
        "{} in {} of {}, for up to {}{}", what, late, Plural(rounds, "round"),
        longest_seconds < kLongestLagSeconds ? "" : "more than ", HumanSeconds(longest_seconds)));
  }

  /// Calls `is_visible` until it returns true, and counts the first answer. Returns whether another
  /// round is of use: on a bad file system each one takes long.
  Result<bool> Await(const std::function<Result<bool>()>& is_visible) {
    ++rounds;
    const auto begin = steady_clock::now();
    CAIRN_TRY_ASSIGN(bool visible, is_visible());
    if (visible) return true;
    ++late;
    while (!visible && SecondsSince(begin) < kLongestLagSeconds) {
      std::this_thread::sleep_for(kPollInterval);
      CAIRN_TRY_ASSIGN(visible, is_visible());
    }
    longest_seconds = std::max(longest_seconds, SecondsSince(begin));
    return late < 5;
  }
};

/// Returns whether `storage` has the object, by its size or by a read of its first byte.
Result<bool> Sees(kv::Storage& storage, const std::string& name, bool by_size) {
  if (by_size) return kv::ObjectExists(storage, name);
  std::byte first;
  const auto read = storage.ReadRange(name, 0, {&first, 1});
  if (read) return true;
  if (read.error().code == ErrorCode::kNotFound) return false;
  return Fail(read.error());
}

/// A name that the reader has found to be absent exists for it as soon as it was put. A reader
/// looks for the next root in this way.
Result<CheckResult> CheckPutsAreVisible(const CheckedStorages& storages) {
  LagCount count;
  CAIRN_TRY(ForEachRound(storages, [&](uint64_t round) -> Result<bool> {
    kv::Storage& reader = Alternating(storages, round + 1);
    const std::string name = fmt::format("visible/{}", round);
    const bool by_size = round % 4 < 2;
    CAIRN_TRY_ASSIGN(const bool early, Sees(reader, name, by_size));
    if (early) return Fail(ErrorCode::kUnavailable, "an object exists that was not put");
    CAIRN_TRY(Alternating(storages, round).PutIfAbsent(name, CheckBytes(64, 1)));
    return count.Await([&] { return Sees(reader, name, by_size); });
  }));
  return count.Describe("a new object was not found");
}

/// An object that the reader has seen is absent for it as soon as it was removed.
Result<CheckResult> CheckRemovalsAreVisible(const CheckedStorages& storages) {
  LagCount count;
  CAIRN_TRY(ForEachRound(storages, [&](uint64_t round) -> Result<bool> {
    kv::Storage& writer = Alternating(storages, round);
    kv::Storage& reader = Alternating(storages, round + 1);
    const std::string name = fmt::format("removed/{}", round);
    const bool by_size = round % 4 < 2;
    CAIRN_TRY(writer.PutIfAbsent(name, CheckBytes(64, 1)));
    CAIRN_TRY(Sees(reader, name, by_size));
    CAIRN_TRY(writer.Remove(name));
    return count.Await([&]() -> Result<bool> {
      CAIRN_TRY_ASSIGN(const bool sees, Sees(reader, name, by_size));
      return !sees;
    });
  }));
  return count.Describe("a removed object was found");
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

/// Returns how long it takes until `storage` lists exactly `names`; nothing if it never does.
Result<std::optional<double>> AwaitListing(kv::Storage& storage,
                                           const std::set<std::string>& names) {
  const auto begin = steady_clock::now();
  double lag_seconds = 0;
  while (true) {
    CAIRN_TRY_ASSIGN(const auto listed, storage.List("listing/"));
    const std::set<std::string> found(listed.begin(), listed.end());
    if (found.size() != listed.size()) {
      return Fail(ErrorCode::kUnavailable, "a listing contains a name twice");
    }
    if (found == names) return lag_seconds;
    if (lag_seconds > kLongestLagSeconds) return std::nullopt;
    std::this_thread::sleep_for(kPollInterval);
    lag_seconds = SecondsSince(begin);
  }
}

/// Runs `change(name)` for all names on several threads.
Result<void> ChangeAll(const std::set<std::string>& names,
                       const std::function<Result<void>(const std::string&)>& change) {
  const std::vector<std::string> list(names.begin(), names.end());
  std::atomic<size_t> next = 0;
  std::atomic<bool> failed = false;
  return kv::RunOnThreads(8, "the changes", [&](size_t) -> Result<void> {
    for (size_t i = next++; i < list.size() && !failed; i = next++) {
      Result<void> changed = change(list[i]);
      if (!changed) {
        failed = true;
        return changed;
      }
    }
    return {};
  });
}

/// A long listing is complete, if need be after a while.
Result<CheckResult> CheckListing(const CheckedStorages& storages) {
  std::set<std::string> names;
  for (uint64_t i = 0; i < storages.rounds * 5; ++i) {
    names.insert(fmt::format("listing/object-with-a-long-name-{:012}.root", i));
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

constexpr std::array kChecks = {StorageCheck{"puts are visible", CheckPutsAreVisible},
                                StorageCheck{"removals are visible", CheckRemovalsAreVisible},
                                StorageCheck{"replace atomically", CheckReplacements},
                                StorageCheck{"list", CheckListing}};

}  // namespace

std::span<const StorageCheck> VisibilityChecks() { return kChecks; }

}  // namespace cairn::tools
