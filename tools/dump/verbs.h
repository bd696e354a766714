#pragma once
/// The verbs of kv-dump. Each returns the exit status of the program.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kv/base/error.h"
#include "tools/common/terminal.h"

namespace cairn::tools {

// --- Where and how a verb of kv-dump prints

struct DumpRun {
  Output* out = nullptr;
  bool json = false;  // one JSON document instead of text
};

/// Prints a remark for people ("No steps yet."), which a JSON document does not have.
inline void PrintRemark(const DumpRun& run, std::string_view text) {
  if (!run.json) run.out->WriteLine(run.out->Styled(Style::kDim, text));
}

// --- `kv-dump STORE`: a summary of a store

/// Prints the summary of a store. Returns the exit status.
Result<int> DumpOverview(const DumpRun& run, const std::string& store);

// --- `kv-dump steps`: one row per step

/// Prints the steps of a store. Returns the exit status.
Result<int> DumpSteps(const DumpRun& run, const std::string& store, const std::string& where);

// --- `kv-dump keys`: one row per key

struct KeysOptions {
  bool statistics = false;  // show them
  std::string where;        // a StatisticsFilter; empty: all keys. Implies `statistics`
};

/// Prints the tensors and plain values of a step that match the patterns (all if there are none)
/// and the condition. Returns the exit status.
Result<int> DumpKeys(const DumpRun& run, const std::string& address,
                     const std::vector<std::string>& patterns, const KeysOptions& options);

// --- `kv-dump show`: values and statistics of one key

struct ShowOptions {
  std::string slice;  // as Python writes it (slice.h); empty: the complete tensor
  bool all = false;   // print every value, regardless of their number
};

/// Prints a tensor or a plain value. Returns the exit status.
Result<int> DumpShow(const DumpRun& run, const std::string& address, const std::string& fqn,
                     const ShowOptions& options);

// --- `kv-dump chunks`: one row per chunk

/// Prints the chunks of the tensors that match the patterns, with the place of their bytes. Returns
/// the exit status.
Result<int> DumpChunks(const DumpRun& run, const std::string& address,
                       const std::vector<std::string>& patterns);

// --- `kv-dump segments`: one row per segment file

/// Prints the segments of a store and how much of each is in use. Returns the exit status.
Result<int> DumpSegments(const DumpRun& run, const std::string& store);

// --- `kv-dump space`: where the bytes of a step are

/// Prints what each segment contains: bytes that steps use, that several steps use, and that none
/// uses. Returns the exit status.
Result<int> DumpSegmentSpace(const DumpRun& run, const std::string& store);

/// Returns the exit status.
Result<int> DumpSpace(const DumpRun& run, const std::string& address,
                      const std::vector<std::string>& patterns, uint64_t depth);

// --- `kv-dump diff`: the keys and bytes that differ between two steps

/// Prints the differences; with `values` it also compares the elements of changed tensors.
/// `address_b` may be "@STEP", a step of the same store. Returns the exit status, which is
/// kExitDiffers if anything differs.
Result<int> DumpDiff(const DumpRun& run, const std::string& address_a, const std::string& address_b,
                     const std::vector<std::string>& patterns, bool values);

// --- `kv-dump history`: the steps at which a key's bytes changed

/// Returns the exit status.
Result<int> DumpHistory(const DumpRun& run, const std::string& store, const std::string& fqn);

// --- `kv-dump verify`: reads every byte and checks every digest and record

/// Checks a store, or the step that the address names. `max_rate` is what the user wrote ("50M";
/// per second), or empty: no limit. Returns the exit status, which is kExitDiffers if there is
/// damage.
Result<int> DumpVerify(const DumpRun& run, const std::string& address, const std::string& max_rate);

// --- `kv-dump report`: writes a page that shows a store

struct ReportRequest {
  std::string store;
  std::string file;        // file of the page; empty: none
  bool all_steps = false;  // examine the records of all steps, however many there are
};

/// Writes the page, or prints the document with --json. Requires an output of one kind.
Result<int> DumpReport(const DumpRun& run, const ReportRequest& request);

// --- `kv-dump serve`: the live view of a store

struct ServeRequest {
  std::string store;
  std::string address = "127.0.0.1";
  std::optional<uint64_t> port;
  std::vector<std::string> hosts;
  bool all_steps = false;
};

/// Answers requests until the user ends it with SIGINT or SIGTERM. Returns the exit status.
Result<int> DumpServe(const DumpRun& run, const ServeRequest& request);

}  // namespace cairn::tools
