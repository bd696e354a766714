#include "core/interop/dcp/internal/dcp_metadata_writer.h"

#include <fmt/format.h>

#include <cstdint>
#include <map>
#include <string_view>
#include <utility>

#include "core/interop/archive/internal/pickle_writer.h"
#include "core/interop/dcp/internal/dcp_metadata_reader.h"

namespace cairn::core::internal {
namespace {

constexpr std::string_view kModule = "torch.distributed.checkpoint.metadata";

class MetadataPickler {
 public:
  explicit MetadataPickler(const DcpMetadata& metadata) : metadata_(metadata) {}

  Result<std::string> Run() {
    BeginObject(kModule, "Metadata");
    Field("state_dict_metadata");
    WriteItems();
    Field("planner_data");
    WritePaths();
    Field("storage_data");
    WriteLocations();
    Field("storage_meta");
    WriteStorageMeta();
    Field("version");
    pickle_.Text("1.0.0");
    EndObject();
    return std::move(pickle_).Finish();
  }

 private:
  // Texts and classes occur thousands of times. Each is one object, as in the pickles of torch.
  template <typename WriteOnce>
  void Shared(const std::string& name, WriteOnce write_once) {
    const auto found = numbers_.find(name);
    if (found != numbers_.end()) return pickle_.Recall(found->second);
    write_once();
    numbers_.emplace(name, pickle_.Memoize());
  }
  void Name(std::string_view text) {
    Shared(std::string("'").append(text), [&] { pickle_.Text(text); });
  }
  void Global(std::string_view module, std::string_view name) {
    Shared(std::string(module) + "." + std::string(name), [&] { pickle_.Global(module, name); });
  }

  // Begins an object whose state is a dict. Its fields follow, each with its value.
  void BeginObject(std::string_view module, std::string_view name) {
    Global(module, name);
    pickle_.EmptyTuple();
    pickle_.NewObject();
    pickle_.EmptyDict();
    pickle_.Mark();
  }
  void Field(std::string_view name) { Name(name); }
  void EndObject() {
    pickle_.SetItems();
    pickle_.SetState();
  }

  void WriteSize(const std::vector<uint64_t>& extents) {
    Global("torch", "Size");
    pickle_.Mark();
    pickle_.Mark();
    for (const uint64_t extent : extents) pickle_.Int(static_cast<int64_t>(extent));
    pickle_.Tuple();
    pickle_.Tuple();
    pickle_.Call();
  }

  void WriteItems() {
    pickle_.EmptyDict();
    pickle_.Mark();
    for (const DcpItem& item : metadata_.items) {
      Name(item.key);
      if (item.tensor) {
        WriteTensor(*item.tensor);
      } else {
        Global(kModule, "BytesStorageMetadata");
        pickle_.EmptyTuple();
        pickle_.NewObject();
      }
    }
    pickle_.SetItems();
  }

  void WriteTensor(const DcpTensor& tensor) {
    BeginObject(kModule, "TensorStorageMetadata");
    Field("properties");
    WriteProperties(tensor.dtype);
    Field("size");
    WriteSize(tensor.shape);
    Field("chunks");
    pickle_.EmptyList();
    pickle_.Mark();
    for (const Box& box : tensor.chunks) {
      BeginObject(kModule, "ChunkStorageMetadata");
      Field("offsets");
      WriteSize(box.offsets);
      Field("sizes");
      WriteSize(box.sizes);
      EndObject();
    }
    pickle_.Append();
    EndObject();
  }

  void WriteProperties(DType dtype) {
    Global(kModule, "TensorProperties");
    pickle_.EmptyTuple();
    pickle_.NewObject();
    pickle_.Mark();
    Global("torch", schema::DTypeName(dtype));
    Shared("layout", [&] { WriteCall("torch.serialization", "_get_layout", "torch.strided"); });
    pickle_.Bool(false);  // requires_grad
    Shared("memory format", [&] {
      Global(kModule, "_MEM_FORMAT_ENCODING");
      pickle_.Mark();
      pickle_.Int(0);  // contiguous
      pickle_.Tuple();
      pickle_.Call();
    });
    pickle_.Bool(false);  // pin_memory
    pickle_.Tuple();
    pickle_.SetState();
  }

  void WriteCall(std::string_view module, std::string_view name, std::string_view argument) {
    Global(module, name);
    pickle_.Mark();
    pickle_.Text(argument);
    pickle_.Tuple();
    pickle_.Call();
  }

  void WritePaths() {
    pickle_.EmptyDict();
    pickle_.Mark();
    for (const DcpItem& item : metadata_.items) {
      Name(item.key);
      pickle_.Mark();
      for (const auto& element : item.path) {
        if (const auto* index = std::get_if<uint64_t>(&element)) {
          pickle_.Int(static_cast<int64_t>(*index));
        } else {
          Name(std::get<std::string>(element));
        }
      }
      pickle_.Tuple();
    }
    pickle_.SetItems();
  }

  void WriteLocations() {
    pickle_.EmptyDict();
    pickle_.Mark();
    for (const DcpItem& item : metadata_.items) {
      if (!item.tensor) WriteLocation(item.key, std::nullopt, 0);
      for (size_t i = 0; item.tensor && i < item.tensor->chunks.size(); ++i) {
        WriteLocation(item.key, item.tensor->chunks[i].offsets, i);
      }
    }
    pickle_.SetItems();
  }

  void WriteLocation(const std::string& key, const std::optional<std::vector<uint64_t>>& offsets,
                     size_t index) {
    BeginObject(kModule, "MetadataIndex");
    Field("fqn");
    Name(key);
    Field("index");
    if (offsets) {
      pickle_.Int(static_cast<int64_t>(index));
      Field("offset");
      WriteSize(*offsets);
    } else {
      pickle_.None();
    }
    EndObject();
    const auto found = metadata_.locations.find({key, offsets});
    CAIRN_CHECK(found != metadata_.locations.end());
    const DcpLocation& location = found->second;
    BeginObject("torch.distributed.checkpoint.filesystem", "_StorageInfo");
    Field("relative_path");
    Name(location.file);
    Field("offset");
    pickle_.Int(static_cast<int64_t>(location.offset_bytes));
    Field("length");
    pickle_.Int(static_cast<int64_t>(location.length_bytes));
    EndObject();
  }

  // The directory and the run are left out, so that the same step gives the same bytes anywhere. No
  // reader needs them.
  void WriteStorageMeta() {
    BeginObject(kModule, "StorageMeta");
    for (const std::string_view name : {"checkpoint_id", "save_id", "load_id"}) {
      Field(name);
      pickle_.None();
    }
    Field("modules");
    pickle_.EmptyList();
    EndObject();
  }

  const DcpMetadata& metadata_;
  PickleWriter pickle_;
  std::map<std::string, uint32_t> numbers_;
};

}  // namespace

Result<std::string> WriteDcpMetadata(const DcpMetadata& metadata) {
  CAIRN_TRY_ASSIGN(std::string pickle, MetadataPickler(metadata).Run());
  const auto read = ReadDcpMetadata(std::as_bytes(std::span(pickle)));
  if (read && *read == metadata) return pickle;
  if (!read && read.error().code == ErrorCode::kResourceExhausted) return pickle;
  return Fail(ErrorCode::kInvalidArgument,
              fmt::format("torch.distributed.checkpoint cannot describe this step{}{}",
                          read ? "" : ": ", read ? "" : read.error().message));
}

}  // namespace cairn::core::internal
