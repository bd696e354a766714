#pragma once
/// The process that writes to a store, as roots and the lease name it for error messages. Threads:
/// all functions here may run on many threads at once.

#include <cstdint>
#include <string>

namespace cairn::kv::internal {

struct WriterIdentity {
  std::string host;
  uint32_t pid = 0;
  std::string session;
  int64_t since_unix_ns = 0;  // when it opened the store for writing
  friend bool operator==(const WriterIdentity&, const WriterIdentity&) = default;
};

/// Returns this process, as the writer of `session` since now.
WriterIdentity ThisWriter(std::string session);
/// Returns "process 17 on host n1 (writer since 2026-01-31 12:00:00 UTC)". Without a pid, it is
/// the writer of a root of which only the identity can be decoded.
std::string Describe(const WriterIdentity& writer);

std::string HostName();
int64_t NowUnixNs();
/// Returns "2026-01-31 12:00:00 UTC".
std::string FormatUtc(int64_t unix_ns);

}  // namespace cairn::kv::internal
