#include "core/interop/dcp/internal/dcp_metadata_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "core/interop/archive/internal/pickle_reader.h"
#include "core/interop/torch/internal/torch_archive.h"

namespace cairn::core::internal {
namespace {

constexpr std::string_view kMetadata = "torch.distributed.checkpoint.metadata.";
constexpr std::string_view kStorageInfo = "torch.distributed.checkpoint.filesystem._StorageInfo";

// The names that a metadata pickle may contain, in addition to dtypes.
constexpr std::array<std::string_view, 22> kAllowed = {
    "torch.distributed.checkpoint.metadata.Metadata",
    "torch.distributed.checkpoint.metadata.MetadataIndex",
    "torch.distributed.checkpoint.metadata.StorageMeta",
    "torch.distributed.checkpoint.metadata.TensorStorageMetadata",
    "torch.distributed.checkpoint.metadata.BytesStorageMetadata",
    "torch.distributed.checkpoint.metadata.ChunkStorageMetadata",
    "torch.distributed.checkpoint.metadata.TensorProperties",
    "torch.distributed.checkpoint.metadata._MEM_FORMAT_ENCODING",
    "torch.distributed.checkpoint.filesystem._StorageInfo",
    // torch before 2.3 has the properties of tensors here.
    "torch.distributed._shard.sharded_tensor.metadata.TensorProperties",
    "torch.distributed._shard.sharded_tensor.metadata.MEM_FORMAT_ENCODING",
    "torch.Size",
    "torch.serialization._get_layout",
    "collections.OrderedDict",
    "pathlib.PosixPath",
    "pathlib.PurePosixPath",
    "pathlib.WindowsPath",
    "pathlib.PureWindowsPath",
    // Python 3.13.
    "pathlib._local.PosixPath",
    "pathlib._local.PurePosixPath",
    "pathlib._local.WindowsPath",
    "pathlib._local.PureWindowsPath",
};

class MetadataReader {
 public:
  explicit MetadataReader(const PickleTree& pickle) : pickle_(pickle) {}

  Result<DcpMetadata> Read() {
    CAIRN_TRY(CheckNames());
    CAIRN_TRY_ASSIGN(const Fields fields, FieldsOf(pickle_.root(), "Metadata"));
    DcpMetadata metadata;
    CAIRN_TRY(ReadItems(fields, metadata));
    CAIRN_TRY(ReadPaths(fields, metadata));
    CAIRN_TRY(ReadLocations(fields, metadata));
    return metadata;
  }

 private:
  using Kind = PickleKind;
  using Fields = std::map<std::string_view, PickleRef>;

  static std::unexpected<Error> Damaged(std::string_view why) {
    return Fail(ErrorCode::kDataLoss, fmt::format("the checkpoint's metadata: {}", why));
  }

  Result<void> CheckNames() const {
    for (const std::string& name : pickle_.globals()) {
      if (std::ranges::find(kAllowed, name) != kAllowed.end() || FindTorchDType(name)) continue;
      return Fail(
          ErrorCode::kUnimplemented,
          fmt::format("the checkpoint's metadata names '{}', which is not one of its classes",
                      name));
    }
    return {};
  }

  bool IsCallOf(PickleRef ref, std::string_view name) const {
    if (pickle_.kind(ref) != Kind::kObject) return false;
    const PickleRef callee = pickle_.object(ref).callee;
    return pickle_.kind(callee) == Kind::kGlobal && pickle_.global(callee) == name;
  }
  bool IsMetadata(PickleRef ref, std::string_view name) const {
    return IsCallOf(ref, fmt::format("{}{}", kMetadata, name));
  }

  // Returns the attributes of an object whose state is a dict.
  Result<Fields> FieldsOf(PickleRef ref, std::string_view name) const {
    if (!IsMetadata(ref, name)) return Damaged(fmt::format("a {} is missing", name));
    return FieldsOfState(ref);
  }
  Result<Fields> FieldsOfState(PickleRef ref) const {
    const PickleTree::Object& object = pickle_.object(ref);
    Fields fields;
    if (!object.has_state || pickle_.kind(object.state) != Kind::kDict) {
      return Damaged("an object without attributes");
    }
    const auto items = pickle_.children(object.state);
    for (size_t i = 0; i + 1 < items.size(); i += 2) {
      if (pickle_.kind(items[i]) != Kind::kText) return Damaged("an attribute without a name");
      fields[pickle_.text(items[i])] = items[i + 1];
    }
    return fields;
  }

  // Returns the items of the dict in a field; none if the field is None or absent.
  Result<std::span<const PickleRef>> DictOf(const Fields& fields, std::string_view name) const {
    const auto found = fields.find(name);
    if (found == fields.end() || pickle_.kind(found->second) == Kind::kNone) {
      return std::span<const PickleRef>();
    }
    if (pickle_.kind(found->second) != Kind::kDict) {
      return Damaged(fmt::format("{} is not a dict", name));
    }
    return pickle_.children(found->second);
  }

  Result<PickleRef> FieldOf(const Fields& fields, std::string_view name, Kind kind) const {
    const auto found = fields.find(name);
    if (found == fields.end() || pickle_.kind(found->second) != kind) {
      return Damaged(fmt::format("{} is missing or of another type", name));
    }
    return found->second;
  }

  Result<uint64_t> CountOf(PickleRef ref) const {
    if (pickle_.kind(ref) != Kind::kInt || pickle_.integer(ref) < 0) {
      return Damaged("a number that is not a count");
    }
    return static_cast<uint64_t>(pickle_.integer(ref));
  }

  Result<std::vector<uint64_t>> SizeOf(const Fields& fields, std::string_view name) const {
    CAIRN_TRY_ASSIGN(const PickleRef ref, FieldOf(fields, name, Kind::kObject));
    const PickleTree::Object& object = pickle_.object(ref);
    if (!IsCallOf(ref, "torch.Size") || pickle_.kind(object.arguments) != Kind::kTuple ||
        pickle_.children(object.arguments).size() != 1 ||
        pickle_.kind(pickle_.children(object.arguments)[0]) != Kind::kTuple) {
      return Damaged(fmt::format("{} is not a torch.Size", name));
    }
    std::vector<uint64_t> extents;
    for (const PickleRef element : pickle_.children(pickle_.children(object.arguments)[0])) {
      CAIRN_TRY_ASSIGN(const uint64_t extent, CountOf(element));
      extents.push_back(extent);
    }
    return extents;
  }

  // ---- state_dict_metadata

  Result<void> ReadItems(const Fields& fields, DcpMetadata& metadata) const {
    CAIRN_TRY_ASSIGN(const PickleRef dict, FieldOf(fields, "state_dict_metadata", Kind::kDict));
    const auto entries = pickle_.children(dict);
    for (size_t i = 0; i + 1 < entries.size(); i += 2) {
      if (pickle_.kind(entries[i]) != Kind::kText) return Damaged("a key that is not a text");
      DcpItem item{.key = std::string(pickle_.text(entries[i])), .tensor = {}, .path = {}};
      if (!IsMetadata(entries[i + 1], "BytesStorageMetadata")) {
        auto tensor = ReadTensor(entries[i + 1]);
        if (!tensor) return Fail(std::move(tensor).error().WithKey(item.key));
        item.tensor = *std::move(tensor);
      }
      metadata.items.push_back(std::move(item));
    }
    return {};
  }

  Result<DcpTensor> ReadTensor(PickleRef ref) const {
    CAIRN_TRY_ASSIGN(const Fields fields, FieldsOf(ref, "TensorStorageMetadata"));
    DcpTensor tensor;
    CAIRN_TRY_ASSIGN(const PickleRef properties, FieldOf(fields, "properties", Kind::kObject));
    CAIRN_TRY_ASSIGN(tensor.dtype, ReadDType(properties));
    CAIRN_TRY_ASSIGN(tensor.shape, SizeOf(fields, "size"));
    CAIRN_TRY_ASSIGN(const PickleRef chunks, FieldOf(fields, "chunks", Kind::kList));
    for (const PickleRef chunk : pickle_.children(chunks)) {
      CAIRN_TRY_ASSIGN(const Fields of_chunk, FieldsOf(chunk, "ChunkStorageMetadata"));
      Box box;
      CAIRN_TRY_ASSIGN(box.offsets, SizeOf(of_chunk, "offsets"));
      CAIRN_TRY_ASSIGN(box.sizes, SizeOf(of_chunk, "sizes"));
      if (box.offsets.size() != box.sizes.size() || !BoxFits(box, tensor.shape)) {
        return Damaged("a chunk extends beyond its tensor");
      }
      tensor.chunks.push_back(std::move(box));
    }
    return tensor;
  }

  // The first element of the state of TensorProperties, a tuple, is the dtype.
  Result<DType> ReadDType(PickleRef properties) const {
    const PickleTree::Object& object = pickle_.object(properties);
    if (!object.has_state || pickle_.kind(object.state) != Kind::kTuple ||
        pickle_.children(object.state).empty()) {
      return Damaged("a tensor without properties");
    }
    const PickleRef dtype = pickle_.children(object.state)[0];
    const auto found =
        pickle_.kind(dtype) == Kind::kGlobal ? FindTorchDType(pickle_.global(dtype)) : std::nullopt;
    if (!found) return Damaged("a tensor without a dtype");
    return *found;
  }

  // ---- planner_data

  Result<void> ReadPaths(const Fields& fields, DcpMetadata& metadata) const {
    // A planner other than torch's may store anything here. The keys then stay flat.
    const auto found = fields.find("planner_data");
    if (found == fields.end() || pickle_.kind(found->second) != Kind::kDict) return {};
    const auto entries = pickle_.children(found->second);
    std::map<std::string_view, PickleRef> paths;
    for (size_t i = 0; i + 1 < entries.size(); i += 2) {
      if (pickle_.kind(entries[i]) != Kind::kText || pickle_.kind(entries[i + 1]) != Kind::kTuple) {
        return {};
      }
      paths[pickle_.text(entries[i])] = entries[i + 1];
    }
    for (DcpItem& item : metadata.items) {
      const auto path = paths.find(item.key);
      if (path == paths.end()) continue;
      for (const PickleRef element : pickle_.children(path->second)) {
        if (pickle_.kind(element) == Kind::kText) {
          item.path.emplace_back(std::string(pickle_.text(element)));
          continue;
        }
        CAIRN_TRY_ASSIGN(const uint64_t index, CountOf(element));
        item.path.emplace_back(index);
      }
    }
    return {};
  }

  // ---- storage_data

  Result<void> ReadLocations(const Fields& fields, DcpMetadata& metadata) const {
    CAIRN_TRY_ASSIGN(const auto entries, DictOf(fields, "storage_data"));
    for (size_t i = 0; i + 1 < entries.size(); i += 2) {
      CAIRN_TRY_ASSIGN(const Fields index, FieldsOf(entries[i], "MetadataIndex"));
      CAIRN_TRY_ASSIGN(const PickleRef fqn, FieldOf(index, "fqn", Kind::kText));
      std::optional<std::vector<uint64_t>> offsets;
      if (const auto offset = index.find("offset");
          offset != index.end() && pickle_.kind(offset->second) != Kind::kNone) {
        CAIRN_TRY_ASSIGN(offsets, SizeOf(index, "offset"));
      }
      std::string key(pickle_.text(fqn));
      auto location = ReadLocation(entries[i + 1]);
      if (!location) return Fail(std::move(location).error().WithKey(key));
      metadata.locations[{std::move(key), std::move(offsets)}] = *std::move(location);
    }
    return {};
  }

  Result<DcpLocation> ReadLocation(PickleRef ref) const {
    if (!IsCallOf(ref, kStorageInfo))
      return Damaged("a location that FileSystemWriter did not write");
    CAIRN_TRY_ASSIGN(const Fields fields, FieldsOfState(ref));
    CAIRN_TRY(CheckTransforms(fields));
    DcpLocation location;
    CAIRN_TRY_ASSIGN(const PickleRef path, FieldOf(fields, "relative_path", Kind::kText));
    location.file = pickle_.text(path);
    // Only files of the same directory: a foreign checkpoint must not select files of this machine.
    if (location.file.empty() || location.file == "." || location.file == ".." ||
        location.file.find('/') != std::string::npos ||
        location.file.find('\0') != std::string::npos) {
      return Damaged(fmt::format("'{}' is not the name of a file in its directory", location.file));
    }
    CAIRN_TRY_ASSIGN(const PickleRef offset, FieldOf(fields, "offset", Kind::kInt));
    CAIRN_TRY_ASSIGN(location.offset_bytes, CountOf(offset));
    CAIRN_TRY_ASSIGN(const PickleRef length, FieldOf(fields, "length", Kind::kInt));
    CAIRN_TRY_ASSIGN(location.length_bytes, CountOf(length));
    return location;
  }

  Result<void> CheckTransforms(const Fields& fields) const {
    const auto found = fields.find("transform_descriptors");
    if (found == fields.end() || pickle_.kind(found->second) == Kind::kNone) return {};
    if (pickle_.kind(found->second) != Kind::kList && pickle_.kind(found->second) != Kind::kTuple) {
      return Damaged("transforms that are not a list");
    }
    for (const PickleRef name : pickle_.children(found->second)) {
      return Fail(ErrorCode::kUnimplemented,
                  fmt::format("its bytes were transformed by the extension '{}'; only checkpoints "
                              "without extensions can be read",
                              pickle_.kind(name) == Kind::kText ? pickle_.text(name) : "?"));
    }
    return {};
  }

  const PickleTree& pickle_;
};

}  // namespace

Result<DcpMetadata> ReadDcpMetadata(std::span<const std::byte> pickle) {
  CAIRN_TRY_ASSIGN(const PickleTree tree, ReadPickle(pickle));
  return MetadataReader(tree).Read();
}

}  // namespace cairn::core::internal
