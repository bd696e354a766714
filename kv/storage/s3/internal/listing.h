#pragma once
/// The names of one listing, which a server returns in pages.
///
/// A server, or a proxy that repeats its responses, may return pages without end. A listing
///   - contains each name once, and at most kMaxNames of at most kMaxNameBytes;
///   - fails if a page names the same next page as the page before it, or if kMaxIdlePages pages in
///     a row contain no new name;
///   - takes at most a time that grows with the number of new names.

#include <fmt/format.h>

#include <chrono>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "kv/base/error.h"

namespace cairn::kv::internal {

/// Threads: one.
class Listing {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr uint64_t kMaxNames = 1 << 24;
  static constexpr size_t kMaxNameBytes = 1024;  // as in S3
  static constexpr uint32_t kMaxIdlePages = 100;
  static constexpr std::chrono::milliseconds kTimePerName{10};

  /// `file` is for errors. The listing may take `timeout`, and kTimePerName for each name.
  Listing(std::string file, std::chrono::milliseconds timeout, Clock::time_point begin)
      : file_(std::move(file)), timeout_(timeout), begin_(begin) {}

  /// Adds a name of the current page, unless it is too long for an object of a store.
  void Add(std::string name) {
    if (name.size() <= kMaxNameBytes) names_.insert(names_.end(), std::move(name));
  }
  /// Ends a page after which there is another one, which `next` identifies for the server.
  /// kUnavailable: the listing does not end.
  Result<void> NextPage(std::string_view next, Clock::time_point now) {
    const auto fail = [&](std::string reason) {
      return Fail(Error{.code = ErrorCode::kUnavailable,
                        .message = fmt::format("the server's listing does not end: {}", reason),
                        .file = file_});
    };
    if (next == next_) return fail("two pages have the same next page");
    next_ = next;
    idle_pages_ = names_.size() == names_before_page_ ? idle_pages_ + 1 : 0;
    names_before_page_ = names_.size();
    if (idle_pages_ == kMaxIdlePages) {
      return fail(fmt::format("{} pages in a row contain no new name", kMaxIdlePages));
    }
    if (names_.size() >= kMaxNames) return fail(fmt::format("it has {} names", names_.size()));
    if (now - begin_ > timeout_ + names_.size() * kTimePerName) {
      const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(now - begin_).count();
      return fail(fmt::format("it has {} names after {} s", names_.size(), seconds));
    }
    return {};
  }

  /// In the order of the bytes of the names.
  std::set<std::string>& names() { return names_; }

 private:
  const std::string file_;
  const std::chrono::milliseconds timeout_;
  const Clock::time_point begin_;
  std::set<std::string> names_;
  uint64_t names_before_page_ = 0;
  uint32_t idle_pages_ = 0;
  std::string next_;
};

}  // namespace cairn::kv::internal
