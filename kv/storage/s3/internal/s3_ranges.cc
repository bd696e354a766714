// RFC 9110, section 14.

#include "kv/storage/s3/internal/s3_ranges.h"

#include <fmt/format.h>

#include <charconv>
#include <optional>
#include <string_view>
#include <utility>

namespace cairn::kv::internal {
namespace {

struct ContentRange {
  uint64_t first = 0;
  uint64_t last = 0;
  std::string_view size;  // "*" if the server does not know it
};

// Parses "bytes 0-9/100".
std::optional<ContentRange> ParseContentRange(std::string_view text) {
  if (!text.starts_with("bytes ")) return std::nullopt;
  text.remove_prefix(6);
  ContentRange range;
  const auto number = [&text](uint64_t* value, char separator) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
    const auto length = static_cast<size_t>(end - text.data());
    if (error != std::errc() || length == text.size() || *end != separator) return false;
    text.remove_prefix(length + 1);
    return true;
  };
  if (!number(&range.first, '-') || !number(&range.last, '/') || range.last < range.first) {
    return std::nullopt;
  }
  range.size = text;
  return range;
}

S3Outcome Outcome(S3Verdict verdict, ErrorCode code, std::string message) {
  S3Outcome outcome{.verdict = verdict};
  outcome.error.code = code;
  outcome.error.message = std::move(message);
  return outcome;
}

S3Outcome TooShort(std::string_view size, const S3Range& range) {
  return Outcome(S3Verdict::kFailed, ErrorCode::kDataLoss,
                 fmt::format("the object has {} bytes and ends before the range of {} bytes", size,
                             range.length_bytes));
}

}  // namespace

std::string RangeHeader(const S3Range& range) {
  return fmt::format("Range: bytes={}-{}", range.offset_bytes,
                     range.offset_bytes + range.length_bytes - 1);
}

S3Outcome JudgeRange(const HttpResponse& response, const S3Range& range,
                     const std::string& operation, const std::string& endpoint) {
  if (response.status == 200) {
    if (range.offset_bytes != 0) {
      return Outcome(S3Verdict::kFailed, ErrorCode::kUnimplemented,
                     fmt::format("cannot {}: {} or a proxy ignores ranges", operation, endpoint));
    }
    if (response.target_bytes == range.length_bytes) return {};
    return TooShort(std::to_string(response.target_bytes), range);
  }
  const std::optional<ContentRange> found = ParseContentRange(response.Header("content-range"));
  const bool is_consistent = found && found->first == range.offset_bytes &&
                             found->last - found->first + 1 == response.target_bytes;
  // A server or a proxy may send less than was asked for, so its end may be elsewhere.
  const bool is_all = is_consistent && (response.target_bytes == range.length_bytes ||
                                        found->size == std::to_string(found->last + 1));
  if (!is_all) {
    return Outcome(S3Verdict::kRetry, ErrorCode::kUnavailable,
                   fmt::format("cannot {}: {} answered with {} bytes and the range \"{}\"",
                               operation, endpoint, response.target_bytes,
                               response.Header("content-range").substr(0, 80)));
  }
  if (response.target_bytes == range.length_bytes) return {};
  return TooShort(found->size, range);
}

}  // namespace cairn::kv::internal
