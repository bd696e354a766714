// The types, dtypes and DLPack functions of torch, looked up in the running process.

#include "python/src/torch_access.h"

#include <algorithm>
#include <new>
#include <utility>

#include "core/device/device.h"
#include "python/src/gil.h"

namespace cairn::python {
namespace {

nb::object Interned(const char* text) { return nb::steal(PyUnicode_InternFromString(text)); }

// Returns null if torch is too old to have the functions, or has another major version of them.
const dlpack::ExchangeApi* FindExchangeApi(nb::handle tensor_type) {
  nb::object capsule = nb::getattr(tensor_type, "__dlpack_c_exchange_api__", nb::none());
  if (!PyCapsule_IsValid(capsule.ptr(), dlpack::kExchangeApiName)) return nullptr;
  const auto* api = static_cast<const dlpack::ExchangeApi*>(
      PyCapsule_GetPointer(capsule.ptr(), dlpack::kExchangeApiName));
  const bool usable = api->version.major == dlpack::kMajorVersion && api->describe != nullptr;
  return usable ? api : nullptr;
}

// The DLPack form of dtypes, except for dtypes that DLPack cannot distinguish from others.
struct WireCode {
  core::DType dtype;
  nb::dlpack::dtype wire;

  constexpr WireCode(core::DType type, nb::dlpack::dtype_code code)
      : dtype(type),
        wire{static_cast<uint8_t>(code), static_cast<uint8_t>(schema::ElementBytes(type) * 8), 1} {}
};
constexpr WireCode kWireCodes[] = {
    {core::DType::kBool, nb::dlpack::dtype_code::Bool},
    {core::DType::kUInt8, nb::dlpack::dtype_code::UInt},
    {core::DType::kInt8, nb::dlpack::dtype_code::Int},
    {core::DType::kInt16, nb::dlpack::dtype_code::Int},
    {core::DType::kInt32, nb::dlpack::dtype_code::Int},
    {core::DType::kInt64, nb::dlpack::dtype_code::Int},
    {core::DType::kUInt16, nb::dlpack::dtype_code::UInt},
    {core::DType::kUInt32, nb::dlpack::dtype_code::UInt},
    {core::DType::kUInt64, nb::dlpack::dtype_code::UInt},
    {core::DType::kFloat16, nb::dlpack::dtype_code::Float},
    {core::DType::kBFloat16, nb::dlpack::dtype_code::Bfloat},
    {core::DType::kFloat32, nb::dlpack::dtype_code::Float},
    {core::DType::kFloat64, nb::dlpack::dtype_code::Float},
    {core::DType::kComplex32, nb::dlpack::dtype_code::Complex},
    {core::DType::kComplex64, nb::dlpack::dtype_code::Complex},
    {core::DType::kComplex128, nb::dlpack::dtype_code::Complex},
    {core::DType::kFloat8E4M3FN, nb::dlpack::dtype_code::Float8_E4M3FN},
    {core::DType::kFloat8E4M3FNUZ, nb::dlpack::dtype_code::Float8_E4M3FNUZ},
    {core::DType::kFloat8E5M2, nb::dlpack::dtype_code::Float8_E5M2},
    {core::DType::kFloat8E5M2FNUZ, nb::dlpack::dtype_code::Float8_E5M2FNUZ},
    {core::DType::kFloat8E8M0FNU, nb::dlpack::dtype_code::Float8_E8M0FNU},
};

const WireCode* FindWireCode(core::DType dtype) {
  const auto* found = std::ranges::find(kWireCodes, dtype, &WireCode::dtype);
  return found == std::ranges::end(kWireCodes) ? nullptr : found;
}

// Memory that is lent to a tensor. The arrays that its description points to follow it: the shape,
// and then the strides. There may be very many, so that this is one allocation.
struct Lent {
  dlpack::ManagedTensor managed;
  std::shared_ptr<std::byte> memory;

  static Lent* New(std::shared_ptr<std::byte> memory, std::span<const uint64_t> shape) {
    void* const place = ::operator new(sizeof(Lent) + 2 * shape.size() * sizeof(int64_t));
    auto* const lent = new (place) Lent{.managed = {}, .memory = std::move(memory)};
    auto* const sizes = reinterpret_cast<int64_t*>(lent + 1);
    int64_t stride = 1;
    for (size_t d = shape.size(); d-- > 0;) {
      sizes[d] = static_cast<int64_t>(shape[d]);
      sizes[shape.size() + d] = stride;
      stride *= sizes[d];
    }
    lent->managed.context = lent;
    lent->managed.deleter = [](dlpack::ManagedTensor* self) {
      auto* const unused = static_cast<Lent*>(self->context);
      unused->~Lent();
      ::operator delete(unused);
    };
    lent->managed.tensor.data = lent->memory.get();
    lent->managed.tensor.ndim = static_cast<int32_t>(shape.size());
    lent->managed.tensor.shape = sizes;
    lent->managed.tensor.strides = sizes + shape.size();
    return lent;
  }
};

bool IsComplex(core::DType dtype) {
  return dtype == core::DType::kComplex32 || dtype == core::DType::kComplex64 ||
         dtype == core::DType::kComplex128 || dtype == core::DType::kBComplex32;
}

}  // namespace

bool TensorMemory::is_contiguous() const {
  int64_t expected = 1;
  for (size_t d = shape.size(); d-- > 0;) {
    if (shape[d] != 1 && strides[d] != expected) return false;
    expected *= std::max<int64_t>(shape[d], 1);
  }
  return true;
}

TorchAccess::TorchAccess(Reach reach)
    : reach_(reach),
      dtype_name_(nb::borrow<nb::str>(Interned("dtype"))),
      storage_name_(nb::borrow<nb::str>(Interned("untyped_storage"))),
      is_neg_name_(nb::borrow<nb::str>(Interned("is_neg"))),
      global_shape_name_(nb::borrow<nb::str>(Interned("global_shape"))) {
  nb::object dtypes = nb::module_::import_("cairn._base.dtypes");
  nb::object torch = RunPython([&]() -> nb::object { return dtypes.attr("loaded_torch")(); });
  if (torch.is_none()) return;
  tensor_type_ = torch.attr("Tensor");
  parameter_type_ = torch.attr("nn").attr("Parameter");
  size_type_ = torch.attr("Size");
  codes_ =
      nb::cast<nb::dict>(RunPython([&]() -> nb::object { return dtypes.attr("torch_codes")(); }));
  api_ = FindExchangeApi(tensor_type_);
}

bool TorchAccess::IsSize(nb::handle value) const {
  return size_type_.is_valid() && value.type().is(size_type_);
}

bool TorchAccess::IsPlainTensor(nb::handle value) const {
  return api_ != nullptr && (value.type().is(tensor_type_) || value.type().is(parameter_type_));
}

bool TorchAccess::IsTensorSubclass(nb::handle value) const {
  if (!tensor_type_.is_valid()) return false;
  PyTypeObject* type = Py_TYPE(value.ptr());
  PyObject* const tensor = tensor_type_.ptr();
  if (static_cast<void*>(type) == tensor || static_cast<void*>(type) == parameter_type_.ptr()) {
    return false;
  }
  return PyType_IsSubtype(type, reinterpret_cast<PyTypeObject*>(tensor)) != 0;
}

std::optional<TensorMemory> TorchAccess::FindMemory(nb::handle value) const {
  if (!IsPlainTensor(value)) return std::nullopt;
  // With the fields of torch's CheckpointableTensor it is a shard, which Python code describes.
  if (PyObject_HasAttr(value.ptr(), global_shape_name_.ptr()) == 1) return std::nullopt;
  // A failure takes torch a millisecond, and meta tensors are usually many.
  if (has_failed_ && nb::handle(value.attr("is_meta")).is(nb::handle(Py_True))) return std::nullopt;
  auto memory = Describe(value);
  if (!memory || IsComplex(memory->dtype) || IsNegated(value)) return std::nullopt;
  // Python code does not run between this call and the description, so that both see one storage.
  memory->storage =
      nb::steal(PyObject_CallMethodObjArgs(value.ptr(), storage_name_.ptr(), nullptr));
  if (memory->storage.is_valid()) return memory;
  PyErr_Clear();
  return std::nullopt;
}

std::optional<TensorMemory> TorchAccess::Describe(nb::handle tensor_object) const {
  if (!IsPlainTensor(tensor_object)) return std::nullopt;
  dlpack::Tensor tensor{};
  if (api_->describe(tensor_object.ptr(), &tensor) != 0) {
    PyErr_Clear();  // the Python side finds out and reports the reason
    has_failed_ = true;
    return std::nullopt;
  }
  const std::optional<int> device = ReachedDevice(tensor.device);
  const core::DType dtype = DTypeOf(tensor_object, tensor.dtype);
  if (!device || tensor.byte_offset != 0 || dtype == core::DType::kUnknown) return std::nullopt;
  const auto dims = static_cast<size_t>(tensor.ndim);
  if (dims > 0 && (tensor.shape == nullptr || tensor.strides == nullptr)) return std::nullopt;
  const std::span<const int64_t> shape(tensor.shape, dims);
  // The storage was freed, unless there is nothing to store.
  const bool is_empty = std::ranges::find(shape, 0) != shape.end();
  if (tensor.data == nullptr && !is_empty) return std::nullopt;
  return TensorMemory{.dtype = dtype,
                      .shape = shape,
                      .strides = {tensor.strides, dims},
                      .data = static_cast<std::byte*>(tensor.data),
                      .device = *device,
                      .storage = {}};
}

bool TorchAccess::HasView(nb::handle value, const core::TensorView& view) const {
  const auto memory = Describe(value);
  return memory && memory->device == core::kHostDevice && memory->data == view.data &&
         memory->dtype == view.dtype && std::ranges::equal(memory->shape, view.shape) &&
         (view.strides.empty() ? memory->is_contiguous()
                               : std::ranges::equal(memory->strides, view.strides));
}

const std::byte* TorchAccess::FindData(nb::handle value) const {
  if (!IsPlainTensor(value)) return nullptr;
  dlpack::Tensor tensor{};
  if (api_->describe(value.ptr(), &tensor) != 0) {
    PyErr_Clear();
    return nullptr;
  }
  return static_cast<const std::byte*>(tensor.data);
}

bool TorchAccess::HasMoved(const BorrowedTensor& borrowed) const {
  if (FindData(borrowed.tensor) == borrowed.data) return false;
  // The tensor has got another storage, or its storage has got other memory.
  try {
    const auto begin = nb::cast<uint64_t>(borrowed.storage.attr("data_ptr")());
    const auto bytes = nb::cast<uint64_t>(borrowed.storage.attr("nbytes")());
    const auto address = reinterpret_cast<uint64_t>(borrowed.data);
    return address < begin || address >= begin + bytes;
  } catch (nb::python_error&) {
    return true;  // a storage without an address
  }
}

std::optional<int> TorchAccess::ReachedDevice(const dlpack::Device& device) const {
  if (device.device_type == dlpack::kCpu) return core::kHostDevice;
  if (device.device_type != dlpack::kCuda || reach_ == Reach::kHost) return std::nullopt;
  if (!has_backend_) has_backend_ = core::FindDeviceBackend().has_value();
  return *has_backend_ ? std::optional<int>(device.device_id) : std::nullopt;
}

bool TorchAccess::CanWrap(core::DType dtype) const {
  return api_ != nullptr && api_->wrap != nullptr && FindWireCode(dtype) != nullptr;
}

nb::object TorchAccess::Wrap(std::shared_ptr<std::byte> memory, core::DType dtype,
                             std::span<const uint64_t> shape) const {
  CAIRN_CHECK(CanWrap(dtype));
  Lent* const lent = Lent::New(std::move(memory), shape);
  dlpack::Tensor& tensor = lent->managed.tensor;
  tensor.device = {dlpack::kCpu, 0};
  tensor.dtype = FindWireCode(dtype)->wire;
  void* result = nullptr;
  // From here on torch owns the memory, even if the call fails.
  if (api_->wrap(&lent->managed, &result) != 0) throw nb::python_error();
  return nb::steal(static_cast<PyObject*>(result));
}

core::DType TorchAccess::DTypeOf(nb::handle tensor, const nb::dlpack::dtype& wire) const {
  // torch describes its uint4 as uint8.
  const bool is_byte =
      wire.bits == 8 && wire.code <= static_cast<uint8_t>(nb::dlpack::dtype_code::UInt);
  const auto* const found = std::ranges::find(kWireCodes, wire, &WireCode::wire);
  if (!is_byte && found != std::ranges::end(kWireCodes)) return found->dtype;
  nb::object dtype = tensor.attr(dtype_name_);
  PyObject* code = PyDict_GetItemWithError(codes_.ptr(), dtype.ptr());  // borrowed
  if (code == nullptr) {
    if (PyErr_Occurred()) throw nb::python_error();
    return core::DType::kUnknown;
  }
  return static_cast<core::DType>(nb::cast<uint8_t>(nb::handle(code)));
}

bool TorchAccess::IsNegated(nb::handle tensor) const {
  nb::object answer =
      nb::steal(PyObject_CallMethodObjArgs(tensor.ptr(), is_neg_name_.ptr(), nullptr));
  if (!answer.is_valid()) throw nb::python_error();
  return answer.ptr() != Py_False;
}

}  // namespace cairn::python
