// The processes of a schedule.

#include "tests/simulation/schedule.h"

#include <fmt/format.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/simulation/auditor.h"
#include "tests/simulation/job.h"
#include "tests/simulation/reader.h"
#include "tests/simulation/world.h"
#include "tests/simulation/writer.h"

namespace cairn::simulation {
namespace {

constexpr uint64_t kMaxSwitches = 2'000'000;

/// Runs bodies as tasks of the process of the schedule itself, which has no storage.
class Stage {
 public:
  explicit Stage(World& world) : world_(world), process_(world.scheduler().AddProcess("stage")) {}

  void Start(const std::function<void()>& body) {
    ++running_count_;
    world_.scheduler()
        .Spawn(process_,
               [this, body] {
                 body();
                 --running_count_;
               })
        .is_detached = true;
  }
  /// Runs `body` in the process of a participant, and waits for it.
  template <typename Actor, typename... Arguments>
  void Play(Arguments&&... arguments) {
    auto actor = std::make_unique<Actor>(world_, std::forward<Arguments>(arguments)...);
    Scheduler& scheduler = world_.scheduler();
    scheduler.Join(scheduler.Spawn(actor->process(), [&actor] {
      actor->Run();
      actor = nullptr;  // in its own process: a store that another process closes does nothing
    }));
  }
  void AwaitEnd() {
    while (running_count_ > 0 || world_.network().late_count() > 0) {
      world_.scheduler().SleepFor(kSecondNs);
    }
  }

 private:
  World& world_;
  Process& process_;
  uint64_t running_count_ = 0;
};

void PlayWriters(World& world, Stage& stage, uint64_t number) {
  for (uint64_t session = 0; session < world.Between(1, 3); ++session) {
    world.scheduler().SleepFor(static_cast<int64_t>(world.Between(0, 30 * kSecondNs)));
    stage.Play<Writer>(fmt::format("writer {}.{}", number, session));
  }
}

/// One or two writers are paused at the put of a root, until the last one has committed so often
/// that their numbers are free again. Then the second one puts its root after that of the first.
void PlayOvertaking(World& world, Stage& stage) {
  const bool has_two = world.Chance(0.7);
  int64_t begin_ns = 0;
  const auto start = [&](const char* name, Role role) {
    stage.Start([&world, &stage, name, role, begin_ns] {
      world.scheduler().SleepFor(begin_ns);
      stage.Play<Writer>(name, role);
    });
    begin_ns += static_cast<int64_t>(world.Between(5, 20)) * kSecondNs;
  };
  start("overtaken", Role::kOvertaken);
  if (has_two) start("also overtaken", Role::kAlsoOvertaken);
  start("overtaker", Role::kOvertaker);
}

void PlayJob(World& world, Stage& stage, uint64_t job) {
  JobPlan plan{.world_size = static_cast<uint32_t>(world.Between(2, 4)),
               .patience_ns = static_cast<int64_t>(world.Between(2, 20)) * kSecondNs};
  std::vector<std::jthread> others;
  for (uint32_t rank = 1; rank < plan.world_size; ++rank) {
    others.emplace_back([&stage, &plan, job, rank] {
      stage.Play<OtherRank>(fmt::format("rank {} of job {}", rank, job), plan, rank);
    });
  }
  stage.Play<RankZero>(fmt::format("rank 0 of job {}", job), plan);
}

/// A job, and sometimes the same job after a restart.
void PlayJobs(World& world, Stage& stage) {
  const uint64_t job_count = world.Between(1, 2);
  for (uint64_t job = 0; job < job_count; ++job) PlayJob(world, stage, job);
}

/// Another store takes the place of the one at the address, as when a bucket's prefix is removed
/// and written again. The former one does not return: a directory is held open, so that its writers
/// do not see what takes its path, and in a bucket, somebody would have to copy all of its objects
/// back while a writer has it open, which docs/format/store.md forbids.
void PlayReplacement(World& world) {
  Scheduler& scheduler = world.scheduler();
  scheduler.SleepFor(static_cast<int64_t>(world.Between(1, 60'000)) * kMillisecondNs);
  // Objects of others in a place where no store was created yet are damage.
  if (world.model().newest() == 0) return;
  world.network().Replace(world.AddStore());
}

/// Checks each store, beginning with the one that is at the address.
void Audit(World& world, Stage& stage) {
  const SimulatedStore* const last = &world.network().store();
  stage.Play<Auditor>();
  for (SimulatedStore& store : world.stores()) {
    if (&store == last) continue;
    world.network().Replace(store);
    stage.Play<Auditor>();
  }
}

void Play(World& world, Stage& stage) {
  if (world.Chance(0.02)) PlayOvertaking(world, stage);
  if (world.Chance(0.1)) stage.Start([&world] { PlayReplacement(world); });
  const bool has_jobs = world.Chance(0.4);
  if (has_jobs) stage.Start([&world, &stage] { PlayJobs(world, stage); });
  const uint64_t writer_count = world.Between(has_jobs ? 0 : 1, 3);
  for (uint64_t i = 0; i < writer_count; ++i) {
    stage.Start([&world, &stage, i] { PlayWriters(world, stage, i); });
  }
  const uint64_t reader_count = world.Between(0, 3);
  for (uint64_t i = 0; i < reader_count; ++i) {
    stage.Start([&stage, i] { stage.Play<Reader>(fmt::format("reader {}", i)); });
  }
  stage.AwaitEnd();
  world.network().Calm();
  // Leases and grace periods end, and listings become current.
  world.scheduler().SleepFor(200 * kSecondNs);
  Audit(world, stage);
}

}  // namespace

ScheduleResult RunSchedule(uint64_t seed) {
  World world(seed);
  {
    Stage stage(world);
    Process& director = world.scheduler().AddProcess("director");
    world.scheduler().Spawn(director, [&] { Play(world, stage); }).is_detached = true;
    if (!world.scheduler().Run(kMaxSwitches)) {
      world.Fail(nullptr, "the processes wait for each other, or never end");
    }
  }
  uint64_t roots = 0;
  for (const SimulatedStore& store : world.stores()) roots += store.model.newest();
  return {.violation = world.trace().violation(),
          .trace = world.trace().violation().empty() ? "" : world.trace().End(),
          .hash = world.trace().hash(),
          .counts = world.network().counts(),
          .roots = roots};
}

}  // namespace cairn::simulation
