// `kv-dump STORE`: a summary of a store.

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <sstream>
#include <system_error>

#include "core/step/contents.h"
#include "kv/base/step_info.h"
#include "kv/read/snapshot.h"
#include "tools/common/exit_status.h"
#include "tools/common/quantities.h"
#include "tools/common/table.h"
#include "tools/common/text.h"
#include "tools/dump/contents_json.h"
#include "tools/dump/opened_store.h"
#include "tools/dump/verbs.h"

namespace cairn::tools {
namespace {

struct DTypeShare {
  uint64_t tensors = 0;
  uint64_t elements = 0;
  uint64_t bytes = 0;
};

struct DiskUsage {
  uint64_t file_bytes = 0;          // sum of the lengths of the files
  uint64_t allocated_bytes = 0;     // allocated blocks, as `du` counts them
  uint64_t segment_file_bytes = 0;  // the part of file_bytes below segments/
};

/// Names and values.
using Identity = std::vector<std::pair<std::string, std::string>>;

struct Overview {
  std::string directory;
  Identity identity;
  std::vector<kv::StepInfo> steps;
  kv::StepInfo latest;  // if there are steps
  kv::Tags tags;
  std::vector<kv::SegmentInfo> segments;
  std::map<std::string, DTypeShare> dtypes;  // in the latest step
  uint64_t logical_bytes = 0;                // sum over all steps
  uint64_t payload_bytes = 0;                // sum over all segments
  uint64_t unused_segment_bytes = 0;         // files of segments that no step uses
  bool has_files = true;                     // if not, `disk` has only the segments that steps use
  DiskUsage disk;
  std::vector<Error> notes;
};

/// Files that a concurrent writer removes during the scan are not counted. kUnavailable: a folder
/// cannot be read.
Result<DiskUsage> MeasureDiskUsage(const std::string& directory) {
  namespace fs = std::filesystem;
  DiskUsage usage;
  std::error_code error;
  fs::recursive_directory_iterator entries(directory, fs::directory_options::none, error);
  for (; !error && entries != fs::recursive_directory_iterator(); entries.increment(error)) {
    struct stat status{};
    if (lstat(entries->path().c_str(), &status) != 0 || !S_ISREG(status.st_mode)) continue;
    const auto bytes = static_cast<uint64_t>(status.st_size);
    usage.file_bytes += bytes;
    usage.allocated_bytes += static_cast<uint64_t>(status.st_blocks) * 512;
    if (entries->path().parent_path().filename() == "segments") usage.segment_file_bytes += bytes;
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    return Fail(SystemError(error.value(), "listing the files of the store", directory));
  }
  return usage;
}

/// Returns the lines "format VALUE" and "uuid VALUE" of the object CAIRN, which is short and which
/// the open has already checked.
Identity ReadIdentity(kv::Storage& storage) {
  constexpr size_t kMaxBytes = 1'600;
  const auto bytes = storage.Read("CAIRN", kMaxBytes).value_or(std::vector<std::byte>());
  std::istringstream file(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  Identity identity;
  for (std::string name, value; file >> name && std::getline(file >> std::ws, value);) {
    if (name == "format" || name == "uuid") identity.emplace_back(name, EscapeText(value));
  }
  return identity;
}

Result<Overview> Summarize(const OpenedStore& opened) {
  Overview view;
  view.directory = AddressDirectory(opened.address.store);
  kv::Storage& storage = opened.store->kv().storage();
  view.identity = ReadIdentity(storage);
  CAIRN_TRY_ASSIGN(const auto snapshot, opened.store->kv().Latest());
  CAIRN_TRY_ASSIGN(view.steps, snapshot->Steps());
  if (!view.steps.empty()) {
    CAIRN_TRY_ASSIGN(view.latest, snapshot->FindStep({}));
  }
  view.tags = snapshot->tags();
  CAIRN_TRY_ASSIGN(view.segments, snapshot->Segments());
  for (const kv::StepInfo& step : view.steps) view.logical_bytes += step.logical_bytes;
  uint64_t used_bytes = 0;
  for (const kv::SegmentInfo& segment : view.segments) {
    view.payload_bytes += segment.payload_bytes;
    used_bytes += segment.file_bytes;
  }
  view.has_files = storage.local_files() != nullptr;
  if (view.has_files) {
    CAIRN_TRY_ASSIGN(view.disk, MeasureDiskUsage(view.directory));
  } else {
    view.disk = {.file_bytes = used_bytes, .segment_file_bytes = used_bytes};
  }
  // A concurrent writer may have removed segments of the snapshot.
  view.unused_segment_bytes =
      view.disk.segment_file_bytes - std::min(view.disk.segment_file_bytes, used_bytes);
  return view;
}

/// Adds the data types of the latest step, or a note. Reads the records of all its tensors.
void AddDTypes(const OpenedStore& opened, Overview& view) {
  if (view.steps.empty()) return;
  const auto add = [&](const core::TensorInfo& tensor) -> Result<void> {
    if (tensor.hidden) return {};
    DTypeShare& share = view.dtypes[std::string(schema::DTypeName(tensor.dtype))];
    share.tensors += 1;
    share.elements += core::ElementCount(tensor.shape).value_or(0);
    share.bytes += tensor.nbytes;
    return {};
  };
  auto listed = opened.store->ForEachKey(view.latest, {}, add,
                                         [](const core::ValueInfo&) { return Result<void>(); });
  if (listed) return;
  view.dtypes.clear();
  view.notes.push_back(std::move(listed).error());
}

void PrintJson(Output& out, const Overview& view) {
  Json json = {{"store", JsonText(view.directory)}};
  for (const auto& [name, value] : view.identity) json[name] = value;
  json["steps"] = view.steps.size();
  if (!view.steps.empty()) {
    Json latest = StepJson(view.latest);
    Json& dtypes = latest["dtypes"] = Json::object();
    for (const auto& [name, share] : view.dtypes) {
      dtypes[name] = {
          {"tensors", share.tensors}, {"elements", share.elements}, {"bytes", share.bytes}};
    }
    json.update({{"first_step", view.steps.front().step},
                 {"last_step", view.steps.back().step},
                 {"latest", std::move(latest)}});
  }
  for (const auto& [tag, step] : view.tags) json["tags"][tag] = step;
  Json notes = Json::array();
  for (const Error& note : view.notes) notes.push_back(ErrorJson(note));
  json.update({{"logical_bytes", view.logical_bytes},
               {"payload_bytes", view.payload_bytes},
               {"segments", view.segments.size()},
               {"file_bytes", view.disk.file_bytes},
               {"allocated_bytes", view.disk.allocated_bytes},
               {"segment_file_bytes", view.disk.segment_file_bytes},
               {"unused_segment_bytes", view.unused_segment_bytes},
               {"notes", std::move(notes)}});
  WriteJson(out, json);
}

/// "12, from 100 to 1,200".
std::string StepsText(const std::vector<kv::StepInfo>& steps) {
  if (steps.empty()) return "none yet";
  if (steps.size() == 1) return fmt::format("1, number {}", steps.front().step);
  return fmt::format("{}, from {} to {}", GroupedCount(steps.size()), steps.front().step,
                     steps.back().step);
}

std::string DiskText(const Overview& view) {
  const uint64_t records = view.disk.file_bytes - view.disk.segment_file_bytes;
  const uint64_t used = view.disk.segment_file_bytes - view.unused_segment_bytes;
  std::string text =
      fmt::format("{} in {}", HumanBytes(used), Plural(view.segments.size(), "segment"));
  if (view.has_files) text += fmt::format(", {} of records", HumanBytes(records));
  if (view.unused_segment_bytes > 0) {
    text +=
        fmt::format(", {} of deleted or unfinished steps", HumanBytes(view.unused_segment_bytes));
  }
  return text;
}

std::string SharingText(const Overview& view) {
  const double factor =
      static_cast<double>(view.logical_bytes) / static_cast<double>(view.payload_bytes);
  return fmt::format("{} of checkpoints in {} of payload, {:.2f} to 1",
                     HumanBytes(view.logical_bytes), HumanBytes(view.payload_bytes), factor);
}

void PrintFact(Output& out, std::string_view name, std::string_view text) {
  out.WriteLine(fmt::format("  {}  {}", out.Styled(Style::kDim, fmt::format("{:<8}", name)), text));
}

void PrintFacts(Output& out, const Overview& view) {
  const auto fact = [&](std::string_view name, std::string_view text) {
    PrintFact(out, name, text);
  };
  for (const auto& [name, value] : view.identity) fact(name, value);
  fact("steps", StepsText(view.steps));
  if (!view.steps.empty()) {
    const kv::StepInfo& latest = view.latest;
    fact("latest",
         fmt::format("{}, saved {} ({}) by {}", latest.step, LocalTime(latest.created_unix_ns),
                     Age(latest.created_unix_ns, NowUnixNs()), Plural(latest.world_size, "rank")));
    fact("",
         fmt::format("{} and {}, {}", Plural(latest.tensor_count, "tensor"),
                     Plural(latest.value_count, "plain value"), HumanBytes(latest.logical_bytes)));
  }
  for (size_t i = 0; const auto& [tag, step] : view.tags) {
    fact(i++ == 0 ? "tags" : "", fmt::format("{}: {}", EscapeText(tag), step));
  }
  fact(view.has_files ? "on disk" : "stored", DiskText(view));
  if (view.payload_bytes > 0) fact("sharing", SharingText(view));
}

void PrintHealth(Output& out, const Overview& view) {
  if (view.notes.empty()) {
    PrintFact(out, "health", out.Styled(Style::kGreen, "no problems found while opening"));
    return;
  }
  PrintFact(out, "health", out.Styled(Style::kRed, Plural(view.notes.size(), "problem")));
  for (const Error& note : view.notes) PrintFact(out, "", EscapeText(note.ToString()));
}

void PrintDTypes(Output& out, const Overview& view) {
  if (view.dtypes.empty()) return;
  uint64_t total = 0;
  for (const auto& [name, share] : view.dtypes) total += share.bytes;
  out.WriteLine("");
  Table table(&out,
              {Left("DTYPE"), Right("TENSORS"), Right("ELEMENTS"), Right("BYTES"), Right("SHARE")},
              2);
  for (const auto& [name, share] : view.dtypes) {
    table.Add({name, GroupedCount(share.tensors), GroupedCount(share.elements),
               HumanBytes(share.bytes), Percent(share.bytes, total)});
  }
  table.Finish();
}

void PrintHints(Output& out, const Overview& view) {
  const std::string store = ShellWord(view.directory);
  const auto hint = [&](const std::string& command, std::string_view what) {
    out.WriteLine(fmt::format("  {}  {}", command, out.Styled(Style::kDim, what)));
  };
  out.WriteLine("");
  if (view.steps.empty()) {
    hint(fmt::format("kv-admin import {} --step 0 FILE.safetensors", store),
         "creates a first step");
    return;
  }
  const std::string steps = fmt::format("kv-dump steps {}", store);
  const std::string keys = fmt::format("kv-dump keys {}@{}", store, view.latest.step);
  const std::string verify = fmt::format("kv-dump verify {}", store);
  const size_t width = std::max({steps.size(), keys.size(), verify.size()});
  hint(fmt::format("{:<{}}", steps, width), "one row per step: time, size, new bytes");
  hint(fmt::format("{:<{}}", keys, width), "tensors and values of the latest step");
  hint(fmt::format("{:<{}}", verify, width), "reads every byte and checks every digest");
}

}  // namespace

Result<int> DumpOverview(const DumpRun& run) {
  CAIRN_TRY_ASSIGN(const OpenedStore opened, OpenWithoutStep(run.address, "the overview"));
  if (!run.json) {
    const std::string directory = EscapeText(AddressDirectory(opened.address.store));
    run.out->WriteLine(run.out->Styled(Style::kBold, directory));
    run.out->Flush();
  }
  CAIRN_TRY_ASSIGN(Overview view, Summarize(opened));
  if (!run.json) {
    PrintFacts(*run.out, view);
    run.out->Flush();  // the rest takes a second if there are a million tensors
  }
  AddDTypes(opened, view);
  if (run.json) {
    PrintJson(*run.out, view);
  } else {
    PrintHealth(*run.out, view);
    PrintDTypes(*run.out, view);
    PrintHints(*run.out, view);
  }
  return kExitSuccess;
}

}  // namespace cairn::tools
