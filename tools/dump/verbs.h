#pragma once
/// The verbs of kv-dump.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kv/base/error.h"
#include "tools/common/terminal.h"

namespace cairn::tools {

/// Where a verb prints, and what the user asked for. Each verb reads its part.
struct DumpRun {
  Output* out = nullptr;
  bool json = false;    // one JSON document instead of text
  std::string address;  // the store, with its step if the verb takes one
  std::string second;  // the other address of diff, which may be "@STEP"; the key of show, history,
                       // blame; the name of records, which may be empty
  std::vector<std::string> patterns;  // keys to select; none: all
  std::string where;                  // a StatisticsFilter; empty: all tensors
  bool statistics = false;            // keys: shows them, as `where` does
  std::string slice;                  // show: as Python writes it; empty: the complete tensor
  bool all = false;                   // show: every value, regardless of their number
  bool values = false;                // diff, blame: compares the elements of changed tensors
  std::string under;                  // fingerprint: only the tensors below this key
  bool sha256 = false;                // fingerprint
  bool list = false;                  // fingerprint: the text of which it is the hash
  uint64_t depth = 2;                 // space
  bool segments = false;              // space: of segments, instead of keys
  std::string max_rate;               // verify: per second, such as 50M; empty: no limit
  std::string file;                   // report: of the page; empty: none
  bool all_steps = false;             // report, serve: records of all steps, however many there are
  std::string listen = "127.0.0.1";   // serve
  std::optional<uint64_t> port;       // serve; none: the default one, or any that is free
  std::vector<std::string> hosts;     // serve: HttpServerOptions::hosts
};

/// Prints a remark for people ("No steps yet."), which a JSON document does not have.
inline void PrintRemark(const DumpRun& run, std::string_view text) {
  if (!run.json) run.out->WriteLine(run.out->Styled(Style::kDim, text));
}

// Each verb prints what the user asked for, and returns the exit status of the program.
Result<int> DumpOverview(const DumpRun& run);
Result<int> DumpSteps(const DumpRun& run);
Result<int> DumpLog(const DumpRun& run);
Result<int> DumpKeys(const DumpRun& run);
Result<int> DumpShow(const DumpRun& run);
Result<int> DumpChunks(const DumpRun& run);
Result<int> DumpRecords(const DumpRun& run);
Result<int> DumpSegments(const DumpRun& run);
Result<int> DumpSpace(const DumpRun& run);
Result<int> DumpDiff(const DumpRun& run);
Result<int> DumpHistory(const DumpRun& run);
Result<int> DumpBlame(const DumpRun& run);
Result<int> DumpFingerprint(const DumpRun& run);
Result<int> DumpVerify(const DumpRun& run);
Result<int> DumpReport(const DumpRun& run);
Result<int> DumpServe(const DumpRun& run);

}  // namespace cairn::tools
