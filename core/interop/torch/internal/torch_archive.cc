#include "core/interop/torch/internal/torch_archive.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <utility>

#include "core/interop/archive/internal/crc32.h"
#include "core/interop/archive/internal/pickle_reader.h"
#include "core/interop/archive/internal/zip_records.h"

namespace cairn::core::internal {
namespace {

// The newest archive version that is accepted; torch has written version 3 since 1.6.
constexpr int kNewestVersion = 10;
// A parameter may wrap a tensor of a subclass; torch does not write more layers than this.
constexpr int kMaxLayers = 4;
constexpr size_t kMaxDimensions = 64;

constexpr std::array<std::pair<DType, std::string_view>, 12> kStorageNames = {{
    {DType::kFloat64, "DoubleStorage"},
    {DType::kFloat32, "FloatStorage"},
    {DType::kFloat16, "HalfStorage"},
    {DType::kInt64, "LongStorage"},
    {DType::kInt32, "IntStorage"},
    {DType::kInt16, "ShortStorage"},
    {DType::kInt8, "CharStorage"},
    {DType::kUInt8, "ByteStorage"},
    {DType::kBool, "BoolStorage"},
    {DType::kBFloat16, "BFloat16Storage"},
    {DType::kComplex128, "ComplexDoubleStorage"},
    {DType::kComplex64, "ComplexFloatStorage"},
}};

std::unexpected<Error> Damaged(std::string message) {
  return Fail(ErrorCode::kDataLoss, std::move(message));
}

std::unexpected<Error> Unknown(std::string_view what) {
  return Fail(ErrorCode::kUnimplemented, fmt::format("{} cannot be kept in a store", what));
}

// True for files of torch 1.5 and older: a pickle that begins with a magic number, or a tar file.
bool LooksLikeOldFormat(std::span<const std::byte> bytes) {
  constexpr std::string_view kMagic = "\x8a\x0al\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.";
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  return text.substr(0, 16).find(kMagic.substr(0, 8)) != std::string_view::npos ||
         (text.size() > 262 && text.substr(257, 5) == "ustar");
}

Result<std::string> FolderOf(const ZipReader& zip) {
  if (zip.members().empty())
    return Damaged("the zip archive is empty, so it is not a file of torch.save");
  const std::string& first = zip.members().front().name;
  const size_t slash = first.find('/');
  std::string folder = slash == std::string::npos ? "" : first.substr(0, slash + 1);
  if (zip.Find(folder + "constants.pkl") != nullptr) {
    return Fail(ErrorCode::kUnimplemented,
                "a TorchScript archive contains code; save its state_dict() with torch.save");
  }
  if (zip.Find(folder + "data.pkl") == nullptr) {
    return Damaged("the zip archive has no data.pkl, so it is not a file of torch.save");
  }
  return folder;
}

Result<void> CheckFormat(const ZipReader& zip, const std::string& folder) {
  const auto text_of = [&zip, &folder](std::string_view name) -> std::optional<std::string_view> {
    const ZipMember* const member = zip.Find(folder + std::string(name));
    if (member == nullptr) return std::nullopt;
    return std::string_view(reinterpret_cast<const char*>(member->bytes.data()),
                            member->bytes.size());
  };
  if (const auto order = text_of("byteorder"); order && *order != "little") {
    return Fail(ErrorCode::kUnimplemented,
                "it was saved on a big-endian machine; load and save it again on a little-endian "
                "one");
  }
  const auto version = text_of("version");
  if (!version) return {};
  int number = 0;
  const auto [end, error] =
      std::from_chars(version->data(), version->data() + version->size(), number);
  if (error != std::errc()) return Damaged("its version is not a number");
  if (number <= kNewestVersion) return {};
  return Fail(
      ErrorCode::kUnimplemented,
      fmt::format("its archive version is {}; up to {} can be read", number, kNewestVersion));
}

}  // namespace

std::optional<DType> FindTorchDType(std::string_view global) {
  constexpr std::string_view kModule = "torch.";
  if (!global.starts_with(kModule)) return std::nullopt;
  const auto info = schema::FindDType(global.substr(kModule.size()));
  return info ? std::optional(info->dtype) : std::nullopt;
}

std::optional<std::string_view> TorchStorageName(DType dtype) {
  for (const auto& [known, name] : kStorageNames) {
    if (known == dtype) return name;
  }
  return std::nullopt;
}

Result<TorchArchive> TorchArchive::Open(std::span<const std::byte> bytes) {
  if (!StartsWithZipHeader(bytes)) {
    if (LooksLikeOldFormat(bytes)) {
      return Fail(ErrorCode::kUnimplemented,
                  "it is in torch.save's format from before torch 1.6; load it with torch.load and "
                  "save it again");
    }
    return Damaged("it is not a file of torch.save");
  }
  CAIRN_TRY_ASSIGN(ZipReader zip, ZipReader::Open(bytes));
  CAIRN_TRY_ASSIGN(std::string folder, FolderOf(zip));
  CAIRN_TRY(CheckFormat(zip, folder));
  const ZipMember& data = *zip.Find(folder + "data.pkl");
  // Verify before parsing, so that a damaged pickle is reported as damaged, whatever it contains.
  if (zip.has_checksums() && Crc32(0, data.bytes) != data.crc32) {
    return Damaged("its data.pkl does not match its checksum");
  }
  CAIRN_TRY_ASSIGN(PickleTree pickle, ReadPickle(data.bytes));
  return TorchArchive(std::move(zip), std::move(pickle), std::move(folder));
}

bool TorchArchive::IsTensor(PickleRef ref) const {
  if (pickle_.kind(ref) != PickleKind::kObject) return false;
  const PickleRef callee = pickle_.object(ref).callee;
  if (pickle_.kind(callee) != PickleKind::kGlobal) return false;
  const std::string& name = pickle_.global(callee);
  return name.starts_with("torch._utils._rebuild_") || name.starts_with("torch._tensor._rebuild_");
}

std::span<const PickleRef> TorchArchive::Arguments(PickleRef object) const {
  const PickleRef arguments = pickle_.object(object).arguments;
  if (pickle_.kind(arguments) != PickleKind::kTuple) return {};
  return pickle_.children(arguments);
}

bool TorchArchive::IsText(PickleRef ref, std::string_view text) const {
  return pickle_.kind(ref) == PickleKind::kText && pickle_.text(ref) == text;
}

Result<TorchArchive::Tensor> TorchArchive::ReadTensor(PickleRef ref, int depth) const {
  if (depth == kMaxLayers || !IsTensor(ref))
    return Damaged("a parameter of something that is not a tensor");
  const PickleTree::Object& object = pickle_.object(ref);
  const std::string& function = pickle_.global(object.callee);
  const auto arguments = Arguments(ref);
  const auto argument_is = [&](size_t i, PickleKind kind) {
    return i < arguments.size() && pickle_.kind(arguments[i]) == kind;
  };
  if (function == "torch._utils._rebuild_tensor" || function == "torch._utils._rebuild_tensor_v2" ||
      function == "torch._utils._rebuild_tensor_v3") {
    return ReadStrided(function, arguments);
  }
  if ((function == "torch._utils._rebuild_parameter" ||
       function == "torch._utils._rebuild_parameter_with_state") &&
      argument_is(0, PickleKind::kObject)) {
    CAIRN_TRY_ASSIGN(Tensor tensor, ReadTensor(arguments[0], depth + 1));
    if (function.ends_with("_with_state")) tensor.has_attributes = true;
    return tensor;
  }
  if (function == "torch._tensor._rebuild_from_type_v2" && arguments.size() == 4 &&
      argument_is(0, PickleKind::kGlobal) && argument_is(1, PickleKind::kGlobal) &&
      argument_is(2, PickleKind::kTuple)) {
    const std::string& type = pickle_.global(arguments[1]);
    const std::string& inner = pickle_.global(arguments[0]);
    if (type != "torch.Tensor" && type != "torch.nn.parameter.Parameter") {
      return Unknown(fmt::format("a tensor of class '{}'", type));
    }
    if (!inner.starts_with("torch._utils._rebuild_tensor")) {
      return Unknown(fmt::format("a tensor made by '{}'", inner));
    }
    CAIRN_TRY_ASSIGN(Tensor tensor, ReadStrided(inner, pickle_.children(arguments[2])));
    tensor.has_attributes = true;
    return tensor;
  }
  return Unknown(fmt::format("a tensor made by '{}'", function));
}

// Arguments: storage, offset, size, stride, requires_grad, hooks, [dtype (v3),] [metadata].
Result<TorchArchive::Tensor> TorchArchive::ReadStrided(std::string_view function,
                                                       std::span<const PickleRef> arguments) const {
  const bool is_v3 = function.ends_with("_v3");
  if (arguments.size() < (is_v3 ? 7 : 4)) return Damaged("a tensor lacks arguments");
  CAIRN_TRY_ASSIGN(const Storage storage, ReadStorage(arguments[0]));
  Tensor tensor;
  std::optional<DType> dtype = storage.dtype;
  if (is_v3 && pickle_.kind(arguments[6]) == PickleKind::kGlobal) {
    dtype = FindTorchDType(pickle_.global(arguments[6]));
    if (!dtype) return Unknown(fmt::format("dtype '{}'", pickle_.global(arguments[6])));
  } else if (is_v3) {
    return Damaged("a tensor's dtype is not a dtype");
  }
  if (!dtype) return Damaged("a tensor of an untyped storage has no dtype");
  if (const size_t at = is_v3 ? 7 : 6; arguments.size() > at) {
    CAIRN_TRY(CheckPlain(arguments[at]));
  }
  tensor.view.dtype = *dtype;
  if (pickle_.kind(arguments[1]) != PickleKind::kInt || pickle_.integer(arguments[1]) < 0) {
    return Damaged("a tensor's offset is not a count");
  }
  CAIRN_TRY_ASSIGN(tensor.view.shape, ReadExtents(arguments[2]));
  CAIRN_TRY_ASSIGN(tensor.view.strides, ReadExtents(arguments[3]));
  if (tensor.view.strides.size() != tensor.view.shape.size()) {
    return Damaged("a tensor does not have one stride per dimension");
  }
  CAIRN_TRY_ASSIGN(const uint64_t nbytes, TensorBytes(*dtype, tensor.view.shape));
  if (nbytes == 0) return tensor;
  auto last = static_cast<uint64_t>(pickle_.integer(arguments[1]));
  bool overflow = false;
  for (size_t d = 0; d < tensor.view.shape.size(); ++d) {
    uint64_t reach = 0;
    overflow = __builtin_mul_overflow(tensor.view.shape[d] - 1, tensor.view.strides[d], &reach) ||
               __builtin_add_overflow(last, reach, &last) || overflow;
  }
  const uint64_t element_bytes = schema::ElementBytes(*dtype);
  if (overflow || last >= storage.bytes.size() / element_bytes) {
    return Damaged("a tensor extends beyond its storage");
  }
  tensor.repeated_bytes = nbytes - std::min<uint64_t>(nbytes, storage.bytes.size());
  tensor.view.data =
      storage.bytes.data() + static_cast<uint64_t>(pickle_.integer(arguments[1])) * element_bytes;
  return tensor;
}

// Persistent id: ("storage", class, key, location, length).
Result<TorchArchive::Storage> TorchArchive::ReadStorage(PickleRef ref) const {
  if (pickle_.kind(ref) != PickleKind::kPersistent) return Damaged("a tensor has no storage");
  const PickleRef id = pickle_.persistent_id(ref);
  if (pickle_.kind(id) != PickleKind::kTuple)
    return Damaged("a storage is not identified by a tuple");
  const auto parts = pickle_.children(id);
  if (parts.size() < 5 || !IsText(parts[0], "storage") ||
      pickle_.kind(parts[1]) != PickleKind::kGlobal ||
      pickle_.kind(parts[2]) != PickleKind::kText || pickle_.kind(parts[4]) != PickleKind::kInt ||
      pickle_.integer(parts[4]) < 0) {
    return Damaged("a storage is not identified as torch.save does it");
  }
  Storage storage;
  std::string_view type = pickle_.global(parts[1]);
  uint64_t element_bytes = 1;
  if (type != "torch.storage.UntypedStorage") {
    for (const std::string_view module : {"torch.cuda.", "torch."}) {
      if (!type.starts_with(module)) continue;
      type.remove_prefix(module.size());
      break;
    }
    for (const auto& [dtype, name] : kStorageNames) {
      if (name == type) storage.dtype = dtype;
    }
    if (!storage.dtype) {
      return Unknown(fmt::format("a storage of class '{}'", pickle_.global(parts[1])));
    }
    element_bytes = schema::ElementBytes(*storage.dtype);
  }
  const std::string key(pickle_.text(parts[2]));
  uint64_t length_bytes = 0;
  const auto elements = static_cast<uint64_t>(pickle_.integer(parts[4]));
  if (__builtin_mul_overflow(elements, element_bytes, &length_bytes)) {
    return Damaged(fmt::format("storage '{}' is too long", key));
  }
  if (length_bytes == 0) return storage;
  const ZipMember* const member = zip_.Find(fmt::format("{}data/{}", folder_, key));
  if (member == nullptr) return Damaged(fmt::format("storage '{}' is missing", key));
  if (member->bytes.size() != length_bytes) {
    return Damaged(fmt::format("storage '{}' has {} bytes, but its tensors expect {}", key,
                               member->bytes.size(), length_bytes));
  }
  storage.bytes = member->bytes;
  return storage;
}

Result<std::vector<uint64_t>> TorchArchive::ReadExtents(PickleRef ref) const {
  // A torch.Size is a call with the tuple as its argument.
  if (pickle_.kind(ref) == PickleKind::kObject && Arguments(ref).size() == 1) {
    const PickleRef callee = pickle_.object(ref).callee;
    if (pickle_.kind(callee) == PickleKind::kGlobal && pickle_.global(callee) == "torch.Size") {
      ref = Arguments(ref)[0];
    }
  }
  if (pickle_.kind(ref) != PickleKind::kTuple) return Damaged("a tensor's shape is not a tuple");
  const auto elements = pickle_.children(ref);
  if (elements.size() > kMaxDimensions) return Damaged("a tensor has too many dimensions");
  std::vector<uint64_t> extents;
  for (const PickleRef element : elements) {
    if (pickle_.kind(element) != PickleKind::kInt || pickle_.integer(element) < 0) {
      return Damaged("a tensor's shape or stride is not a count");
    }
    extents.push_back(static_cast<uint64_t>(pickle_.integer(element)));
  }
  return extents;
}

// The elements of a conjugated or negated view differ from those in its storage.
Result<void> TorchArchive::CheckPlain(PickleRef metadata) const {
  if (pickle_.kind(metadata) == PickleKind::kNone) return {};
  if (pickle_.kind(metadata) != PickleKind::kDict)
    return Damaged("a tensor's metadata is not a dict");
  const auto items = pickle_.children(metadata);
  for (size_t i = 0; i + 1 < items.size(); i += 2) {
    if (pickle_.kind(items[i + 1]) == PickleKind::kBool && !pickle_.truth(items[i + 1])) continue;
    return Unknown("a conjugated or negated view (call resolve_conj() and resolve_neg() first)");
  }
  return {};
}

Result<void> RepeatedBytes::Spend(const TorchArchive::Tensor& tensor) {
  if (tensor.repeated_bytes > left_bytes_) {
    return Fail(
        ErrorCode::kResourceExhausted,
        "the tensors repeat elements of their storages, as expand() does, and are more than "
        "1 GiB longer than these; clone them before torch.save");
  }
  left_bytes_ -= tensor.repeated_bytes;
  return {};
}

}  // namespace cairn::core::internal
