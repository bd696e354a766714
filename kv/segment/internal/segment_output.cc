// Files and uploads of segments.

#include "kv/segment/internal/segment_output.h"

#include <cerrno>
#include <utility>

#include "kv/base/catch_exhaustion.h"
#include "kv/io/internal/block_io.h"
#include "kv/io/internal/fault_point.h"
#include "kv/storage/internal/object_names.h"

namespace cairn::kv::internal {

Result<SegmentOutput> SegmentOutput::Create(Storage& storage, const std::string& name, bool direct,
                                            uint64_t block_bytes, FreeSpace free_space) {
  SegmentOutput output;
  output.free_space_ = std::move(free_space);
  output.storage_ = &storage;
  output.name_ = name;
  output.path_ = ObjectPath(storage.address(), name);
  const auto create = [&]() -> Result<void> {
    CAIRN_TRY(PassPoint("segment.create", "cannot create the segment", output.path_));
    if (LocalFiles* const files = storage.local_files()) {
      CAIRN_TRY(files->PrepareFile(name));
      CAIRN_TRY_ASSIGN(const FilePlace place, files->PlaceOf(name));
      CAIRN_TRY_ASSIGN(output.file_, File::Create(place, direct));
    } else {
      CAIRN_TRY_ASSIGN(output.upload_, storage.BeginUpload(name, block_bytes));
    }
    return {};
  };
  CAIRN_TRY(WithSpace(output.free_space_, create));
  return output;
}

SegmentOutput::~SegmentOutput() {
  // Nothing refers to an unsealed file. The next open for writing removes what cannot be removed
  // now.
  if (!file_ || file_->fd() < 0 || finished_) return;
  CleanUp([&] {
    if (const auto place = storage_->local_files()->PlaceOf(name_)) (void)RemoveFile(*place);
  });
}

IoRequest SegmentOutput::Write(std::byte* data, uint64_t length_bytes, uint64_t offset_bytes,
                               uint64_t tag) {
  IoRequest request{.write = true,
                    .data = data,
                    .length_bytes = length_bytes,
                    .offset_bytes = offset_bytes,
                    .tag = tag};
  if (file_) {
    request.fd = file_->fd();
  } else {
    request.upload = upload_.get();
  }
  return request;
}

Result<void> SegmentOutput::AwaitWrite(IoQueue& queue,
                                       const std::function<void(const IoRequest&)>& ended) {
  CAIRN_TRY_ASSIGN(IoCompletion completion, queue.Wait());
  const IoRequest request = completion.request;
  const auto error_of = [&] {
    const int fault = FaultPoint("segment.write");
    return fault != 0 ? fault : completion.error_number;
  };
  int error_number = error_of();
  if (error_number == EINVAL && file_ && file_->direct()) {
    // O_DIRECT was accepted at open and is refused now. Write the same bytes through the page
    // cache.
    CAIRN_TRY(file_->DropDirect());
    return queue.Submit(request);
  }
  const auto is_partial = [&] {
    return error_number == 0 && completion.done_bytes != request.length_bytes;
  };
  std::optional<std::string> waiting;
  uint64_t seen = 0;
  while (file_ && free_space_ &&
         (error_number == ENOSPC || error_number == EDQUOT || is_partial())) {
    waiting = free_space_(seen);
    if (waiting) break;
    completion = TransferNow(request);
    error_number = error_of();
  }
  ended(request);
  if (completion.error) return Fail(*std::move(completion.error));
  const char* what = "cannot write the segment";
  if (is_partial()) {
    error_number = ENOSPC;
    what = "only a part of a write to the segment succeeded";
  }
  if (error_number == 0) return {};
  Error error = SystemError(error_number, what, path_).WithOffset(request.offset_bytes);
  error.message += waiting.value_or("");
  return Fail(std::move(error));
}

Result<void> SegmentOutput::Finish(uint64_t size_bytes) {
  if (file_) {
    CAIRN_TRY(file_->Truncate(size_bytes));
    CAIRN_TRY(file_->Sync("segment.sync"));
  } else {
    CAIRN_TRY(upload_->Finish(size_bytes));
    CAIRN_TRY(CheckStored(*storage_, name_, size_bytes));
  }
  finished_ = true;
  return {};
}

}  // namespace cairn::kv::internal
