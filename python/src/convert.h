#pragma once
/// Python objects to Cairn's types and back: texts, plain values, contents.
///
/// Everything here requires the GIL.

#include <nanobind/nanobind.h>

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/checkpoint_store.h"

namespace cairn::python {

namespace nb = nanobind;

/// A new reference as an object, or the exception that is set instead of one.
nb::object Checked(PyObject* object);

/// UTF-8 of a str; lone surrogates as three bytes, as in records.
std::string FromPyText(nb::handle text);
/// The inverse. Raises Corrupt for bytes that no str encodes to.
nb::object ToPyText(std::string_view text);

/// A tuple or list of non-negative ints.
std::vector<uint64_t> FromPyNumbers(nb::handle sequence);
nb::tuple ToPyNumbers(std::span<const uint64_t> numbers);

std::byte* FromPyAddress(nb::handle number);

/// True for None, bool, int, float, complex, str and bytes, exactly: a subclass would not come back
/// as what it was.
bool IsPlainValue(nb::handle value);
/// A plain value or Pickle; raises Invalid for others.
core::Value FromPyValue(nb::handle value);
nb::object ToPyValue(const core::Value& value);

/// One request: (FQN, offsets or None for zeros, sizes, dtype code, strides in elements, address).
core::LoadRequest FromPyRequest(nb::handle request);

/// (step info, kinds, key kinds, keys, child counts, FQNs, slots, tensors, values): the tree as
/// parallel vectors of nodes in preorder; FQNs and slots a leaf in tree order, a slot being the
/// index of the leaf in tensors (TensorInfo; hidden ones have no leaf) or values.
nb::tuple ToPyContents(const core::Contents& contents);

}  // namespace cairn::python
