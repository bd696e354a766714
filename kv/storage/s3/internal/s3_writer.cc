// Buffers, and the parts made of them.

#include "kv/storage/s3/internal/s3_writer.h"

#include <algorithm>
#include <utility>

namespace cairn::kv::internal {
namespace {

constexpr uint32_t kPartsInFlight = 4;

}  // namespace

S3Writer::S3Writer(S3Client& client, S3Object object)
    : part_bytes_(client.settings().part_bytes),
      upload_(client, std::move(object), part_bytes_),
      buffers_(kPartsInFlight),
      queue_(client, nullptr, kPartsInFlight) {}

Result<void> S3Writer::Append(std::span<const std::byte> bytes) {
  if (error_) return std::unexpected(*error_);
  while (!bytes.empty()) {
    // A full part waits for further bytes, because a last part that is also the first is not one.
    if (part_.size() == part_bytes_) CAIRN_TRY(SubmitPart());
    const size_t length = std::min<size_t>(bytes.size(), part_bytes_ - part_.size());
    part_.insert(part_.end(), bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(length));
    bytes = bytes.subspan(length);
  }
  return {};
}

Result<void> S3Writer::SubmitPart() {
  CAIRN_TRY(WaitUntil(kPartsInFlight - 1));
  const auto free =
      std::ranges::find_if(buffers_, [](const auto& buffer) { return buffer.empty(); });
  CAIRN_CHECK(free != buffers_.end());
  std::swap(*free, part_);
  CAIRN_TRY(queue_.Submit({.upload = &upload_,
                           .write = true,
                           .data = free->data(),
                           .length_bytes = free->size(),
                           .offset_bytes = submitted_bytes_,
                           .tag = static_cast<uint64_t>(free - buffers_.begin())}));
  submitted_bytes_ += free->size();
  return {};
}

Result<void> S3Writer::WaitUntil(uint32_t count) {
  while (queue_.in_flight() > count) {
    CAIRN_TRY_ASSIGN(IoCompletion completion, queue_.Wait());
    if (completion.error && !error_) error_ = std::move(completion.error);
    buffers_[completion.request.tag].clear();  // its memory is used for another part
  }
  if (error_) return std::unexpected(*error_);
  return {};
}

Result<void> S3Writer::Finish() {
  if (error_) return std::unexpected(*error_);
  if (!part_.empty()) CAIRN_TRY(SubmitPart());
  CAIRN_TRY(WaitUntil(0));
  return upload_.Finish(submitted_bytes_);
}

}  // namespace cairn::kv::internal
