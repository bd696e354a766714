#pragma once
/// Entries and roots for the tests of roots.

#include <fmt/format.h>

#include <cstddef>
#include <memory>
#include <random>
#include <utility>

#include "kv/root/internal/kv_records.h"
#include "kv/root/internal/root_record.h"

namespace cairn::kv::testing {

/// Returns an entry with `table_count` tables, `segment_count` segments, and random numbers.
inline internal::StepEntry SampleEntry(uint64_t step, uint64_t generation, std::mt19937_64& random,
                                       size_t table_count = 3, size_t segment_count = 2) {
  internal::StepEntry entry;
  entry.info = {.step = step,
                .generation = generation,
                .created_unix_ns = 1'700'000'000'000'000'000 +
                                   static_cast<int64_t>((generation << 34) + (random() >> 30)),
                .world_size = 8,
                .attempt = fmt::format("0123456789abcdef-{}-{}", step, generation),
                .base_step = std::nullopt,
                .tensor_count = 700,
                .value_count = 20,
                .chunk_count = 5000 + random() % 16,
                .reused_chunk_count = random() % 5000,
                .logical_bytes = 1ull << 33,
                .written_bytes = random() >> 32,
                .structure = {.lo = random(), .hi = random()}};
  if (step % 2 == 1) entry.info.base_step = step - 1;
  for (size_t i = 0; i < table_count; ++i) {
    entry.tables.push_back({.id = {.epoch = 3, .id = random(), .id_tail = 5},
                            .file_bytes = random() >> 44,
                            .record_count = random() >> 50,
                            .digest = random()});
  }
  for (size_t i = 0; i < segment_count; ++i) {
    entry.usage.push_back(
        {.segment = {.epoch = 3, .id = random(), .id_tail = 7}, .live_bytes = random() >> 34});
  }
  return entry;
}

inline internal::StepEntryPtr Shared(internal::StepEntry entry) {
  return std::make_shared<const internal::StepEntry>(std::move(entry));
}

/// Returns root `number` without steps, of a writer since 2026-01-31 12:00:00 UTC. It names a
/// predecessor that does not exist.
inline internal::Root EmptyRoot(uint64_t number, uint32_t epoch = 1) {
  internal::Root root;
  root.number = number;
  root.commit_id = internal::NewUuid();
  if (number > 1) root.predecessor = internal::NewUuid();
  root.store_uuid.fill(std::byte{7});
  root.epoch = epoch;
  root.writer = {
      .host = "node1", .pid = 17, .session = "s", .since_unix_ns = 1'769'860'800'000'000'000};
  root.created_unix_ns = 1'700'000'000'000'000'000;
  return root;
}

/// Returns the root that follows `last`; root 1 if that is number 0.
inline internal::Root RootAfter(const internal::Root& last) {
  internal::Root root = EmptyRoot(last.number + 1);
  if (root.number > 1) root.predecessor = last.commit_id;
  return root;
}

/// Returns whether all fields are equal.
inline bool Same(const internal::StepEntry& a, const internal::StepEntry& b) {
  return a.tables == b.tables && a.usage == b.usage && a.usage_in_tables == b.usage_in_tables &&
         internal::EncodeStep(a.info) == internal::EncodeStep(b.info);
}

}  // namespace cairn::kv::testing
