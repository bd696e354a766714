#include "core/interop/dcp/dcp_checkpoint.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <utility>

#include "core/interop/archive/internal/checksum_verifier.h"
#include "core/interop/archive/internal/mapped_file.h"
#include "core/interop/archive/internal/zip_records.h"
#include "core/interop/dcp/internal/dcp_key_tree.h"
#include "core/interop/dcp/internal/dcp_metadata_reader.h"
#include "core/interop/safetensors/internal/safetensors_contents.h"
#include "core/interop/torch/internal/state_assembler.h"
#include "core/interop/torch/internal/torch_archive.h"

namespace cairn::core {
namespace {

namespace fs = std::filesystem;
using internal::ChildKey;
using internal::DcpItem;
using internal::DcpKeyTree;
using internal::DcpLocation;
using internal::DcpMetadata;
using internal::DcpTensor;
using internal::TorchArchive;

constexpr std::string_view kMetadataName = ".metadata";

std::unexpected<Error> Damaged(std::string message) {
  return Fail(ErrorCode::kDataLoss, std::move(message));
}

class DcpReader {
 public:
  DcpReader(fs::path directory, const DcpMetadata& metadata, const ImportOptions& options)
      : directory_(std::move(directory)),
        metadata_(metadata),
        options_(options),
        assembler_(options.skip_unknown) {}

  Result<ImportedState> Read(uint64_t metadata_bytes) {
    assembler_.RaiseBudget(metadata_bytes);
    CAIRN_TRY_ASSIGN(const DcpKeyTree tree, DcpKeyTree::Build(metadata_));
    CAIRN_TRY(AddContainer({}, tree, tree.root(), NodeKind::kDict));
    CAIRN_TRY(checksums_.Run(options_.progress));
    ImportedState result;
    CAIRN_TRY(assembler_.Finish(result));
    for (auto& [name, file] : files_) result.files.push_back(std::move(file.mapping));
    result.unchecked = checksums_.unchecked();
    return result;
  }

 private:
  // The tensors of a file that was written with SerializationFormat.SAFETENSORS.
  struct Blob {
    internal::SafetensorsContents contents;
    std::set<std::string> taken;  // names of the tensors that chunks have used
  };
  struct File {
    std::shared_ptr<const kv::Mapping> mapping;
    std::string path;
    uint64_t unclaimed_bytes = 0;    // bytes that no item has used
    std::map<uint64_t, Blob> blobs;  // by offset
  };
  struct Region {
    File* file = nullptr;
    std::span<const std::byte> bytes;
  };

  Result<void> AddNode(const ChildKey& key, const DcpKeyTree& tree, const DcpKeyTree::Node& node) {
    if (node.item == nullptr) {
      const bool is_list = DcpKeyTree::FindElements(node).has_value();
      return AddContainer(key, tree, node, is_list ? NodeKind::kList : NodeKind::kDict);
    }
    // The assembler adds the same key to its own errors.
    Result<void> added = node.item->tensor ? AddTensor(key, *node.item) : AddBytes(key, *node.item);
    if (!added && added.error().key.empty()) {
      return Fail(std::move(added).error().WithKey(node.item->key));
    }
    return added;
  }

  Result<void> AddContainer(const ChildKey& key, const DcpKeyTree& tree,
                            const DcpKeyTree::Node& node, NodeKind kind) {
    CAIRN_TRY(assembler_.Begin(key, kind));
    if (kind == NodeKind::kList) {
      const auto elements = DcpKeyTree::FindElements(node);
      for (size_t i = 0; i < elements->size(); ++i) {
        CAIRN_TRY(AddNode({std::to_string(i), KeyKind::kIndex}, tree, tree.node((*elements)[i])));
      }
    } else {
      for (const auto& [child_key, child] : node.children) {
        CAIRN_TRY(AddNode(KeyOf(child_key), tree, tree.node(child)));
      }
    }
    assembler_.End();
    return {};
  }

  static ChildKey KeyOf(const DcpKeyTree::Key& key) {
    if (const auto* index = std::get_if<uint64_t>(&key)) {
      return {std::to_string(*index), KeyKind::kInt};
    }
    return {std::get<std::string>(key), KeyKind::kString};
  }

  // ---- Files

  Result<Region> Find(const std::string& key, std::optional<std::vector<uint64_t>> offsets) {
    const auto found = metadata_.locations.find({key, offsets});
    if (found == metadata_.locations.end()) {
      return Damaged(offsets ? fmt::format("the metadata has no location for the chunk at [{}]",
                                           fmt::join(*offsets, ", "))
                             : "the metadata has no location for the value");
    }
    const DcpLocation& location = found->second;
    CAIRN_TRY_ASSIGN(File* const file, Open(location.file));
    const auto bytes = file->mapping->bytes();
    if (location.offset_bytes > bytes.size() ||
        location.length_bytes > bytes.size() - location.offset_bytes) {
      return Fail(Error{.code = ErrorCode::kDataLoss,
                        .message = fmt::format("an item of {} bytes extends beyond the file; was "
                                               "it cut off?",
                                               location.length_bytes),
                        .file = file->path,
                        .offset_bytes = location.offset_bytes});
    }
    // Items do not share bytes. This bounds the state that metadata can build from one small item.
    if (location.length_bytes > file->unclaimed_bytes) {
      return Fail(Error{.code = ErrorCode::kDataLoss,
                        .message = "the items of the metadata have more bytes than the file",
                        .file = file->path});
    }
    file->unclaimed_bytes -= location.length_bytes;
    return Region{file, bytes.subspan(location.offset_bytes, location.length_bytes)};
  }

  Result<File*> Open(const std::string& name) {
    const auto found = files_.find(name);
    if (found != files_.end()) return &found->second;
    File file{.mapping = {}, .path = (directory_ / name).string(), .blobs = {}};
    CAIRN_TRY_ASSIGN(file.mapping, internal::MapFile(file.path));
    file.unclaimed_bytes = file.mapping->bytes().size();
    return &files_.emplace(name, std::move(file)).first->second;
  }

  static Error WithLocation(Error error, const Region& region) {
    if (error.file.empty()) error.file = region.file->path;
    if (!error.offset_bytes) {
      error.offset_bytes =
          static_cast<uint64_t>(region.bytes.data() - region.file->mapping->bytes().data());
    }
    return error;
  }

  Result<TorchArchive> OpenArchive(const Region& region) {
    auto archive = TorchArchive::Open(region.bytes);
    if (!archive) return Fail(WithLocation(std::move(archive).error(), region));
    checksums_.Add(archive->zip(), region.file->mapping, region.file->path);
    return archive;
  }

  // ---- Values

  Result<void> AddBytes(const ChildKey& key, const DcpItem& item) {
    CAIRN_TRY_ASSIGN(const Region region, Find(item.key, std::nullopt));
    auto archive = OpenArchive(region);
    if (!archive) return assembler_.AddUnknown(key, std::move(archive).error());
    assembler_.RaiseBudget(archive->pickle().source_bytes());
    auto added = assembler_.AddObject(key, *archive, archive->pickle().root());
    if (!added) return Fail(WithLocation(std::move(added).error(), region));
    return {};
  }

  // ---- Tensors

  Result<void> AddTensor(const ChildKey& key, const DcpItem& item) {
    const DcpTensor& tensor = *item.tensor;
    CAIRN_TRY(CheckVolume(tensor));
    Sharding sharding{.global_shape = tensor.shape, .mesh = {}, .placements = {}, .parts = {}};
    for (const Box& box : tensor.chunks) {
      auto view = ReadChunk(item, box);
      if (!view) return assembler_.AddUnknown(key, std::move(view).error());
      sharding.parts.push_back({box, *std::move(view)});
    }
    if (sharding.parts.size() == 1 && sharding.parts[0].box == WholeBox(tensor.shape)) {
      return assembler_.AddTensor(key, std::move(sharding.parts[0].view));
    }
    if (std::ranges::find(tensor.shape, uint64_t{0}) != tensor.shape.end()) {
      return assembler_.AddTensor(
          key, {.dtype = tensor.dtype, .shape = tensor.shape, .strides = {}, .data = nullptr});
    }
    return assembler_.AddSharded(key, tensor.dtype, std::move(sharding));
  }

  // Checks that the chunks have as many elements as the tensor. Chunks that leave a gap then
  // overlap elsewhere, which the save refuses.
  static Result<void> CheckVolume(const DcpTensor& tensor) {
    CAIRN_TRY_ASSIGN(const uint64_t all, ElementCount(tensor.shape));
    uint64_t sum = 0;
    for (const Box& box : tensor.chunks) {
      CAIRN_TRY_ASSIGN(const uint64_t count, ElementCount(box.sizes));
      if (__builtin_add_overflow(sum, count, &sum)) break;
    }
    if (sum == all) return {};
    return Damaged(fmt::format("its chunks hold {} elements, but its shape [{}] has {}", sum,
                               fmt::join(tensor.shape, ", "), all));
  }

  Result<TensorView> ReadChunk(const DcpItem& item, const Box& box) {
    CAIRN_TRY_ASSIGN(const Region region, Find(item.key, box.offsets));
    TensorView view;
    if (internal::StartsWithZipHeader(region.bytes)) {
      CAIRN_TRY_ASSIGN(const TorchArchive archive, OpenArchive(region));
      if (!archive.IsTensor(archive.pickle().root())) {
        return Fail(WithLocation({.code = ErrorCode::kDataLoss,
                                  .message = "the item of a tensor contains something else"},
                                 region));
      }
      auto tensor = archive.ReadTensor(archive.pickle().root());
      if (!tensor) return Fail(WithLocation(std::move(tensor).error(), region));
      if (auto spent = repeated_.Spend(*tensor); !spent) {
        return Fail(WithLocation(std::move(spent).error(), region));
      }
      view = std::move(tensor->view);
    } else {
      CAIRN_TRY_ASSIGN(view, ReadFromBlob(item.key, region));
    }
    if (view.dtype == item.tensor->dtype && view.shape == box.sizes) return view;
    return Fail(WithLocation(
        {.code = ErrorCode::kDataLoss,
         .message = fmt::format("the metadata states {} [{}], but the item is {} [{}]",
                                schema::DTypeName(item.tensor->dtype), fmt::join(box.sizes, ", "),
                                schema::DTypeName(view.dtype), fmt::join(view.shape, ", "))},
        region));
  }

  // All tensors of a file are one safetensors blob, which ends at the end of the file. The metadata
  // states the beginning of the blob as the offset of each tensor.
  Result<TensorView> ReadFromBlob(const std::string& key, const Region& region) {
    const auto file = region.file->mapping->bytes();
    const auto begin = static_cast<uint64_t>(region.bytes.data() - file.data());
    auto found = region.file->blobs.find(begin);
    if (found == region.file->blobs.end()) {
      auto contents = internal::ReadSafetensors(file.subspan(begin));
      if (!contents) {
        return Fail(WithLocation(
            {.code = ErrorCode::kDataLoss,
             .message = fmt::format("an item that is in neither torch.save's format nor "
                                    "safetensors ({})",
                                    contents.error().message)},
            region));
      }
      checksums_.AddUnchecked(region.file->path);
      found = region.file->blobs.emplace(begin, Blob{*std::move(contents), {}}).first;
    }
    // Names in a blob are unique: if a rank had several chunks of a tensor, torch wrote only the
    // last.
    if (!found->second.taken.insert(key).second) {
      return Fail(
          WithLocation({.code = ErrorCode::kDataLoss,
                        .message = "its rank had several chunks, of which torch's safetensors "
                                   "format keeps only one; the others are lost"},
                       region));
    }
    const auto& tensors = found->second.contents.tensors;
    const auto tensor = std::ranges::find(tensors, key, &SafetensorsTensor::name);
    if (tensor == tensors.end()) {
      return Fail(
          WithLocation({.code = ErrorCode::kDataLoss,
                        .message = "the safetensors data of the file does not contain the tensor"},
                       region));
    }
    return TensorView{.dtype = tensor->dtype,
                      .shape = tensor->shape,
                      .strides = {},
                      .data = tensor->bytes.data()};
  }

  const fs::path directory_;
  const DcpMetadata& metadata_;
  const ImportOptions& options_;
  internal::StateAssembler assembler_;
  internal::ChecksumVerifier checksums_;
  internal::RepeatedBytes repeated_;
  std::map<std::string, File> files_;
};

bool IsFile(const fs::path& path) {
  std::error_code ignored;  // a path that cannot be examined is not a file
  return fs::is_regular_file(path, ignored);
}

Result<fs::path> FindMetadata(const std::string& path) {
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) return fs::path(path);
  fs::path metadata = fs::path(path) / kMetadataName;
  if (!IsFile(metadata) && IsFile(fs::path(path) / "__0.metadata")) {
    return Fail(Error{.code = ErrorCode::kInvalidArgument,
                      .message = "every rank saved its own checkpoint here "
                                 "(use_collectives=False); give the __R.metadata of one rank",
                      .file = path});
  }
  return metadata;
}

}  // namespace

bool LooksLikeDcpCheckpoint(const std::string& path) {
  const fs::path at(path);
  if (IsFile(at)) return path.ends_with(kMetadataName);
  return IsFile(at / kMetadataName) || IsFile(at / "__0.metadata");
}

Result<ImportedState> ReadDcpCheckpoint(const std::string& path, const ImportOptions& options) {
  CAIRN_TRY_ASSIGN(const fs::path metadata_path, FindMetadata(path));
  CAIRN_TRY_ASSIGN(const auto mapping, internal::MapFile(metadata_path.string()));
  auto metadata = internal::ReadDcpMetadata(mapping->bytes());
  if (!metadata) return Fail(std::move(metadata).error().WithFile(metadata_path.string()));
  DcpReader reader(metadata_path.parent_path(), *metadata, options);
  auto state = reader.Read(mapping->bytes().size());
  if (!state && state.error().file.empty()) {
    return Fail(std::move(state).error().WithFile(metadata_path.string()));
  }
  return state;
}

}  // namespace cairn::core
