// Stripes, and the head that makes them an object.

#include "kv/storage/rados/internal/rados_upload.h"

#include <fmt/format.h>

#include <cerrno>
#include <optional>
#include <utility>

#include "kv/base/catch_exhaustion.h"
#include "kv/storage/rados/internal/object_read.h"

namespace cairn::kv::internal {

RadosUpload::RadosUpload(RadosSession& session, std::string name, uint64_t part_bytes,
                         HeadMode mode)
    : session_(session),
      name_(std::move(name)),
      mode_(mode),
      layout_{
          .stripe_bytes = part_bytes, .pool_id = session.stripe_pool_id(), .unique = NewUnique()},
      last_part_(std::chrono::steady_clock::now()) {
  CAIRN_CHECK(part_bytes > 0);
}

RadosUpload::~RadosUpload() {
  if (keeps_stripes_ || part_count_ == 0 || !session_.is_usable()) return;
  // RemoveLeftovers removes the stripes that remain after an error.
  CleanUp([&] { (void)RemoveStripes(session_, name_, layout_, part_count_); });
}

void RadosUpload::StartPart(std::span<const std::byte> bytes, uint64_t offset_bytes,
                            std::move_only_function<void(Result<void>)> done) {
  CAIRN_CHECK(offset_bytes == part_count_ * layout_.stripe_bytes &&
              bytes.size() <= layout_.stripe_bytes);
  if (part_count_ == kMaxStripes) {
    return done(Fail(Error{
        .code = ErrorCode::kResourceExhausted,
        .message = fmt::format("cannot write a stripe: the object has more than {} stripes of {} "
                               "bytes; use larger blocks",
                               kMaxStripes, layout_.stripe_bytes),
        .file = session_.FileOf(name_)}));
  }
  last_part_ = std::chrono::steady_clock::now();
  StartStripeWrite(session_, StripeName(name_, layout_.unique, part_count_++), bytes,
                   [&session = session_, name = name_, done = std::move(done)](int result) mutable {
                     if (result >= 0) return done({});
                     done(Fail(session.MakeError(result, "write a stripe", name)));
                   });
}

Result<void> RadosUpload::Finish(uint64_t size_bytes) {
  if (!session_.is_usable()) {
    return Fail(Error{.code = ErrorCode::kFailedPrecondition,
                      .message = "this process was forked from the one that began the upload",
                      .file = session_.FileOf(name_)});
  }
  if (std::chrono::steady_clock::now() - last_part_ > kMaxUploadPause) {
    return Fail(Error{.code = ErrorCode::kUnavailable,
                      .message = "cannot complete the object: its last part was written more than "
                                 "30 minutes ago, so another writer may remove it soon",
                      .file = session_.FileOf(name_)});
  }
  layout_.size_bytes = size_bytes;
  CAIRN_CHECK(layout_.stripe_count() == part_count_);
  int result = part_count_ == 0 ? PutHead(session_, name_, std::span<const std::byte>(), mode_)
                                : PutHead(session_, name_, layout_, mode_);
  if (IsUnknownOutcome(result)) {
    // The request may be performed even later.
    keeps_stripes_ = true;
    const Result<ObjectHead> head = ReadHead(session_, name_, {});
    if (head && (part_count_ == 0 ? head->size_bytes == 0 : head->layout == layout_)) result = 0;
  }
  if (result < 0) return Fail(session_.MakeError(result, "complete the object", name_));
  keeps_stripes_ = true;
  if (part_count_ > 0) session_.RememberLayout(name_, layout_);
  return {};
}

}  // namespace cairn::kv::internal
