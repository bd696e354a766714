// Buffers, and the stripes made of them.

#include "kv/storage/rados/internal/rados_writer.h"

#include <algorithm>
#include <utility>

#include "kv/storage/rados/internal/object_read.h"

namespace cairn::kv::internal {

RadosWriter::RadosWriter(RadosSession& session, std::string name, HeadMode mode)
    : session_(session),
      name_(std::move(name)),
      mode_(mode),
      stripe_bytes_(session.settings().stripe_bytes),
      upload_(session, name_, stripe_bytes_, mode),
      queue_(session, 1) {}

Result<void> RadosWriter::Append(std::span<const std::byte> bytes) {
  if (error_) return std::unexpected(*error_);
  while (!bytes.empty()) {
    // A full stripe waits for further bytes, because a last one that is also the first is a head.
    if (stripe_.size() == stripe_bytes_) CAIRN_TRY(SubmitStripe());
    const size_t length = std::min<size_t>(bytes.size(), stripe_bytes_ - stripe_.size());
    stripe_.insert(stripe_.end(), bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(length));
    bytes = bytes.subspan(length);
  }
  return {};
}

Result<void> RadosWriter::SubmitStripe() {
  CAIRN_TRY(WaitForStripe());
  std::swap(in_flight_, stripe_);
  stripe_.clear();  // its memory is used for the next one
  CAIRN_TRY(queue_.Submit({.upload = &upload_,
                           .write = true,
                           .data = in_flight_.data(),
                           .length_bytes = in_flight_.size(),
                           .offset_bytes = submitted_bytes_}));
  submitted_bytes_ += in_flight_.size();
  return {};
}

Result<void> RadosWriter::WaitForStripe() {
  if (queue_.in_flight() > 0) {
    CAIRN_TRY_ASSIGN(IoCompletion completion, queue_.Wait());
    if (completion.error) error_ = std::move(completion.error);
  }
  if (error_) return std::unexpected(*error_);
  return {};
}

Result<void> RadosWriter::Finish() {
  if (error_) return std::unexpected(*error_);
  if (submitted_bytes_ > 0) {
    CAIRN_TRY(SubmitStripe());
    CAIRN_TRY(WaitForStripe());
    return upload_.Finish(submitted_bytes_);
  }
  if (!session_.is_usable()) {
    return Fail(Error{.code = ErrorCode::kFailedPrecondition,
                      .message = "this process was forked from the one that began the object",
                      .file = session_.FileOf(name_)});
  }
  const int result = PutHead(session_, name_, stripe_, mode_);
  if (result < 0) return Fail(session_.MakeError(result, "write the object", name_));
  return {};
}

}  // namespace cairn::kv::internal
