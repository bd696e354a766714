// Checkpoints of other programs: zip archives, pickles, safetensors headers, DCP metadata, and
// complete files of torch.save.

#include <algorithm>
#include <array>

#include "core/interop/archive/internal/pickle_reader.h"
#include "core/interop/archive/internal/zip_reader.h"
#include "core/interop/archive/internal/zip_records.h"
#include "core/interop/dcp/internal/dcp_metadata_reader.h"
#include "core/interop/dcp/internal/dcp_metadata_writer.h"
#include "core/interop/safetensors/internal/safetensors_header.h"
#include "core/interop/torch/internal/state_assembler.h"
#include "core/interop/torch/internal/torch_archive.h"
#include "tests/fuzz/fuzz_support.h"

namespace cairn::fuzz {
namespace {

using namespace core;            // NOLINT(google-build-using-namespace): the code under test
using namespace core::internal;  // NOLINT(google-build-using-namespace): the code under test

bool IsInside(std::span<const std::byte> part, std::span<const std::byte> whole) {
  return part.empty() ||
         (part.data() >= whole.data() && part.data() + part.size() <= whole.data() + whole.size());
}

void FuzzZip(std::span<const std::byte> archive) {
  const auto zip = ZipReader::Open(archive);
  if (!zip) return UseError(zip.error());
  uint64_t member_bytes = 0;
  for (const ZipMember& member : zip->members()) {
    CAIRN_FUZZ_CHECK(IsInside(member.bytes, archive));
    member_bytes += member.bytes.size();
    CAIRN_FUZZ_CHECK(zip->Find(member.name) != nullptr);
  }
  CAIRN_FUZZ_CHECK(member_bytes <= archive.size());  // no two members share bytes
  const auto directory = DecodeZipDirectory(archive, 0);
  CAIRN_FUZZ_CHECK(directory.has_value());
  const std::string once = EncodeZipDirectory(directory->records, directory->offset_bytes);
  const auto again = DecodeZipDirectory(std::as_bytes(std::span(once)), directory->offset_bytes);
  CAIRN_FUZZ_CHECK(again && again->records == directory->records);
}

/// Uses every value of a pickle once.
void Walk(const PickleTree& tree) {
  std::vector<bool> seen(tree.source_bytes() + 16);
  std::vector<PickleRef> open = {tree.root()};
  const auto add = [&](std::span<const PickleRef> refs) {
    open.insert(open.end(), refs.begin(), refs.end());
  };
  while (!open.empty()) {
    const PickleRef ref = open.back();
    open.pop_back();
    CAIRN_FUZZ_CHECK(ref < seen.size());  // each value costs a byte
    if (seen[ref]) continue;
    seen[ref] = true;
    switch (tree.kind(ref)) {
      case PickleKind::kText:
        (void)tree.text(ref);
        break;
      case PickleKind::kBytes:
      case PickleKind::kLong:
        CAIRN_FUZZ_CHECK(tree.bytes(ref).size() <= tree.source_bytes());
        break;
      case PickleKind::kTuple:
      case PickleKind::kList:
      case PickleKind::kSet:
      case PickleKind::kDict:
        add(tree.children(ref));
        break;
      case PickleKind::kPersistent:
        open.push_back(tree.persistent_id(ref));
        break;
      case PickleKind::kObject: {
        const PickleTree::Object& object = tree.object(ref);
        add(std::array{object.callee, object.arguments});
        if (object.has_state) open.push_back(object.state);
        add(object.elements);
        add(object.items);
        break;
      }
      default:
        break;
    }
  }
}

void FuzzPickle(std::span<const std::byte> pickle) {
  const MemoryLimit limit(pickle, 128);  // the header of ReadPickle states 100
  const auto tree = ReadPickle(pickle);
  if (!tree) return UseError(tree.error());
  Walk(*tree);
}

void FuzzSafetensors(Input input) {
  const uint64_t data_bytes = input.Number<uint32_t>();
  Result<SafetensorsHeader> header;
  {
    const MemoryLimit limit(input.rest(), 256);
    header = DecodeSafetensorsHeader(input.rest_text(), data_bytes);
  }
  if (!header) return UseError(header.error());
  std::vector<SafetensorsEntry> entries;
  uint64_t end_bytes = 0;
  for (const SafetensorsHeader::Tensor& tensor : header->tensors) {
    CAIRN_FUZZ_CHECK(tensor.begin_bytes == end_bytes && tensor.end_bytes >= end_bytes);
    end_bytes = tensor.end_bytes;
    entries.push_back({.name = tensor.name, .dtype = tensor.dtype, .shape = tensor.shape});
  }
  CAIRN_FUZZ_CHECK(end_bytes == data_bytes);
  const auto encoded = EncodeSafetensorsHeader(entries, header->metadata);
  if (!encoded) return UseError(encoded.error());
  CAIRN_FUZZ_CHECK(Is(DecodeSafetensorsHeader(encoded->json, encoded->data_bytes), *header));
}

bool HasAllLocations(const DcpMetadata& metadata) {
  return std::ranges::all_of(metadata.items, [&](const DcpItem& item) {
    if (!item.tensor) return metadata.locations.contains({item.key, std::nullopt});
    return std::ranges::all_of(item.tensor->chunks, [&](const Box& box) {
      return metadata.locations.contains({item.key, box.offsets});
    });
  });
}

void FuzzDcp(std::span<const std::byte> pickle) {
  Result<DcpMetadata> metadata;
  {
    const MemoryLimit limit(pickle, 1024);
    metadata = ReadDcpMetadata(pickle);
  }
  if (!metadata) return UseError(metadata.error());
  if (!HasAllLocations(*metadata)) return;  // which the writer requires
  const auto once = WriteDcpMetadata(*metadata);
  if (!once) return UseError(once.error());
  CAIRN_FUZZ_CHECK(Is(ReadDcpMetadata(std::as_bytes(std::span(*once))), *metadata));
}

void FuzzTorch(std::span<const std::byte> archive) {
  const auto torch = TorchArchive::Open(archive);
  if (!torch) return UseError(torch.error());
  for (const bool skip_unknown : {false, true}) {
    StateAssembler assembler(skip_unknown);
    assembler.RaiseBudget(torch->pickle().source_bytes());
    const Result<void> added = assembler.AddObject({}, *torch, torch->pickle().root());
    if (!added) {
      UseError(added.error());
      continue;
    }
    ImportedState imported;
    if (const auto finished = assembler.Finish(imported); !finished) {
      UseError(finished.error());
      continue;
    }
    const auto leaves = imported.state.Leaves();
    if (!leaves) UseError(leaves.error());
  }
}

void Fuzz(Input input) {
  switch (TakeSelector(input, 5)) {
    case 0:
      return FuzzZip(input.CopyRest());
    case 1:
      return FuzzPickle(input.CopyRest());
    case 2:
      return FuzzSafetensors(input);
    case 3:
      return FuzzDcp(input.CopyRest());
    default:
      return FuzzTorch(input.CopyRest());
  }
}

}  // namespace
}  // namespace cairn::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  cairn::fuzz::Fuzz({data, size});
  return 0;
}
