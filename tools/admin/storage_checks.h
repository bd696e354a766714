#pragma once
/// Checks of what Cairn requires of a storage (kv/storage/storage.h, docs/shared-file-systems.md).
///
/// Two machines are simulated by two mounts of one directory. A check that finds no violation does
/// not prove that there is none.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kv/base/error.h"
#include "kv/storage/storage.h"

namespace cairn::tools {

enum class CheckStatus : uint8_t {
  kOk,
  kNote,    // Cairn works, but users may want to know
  kFailed,  // Cairn requires this
};

struct CheckResult {
  CheckStatus status = CheckStatus::kOk;
  std::string detail;  // measurement or finding

  static CheckResult Ok(std::string detail) { return {CheckStatus::kOk, std::move(detail)}; }
  static CheckResult Note(std::string detail) { return {CheckStatus::kNote, std::move(detail)}; }
  static CheckResult Failed(std::string detail) {
    return {CheckStatus::kFailed, std::move(detail)};
  }
};

/// One storage as two machines see it. All objects belong to the checks.
struct CheckedStorages {
  kv::Storage& first;
  kv::Storage& second;
  uint64_t rounds = 200;
  std::chrono::steady_clock::time_point deadline;  // see ForEachRound
  /// Returns false to cancel. Called on the thread of the check.
  std::function<bool(uint64_t done, uint64_t total)> progress;
};

struct StorageCheck {
  const char* name;
  /// An error is a failure of the check, except for kCancelled and kResourceExhausted.
  Result<CheckResult> (*run)(const CheckedStorages&);
};

/// Checks of the operations of any storage.
std::span<const StorageCheck> ObjectChecks();

/// Calls `run(i)` for the rounds i = 0, 1, ... until it returns false, all rounds are done, or the
/// deadline has passed after kLeastRounds. kCancelled: the user has asked to stop.
inline constexpr uint64_t kLeastRounds = 20;
Result<void> ForEachRound(const CheckedStorages& storages,
                          const std::function<Result<bool>(uint64_t round)>& run);
/// Returns the storage of a racer, or of a round.
inline kv::Storage& Alternating(const CheckedStorages& storages, uint64_t number) {
  return number % 2 == 0 ? storages.first : storages.second;
}
/// Returns bytes that depend on the seed.
std::vector<std::byte> CheckBytes(uint64_t size_bytes, uint64_t seed);

/// Counts races and their winners.
struct RaceCount {
  uint64_t rounds = 0;
  uint64_t several_winners = 0;
  uint64_t no_winner = 0;
  uint64_t wrong_contents = 0;

  /// Returns what was found: "several winners in 3 of 200 rounds, 6 racers". It fails if there is
  /// anything but one winner in each round.
  CheckResult Describe() const;
};
/// Half of them use each storage.
inline constexpr uint64_t kRacerCount = 6;
/// Runs `attempt(racer)` on kRacerCount threads that start together, and returns the results.
/// `attempt` returns whether this racer has won.
Result<std::vector<bool>> Race(const std::function<Result<bool>(uint64_t racer)>& attempt);

// --- Checks of the files of a directory, which stores use without the operations of a storage

/// Requires that both storages have kv::LocalFiles.
std::span<const StorageCheck> FileChecks();

// --- Checks of what one machine sees of the changes that another one has made, and when

std::span<const StorageCheck> VisibilityChecks();

}  // namespace cairn::tools
