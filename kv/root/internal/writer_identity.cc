// The host, process and time of a writer.

#include "kv/root/internal/writer_identity.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <ctime>

namespace cairn::kv::internal {

std::string HostName() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return "unknown";
  return name.data();
}

int64_t NowUnixNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::string FormatUtc(int64_t unix_ns) {
  const std::time_t seconds = unix_ns / 1'000'000'000;
  std::tm parts{};
  if (::gmtime_r(&seconds, &parts) == nullptr) return "an unknown time";
  return fmt::format("{:04}-{:02}-{:02} {:02}:{:02}:{:02} UTC", parts.tm_year + 1900,
                     parts.tm_mon + 1, parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec);
}

WriterIdentity ThisWriter(std::string session) {
  return {.host = HostName(),
          .pid = static_cast<uint32_t>(::getpid()),
          .session = std::move(session),
          .since_unix_ns = NowUnixNs()};
}

std::string Describe(const WriterIdentity& writer) {
  if (writer.pid == 0) return "a process with a newer version of Cairn";
  return fmt::format("process {} on host {} (writer since {})", writer.pid, writer.host,
                     FormatUtc(writer.since_unix_ns));
}

}  // namespace cairn::kv::internal
