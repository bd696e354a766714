// The lease of the writer, and which processes are alive.

#include "kv/root/internal/lease.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <fstream>
#include <mutex>
#include <new>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <thread>

#include "kv/base/catch_exhaustion.h"
#include "kv/base/mutex.h"
#include "kv/storage/internal/object_names.h"

namespace cairn::kv::internal {
namespace {

constexpr uint64_t kMaxLeaseBytes = 64 << 10;
constexpr int kLeaseReads = 3;

std::string FirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::string BootId() { return FirstLine("/proc/sys/kernel/random/boot_id"); }

std::string PidNamespace() {
  std::array<char, 64> target{};
  const ssize_t size = ::readlink("/proc/self/ns/pid", target.data(), target.size());
  return size <= 0 ? std::string() : std::string(target.data(), static_cast<size_t>(size));
}

/// Returns when the process started, in clock ticks since the boot; 0 if it does not exist, or has
/// ended and is not waited for yet.
uint64_t ProcessStart(uint32_t pid) {
  const std::string stat = FirstLine(fmt::format("/proc/{}/stat", pid));
  // The second field is the name of the program in parentheses, with any characters.
  const size_t end_of_name = stat.rfind(')');
  if (end_of_name == std::string::npos) return 0;
  std::istringstream fields(stat.substr(end_of_name + 1));
  std::string field;
  fields >> field;
  if (field == "Z" || field == "X") return 0;
  constexpr int kStateField = 3;
  constexpr int kStartField = 22;
  for (int i = kStateField; i < kStartField; ++i) fields >> field;
  const auto start = std::strtoull(field.c_str(), nullptr, 10);
  return fields ? start : 0;
}

/// Returns whether a process exists about which /proc tells this user nothing (hidepid).
bool IsHidden(uint32_t pid) {
  return FirstLine(fmt::format("/proc/{}/stat", pid)).empty() &&
         ::kill(static_cast<pid_t>(pid), 0) != 0 && errno == EPERM;
}

/// Returns whether the processes of this system can be compared with the one in `lease`.
bool IsOfThisSystem(const Lease& lease) {
  return !lease.boot_id.empty() && !lease.pid_namespace.empty() && lease.process_start != 0 &&
         lease.boot_id == BootId() && lease.pid_namespace == PidNamespace();
}

/// The sessions whose leases this process has given up without being able to remove them.
struct GivenUp {
  Mutex mutex;
  std::set<std::string> sessions CAIRN_GUARDED_BY(mutex);

  static GivenUp& OfThisProcess() {
    static auto* const given_up = new GivenUp;  // also for threads that run while the process ends
    return *given_up;
  }
  void Add(const std::string& session) {
    const MutexLock lock(mutex);
    sessions.insert(session);
  }
  bool Contains(const std::string& session) {
    const MutexLock lock(mutex);
    return sessions.contains(session);
  }
};

/// Returns whether the process of a lease exists and has not given it up; nothing if this system
/// cannot know it.
std::optional<bool> IsRunning(const Lease& lease) {
  if (!IsOfThisSystem(lease) || IsHidden(lease.writer.pid)) return std::nullopt;
  if (ProcessStart(lease.writer.pid) != lease.process_start) return false;
  const bool is_this_process = lease.writer.pid == static_cast<uint32_t>(::getpid());
  return !is_this_process || !GivenUp::OfThisProcess().Contains(lease.writer.session);
}

bool IsRecent(const Lease& lease) {
  // A renewal in the future comes from a host whose clock is ahead.
  const int64_t now_ns = NowUnixNs();
  return lease.renewed_unix_ns > now_ns - kLeaseLifetimeNs &&
         lease.renewed_unix_ns < now_ns + kMaxClockLeadNs;
}

Error HeldBy(const Storage& storage, const Lease& lease) {
  const bool is_this_process =
      IsOfThisSystem(lease) && lease.writer.pid == static_cast<uint32_t>(::getpid());
  return Error{
      .code = ErrorCode::kConflict,
      .message = fmt::format("{}{} has this store open for writing; close it there, open "
                             "for reading, or take over",
                             is_this_process ? "this process: " : "", Describe(lease.writer)),
      .file = ObjectPath(storage.address(), LeaseName(lease.writer.session))};
}

/// Returns nothing if there is no lease, or if it is damaged.
Result<std::optional<Lease>> ReadLease(Storage& storage, const std::string& session) {
  // A lease that is replaced during a read may appear to be damaged.
  for (int attempt = 0; attempt < kLeaseReads; ++attempt) {
    const auto object = storage.Read(LeaseName(session), kMaxLeaseBytes);
    if (!object && object.error().code == ErrorCode::kNotFound) return std::nullopt;
    if (!object && object.error().code != ErrorCode::kDataLoss) {
      return std::unexpected(object.error());
    }
    if (auto lease = object ? DecodeLease(*object) : std::nullopt) return lease;
  }
  return std::nullopt;
}

bool IsSameHolder(const Lease& a, const Lease& b) {
  return a.epoch == b.epoch && a.writer == b.writer;
}

Error InForkedChild() {
  return Error{.code = ErrorCode::kFailedPrecondition,
               .message =
                   "this process was forked from the one that has the store open; open the "
                   "store in this process"};
}

}  // namespace

std::string LeaseName(std::string_view session) {
  return std::string(kLeaseFolder).append(session);
}

Lease ThisProcessLease(WriterIdentity writer, uint32_t epoch) {
  const uint64_t start = ProcessStart(writer.pid);
  return {.writer = std::move(writer),
          .epoch = epoch,
          .boot_id = BootId(),
          .pid_namespace = PidNamespace(),
          .process_start = start,
          .renewed_unix_ns = NowUnixNs()};
}

std::vector<std::byte> EncodeLease(const Lease& lease) {
  const nlohmann::ordered_json json = {{"version", 1},
                                       {"host", lease.writer.host},
                                       {"pid", lease.writer.pid},
                                       {"session", lease.writer.session},
                                       {"since_unix_ns", lease.writer.since_unix_ns},
                                       {"epoch", lease.epoch},
                                       {"boot_id", lease.boot_id},
                                       {"pid_namespace", lease.pid_namespace},
                                       {"process_start", lease.process_start},
                                       {"renewed_unix_ns", lease.renewed_unix_ns}};
  // A name of a host need not be UTF-8.
  const std::string text =
      json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

std::optional<Lease> DecodeLease(std::span<const std::byte> bytes) {
  const auto* text = reinterpret_cast<const char*>(bytes.data());
  const auto json = nlohmann::json::parse(text, text + bytes.size(), nullptr,
                                          /*allow_exceptions=*/false);
  if (!json.is_object()) return std::nullopt;
  const auto number = [&json]<typename T>(const char* name, T& target) {
    const auto found = json.find(name);
    if (found == json.end() || !found->is_number_integer()) return false;
    target = found->template get<T>();
    return true;
  };
  const auto string = [&json](const char* name, std::string& target) {
    const auto found = json.find(name);
    if (found == json.end() || !found->is_string()) return false;
    target = found->get<std::string>();
    return true;
  };
  Lease lease;
  const bool complete = string("host", lease.writer.host) && number("pid", lease.writer.pid) &&
                        string("session", lease.writer.session) &&
                        number("since_unix_ns", lease.writer.since_unix_ns) &&
                        number("epoch", lease.epoch) && string("boot_id", lease.boot_id) &&
                        string("pid_namespace", lease.pid_namespace) &&
                        number("process_start", lease.process_start) &&
                        number("renewed_unix_ns", lease.renewed_unix_ns);
  return complete ? std::optional(std::move(lease)) : std::nullopt;
}

Result<bool> CheckLease(Storage& storage, const std::string& session) {
  CAIRN_TRY_ASSIGN(const std::optional<Lease> lease, ReadLease(storage, session));
  if (!lease) return true;
  const std::optional<bool> is_running = IsRunning(*lease);
  if (is_running.value_or(IsRecent(*lease))) return Fail(HeldBy(storage, *lease));
  return is_running.has_value();
}

struct LeaseKeeper::State {
  State(std::shared_ptr<Storage> given_storage, Lease given_lease, int64_t given_renewal_ns)
      : storage(std::move(given_storage)),
        renewal_ns(given_renewal_ns),
        lease(std::move(given_lease)) {}

  Result<void> Put() CAIRN_REQUIRES(mutex) {
    lease.renewed_unix_ns = NowUnixNs();
    return storage->PutVolatile(LeaseName(lease.writer.session), EncodeLease(lease));
  }
  /// Returns whether the lease in the storage is this one, or absent.
  Result<bool> IsOurs(std::optional<Lease>& found) CAIRN_REQUIRES(mutex) {
    CAIRN_TRY_ASSIGN(found, ReadLease(*storage, lease.writer.session));
    return !found || IsSameHolder(*found, lease);
  }
  /// Puts a lease that does not exist only if `may_put`.
  Result<void> RenewIfOld(bool may_put) CAIRN_REQUIRES(mutex) {
    const int64_t age_ns = NowUnixNs() - lease.renewed_unix_ns;
    if (age_ns >= 0 && age_ns < renewal_ns) return {};
    std::optional<Lease> found;
    CAIRN_TRY_ASSIGN(const bool is_ours, IsOurs(found));
    if (!is_ours) return Fail(HeldBy(*storage, *found));
    return found || may_put ? Put() : Result<void>();
  }
  Result<void> Remove() CAIRN_REQUIRES(mutex) {
    std::optional<Lease> found;
    CAIRN_TRY_ASSIGN(const bool is_ours, IsOurs(found));
    return is_ours && found ? storage->Remove(LeaseName(lease.writer.session)) : Result<void>();
  }
  void RenewUntilStopped() {
    const MutexLock lock(mutex);
    while (!stopped) {
      changed.WaitUntil(mutex,
                        std::chrono::steady_clock::now() + std::chrono::nanoseconds(renewal_ns));
      // An error has no effect before the lease is too old. The next call of Renew reports it.
      // If the lease does not exist, another writer may have removed it, or another store may be
      // here: only those put it again who have read the newest root.
      // The same if there is not enough memory.
      try {
        if (!stopped) (void)RenewIfOld(/*may_put=*/false);
      } catch (const std::bad_alloc&) {
      }
    }
  }

  const std::shared_ptr<Storage> storage;
  const int64_t renewal_ns;
  Mutex mutex;
  CondVar changed;
  Lease lease CAIRN_GUARDED_BY(mutex);
  bool stopped CAIRN_GUARDED_BY(mutex) = false;
  bool removed CAIRN_GUARDED_BY(mutex) = false;  // or found to be the lease of another writer
  std::thread thread;                            // set by Take, joined by Release
  std::once_flag joined;
};

LeaseKeeper::LeaseKeeper(std::unique_ptr<State> state)
    : owner_(::getpid()), state_(std::move(state)) {}

LeaseKeeper::~LeaseKeeper() {
  if (owner_ != ::getpid()) {
    // The destructor of a condition variable with waiting threads waits for them.
    (void)state_.release();
    return;
  }
  // Best effort: this process ignores its own lease from here on, and for others it expires or ends
  // with the process.
  CleanUp([this] { (void)Release(); });
}

Result<std::unique_ptr<LeaseKeeper>> LeaseKeeper::Take(std::shared_ptr<Storage> storage,
                                                       WriterIdentity writer, uint32_t epoch,
                                                       int64_t renewal_ns) {
  // As it will be read: text that is not UTF-8 is replaced.
  auto lease = DecodeLease(EncodeLease(ThisProcessLease(std::move(writer), epoch)));
  CAIRN_CHECK(lease.has_value());
  auto state = std::make_unique<State>(std::move(storage), *std::move(lease), renewal_ns);
  {
    const MutexLock lock(state->mutex);
    CAIRN_TRY(state->Put());
  }
  // If the thread cannot be started, the destructor removes the lease.
  std::unique_ptr<LeaseKeeper> keeper(new LeaseKeeper(std::move(state)));
  CAIRN_TRY_ASSIGN(keeper->state_->thread,
                   StartThread("the renewal of the lease", [borrowed = keeper->state_.get()] {
                     borrowed->RenewUntilStopped();
                   }));
  return keeper;
}

Result<void> LeaseKeeper::Renew() {
  if (owner_ != ::getpid()) return Fail(InForkedChild());
  const MutexLock lock(state_->mutex);
  if (state_->stopped) return Fail(ErrorCode::kFailedPrecondition, "the lease was released");
  return state_->RenewIfOld(/*may_put=*/true);
}

Result<void> LeaseKeeper::PutIfLost() {
  if (owner_ != ::getpid()) return Fail(InForkedChild());
  const MutexLock lock(state_->mutex);
  if (state_->stopped) return Fail(ErrorCode::kFailedPrecondition, "the lease was released");
  CAIRN_TRY_ASSIGN(const bool exists,
                   ObjectExists(*state_->storage, LeaseName(state_->lease.writer.session)));
  return exists ? Result<void>() : state_->Put();
}

Result<void> LeaseKeeper::Release() {
  if (owner_ != ::getpid()) return Fail(InForkedChild());
  State& state = *state_;
  {
    const MutexLock lock(state.mutex);
    state.stopped = true;
    state.changed.NotifyAll();
  }
  std::call_once(state.joined, [&state] {
    if (state.thread.joinable()) state.thread.join();
  });
  const MutexLock lock(state.mutex);
  if (state.removed) return {};
  Result<void> removed = state.Remove();
  state.removed = removed.has_value();
  if (!removed) GivenUp::OfThisProcess().Add(state.lease.writer.session);
  return removed;
}

}  // namespace cairn::kv::internal
