// The limit is enforced by waiting in the progress callback of a verification.

#include "core/upkeep/scrub.h"

#include <algorithm>
#include <set>
#include <utility>

#include "kv/base/catch_exhaustion.h"
#include "kv/base/copy_options.h"
#include "kv/read/snapshot.h"

namespace cairn::core {
namespace {

using Clock = kv::Throttle::Clock;
constexpr std::chrono::milliseconds kWaitSlice{50};  // after which a scrub can be stopped
constexpr std::chrono::milliseconds kLongestPause = std::chrono::hours(24 * 365 * 100);

/// Delays the progress of a verification.
class Delay {
 public:
  Delay(uint64_t max_bytes_per_second, const Progress& progress)
      : throttle_(max_bytes_per_second), progress_(progress) {}

  bool operator()(uint64_t done_bytes, uint64_t total_bytes) {
    auto now = Clock::now();
    const auto turn = throttle_.Reserve(done_bytes - std::min(done_bytes, seen_bytes_), now);
    seen_bytes_ = done_bytes;
    for (; now < turn; now = Clock::now()) {
      if (!Continue(done_bytes, total_bytes)) return false;
      std::this_thread::sleep_until(std::min(turn, now + kWaitSlice));
    }
    return Continue(done_bytes, total_bytes);
  }

 private:
  bool Continue(uint64_t done_bytes, uint64_t total_bytes) const {
    return !progress_ || progress_(done_bytes, total_bytes);
  }

  kv::Throttle throttle_;
  const Progress& progress_;
  uint64_t seen_bytes_ = 0;
};

/// Removes what concerns only steps and objects that the store has no more.
Result<void> RemoveStale(const CheckpointStore& store, const std::vector<kv::StepInfo>& verified,
                         std::vector<Error>& damage) {
  CAIRN_TRY_ASSIGN(const auto snapshot, store.kv().Latest());
  CAIRN_TRY_ASSIGN(const auto current, snapshot->Steps());
  std::set<uint64_t> unchanged;
  for (const kv::StepInfo& step : verified) {
    const bool is_unchanged =
        std::ranges::any_of(current, [&](const auto& now) { return now.HasRecordsOf(step); });
    if (is_unchanged) unchanged.insert(step.step);
  }
  const bool all_unchanged =
      unchanged.size() == verified.size() && current.size() == verified.size();
  if (all_unchanged) return {};
  CAIRN_TRY_ASSIGN(const auto segments, snapshot->Segments());
  std::erase_if(damage, [&](const Error& error) {
    if (error.step) return !unchanged.contains(*error.step);
    // Damage of an object, not of a step: of a segment, a table, a page or a root.
    const bool is_segment = error.file.ends_with(".seg");
    return is_segment && std::ranges::none_of(segments, [&](const kv::SegmentInfo& segment) {
             return error.file.ends_with("/" + segment.name);
           });
  });
  return {};
}

}  // namespace

Result<ScrubReport> ScrubOnce(const CheckpointStore& store, uint64_t max_bytes_per_second,
                              const Progress& progress, const Progress& record_progress) {
  CAIRN_TRY_ASSIGN(const std::vector<kv::StepInfo> steps, store.Steps());
  ScrubReport report;
  Delay delay(max_bytes_per_second, progress);
  CAIRN_TRY_ASSIGN(
      report.bytes_read,
      store.Verify(
          {}, [&](const kv::Damage& damage) { report.damage.push_back(damage.error); },
          [&](uint64_t done, uint64_t total) { return delay(done, total); }, record_progress));
  (void)delay(report.bytes_read, report.bytes_read);  // the delay after the last request
  if (!report.damage.empty()) CAIRN_TRY(RemoveStale(store, steps, report.damage));
  CAIRN_TRY_ASSIGN(const auto numbers, store.StepNumbers());
  report.steps = numbers.size();
  return report;
}

Result<std::unique_ptr<BackgroundScrub>> BackgroundScrub::Start(const CheckpointStore& store,
                                                                const ScrubOptions& options) {
  kv::StoreOptions open = store.kv().options();
  open.reader_cache = false;  // the storage is verified, not a copy of it
  open.take_over = false;
  open.session.clear();
  CAIRN_TRY_ASSIGN(auto own, CheckpointStore::Open(store.kv().directory(), kv::OpenMode::kRead,
                                                   std::move(open)));
  ScrubOptions bounded = options;
  bounded.every = std::clamp(options.every, std::chrono::milliseconds(0), kLongestPause);
  std::unique_ptr<BackgroundScrub> scrub(new BackgroundScrub(std::move(own), bounded));
  CAIRN_TRY_ASSIGN(scrub->thread_,
                   kv::StartThread("a scrub", [borrowed = scrub.get()] { borrowed->Run(); }));
  return scrub;
}

BackgroundScrub::~BackgroundScrub() { Stop(); }

void BackgroundScrub::Stop() {
  {
    const MutexLock lock(mutex_);
    stopped_ = true;
  }
  stopped_changed_.NotifyAll();
  const MutexLock lock(join_mutex_);
  if (thread_.joinable()) thread_.join();
}

ScrubState BackgroundScrub::state() const {
  const MutexLock lock(mutex_);
  return state_;
}

bool BackgroundScrub::IsStopped() const {
  const MutexLock lock(mutex_);
  return stopped_;
}

void BackgroundScrub::Run() {
  while (true) {
    const auto next = Clock::now() + options_.every;
    RunPass();
    const MutexLock lock(mutex_);
    while (!stopped_ && Clock::now() < next) stopped_changed_.WaitUntil(mutex_, next);
    if (stopped_) return;
  }
}

bool BackgroundScrub::Report(uint64_t done_bytes, uint64_t total_bytes) {
  const MutexLock lock(mutex_);
  state_.pass_bytes = done_bytes;
  state_.pass_total_bytes = total_bytes;
  return !stopped_;
}

void BackgroundScrub::RunPass() {
  {
    const MutexLock lock(mutex_);
    if (stopped_) return;
    state_.is_running = true;
    state_.pass_bytes = state_.pass_total_bytes = 0;
  }
  Result<ScrubReport> report = kv::CatchExhaustion("a scrub", [&] {
    return ScrubOnce(
        *store_, options_.max_bytes_per_second,
        [this](uint64_t done, uint64_t total) { return Report(done, total); },
        [this](uint64_t, uint64_t) { return !IsStopped(); });
  });
  const MutexLock lock(mutex_);
  state_.is_running = false;
  if (stopped_) return;
  state_.error.reset();
  if (!report) {
    state_.error = std::move(report).error();
    return;
  }
  ++state_.passes;
  state_.bytes_read += report->bytes_read;
  state_.damage_count = report->damage.size();
  std::vector<Error>& damage = report->damage;
  if (damage.size() > ScrubState::kMaxDamage) {
    damage.erase(damage.begin() + ScrubState::kMaxDamage, damage.end());
  }
  state_.damage = std::move(damage);
}

}  // namespace cairn::core
