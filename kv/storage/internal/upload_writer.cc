#include "kv/storage/internal/upload_writer.h"

#include <algorithm>
#include <utility>

namespace cairn::kv::internal {

UploadWriter::UploadWriter(std::unique_ptr<Upload> upload, std::unique_ptr<IoQueue> queue,
                           uint64_t part_bytes, PutWhole put_whole)
    : part_bytes_(part_bytes),
      put_whole_(std::move(put_whole)),
      upload_(std::move(upload)),
      buffers_(queue->depth()),
      queue_(std::move(queue)) {}

Result<void> UploadWriter::Append(std::span<const std::byte> bytes) {
  if (error_) return Fail(*error_);
  while (!bytes.empty()) {
    // A full part waits for further bytes, because the last part may be all of the object.
    if (part_.size() == part_bytes_) CAIRN_TRY(SubmitPart());
    const size_t length = std::min<size_t>(bytes.size(), part_bytes_ - part_.size());
    part_.insert(part_.end(), bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(length));
    bytes = bytes.subspan(length);
  }
  return {};
}

Result<void> UploadWriter::SubmitPart() {
  CAIRN_TRY(WaitUntil(queue_->depth() - 1));
  const auto free =
      std::ranges::find_if(buffers_, [](const auto& buffer) { return buffer.empty(); });
  CAIRN_CHECK(free != buffers_.end());
  std::swap(*free, part_);
  CAIRN_TRY(queue_->Submit({.upload = upload_.get(),
                            .write = true,
                            .data = free->data(),
                            .length_bytes = free->size(),
                            .offset_bytes = submitted_bytes_,
                            .tag = static_cast<uint64_t>(free - buffers_.begin())}));
  submitted_bytes_ += free->size();
  return {};
}

Result<void> UploadWriter::WaitUntil(uint32_t count) {
  while (queue_->in_flight() > count) {
    CAIRN_TRY_ASSIGN(IoCompletion completion, queue_->Wait());
    if (completion.error && !error_) error_ = std::move(completion.error);
    buffers_[completion.request.tag].clear();  // its memory is used for another part
  }
  if (error_) return Fail(*error_);
  return {};
}

Result<void> UploadWriter::Finish() {
  if (error_) return Fail(*error_);
  if (put_whole_ && submitted_bytes_ == 0) return put_whole_(part_);
  if (!part_.empty()) CAIRN_TRY(SubmitPart());
  CAIRN_TRY(WaitUntil(0));
  return upload_->Finish(submitted_bytes_);
}

}  // namespace cairn::kv::internal
