// Checks of the operations of any storage, on objects that are written once.

#include "tools/admin/storage_checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <barrier>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "kv/base/catch_exhaustion.h"
#include "tools/common/quantities.h"

namespace cairn::tools {
namespace {

constexpr uint64_t kMaxObjectBytes = 64 << 20;

/// Small and large objects, and ranges of them, are read through both storages.
Result<CheckResult> CheckPutAndRead(const CheckedStorages& storages) {
  constexpr std::array<uint64_t, 5> kSizes = {0, 1, 4095, 4096, (1 << 20) + 1};
  for (const uint64_t size : kSizes) {
    const std::string name = fmt::format("objects/{}", size);
    const std::vector<std::byte> bytes = CheckBytes(size, size);
    CAIRN_TRY(storages.first.Put(name, bytes));
    for (kv::Storage* storage : {&storages.first, &storages.second}) {
      CAIRN_TRY_ASSIGN(const auto found, storage->Read(name, kMaxObjectBytes));
      if (found != bytes)
        return CheckResult::Failed(fmt::format("an object of {} bytes differs", size));
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
  constexpr int kRounds = 10;
  const std::array<std::pair<kv::Storage*, kv::Storage*>, 3> orders = {
      std::pair(&storages.first, &storages.first), std::pair(&storages.first, &storages.second),
      std::pair(&storages.second, &storages.first)};
  for (int round = 0; round < kRounds; ++round) {
    for (size_t order = 0; order < orders.size(); ++order) {
      const auto [winner, loser] = orders[order];
      const std::string name = fmt::format("absent/{}-{}", round, order);
      const std::vector<std::byte> bytes = CheckBytes(100, 1);
      CAIRN_TRY(winner->PutIfAbsent(name, bytes));
      const auto second = loser->PutIfAbsent(name, CheckBytes(100, 2));
      if (second) return CheckResult::Failed("replaced an object that exists");
      if (second.error().code != ErrorCode::kConflict) return Fail(second.error());
      for (kv::Storage* storage : {winner, loser}) {
        CAIRN_TRY_ASSIGN(const auto found, storage->Read(name, kMaxObjectBytes));
        if (found != bytes) return CheckResult::Failed("a refused put has changed the object");
      }
    }
  }
  return CheckResult::Ok("a second put of the same name is refused");
}

/// The put that commits: several writers put the same name at the same time.
Result<CheckResult> CheckRaces(const CheckedStorages& storages) {
  RaceCount count;
  CAIRN_TRY(ForEachRound(storages, [&](uint64_t round) -> Result<bool> {
    ++count.rounds;
    const std::string name = fmt::format("races/{}", round);
    const auto contents = [](uint64_t racer) { return CheckBytes(256, 1000 + racer); };
    CAIRN_TRY_ASSIGN(const auto won, Race([&](uint64_t racer) -> Result<bool> {
                       const auto put =
                           Alternating(storages, racer).PutIfAbsent(name, contents(racer));
                       if (!put && put.error().code != ErrorCode::kConflict)
                         return Fail(put.error());
                       return put.has_value();
                     }));
    CAIRN_TRY_ASSIGN(const auto found, storages.first.Read(name, kMaxObjectBytes));
    CAIRN_TRY_ASSIGN(const auto other, storages.second.Read(name, kMaxObjectBytes));
    const auto winners = std::ranges::count(won, true);
    uint64_t author = 0;
    while (author < kRacerCount && found != contents(author)) ++author;
    if (winners > 1) ++count.several_winners;
    // A put whose response was lost wins without knowing it, but its bytes are there.
    const bool is_known = author < kRacerCount && (winners == 0 || won[author]);
    if (found != other || (winners <= 1 && !is_known)) ++count.wrong_contents;
    return true;
  }));
  return count.Describe();
}

/// How long a durable put takes; the commit of a step needs several.
Result<CheckResult> CheckSyncTime(const CheckedStorages& storages) {
  constexpr uint64_t kPuts = 51;
  std::vector<double> seconds;
  for (uint64_t i = 0; i < kPuts; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    CAIRN_TRY(storages.first.Put(fmt::format("sync/{}", i), CheckBytes(4096, i)));
    seconds.push_back(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  std::ranges::sort(seconds);
  return CheckResult::Ok(fmt::format("4 KiB in {} (median of {}), {} at most",
                                     HumanSeconds(seconds[kPuts / 2]), kPuts,
                                     HumanSeconds(seconds.back())));
}

constexpr std::array kChecks = {
    StorageCheck{"put and read", CheckPutAndRead}, StorageCheck{"put in pieces", CheckPieces},
    StorageCheck{"put if absent", CheckPutIfAbsent},
    StorageCheck{"put if absent, raced", CheckRaces}, StorageCheck{"durable put", CheckSyncTime}};

}  // namespace

std::span<const StorageCheck> ObjectChecks() { return kChecks; }

Result<void> ForEachRound(const CheckedStorages& storages,
                          const std::function<Result<bool>(uint64_t round)>& run) {
  for (uint64_t round = 0; round <= storages.rounds; ++round) {
    if (!storages.progress(round, storages.rounds)) {
      return Fail(ErrorCode::kCancelled, "interrupted");
    }
    const bool is_late = std::chrono::steady_clock::now() >= storages.deadline;
    if (round == storages.rounds || (is_late && round >= kLeastRounds)) break;
    CAIRN_TRY_ASSIGN(const bool more, run(round));
    if (!more) break;
  }
  return {};
}

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

CheckResult RaceCount::Describe() const {
  std::string text;
  const auto add = [&](uint64_t count, const char* what) {
    if (count == 0) return;
    text += fmt::format("{}{} in {} of {}", text.empty() ? "" : ", ", what, count,
                        Plural(rounds, "round"));
  };
  add(several_winners, "several winners");
  add(no_winner, "no winner");
  add(wrong_contents, "contents that are not the winner's");
  if (!text.empty()) return CheckResult::Failed(fmt::format("{}, {} racers", text, kRacerCount));
  return CheckResult::Ok(fmt::format("one winner in {} rounds of {} racers", rounds, kRacerCount));
}

Result<std::vector<bool>> Race(const std::function<Result<bool>(uint64_t racer)>& attempt) {
  std::array<Result<bool>, kRacerCount> results;
  std::barrier start(kRacerCount);
  CAIRN_TRY(kv::CatchExhaustion("the racers", [&]() -> Result<void> {
    std::vector<std::jthread> racers;
    try {
      for (uint64_t racer = 0; racer < kRacerCount; ++racer) {
        racers.emplace_back([&, racer] {
          start.arrive_and_wait();
          results[racer] = attempt(racer);
        });
      }
    } catch (...) {  // racers that have started wait for the others
      for (uint64_t missing = racers.size(); missing < kRacerCount; ++missing) {
        start.arrive_and_drop();
      }
      throw;
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

}  // namespace cairn::tools
