// Requests, their faults, and listings.

#include "tests/simulation/simulated_storage.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "kv/root/internal/root_record.h"
#include "kv/state/internal/store_identity.h"
#include "kv/storage/internal/object_names.h"

namespace cairn::simulation {
namespace {

using kv::internal::CanHappen;
using kv::internal::ObjectPath;
using kv::internal::ParseRootName;
using kv::internal::StorageFaultName;
using kv::internal::StorageOperationName;

constexpr int64_t kMaxLateNs = 20 * kSecondNs;

/// Returns a delay whose average is about `mean_ns`.
int64_t RandomDelay(Scheduler& scheduler, int64_t mean_ns) {
  return static_cast<int64_t>(scheduler.Between(0, 2 * static_cast<uint64_t>(mean_ns)));
}

}  // namespace

Network::Network(Scheduler& scheduler, SimulatedStore& store, const Conditions& conditions,
                 Trace trace)
    : scheduler_(scheduler),
      store_(&store),
      conditions_(conditions),
      trace_(std::move(trace)),
      cables_(scheduler.AddProcess("network")) {}

void Network::Replace(SimulatedStore& store) {
  store_ = &store;
  changes_.clear();
  ++counts_.replaced_stores;
  Note(cables_, "replaces the store");
}

void Network::Calm() {
  conditions_.fault_chance = 0;
  conditions_.outage_chance = 0;
  conditions_.late_chance = 0;
  conditions_.pause_chance = 0;
  conditions_.slow_chance = 0;
}

void Network::NoteChange(std::string_view name, bool exists) {
  if (conditions_.listing_delay_ns == 0) return;
  const int64_t now_ns = scheduler_.now_ns();
  while (!changes_.empty() && changes_.front().time_ns + conditions_.listing_delay_ns < now_ns) {
    changes_.pop_front();
  }
  changes_.push_back({.time_ns = now_ns, .name = std::string(name), .exists = exists});
}

std::vector<std::string> Network::StaleListing(std::string_view prefix,
                                               std::vector<std::string> names) {
  // Some listings are current, and some know none of the latest changes.
  const double chance = static_cast<double>(scheduler_.Between(0, 2)) / 2;
  if (changes_.empty() || chance == 0) return names;
  std::set<std::string> shown(names.begin(), names.end());
  const int64_t limit_ns = scheduler_.now_ns() - conditions_.listing_delay_ns;
  for (const Change& change : changes_) {
    if (change.time_ns < limit_ns || !change.name.starts_with(prefix)) continue;
    if (!scheduler_.Chance(chance)) continue;
    change.exists ? (void)shown.erase(change.name) : (void)shown.insert(change.name);
  }
  std::vector<std::string> stale(shown.begin(), shown.end());
  if (stale != names) ++counts_.stale_listings;
  return stale;
}

void Network::PerformLater(std::function<void()> change) {
  ++late_count_;
  const auto delay_ns = static_cast<int64_t>(scheduler_.Between(0, kMaxLateNs));
  scheduler_
      .Spawn(cables_,
             [this, delay_ns, store = store_, change = std::move(change)] {
               scheduler_.SleepFor(delay_ns);
               SimulatedStore* const now = std::exchange(store_, store);
               change();
               store_ = now;
               --late_count_;
             })
      .is_detached = true;
}

SimulatedStorage::SimulatedStorage(Network& network, Process& process)
    : network_(network), process_(process) {}

/// Collects the pieces, of which a torn object lacks the end.
class SimulatedStorage::Writer final : public kv::ObjectWriter {
 public:
  Writer(SimulatedStorage& storage, std::string_view name) : storage_(storage), name_(name) {}

  Result<void> Append(std::span<const std::byte> bytes) override {
    return storage_.Call(Kind::kAppend, name_, [&](bool) -> Result<void> {
      bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
      return {};
    });
  }
  Result<void> Finish() override {
    return storage_.Change(
        Kind::kFinish, name_,
        [&network = storage_.network_, name = name_, bytes = std::move(bytes_)](bool is_torn) {
          const size_t size = is_torn ? bytes.size() / 2 : bytes.size();
          network.model().ObjectPut(name);
          return network.objects()->Put(name, std::span(bytes).first(size));
        });
  }

 private:
  SimulatedStorage& storage_;
  const std::string name_;
  std::vector<std::byte> bytes_;
};

Result<void> SimulatedStorage::Put(std::string_view name, std::span<const std::byte> bytes) {
  return Change(
      Kind::kPut, name,
      [this, name = std::string(name), copy = std::vector(bytes.begin(), bytes.end())](bool) {
        network_.model().ObjectPut(name);
        return network_.objects()->Put(name, copy);
      });
}

Result<void> SimulatedStorage::PutIfAbsent(std::string_view name,
                                           std::span<const std::byte> bytes) {
  if (root_pause_ns_ > 0 && ParseRootName(name)) Pause(std::exchange(root_pause_ns_, 0));
  return Change(Kind::kPutIfAbsent, name,
                [this, name = std::string(name), operation = CurrentOperation(),
                 copy = std::vector(bytes.begin(), bytes.end())](bool) -> Result<void> {
                  CAIRN_TRY(network_.objects()->PutIfAbsent(name, copy));
                  const auto root = ParseRootName(name);
                  if (!root) return {};
                  RootPut(*root, copy, operation);
                  if (after_root_pause_ns_ > 0) Pause(std::exchange(after_root_pause_ns_, 0));
                  return {};
                });
}

void SimulatedStorage::RootPut(uint64_t number, std::span<const std::byte> bytes,
                               Operation* operation) {
  const auto uuid = kv::internal::ReadIdentity(*network_.objects());
  const auto root = kv::internal::DecodeRoot(bytes);
  if (uuid && root && *uuid == root->store_uuid) {
    return network_.model().RootPut(number, operation, bytes);
  }
  ++network_.counts().strays;
  network_.Note(process_, fmt::format("puts root {} into another store", number));
}

Result<std::unique_ptr<kv::ObjectWriter>> SimulatedStorage::Create(std::string_view name) {
  return Call(Kind::kCreate, name, [&](bool) -> Result<std::unique_ptr<kv::ObjectWriter>> {
    return std::make_unique<Writer>(*this, name);
  });
}

Result<void> SimulatedStorage::ReadRange(std::string_view name, uint64_t offset_bytes,
                                         std::span<std::byte> target) {
  return Call(Kind::kReadRange, name, [&](bool) {
    if (ParseRootName(name)) root_read_in_ = &network_.store();
    return network_.objects()->ReadRange(name, offset_bytes, target);
  });
}

Result<uint64_t> SimulatedStorage::Size(std::string_view name) {
  return Call(Kind::kSize, name, [&](bool) { return network_.objects()->Size(name); });
}

Result<std::vector<std::string>> SimulatedStorage::List(std::string_view prefix) {
  return Call(Kind::kList, prefix, [&](bool) -> Result<std::vector<std::string>> {
    CAIRN_TRY_ASSIGN(std::vector<std::string> names, network_.objects()->List(prefix));
    return network_.StaleListing(prefix, std::move(names));
  });
}

Result<void> SimulatedStorage::Remove(std::string_view name) {
  return Change(Kind::kRemove, name,
                [this, name = std::string(name), checked_in = root_read_in_](bool) -> Result<void> {
                  // Names of roots are numbers. The store requires that it is not replaced between
                  // the look at a root and the removal of older ones.
                  if (ParseRootName(name) && checked_in != &network_.store()) return {};
                  return network_.objects()->Remove(name);
                });
}

void SimulatedStorage::AwaitChange(std::string_view, std::chrono::milliseconds timeout) {
  // It may return early, and need not wait for a change.
  network_.scheduler().SleepFor(static_cast<int64_t>(
      network_.scheduler().Between(0, std::chrono::nanoseconds(timeout).count())));
}

kv::TransferSizes SimulatedStorage::transfer_sizes() const {
  return {.request_bytes = 64 << 10,
          .queue_depth = 2,
          .small_requests = network_.conditions().small_requests};
}

void SimulatedStorage::Travel() {
  Scheduler& scheduler = network_.scheduler();
  const Conditions& conditions = network_.conditions();
  if (scheduler.Chance(conditions.pause_chance)) {
    Pause(static_cast<int64_t>(scheduler.Between(0, conditions.pause_ns)));
  }
  const bool is_slow = scheduler.Chance(conditions.slow_chance);
  scheduler.SleepFor(RandomDelay(scheduler, is_slow ? conditions.slow_ns : conditions.latency_ns));
}

SimulatedStorage::Fault SimulatedStorage::ChooseFault(Kind kind) {
  Scheduler& scheduler = network_.scheduler();
  const Conditions& conditions = network_.conditions();
  if (scheduler.Chance(conditions.outage_chance)) {
    const auto outage_ns = static_cast<int64_t>(scheduler.Between(0, conditions.outage_ns));
    outage_until_ns_ = scheduler.now_ns() + outage_ns;
    ++network_.counts().outages;
    network_.Note(process_, fmt::format("is cut off for {} ms", outage_ns / kMillisecondNs));
  }
  if (scheduler.now_ns() < outage_until_ns_) {
    return scheduler.Chance(0.3) ? Fault::kLoseResponse : Fault::kRefuse;
  }
  if (!scheduler.Chance(conditions.fault_chance)) return Fault::kNone;
  constexpr Fault kFaults[] = {Fault::kRefuse, Fault::kLoseResponse, Fault::kConflict,
                               Fault::kTear};
  const Fault fault = kFaults[scheduler.Between(0, std::size(kFaults) - 1)];
  return CanHappen(fault, kind) ? fault : Fault::kRefuse;
}

void SimulatedStorage::Pause(int64_t pause_ns) {
  process_.paused_until_ns = network_.scheduler().now_ns() + pause_ns;
  ++network_.counts().pauses;
  network_.Note(process_, fmt::format("is paused for {} ms", pause_ns / kMillisecondNs));
}

void SimulatedStorage::Die() {
  process_.is_dead = true;
  ++network_.counts().kills;
  network_.Note(process_, "is killed");
}

SimulatedStorage::Fate SimulatedStorage::Depart(Kind kind) {
  ++network_.counts().requests;
  const bool dies = requests_left_ > 0 && --requests_left_ == 0;
  const bool dies_before = dies && network_.scheduler().Chance(0.5);
  if (dies_before) Die();
  if (process_.is_dead) {
    network_.scheduler().SleepFor(network_.conditions().latency_ns);
    return {.fault = Fault::kPowerCut};
  }
  Travel();
  // Another task of this process may have died: this request may be on its way.
  if (process_.is_dead && network_.scheduler().Chance(0.5)) return {.fault = Fault::kPowerCut};
  return {.fault = ChooseFault(kind), .dies_after = dies};
}

std::optional<Error> SimulatedStorage::Return(Kind kind, std::string_view name, const Fate& fate,
                                              const Error* error) {
  const char* const what = StorageFaultName(fate.fault);
  if (fate.fault == Fault::kPowerCut) return Failure(kind, name, "the process was killed");
  network_.Note(process_,
                fmt::format("{} {}{}{}", StorageOperationName(kind), name,
                            error == nullptr ? "" : fmt::format(" {}", ErrorCodeName(error->code)),
                            fate.fault == Fault::kNone ? "" : fmt::format(" ({})", what)));
  if (fate.dies_after) Die();
  if (!process_.is_dead) Travel();
  if (process_.is_dead) return Failure(kind, name, "the process was killed");
  if (fate.fault == Fault::kNone) return std::nullopt;
  ++fault_count_;
  ++network_.counts().faults;
  if (fate.fault != Fault::kConflict) return Failure(kind, name, what);
  if (error != nullptr) return std::nullopt;
  Error conflict = Failure(kind, name, "the object exists");
  conflict.code = ErrorCode::kConflict;
  return conflict;
}

template <typename Perform>
auto SimulatedStorage::Call(Kind kind, std::string_view name, const Perform& perform)
    -> decltype(perform(false)) {
  const Fate fate = Depart(kind);
  decltype(perform(false)) result = Fail(Failure(kind, name, "the request was refused"));
  if (fate.fault != Fault::kRefuse && fate.fault != Fault::kPowerCut) {
    result = perform(fate.fault == Fault::kTear);
  }
  auto failure = Return(kind, name, fate, result ? nullptr : &result.error());
  if (failure) return Fail(*std::move(failure));
  return result;
}

Result<void> SimulatedStorage::Change(Kind kind, std::string_view name,
                                      std::function<Result<void>(bool is_torn)> change) {
  const auto noted = [&network = network_, name = std::string(name), exists = kind != Kind::kRemove,
                      change = std::move(change)](bool is_torn) {
    Result<void> changed = change(is_torn);
    if (changed) network.NoteChange(name, exists);
    return changed;
  };
  return Call(kind, name, [&](bool is_torn) -> Result<void> {
    if (!network_.scheduler().Chance(network_.conditions().late_chance)) return noted(is_torn);
    network_.PerformLater([noted] { (void)noted(false); });
    ++fault_count_;
    ++network_.counts().faults;
    return Fail(Failure(kind, name, "the response is late"));
  });
}

void SimulatedStorage::SetOperation(Operation* operation) {
  operations_[network_.scheduler().current().id] = operation;
}

Operation* SimulatedStorage::CurrentOperation() const {
  const auto found = operations_.find(network_.scheduler().current().id);
  return found == operations_.end() ? nullptr : found->second;
}

Error SimulatedStorage::Failure(Kind kind, std::string_view name, const char* what) const {
  return Error{.code = ErrorCode::kUnavailable,
               .message = fmt::format("injected fault of {}: {}", StorageOperationName(kind), what),
               .file = ObjectPath(address(), name)};
}

}  // namespace cairn::simulation
