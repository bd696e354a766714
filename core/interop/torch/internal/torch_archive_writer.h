#pragma once
/// Writes the zip archive of torch.save with a pickle and its storages.

#include <cstdint>
#include <span>
#include <string>

#include "core/interop/archive/internal/zip_writer.h"
#include "core/interop/torch/internal/torch_pickler.h"

namespace cairn::core::internal {

/// Appends one archive to a file, which may already contain something else. Ownership: borrows the
/// file and the pickle. Threads: one.
class TorchArchiveWriter {
 public:
  TorchArchiveWriter(DurableFile& file, const TorchPickle& pickle) : zip_(file), pickle_(pickle) {}

  /// Writes everything before the storages. Must be called first, once.
  Result<void> Begin();
  /// Writes the next bytes of a storage. Requires that storages are written in their order; a
  /// storage without bytes needs no call.
  Result<void> Append(size_t storage, std::span<const std::byte> bytes);
  /// Requires that all bytes of all storages were written. Returns the length of the archive in
  /// bytes.
  Result<uint64_t> Finish();

 private:
  Result<void> BeginStorage();
  Result<void> AddText(const std::string& name, std::string_view text);

  ZipWriter zip_;
  const TorchPickle& pickle_;
  size_t next_ = 0;  // the first storage whose member has not been opened
};

}  // namespace cairn::core::internal
