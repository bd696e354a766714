#pragma once
/// The text of HTTP/1.1: the head of a request, and percent-encoding.

#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace cairn::tools {

/// The head of a request.
struct HttpRequest {
  std::string method;
  std::string path;                            // "/api/steps", decoded
  std::string query;                           // text after "?", encoded
  std::map<std::string, std::string> headers;  // names in lower case; of equal ones, the first

  /// Returns a header, whose name is given in lower case; empty if it is absent.
  std::string_view Header(const std::string& name) const;
  /// Returns a decoded parameter of the query ("?step=10&key=a.b"), or nothing if it is absent.
  std::optional<std::string> Parameter(const std::string& name) const;
};

/// Returns what the lines up to and including the empty one state, or nothing if they are not the
/// head of a request of HTTP/1.0 or 1.1 for a path.
std::optional<HttpRequest> ParseHttpRequest(std::string_view lines);

/// Returns the name in a Host header, without the port: "localhost:8000", "[::1]:8000".
std::string_view HostName(std::string_view host);

std::string_view HttpStatusText(int status);

}  // namespace cairn::tools
