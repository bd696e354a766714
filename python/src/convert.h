#pragma once
/// Conversion between Python objects and Cairn's types: texts, numbers, streams, plain values.
///
/// All functions require the GIL.

#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>    // for Streams in signatures
#include <nanobind/stl/vector.h>  // for Streams in signatures

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/device/device.h"
#include "core/state_dict/key_pattern.h"
#include "core/state_dict/value.h"
#include "core/step/contents.h"
#include "kv/base/step_info.h"

namespace cairn::python {

namespace nb = nanobind;

/// Takes ownership of a new reference; if it is null, raises the Python exception that is set.
nb::object Checked(PyObject* object);

/// Returns the UTF-8 form of a str. Lone surrogates are encoded in three bytes, as in records.
std::string FromPyText(nb::handle text);
/// Returns the str of such a UTF-8 form. Raises Corrupt for bytes that are not the form of any str.
nb::object ToPyText(std::string_view text);

/// Returns the strs of a range of such forms.
template <typename Texts>
nb::list ToPyTexts(const Texts& texts) {
  nb::list list;
  for (const std::string& text : texts) list.append(ToPyText(text));
  return list;
}

/// Converts a tuple or list of non-negative ints. Raises TypeError or OverflowError for others.
std::vector<uint64_t> FromPyNumbers(nb::handle sequence);
nb::tuple ToPyNumbers(std::span<const uint64_t> numbers);

/// Converts an address that Python code represents as an int; 0 is null.
std::byte* FromPyAddress(nb::handle number);

/// Pairs of a device and the address of a stream.
using Streams = std::vector<std::pair<int, uintptr_t>>;
std::vector<core::DeviceStream> ToStreams(const Streams& streams);

/// Parses a list of str. Raises Invalid for a malformed pattern.
core::KeyPatterns ParsePatterns(nb::list patterns);

/// A value whose bytes are not read yet. It has the FQN of the step, also after a conversion.
struct LongValue {
  nb::object store;  // Store
  kv::StepInfo step;
  core::ValueInfo info;
};

/// Returns true for None, bool, int, float, complex, str and bytes, but not for subclasses, which
/// would lose their type.
bool IsPlainValue(nb::handle value);
/// Converts a plain value, a Pickle or a LongValue. Raises Invalid for others.
core::Value FromPyValue(nb::handle value);
nb::object ToPyValue(const core::Value& value);

}  // namespace cairn::python
