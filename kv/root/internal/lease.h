#pragma once
/// The lease names the process that writes to the store. It lets a second writer fail at its open
/// instead of in the first commit of one of the two. Correctness does not depend on it: at most one
/// of two writers can commit (root_log.h).
///
/// The object leases/<session> is JSON. A writer puts it before it commits the root of its epoch,
/// which names the session, renews it while it has the store open, and removes it when it closes
/// the store. So whoever sees that root sees whether its writer is alive; and ranks that join the
/// session see whether it is open.

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kv/base/error.h"
#include "kv/root/internal/root_record.h"
#include "kv/storage/storage.h"

namespace cairn::kv::internal {

inline constexpr std::string_view kLeaseFolder = "leases/";
/// Returns the name of the lease of a session.
std::string LeaseName(std::string_view session);
/// A lease of another host is valid for this time after its last renewal.
inline constexpr int64_t kLeaseLifetimeNs = 60'000'000'000;
/// A renewal that is further in the future is not believed: the clock of its host was set wrongly,
/// and a writer that has died there would keep others out until that time.
inline constexpr int64_t kMaxClockLeadNs = 600'000'000'000;
/// A lease is renewed at this age.
inline constexpr int64_t kLeaseRenewalNs = 15'000'000'000;

struct Lease {
  WriterIdentity writer;
  uint32_t epoch = 0;
  std::string boot_id;         // boot of the host, empty if unknown
  std::string pid_namespace;   // PID namespace of the process, empty if unknown
  uint64_t process_start = 0;  // in clock ticks since the boot, 0 if unknown
  int64_t renewed_unix_ns = 0;
  friend bool operator==(const Lease&, const Lease&) = default;
};

/// Returns a lease of this process, renewed now.
Lease ThisProcessLease(WriterIdentity writer, uint32_t epoch);
std::vector<std::byte> EncodeLease(const Lease& lease);
/// Returns nothing if `bytes` are not a lease.
std::optional<Lease> DecodeLease(std::span<const std::byte> bytes);

/// Returns whether the writer of `session`, which the newest root names, has ended: not if it has
/// only not renewed its lease for long. kConflict: it is alive; the message names its host and pid,
/// and since when it has been the writer. kUnavailable: the lease cannot be read. A damaged lease
/// counts as absent, as after a close.
///
/// If the lease is of this boot of this host and of this pid namespace, its process is alive if it
/// exists and started at the recorded time; a lease that this process itself has given up counts
/// for nothing, even if it could not be removed. Otherwise, and if /proc hides the process from
/// this user (hidepid), it counts as alive for kLeaseLifetimeNs after its last renewal, by the
/// clocks of both hosts, which may differ by kMaxClockLeadNs.
Result<bool> CheckLease(Storage& storage, const std::string& session);

/// Keeps a lease of this process. While the writer is idle, a thread renews it if it exists.
///
/// A child that the process forks has no such thread, and must not wait for it or for its mutex. In
/// the child, Renew and Release fail, and the destructor does nothing. Threads: all members may run
/// on many threads at once, except the destructor.
class LeaseKeeper {
 public:
  /// Puts the lease, even if another writer has it; CheckLease finds out before. `renewal_ns` is
  /// the age at which the lease is renewed. kUnavailable: it cannot be put. kResourceExhausted: the
  /// thread that renews it cannot be started; the lease is removed again.
  static Result<std::unique_ptr<LeaseKeeper>> Take(std::shared_ptr<Storage> storage,
                                                   WriterIdentity writer, uint32_t epoch,
                                                   int64_t renewal_ns = kLeaseRenewalNs);
  /// Releases the lease if this was not done; does not report errors.
  ~LeaseKeeper();
  LeaseKeeper(const LeaseKeeper&) = delete;
  LeaseKeeper& operator=(const LeaseKeeper&) = delete;

  /// Renews the lease if its last renewal was a while ago, and puts it if it does not exist. For
  /// commits, which have shown that this is still the writer of the store.
  /// kConflict: another writer has taken the lease; the message names it. kUnavailable: the lease
  /// cannot be read or put. kFailedPrecondition: this is a forked child, or after Release.
  Result<void> Renew();
  /// Puts the lease again if it does not exist: the storage may have lost it. Requires that no
  /// other writer has taken over. kUnavailable: it cannot be looked up or put.
  /// kFailedPrecondition: this is a forked child, or after Release.
  Result<void> PutIfLost();
  /// Stops the thread in any case, and removes the lease if it is still the one that this object
  /// put. Does nothing if this has succeeded before. kUnavailable: it cannot be read or removed; a
  /// repeated call tries again. kFailedPrecondition: this is a forked child.
  Result<void> Release();

 private:
  struct State;
  explicit LeaseKeeper(std::unique_ptr<State> state);

  const pid_t owner_;
  std::unique_ptr<State> state_;
};

}  // namespace cairn::kv::internal
