// Chooses the conditions of a schedule, and records what happens.

#include "tests/simulation/world.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>

#include "kv/storage/internal/object_names.h"

namespace cairn::simulation {
namespace {

constexpr size_t kKeptLines = 400;

template <size_t count>
int64_t OneOf(Scheduler& scheduler, const std::array<int64_t, count>& values) {
  return values[scheduler.Between(0, count - 1)];
}

int64_t ChooseGrace(Scheduler& scheduler) {
  return OneOf<4>(scheduler, {0, 2 * kSecondNs, 20 * kSecondNs, 60 * kSecondNs});
}

/// Most schedules have tensors of less than a page, some have tensors of two pages.
kv::testing::SampleShape ChooseShape(Scheduler& scheduler) {
  if (scheduler.Chance(0.1)) return {.tensor_count = 3, .largest_bytes = 170'000};
  return {.tensor_count = 3, .largest_bytes = 900};
}

Conditions ChooseConditions(Scheduler& scheduler) {
  Conditions conditions;
  conditions.latency_ns = OneOf<3>(scheduler, {1, 10, 60}) * kMillisecondNs;
  conditions.slow_chance = scheduler.Chance(0.5) ? 0.01 : 0;
  conditions.slow_ns = OneOf<3>(scheduler, {1, 10, 40}) * kSecondNs;
  constexpr double kFaultChances[] = {0, 0.002, 0.01, 0.05};
  conditions.fault_chance = kFaultChances[scheduler.Between(0, 3)];
  if (conditions.fault_chance > 0 && scheduler.Chance(0.5)) {
    conditions.late_chance = scheduler.Chance(0.5) ? 0.01 : 0.05;
  }
  conditions.outage_chance = conditions.fault_chance > 0 && scheduler.Chance(0.3) ? 0.002 : 0;
  conditions.outage_ns = OneOf<3>(scheduler, {200, 2'000, 20'000}) * kMillisecondNs;
  conditions.pause_chance = scheduler.Chance(0.6) ? 0.003 : 0;
  conditions.pause_ns = OneOf<3>(scheduler, {5, 40, 200}) * kSecondNs;
  conditions.listing_delay_ns = OneOf<3>(scheduler, {0, 0, 700}) * kMillisecondNs;
  conditions.listings_are_current = conditions.listing_delay_ns == 0 && scheduler.Chance(0.5);
  conditions.small_requests = scheduler.Chance(0.5) ? 1 : 4;
  return conditions;
}

}  // namespace

void Trace::Add(int64_t time_ns, const Process& process, const std::string& text) {
  if (!violation_.empty()) return;
  lines_.push_back(fmt::format("{:12.6f} {} {}",
                               static_cast<double>(time_ns % (100'000 * kSecondNs)) / 1e9,
                               process.name, text));
  for (const char c : lines_.back()) {
    hash_ = (hash_ ^ static_cast<unsigned char>(c)) * 1'099'511'628'211u;
  }
  if (lines_.size() > kKeptLines) lines_.pop_front();
}

void Trace::Fail(const std::string& violation) {
  if (violation_.empty()) violation_ = violation;
}

std::string Trace::End() const {
  std::string text;
  for (const std::string& line : lines_) text += line + "\n";
  return text;
}

World::World(uint64_t seed)
    : scheduler_(seed),
      grace_ns_(ChooseGrace(scheduler_)),
      clock_error_ns_(scheduler_.Chance(0.3) ? 3 * kSecondNs : 0),
      shape_(ChooseShape(scheduler_)),
      network_(scheduler_, stores_.emplace_back(NewModel()), ChooseConditions(scheduler_),
               [this](const Process& process, const std::string& text) {
                 trace_.Add(scheduler_.now_ns(), process, text);
               }),
      archive_(scheduler_.Chance(0.3) ? std::make_unique<Archive>(*this) : nullptr) {}

Model World::NewModel() {
  return Model([this](const std::string& violation) { Fail(nullptr, violation); },
               grace_ns_ - 2 * clock_error_ns_);
}

Model& World::ModelOf(const kv::Store& store) {
  for (SimulatedStore& each : stores_) {
    const auto opened = kv::Store::Open(each.objects, kv::OpenMode::kRead, Options());
    if (opened && (*opened)->uuid() == store.uuid()) return each.model;
  }
  return model();
}

SimulatedStore& World::AddStore() {
  SimulatedStore& added = stores_.emplace_back(NewModel());
  using Change = std::function<void(State&, const kv::internal::Root&)>;
  const auto put = [&, writer = NextWriter()](uint64_t root, Change change) {
    const auto bytes = added.objects->Read(kv::internal::RootName(root), 1 << 30).value();
    Operation& operation = added.model.Begin({.name = "prepare",
                                              .writer = writer,
                                              .opens = root == 1,
                                              .apply = std::move(change),
                                              .begin_ns = scheduler_.now_ns()});
    added.model.RootPut(root, &operation, bytes);
  };
  const auto store = kv::Store::Open(added.objects, kv::OpenMode::kWrite, Options());
  CAIRN_CHECK(store.has_value());
  put(1, [](State&, const auto&) {});
  const uint64_t step = Between(1, 3);
  const uint64_t version = NextVersion();
  CAIRN_CHECK(kv::testing::SaveSample(**store, Contents(step, version)).has_value());
  put(2, [&](State& state, const auto& root) { state.Save(step, version, root); });
  const uint64_t count = Between(2, Chance(0.5) ? 10 : 150);
  for (uint64_t root = 3; root <= count; ++root) {
    const bool compresses = root % 2 == 1;
    CAIRN_CHECK((*store)->SetCompression(compresses).has_value());
    put(root, [&](State& state, const auto&) { state.compresses = compresses; });
  }
  CAIRN_CHECK((*store)->Close().has_value());
  return added;
}

std::shared_ptr<SimulatedStorage> World::AddProcess(const std::string& name) {
  Process& process = scheduler_.AddProcess(name);
  process.clock_error_ns =
      static_cast<int64_t>(Between(0, 2 * static_cast<uint64_t>(clock_error_ns_))) -
      clock_error_ns_;
  process.is_dead = !trace_.violation().empty();
  storages_.push_back(std::make_shared<SimulatedStorage>(network_, process));
  return storages_.back();
}

kv::StoreOptions World::Options() const {
  return {.io = kv::IoOptions{.block_bytes = 64 << 10, .queue_depth = 2},
          .reader_cache = false,
          .grace = std::chrono::duration_cast<std::chrono::milliseconds>(
              std::chrono::nanoseconds(grace_ns_))};
}

void World::Fail(const SimulatedStorage* storage, const std::string& violation) {
  trace_.Fail(storage == nullptr ? violation
                                 : fmt::format("{}: {}", storage->process().name, violation));
  for (const auto& each : storages_) each->process().is_dead = true;
}

const kv::testing::SampleStep& World::Contents(uint64_t step, uint64_t version) {
  const auto [found, is_new] = contents_.try_emplace({step, version});
  if (is_new) found->second = kv::testing::MakeSample(step, version, shape_);
  return found->second;
}

}  // namespace cairn::simulation
