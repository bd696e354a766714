#include "core/interop/torch/torch_file.h"

#include "core/interop/archive/internal/checksum_verifier.h"
#include "core/interop/archive/internal/mapped_file.h"
#include "core/interop/torch/internal/state_assembler.h"
#include "core/interop/torch/internal/torch_archive.h"

namespace cairn::core {

Result<ImportedState> ReadTorchFile(const std::string& path, const ImportOptions& options) {
  ImportedState result;
  CAIRN_TRY_ASSIGN(auto mapping, internal::MapFile(path));
  auto archive = internal::TorchArchive::Open(mapping->bytes());
  if (!archive) return Fail(std::move(archive).error().WithFile(path));
  internal::ChecksumVerifier checksums;
  checksums.Add(archive->zip(), mapping, path);
  CAIRN_TRY(checksums.Run(options.progress));
  internal::StateAssembler assembler(options.skip_unknown);
  assembler.RaiseBudget(archive->pickle().source_bytes());
  auto added = assembler.AddObject({}, *archive, archive->pickle().root());
  if (!added) return Fail(std::move(added).error().WithFile(path));
  CAIRN_TRY(assembler.Finish(result));
  result.files.push_back(std::move(mapping));
  result.unchecked = checksums.unchecked();
  return result;
}

}  // namespace cairn::core
