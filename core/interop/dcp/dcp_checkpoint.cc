// Metadata to a tree of keys, its leaves to chunks in mapped files.

#include "core/interop/dcp/dcp_checkpoint.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <utility>
#include <variant>

#include "core/interop/archive/internal/byte_checks.h"
#include "core/interop/archive/internal/mapped_file.h"
#include "core/interop/dcp/internal/dcp_metadata.h"
#include "core/interop/safetensors/internal/safetensors_contents.h"
#include "core/interop/torch/internal/state_assembler.h"
#include "core/interop/torch/internal/torch_archive.h"
#include "kv/mapping.h"

namespace cairn::core {
namespace {

namespace fs = std::filesystem;
using internal::ChildKey;
using internal::DcpItem;
using internal::DcpMetadata;
using internal::DcpPlace;
using internal::DcpTensor;
using internal::TorchArchive;

constexpr std::string_view kMetadataName = ".metadata";

std::unexpected<Error> Damaged(std::string message) {
  return Fail(ErrorCode::kDataLoss, std::move(message));
}

// The nested state that flat keys came from.
class KeyTree {
 public:
  using Element = std::variant<std::string, uint64_t>;
  struct Node {
    std::vector<std::pair<Element, size_t>> children;  // in the order of the items
    std::map<Element, size_t> by_key;
    const DcpItem* item = nullptr;  // of a leaf
  };

  static Result<KeyTree> Make(const DcpMetadata& metadata) {
    KeyTree tree;
    for (const DcpItem& item : metadata.items) {
      size_t at = 0;
      if (item.path.empty()) {
        at = tree.Child(0, item.key);
      } else {
        for (const Element& element : item.path) at = tree.Child(at, element);
      }
      if (tree.nodes_[at].item != nullptr) return Clash(item.key);
      tree.nodes_[at].item = &item;
    }
    for (const Node& node : tree.nodes_) {
      if (node.item != nullptr && !node.children.empty()) return Clash(node.item->key);
    }
    return tree;
  }

  const Node& node(size_t index) const { return nodes_[index]; }

  // Children 0, 1, 2, ... in their order, if the node is a list; else nothing.
  std::optional<std::vector<size_t>> ListOf(const Node& node) const {
    std::vector<size_t> elements;
    for (const auto& [key, child] : node.by_key) {  // numbers come in their order
      const uint64_t* const index = std::get_if<uint64_t>(&key);
      if (index == nullptr || *index != elements.size()) return std::nullopt;
      elements.push_back(child);
    }
    return elements;
  }

 private:
  static std::unexpected<Error> Clash(const std::string& key) {
    return Fail(Error{.code = ErrorCode::kDataLoss,
                      .message = "the checkpoint's metadata puts two things at one place",
                      .key = key});
  }

  size_t Child(size_t parent, const Element& element) {
    const auto [found, inserted] = nodes_[parent].by_key.try_emplace(element, nodes_.size());
    const size_t child = found->second;
    if (inserted) {
      nodes_[parent].children.emplace_back(element, child);
      nodes_.emplace_back();
    }
    return child;
  }

  std::vector<Node> nodes_ = std::vector<Node>(1);
};

class DcpReader {
 public:
  DcpReader(fs::path directory, const DcpMetadata& metadata, const ImportOptions& options)
      : directory_(std::move(directory)),
        metadata_(metadata),
        options_(options),
        assembler_(options.skip_unknown) {}

  Result<ImportedState> Read(uint64_t metadata_bytes) {
    assembler_.Grant(metadata_bytes);
    CAIRN_TRY_ASSIGN(const KeyTree tree, KeyTree::Make(metadata_));
    CAIRN_TRY(AddContainer({}, tree, tree.node(0), NodeKind::kDict));
    CAIRN_TRY(checks_.Run(options_.progress));
    ImportedState result;
    CAIRN_TRY(assembler_.Finish(result));
    for (auto& [name, file] : files_) result.files.push_back(std::move(file.mapping));
    result.unchecked = checks_.unchecked();
    return result;
  }

 private:
  // What SerializationFormat.SAFETENSORS makes of the tensors of a file.
  struct Blob {
    internal::SafetensorsContents contents;
    std::set<std::string> taken;  // by the chunks so far
  };
  struct File {
    std::shared_ptr<const kv::Mapping> mapping;
    std::string path;
    uint64_t left_bytes = 0;         // that no item has claimed
    std::map<uint64_t, Blob> blobs;  // by where they begin
  };
  struct Region {
    File* file = nullptr;
    std::span<const std::byte> bytes;
  };

  Result<void> AddNode(const ChildKey& key, const KeyTree& tree, const KeyTree::Node& node) {
    if (node.item == nullptr) {
      const bool is_list = tree.ListOf(node).has_value();
      return AddContainer(key, tree, node, is_list ? NodeKind::kList : NodeKind::kDict);
    }
    // The assembler names the key in its own errors, by the very same text.
    Result<void> added = node.item->tensor ? AddTensor(key, *node.item) : AddBytes(key, *node.item);
    if (!added && added.error().key.empty()) {
      return Fail(std::move(added).error().WithKey(node.item->key));
    }
    return added;
  }

  Result<void> AddContainer(const ChildKey& key, const KeyTree& tree, const KeyTree::Node& node,
                            NodeKind kind) {
    CAIRN_TRY(assembler_.Begin(key, kind));
    if (kind == NodeKind::kList) {
      const auto elements = tree.ListOf(node);
      for (size_t i = 0; i < elements->size(); ++i) {
        CAIRN_TRY(AddNode({std::to_string(i), KeyKind::kIndex}, tree, tree.node((*elements)[i])));
      }
    } else {
      for (const auto& [element, child] : node.children) {
        CAIRN_TRY(AddNode(KeyOf(element), tree, tree.node(child)));
      }
    }
    assembler_.End();
    return {};
  }

  static ChildKey KeyOf(const KeyTree::Element& element) {
    if (const auto* index = std::get_if<uint64_t>(&element)) {
      return {std::to_string(*index), KeyKind::kInt};
    }
    return {std::get<std::string>(element), KeyKind::kString};
  }

  // ---- the files

  Result<Region> Find(const std::string& key, std::optional<std::vector<uint64_t>> offsets) {
    const auto found = metadata_.places.find({key, offsets});
    if (found == metadata_.places.end()) {
      return Damaged(offsets ? fmt::format("the metadata does not say where the chunk at [{}] is",
                                           fmt::join(*offsets, ", "))
                             : "the metadata does not say where the value is");
    }
    const DcpPlace& place = found->second;
    CAIRN_TRY_ASSIGN(File* const file, Open(place.file));
    const auto bytes = file->mapping->bytes();
    if (place.offset_bytes > bytes.size() ||
        place.length_bytes > bytes.size() - place.offset_bytes) {
      return Fail(Error{.code = ErrorCode::kDataLoss,
                        .message = fmt::format("an item of {} bytes leads out of the file; was it "
                                               "cut off?",
                                               place.length_bytes),
                        .file = file->path,
                        .offset_bytes = place.offset_bytes});
    }
    // Items lie apart; that bounds what a metadata file can make of one small item.
    if (place.length_bytes > file->left_bytes) {
      return Fail(Error{.code = ErrorCode::kDataLoss,
                        .message = "the items of the metadata take more than the file has",
                        .file = file->path});
    }
    file->left_bytes -= place.length_bytes;
    return Region{file, bytes.subspan(place.offset_bytes, place.length_bytes)};
  }

  Result<File*> Open(const std::string& name) {
    const auto found = files_.find(name);
    if (found != files_.end()) return &found->second;
    File file{.mapping = {}, .path = (directory_ / name).string(), .blobs = {}};
    CAIRN_TRY_ASSIGN(file.mapping, internal::MapFile(file.path));
    file.left_bytes = file.mapping->bytes().size();
    return &files_.emplace(name, std::move(file)).first->second;
  }

  static Error Placed(Error error, const Region& region) {
    if (error.file.empty()) error.file = region.file->path;
    if (!error.offset_bytes) {
      error.offset_bytes =
          static_cast<uint64_t>(region.bytes.data() - region.file->mapping->bytes().data());
    }
    return error;
  }

  Result<TorchArchive> OpenArchive(const Region& region) {
    auto archive = TorchArchive::Open(region.bytes);
    if (!archive) return Fail(Placed(std::move(archive).error(), region));
    checks_.Add(archive->zip(), region.file->mapping, region.file->path);
    return archive;
  }

  // ---- values

  Result<void> AddBytes(const ChildKey& key, const DcpItem& item) {
    CAIRN_TRY_ASSIGN(const Region region, Find(item.key, std::nullopt));
    auto archive = OpenArchive(region);
    if (!archive) return assembler_.AddUnknown(key, std::move(archive).error());
    assembler_.Grant(archive->pickle().source_bytes());
    auto added = assembler_.AddObject(key, *archive, archive->pickle().root());
    if (!added) return Fail(Placed(std::move(added).error(), region));
    return {};
  }

  // ---- tensors

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

  // With the same volume, chunks that leave something out overlap, which the save refuses.
  static Result<void> CheckVolume(const DcpTensor& tensor) {
    CAIRN_TRY_ASSIGN(const uint64_t all, ElementCount(tensor.shape));
    uint64_t sum = 0;
    for (const Box& box : tensor.chunks) {
      CAIRN_TRY_ASSIGN(const uint64_t count, ElementCount(box.sizes));
      if (__builtin_add_overflow(sum, count, &sum)) break;
    }
    if (sum == all) return {};
    return Damaged(fmt::format("its chunks hold {} elements, its shape [{}] has {}", sum,
                               fmt::join(tensor.shape, ", "), all));
  }

  Result<TensorView> ReadChunk(const DcpItem& item, const Box& box) {
    CAIRN_TRY_ASSIGN(const Region region, Find(item.key, box.offsets));
    TensorView view;
    if (internal::LooksLikeZip(region.bytes)) {
      CAIRN_TRY_ASSIGN(const TorchArchive archive, OpenArchive(region));
      if (!archive.IsTensor(archive.pickle().root())) {
        return Fail(Placed(
            {.code = ErrorCode::kDataLoss, .message = "the item of a tensor holds something else"},
            region));
      }
      auto tensor = archive.ReadTensor(archive.pickle().root());
      if (!tensor) return Fail(Placed(std::move(tensor).error(), region));
      view = std::move(tensor->view);
    } else {
      CAIRN_TRY_ASSIGN(view, ReadFromBlob(item.key, region));
    }
    if (view.dtype == item.tensor->dtype && view.shape == box.sizes) return view;
    return Fail(Placed(
        {.code = ErrorCode::kDataLoss,
         .message = fmt::format("the metadata says {} [{}], the item is {} [{}]",
                                schema::DTypeName(item.tensor->dtype), fmt::join(box.sizes, ", "),
                                schema::DTypeName(view.dtype), fmt::join(view.shape, ", "))},
        region));
  }

  // The tensors of a file are one safetensors blob, from where each of them is said to begin up to
  // the end of the file.
  Result<TensorView> ReadFromBlob(const std::string& key, const Region& region) {
    const auto file = region.file->mapping->bytes();
    const auto begin = static_cast<uint64_t>(region.bytes.data() - file.data());
    auto found = region.file->blobs.find(begin);
    if (found == region.file->blobs.end()) {
      auto contents = internal::ReadSafetensors(file.subspan(begin));
      if (!contents) {
        return Fail(Placed({.code = ErrorCode::kDataLoss,
                            .message = fmt::format("an item that is neither torch.save's nor "
                                                   "safetensors ({})",
                                                   contents.error().message)},
                           region));
      }
      checks_.AddUnchecked(region.file->path);
      found = region.file->blobs.emplace(begin, Blob{*std::move(contents), {}}).first;
    }
    // The blob has one tensor of a name: of several chunks torch has written only the last.
    if (!found->second.taken.insert(key).second) {
      return Fail(Placed({.code = ErrorCode::kDataLoss,
                          .message = "its rank had several chunks, of which torch's safetensors "
                                     "format keeps but one; the others are lost"},
                         region));
    }
    const auto& tensors = found->second.contents.tensors;
    const auto tensor = std::ranges::find(tensors, key, &SafetensorsTensor::name);
    if (tensor == tensors.end()) {
      return Fail(Placed({.code = ErrorCode::kDataLoss,
                          .message = "the safetensors data of the file does not hold the tensor"},
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
  internal::ByteChecks checks_;
  std::map<std::string, File> files_;
};

bool IsFile(const fs::path& path) {
  std::error_code ignored;  // what cannot be looked at is none
  return fs::is_regular_file(path, ignored);
}

Result<fs::path> FindMetadata(const std::string& path) {
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) return fs::path(path);
  fs::path metadata = fs::path(path) / kMetadataName;
  if (!IsFile(metadata) && IsFile(fs::path(path) / "__0.metadata")) {
    return Fail(Error{.code = ErrorCode::kInvalidArgument,
                      .message = "every rank saved a checkpoint of its own here "
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
  auto metadata = internal::ParseDcpMetadata(mapping->bytes());
  if (!metadata) return Fail(std::move(metadata).error().WithFile(metadata_path.string()));
  DcpReader reader(metadata_path.parent_path(), *metadata, options);
  auto state = reader.Read(mapping->bytes().size());
  if (!state && state.error().file.empty()) {
    return Fail(std::move(state).error().WithFile(metadata_path.string()));
  }
  return state;
}

}  // namespace cairn::core
