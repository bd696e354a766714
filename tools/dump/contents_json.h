#pragma once
/// Steps, tensors, plain values and changes of a store, as JSON and as cells of tables.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/inspect/compare.h"
#include "core/state_dict/value.h"
#include "core/step/contents.h"
#include "kv/base/annotations.h"
#include "kv/base/step_info.h"
#include "schema/dtype.h"
#include "tools/common/json.h"
#include "tools/common/table.h"

namespace cairn::tools {

/// A finite double is a number; NaN and infinities, which JSON does not have, are the strings
/// "NaN", "Infinity" and "-Infinity".
Json FloatJson(double value);

/// The exact value. A complex number is [real, imaginary]; a float4_e2m1fn_x2 is a list of its two
/// halves. Requires ElementBytes(dtype) bytes.
Json ElementJson(schema::DType dtype, std::span<const std::byte> element);

/// `tags`, if they are given, contain the names of the step.
Json StepJson(const kv::StepInfo& step, const kv::Tags* tags = nullptr);

/// The columns RUN, TAGS and METRICS AND NOTE of steps, of which a table has those that any of its
/// steps needs.
class StepNotes {
 public:
  /// `tags` must outlive this object.
  StepNotes(std::span<const kv::StepInfo> steps, const kv::Tags& tags);
  void AppendColumns(std::vector<Column>& columns, bool flexible) const;
  void AppendCells(const kv::StepInfo& step, std::vector<Cell>& cells) const;

 private:
  const kv::Tags& tags_;
  bool has_runs_;
  bool has_notes_;
};

/// FQN, dtype, shape, bytes and chunks. `step` is a member if it is given.
Json TensorJson(const core::TensorInfo& tensor, std::optional<uint64_t> step = std::nullopt);

/// FQN, type and value. `step` is a member if it is given. Numbers, strings and null are values as
/// JSON has them. NaN and infinities are strings; integers of more than 64 bits, complex numbers,
/// bytes and pickled objects are objects. A pickle is represented by its size alone, so that nobody
/// is led to unpickle content from this document; and so is a value without its bytes.
Json ValueJson(const core::ValueInfo& value, std::optional<uint64_t> step = std::nullopt);

/// The value as Python prints it, but the text of a string; safe to print.
std::string ValueText(const core::Value& value);

/// How a key differs, without its name; a member "detail" if there is one.
Json ChangeJson(const core::KeyChange& change);
/// "added", "removed" or "changed", in a color.
Cell ChangeCell(const core::KeyChange& change);

}  // namespace cairn::tools
