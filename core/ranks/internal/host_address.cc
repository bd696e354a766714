#include "core/ranks/internal/host_address.h"

#include <fmt/format.h>
#include <netdb.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "kv/io/file_descriptor.h"

namespace cairn::core::internal {
namespace {

/// Returns the numeric form of an address that `find(resolved, found)` accepts: it writes an
/// address to `found`, and returns its length, or 0 and sets errno. `port` is that of the resolved
/// ones.
template <typename Find>
Result<std::string> FindAddress(const std::string& host, const char* port, const char* failure,
                                const Find& find) {
  const addrinfo hints{.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
  addrinfo* resolved = nullptr;
  int failed = ::getaddrinfo(host.c_str(), port, &hints, &resolved);
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(resolved, &::freeaddrinfo);
  if (failed != 0) {
    return Fail(ErrorCode::kUnavailable,
                fmt::format("cannot look up {}: {}", host, ::gai_strerror(failed)));
  }
  for (const addrinfo* address = resolved; address != nullptr; address = address->ai_next) {
    sockaddr_storage found{};
    const socklen_t length = find(*address, found);
    failed = errno;
    char name[NI_MAXHOST];
    if (length > 0 && ::getnameinfo(reinterpret_cast<const sockaddr*>(&found), length, name,
                                    sizeof(name), nullptr, 0, NI_NUMERICHOST) == 0) {
      return std::string(name);
    }
  }
  return Fail(SystemError(failed, fmt::format("{} {}", failure, host)));
}

}  // namespace

Result<std::string> LocalAddressTowards(const std::string& host) {
  // Connecting a datagram socket only chooses the route; the port has no meaning.
  return FindAddress(host, "1", "there is no route to", [](const addrinfo& to, auto& own) {
    const kv::FileDescriptor socket(::socket(to.ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    socklen_t length = sizeof(own);
    const bool is_found =
        socket.is_open() && ::connect(socket.get(), to.ai_addr, to.ai_addrlen) == 0 &&
        ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&own), &length) == 0;
    return is_found ? length : 0;
  });
}

Result<std::string> AddressOfThisHost(const std::string& host) {
  return FindAddress(host, "0", "cannot listen at", [](const addrinfo& at, auto& own) {
    const kv::FileDescriptor socket(::socket(at.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!socket.is_open() || ::bind(socket.get(), at.ai_addr, at.ai_addrlen) != 0) return 0u;
    std::memcpy(&own, at.ai_addr, at.ai_addrlen);
    return at.ai_addrlen;
  });
}

}  // namespace cairn::core::internal
