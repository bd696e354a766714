// Conversions through the C API of Python.

#include "python/src/convert.h"

#include "python/src/errors.h"

namespace cairn::python {
namespace {

std::vector<std::byte> CopyBytes(nb::handle bytes) {
  const auto* data = reinterpret_cast<const std::byte*>(PyBytes_AsString(bytes.ptr()));
  return {data, data + PyBytes_Size(bytes.ptr())};
}

nb::bytes ToPyBytes(std::span<const std::byte> data) { return nb::bytes(data.data(), data.size()); }

uint64_t FromPyNumber(nb::handle number) {
  const unsigned long long value = PyLong_AsUnsignedLongLong(number.ptr());
  if (value == static_cast<unsigned long long>(-1) && PyErr_Occurred()) throw nb::python_error();
  return value;
}

// Returns the shortest two's complement: |n| bits and a sign bit, rounded up to bytes.
core::BigInt FromPyBigInt(nb::handle number) {
  nb::object magnitude = nb::borrow(number);
  if (number < nb::int_(0)) magnitude = ~magnitude;
  const auto bits = nb::cast<uint64_t>(magnitude.attr("bit_length")());
  nb::object bytes = number.attr("to_bytes")(bits / 8 + 1, "little", nb::arg("signed") = true);
  return core::BigInt{CopyBytes(bytes)};
}

core::Value FromPyInt(nb::handle number) {
  int overflow = 0;
  const long long value = PyLong_AsLongLongAndOverflow(number.ptr(), &overflow);
  if (overflow != 0) return FromPyBigInt(number);
  if (value == -1 && PyErr_Occurred()) throw nb::python_error();
  return static_cast<int64_t>(value);
}

struct ValueToPy {
  nb::object operator()(std::monostate) const { return nb::none(); }
  nb::object operator()(bool value) const { return nb::bool_(value); }
  nb::object operator()(int64_t value) const { return nb::int_(value); }
  nb::object operator()(const core::BigInt& value) const {
    nb::handle int_type(reinterpret_cast<PyObject*>(&PyLong_Type));
    return int_type.attr("from_bytes")(ToPyBytes(value.twos_complement), "little",
                                       nb::arg("signed") = true);
  }
  nb::object operator()(double value) const { return nb::float_(value); }
  nb::object operator()(std::complex<double> value) const {
    return Checked(PyComplex_FromDoubles(value.real(), value.imag()));
  }
  nb::object operator()(const std::string& value) const { return ToPyText(value); }
  nb::object operator()(const core::Bytes& value) const { return ToPyBytes(value.data); }
  nb::object operator()(const core::Pickle& value) const { return nb::cast(value); }
  nb::object operator()(const core::ChunkedValue&) const {
    Throw(Error{.code = ErrorCode::kInternal, .message = "a value without its bytes"});
  }
};

}  // namespace

nb::object Checked(PyObject* object) {
  if (object == nullptr) throw nb::python_error();
  return nb::steal(object);
}

std::string FromPyText(nb::handle text) {
  Py_ssize_t size = 0;
  if (const char* data = PyUnicode_AsUTF8AndSize(text.ptr(), &size)) {
    return {data, static_cast<size_t>(size)};
  }
  PyErr_Clear();
  nb::object bytes = Checked(PyUnicode_AsEncodedString(text.ptr(), "utf-8", "surrogatepass"));
  return {PyBytes_AsString(bytes.ptr()), static_cast<size_t>(PyBytes_Size(bytes.ptr()))};
}

nb::object ToPyText(std::string_view text) {
  PyObject* decoded =
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "surrogatepass");
  if (decoded == nullptr) {
    PyErr_Clear();
    Throw(Error{.code = ErrorCode::kDataLoss, .message = "a text in the store is not valid UTF-8"});
  }
  return nb::steal(decoded);
}

std::vector<uint64_t> FromPyNumbers(nb::handle sequence) {
  nb::object elements = Checked(PySequence_Tuple(sequence.ptr()));
  const Py_ssize_t count = PyTuple_Size(elements.ptr());
  std::vector<uint64_t> numbers;
  numbers.reserve(static_cast<size_t>(count));
  for (Py_ssize_t i = 0; i < count; ++i) {
    numbers.push_back(FromPyNumber(PyTuple_GetItem(elements.ptr(), i)));
  }
  return numbers;
}

nb::tuple ToPyNumbers(std::span<const uint64_t> numbers) {
  nb::list list;
  for (const uint64_t number : numbers) list.append(number);
  return nb::tuple(list);
}

std::byte* FromPyAddress(nb::handle number) {
  return reinterpret_cast<std::byte*>(FromPyNumber(number));
}

std::vector<core::DeviceStream> ToStreams(const Streams& streams) {
  std::vector<core::DeviceStream> result;
  for (const auto& [device, stream] : streams) {
    result.push_back({.device = device, .stream = reinterpret_cast<void*>(stream)});
  }
  return result;
}

core::KeyPatterns ParsePatterns(nb::list patterns) {
  std::vector<std::string> texts;
  for (nb::handle pattern : patterns) texts.push_back(FromPyText(pattern));
  return Unwrap(core::KeyPatterns::Parse(texts));
}

bool IsPlainValue(nb::handle value) {
  PyObject* object = value.ptr();
  return object == Py_None || PyBool_Check(object) || PyLong_CheckExact(object) ||
         PyFloat_CheckExact(object) || PyComplex_CheckExact(object) ||
         PyUnicode_CheckExact(object) || PyBytes_CheckExact(object);
}

core::Value FromPyValue(nb::handle value) {
  PyObject* object = value.ptr();
  if (object == Py_None) return std::monostate{};
  if (PyBool_Check(object)) return object == Py_True;
  if (PyLong_CheckExact(object)) return FromPyInt(value);
  if (PyFloat_CheckExact(object)) return PyFloat_AsDouble(object);
  if (PyComplex_CheckExact(object)) {
    return std::complex<double>(PyComplex_RealAsDouble(object), PyComplex_ImagAsDouble(object));
  }
  if (PyUnicode_CheckExact(object)) return FromPyText(value);
  if (PyBytes_CheckExact(object)) return core::Bytes{CopyBytes(value)};
  if (nb::isinstance<core::Pickle>(value)) return nb::cast<core::Pickle>(value);
  if (nb::isinstance<LongValue>(value)) return nb::cast<const LongValue&>(value).info.value;
  ThrowInvalid(std::string("a plain value of type ") + nb::inst_name(value).c_str());
}

nb::object ToPyValue(const core::Value& value) { return std::visit(ValueToPy{}, value); }

}  // namespace cairn::python
