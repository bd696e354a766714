#pragma once
/// The rows of a verb, as a table or as one JSON document with a list, which may be too long to
/// hold in memory:
///   {"store": "runs/gpt", "step": 100, "keys": [
///   {...},
///   {...}
///   ]}

#include <string_view>
#include <utility>
#include <vector>

#include "kv/base/error.h"
#include "tools/common/json.h"
#include "tools/common/table.h"
#include "tools/dump/verbs.h"

namespace cairn::tools {

class Rows {
 public:
  /// The members of the object `head` precede the list `name` in the document.
  Rows(const DumpRun& run, std::vector<Column> columns, const Json& head, std::string_view name);

  /// Adds a row: what `cells` returns to the table, or what `json` returns to the list.
  template <typename MakeCells, typename MakeJson>
  void Add(const MakeCells& cells, const MakeJson& json) {
    if (json_) {
      out_->Write(is_empty_ ? "\n" : ",\n");
      out_->Write(JsonLine(json()));
    } else {
      table_.Add(cells());
    }
    is_empty_ = false;
  }
  /// Adds a row that the JSON document does not have.
  void AddToTable(std::vector<Cell> cells) {
    if (!json_) table_.Add(std::move(cells));
  }
  bool is_empty() const { return is_empty_; }

  /// Ends the output, a document with the members of `tail`, and returns `listed`. After an error,
  /// the rows before it are useful, and a document has a member "error".
  Result<void> Finish(Result<void> listed = {}, const Json& tail = Json::object());

 private:
  Output* out_;
  bool json_;
  Table table_;
  bool is_empty_ = true;
};

}  // namespace cairn::tools
