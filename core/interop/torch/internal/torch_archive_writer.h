#pragma once
/// The zip archive of torch.save around a pickle and its storages.

#include <cstdint>
#include <span>
#include <string>

#include "core/interop/torch/internal/torch_pickler.h"
#include "core/interop/archive/internal/zip_writer.h"

namespace cairn::core::internal {

/// One archive behind what the file holds already. Ownership: borrows the file and the pickle.
/// Threads: one.
class TorchArchiveWriter {
 public:
  TorchArchiveWriter(DurableFile& file, const TorchPickle& what) : zip_(file), what_(what) {}

  Result<void> Begin();
  /// The next bytes of a storage. Storages come in their order; those without bytes are left out.
  Result<void> Append(size_t storage, std::span<const std::byte> bytes);
  /// Requires that all bytes were given. Returns the length of the archive in bytes.
  Result<uint64_t> Finish();

 private:
  Result<void> BeginStorage();
  Result<void> AddText(const std::string& name, std::string_view text);

  ZipWriter zip_;
  const TorchPickle& what_;
  size_t next_ = 0;  // storage whose member is not yet begun
};

}  // namespace cairn::core::internal
