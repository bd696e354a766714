#pragma once
/// Python objects to Cairn's types and back: texts, numbers, plain values.
///
/// Everything here requires the GIL.

#include <nanobind/nanobind.h>

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/state_dict/key_pattern.h"
#include "core/state_dict/value.h"

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

/// A list of str. Raises Invalid for a malformed pattern.
core::KeyPatterns ParsePatterns(nb::list patterns);

/// True for None, bool, int, float, complex, str and bytes, exactly: a subclass would not come back
/// as what it was.
bool IsPlainValue(nb::handle value);
/// A plain value or Pickle; raises Invalid for others.
core::Value FromPyValue(nb::handle value);
nb::object ToPyValue(const core::Value& value);

}  // namespace cairn::python
