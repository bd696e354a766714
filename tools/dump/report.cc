// `kv-dump report`: writes a page that shows a store.

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <map>
#include <random>
#include <string>

#include "core/inspect/collect_report.h"
#include "tools/common/exit_status.h"
#include "tools/common/progress.h"
#include "tools/common/quantities.h"
#include "tools/common/text.h"
#include "tools/dump/opened_store.h"
#include "tools/dump/report_page.h"
#include "tools/dump/verbs.h"

namespace cairn::tools {
namespace {

/// Writes a file under another name, so that an error leaves an earlier file as it was.
Result<void> WriteFile(const std::string& path, std::string_view text) {
  // A new file: what exists under a name like this one is not ours.
  const std::string partial = fmt::format("{}.{:08x}.part", path, std::random_device()());
  std::FILE* const file = std::fopen(partial.c_str(), "wbx");
  if (file == nullptr) {
    return Fail(
        SystemError(errno, "cannot create the report", partial).WithHint(Hint::kMakeDirectory));
  }
  const bool is_written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  const bool is_complete = std::fclose(file) == 0 && is_written;
  if (is_complete && std::rename(partial.c_str(), path.c_str()) == 0) return {};
  Error failure = SystemError(errno, "cannot write the report", path);
  (void)std::remove(partial.c_str());  // the error that is returned has the reason
  return Fail(std::move(failure));
}

void PrintFindings(Output& out, const Json& findings) {
  static const std::map<std::string, Style> kStyles = {{"bad", Style::kRed},
                                                       {"warning", Style::kYellow},
                                                       {"good", Style::kGreen},
                                                       {"info", Style::kBold}};
  for (const Json& finding : findings) {
    out.WriteLine(out.Styled(kStyles.at(finding["level"]), finding["title"].get<std::string>()));
    const std::string text = finding["text"];
    if (!text.empty()) out.WriteLine("  " + text);
  }
}

}  // namespace

Result<int> DumpReport(const DumpRun& run) {
  if (run.file.empty() && !run.json) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("report needs the name of a file; try kv-dump report {} -o report.html",
                            ShellWord(run.address)));
  }
  std::error_code ignored;  // creating the file will report it
  const auto target = std::filesystem::status(run.file, ignored);
  if (std::filesystem::exists(target) && !std::filesystem::is_regular_file(target)) {
    return Fail(Error{.code = ErrorCode::kInvalidArgument,
                      .message = "the report would replace something that is not a regular file; "
                                 "name another file",
                      .file = run.file});
  }
  CAIRN_TRY_ASSIGN(const OpenedStore opened, OpenWithoutStep(run.address, "report"));
  ProgressLine progress("examining steps", ProgressUnit::kCount);
  core::ReportOptions options{.progress = progress.callback()};
  if (run.all_steps) options.max_records = 0;
  CAIRN_TRY_ASSIGN(const core::Report report, core::CollectReport(opened.store->kv(), options));
  progress.Clear();
  const Json document = ReportJson(report);
  if (!run.file.empty()) {
    const std::string page = ReportPage(JsonLine(document));
    CAIRN_TRY(WriteFile(run.file, page));
    if (!run.json) {
      PrintFindings(*run.out, document["findings"]);
      run.out->WriteLine(run.out->Styled(
          Style::kDim,
          fmt::format("{} written to {}", HumanBytes(page.size()), EscapeText(run.file))));
    }
  }
  if (run.json) WriteJson(*run.out, document);
  return kExitSuccess;
}

}  // namespace cairn::tools
