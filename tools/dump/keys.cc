// `kv-dump keys`: one row per key.

#include "tools/dump/keys.h"

#include <fmt/format.h>

#include "core/step/contents.h"
#include "tools/common/exit_status.h"
#include "tools/common/quantities.h"
#include "tools/common/table.h"
#include "tools/common/text.h"
#include "tools/dump/contents_json.h"
#include "tools/dump/opened_store.h"

namespace cairn::tools {
namespace {

void RemarkNoMatch(const DumpRun& run, const core::Contents& contents) {
  PrintRemark(run, fmt::format("No key of step {} matches.", contents.step.step));
}

Json TensorRowJson(const core::TensorInfo& tensor) {
  Json json = TensorJson(tensor);
  if (tensor.alias_of) {
    json.Set("alias_offset_bytes", tensor.alias_offset_bytes);
    json.Set("alias_strides", tensor.alias_strides);
  }
  if (tensor.hidden) json.Set("hidden", true);
  return json;
}

Json ValueInfoJson(const core::ValueInfo& value) {
  return {{"fqn", JsonText(value.fqn)},
          {"kind", "value"},
          {"type", ValueKindName(value.value)},
          {"value", ValueJson(value.value)}};
}

std::string TensorNote(const core::TensorInfo& tensor) {
  if (tensor.alias_of) return fmt::format("shares {}", EscapeText(*tensor.alias_of));
  if (tensor.hidden) return "storage that other tensors share";
  return "";
}

/// Calls `on_tensor` or `on_value` for each key, in key order.
template <typename OnTensor, typename OnValue>
void ForEachKey(const core::Contents& contents, OnTensor on_tensor, OnValue on_value) {
  auto value = contents.values.begin();
  for (const core::TensorInfo& tensor : contents.tensors) {
    for (; value != contents.values.end() && value->fqn < tensor.fqn; ++value) on_value(*value);
    on_tensor(tensor);
  }
  for (; value != contents.values.end(); ++value) on_value(*value);
}

}  // namespace

Result<int> DumpKeys(const DumpRun& run, const std::string& address,
                     const std::vector<std::string>& patterns) {
  CAIRN_TRY_ASSIGN(const OpenedStore opened, OpenStore(address));
  CAIRN_TRY_ASSIGN(const core::Contents contents, ListKeys(opened, patterns));
  if (run.json) {
    JsonList list(run.out, {{"store", StoreText(opened)}, {"step", contents.step.step}}, "keys");
    ForEachKey(
        contents, [&](const core::TensorInfo& tensor) { list.Add(TensorRowJson(tensor)); },
        [&](const core::ValueInfo& value) { list.Add(ValueInfoJson(value)); });
    list.Finish();
    return kExitSuccess;
  }
  if (contents.tensors.empty() && contents.values.empty()) RemarkNoMatch(run, contents);
  Table table(run.out, {{"FQN", Align::kLeft, true},
                        {"DTYPE"},
                        {"SHAPE"},
                        {"BYTES", Align::kRight},
                        {"CHUNKS", Align::kRight},
                        {"VALUE OR NOTE", Align::kLeft, true}});
  ForEachKey(
      contents,
      [&](const core::TensorInfo& tensor) {
        const Style style = tensor.hidden ? Style::kDim : Style::kPlain;
        table.Add({Cell(EscapeText(tensor.fqn), style),
                   std::string(schema::DTypeName(tensor.dtype)), ShapeText(tensor.shape),
                   HumanBytes(tensor.nbytes),
                   tensor.alias_of ? "-" : GroupedCount(tensor.chunk_count),
                   Cell(TensorNote(tensor), Style::kDim)});
      },
      [&](const core::ValueInfo& value) {
        table.Add({EscapeText(value.fqn), Cell(ValueKindName(value.value), Style::kCyan), "", "",
                   "", EscapeText(core::FormatValue(value.value))});
      });
  table.Finish();
  return kExitSuccess;
}

}  // namespace cairn::tools
