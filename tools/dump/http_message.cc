// The text of HTTP/1.1. Requests are treated as hostile input.

#include "tools/dump/http_message.h"

#include <algorithm>
#include <cstddef>

#include "tools/common/text.h"

namespace cairn::tools {
namespace {

constexpr std::string_view kLineEnd = "\r\n";

/// Removes and returns the first line.
std::string_view TakeLine(std::string_view& lines) {
  const size_t end = std::min(lines.find(kLineEnd), lines.size());
  const std::string_view line = lines.substr(0, end);
  lines.remove_prefix(std::min(end + kLineEnd.size(), lines.size()));
  return line;
}

std::string_view TrimValue(std::string_view text) {
  while (text.starts_with(' ') || text.starts_with('\t')) text.remove_prefix(1);
  while (text.ends_with(' ') || text.ends_with('\t')) text.remove_suffix(1);
  return text;
}

int HexDigit(char digit) {
  const char lower = LowerAscii(digit);
  if ('0' <= lower && lower <= '9') return lower - '0';
  if ('a' <= lower && lower <= 'f') return lower - 'a' + 10;
  return -1;
}

/// Replaces "%41" by "A", and, if `plus_is_space`, "+" by " ". Other text is unchanged.
std::string DecodePercent(std::string_view text, bool plus_is_space) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    const int high = i + 2 < text.size() ? HexDigit(text[i + 1]) : -1;
    const int low = i + 2 < text.size() ? HexDigit(text[i + 2]) : -1;
    if (text[i] == '%' && high >= 0 && low >= 0) {
      decoded += static_cast<char>(high * 16 + low);
      i += 2;
    } else {
      decoded += plus_is_space && text[i] == '+' ? ' ' : text[i];
    }
  }
  return decoded;
}

}  // namespace

std::string_view HttpRequest::Header(const std::string& name) const {
  const auto found = headers.find(name);
  return found == headers.end() ? std::string_view() : std::string_view(found->second);
}

std::optional<HttpRequest> ParseHttpRequest(std::string_view lines) {
  const std::string_view request = TakeLine(lines);
  const size_t method_end = request.find(' ');
  const size_t target_end = request.rfind(' ');
  if (method_end == std::string_view::npos || target_end == method_end) return std::nullopt;
  const std::string_view version = request.substr(target_end + 1);
  const std::string_view target = request.substr(method_end + 1, target_end - method_end - 1);
  if (version != "HTTP/1.1" && version != "HTTP/1.0") return std::nullopt;
  if (!target.starts_with('/') || target.contains(' ')) return std::nullopt;
  const size_t path_end = std::min(target.find('?'), target.size());
  HttpRequest parsed{.method = std::string(request.substr(0, method_end)),
                     .path = DecodePercent(target.substr(0, path_end), /*plus_is_space=*/false),
                     .query = std::string(target.substr(std::min(path_end + 1, target.size())))};
  for (std::string_view line = TakeLine(lines); !line.empty(); line = TakeLine(lines)) {
    const size_t colon = line.find(':');
    // A line that begins with a space would continue the one before it, which is obsolete.
    if (colon == std::string_view::npos || colon == 0 || line.front() == ' ') return std::nullopt;
    std::string name(line.substr(0, colon));
    std::ranges::transform(name, name.begin(), LowerAscii);
    parsed.headers.emplace(std::move(name), TrimValue(line.substr(colon + 1)));
  }
  return parsed;
}

std::optional<std::string> HttpRequest::Parameter(const std::string& name) const {
  for (std::string_view rest = query; !rest.empty();) {
    const size_t end = std::min(rest.find('&'), rest.size());
    const std::string_view one = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (one.starts_with(name) && one.substr(name.size()).starts_with('=')) {
      return DecodePercent(one.substr(name.size() + 1), /*plus_is_space=*/true);
    }
  }
  return std::nullopt;
}

std::string_view HostName(std::string_view host) {
  if (host.starts_with('[')) return host.substr(0, host.find(']') + 1);
  return host.substr(0, host.find(':'));
}

std::string_view HttpStatusText(int status) {
  static const std::map<int, std::string_view> kTexts = {
      {200, "OK"},        {400, "Bad Request"},        {403, "Forbidden"},
      {404, "Not Found"}, {405, "Method Not Allowed"}, {503, "Service Unavailable"}};
  const auto found = kTexts.find(status);
  return found == kTexts.end() ? "Internal Server Error" : found->second;
}

}  // namespace cairn::tools
