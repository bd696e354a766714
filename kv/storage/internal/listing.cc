// Bounds of what a server can make of a listing.

#include "kv/storage/internal/listing.h"

#include <fmt/format.h>

#include <utility>

namespace cairn::kv::internal {

Listing::Listing(std::string file, std::chrono::milliseconds timeout, Clock::time_point begin)
    : file_(std::move(file)), timeout_(timeout), begin_(begin) {}

void Listing::Add(std::string name) {
  if (name.size() <= kMaxNameBytes) names_.insert(names_.end(), std::move(name));
}

Result<void> Listing::NextPage(std::string_view next, Clock::time_point now) {
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

}  // namespace cairn::kv::internal
