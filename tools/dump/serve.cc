// `kv-dump serve`: the live view of a store, and the answers to its requests.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <ranges>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "core/inspect/collect_report.h"
#include "core/inspect/compare.h"
#include "core/step/contents.h"
#include "kv/read/snapshot.h"
#include "tools/common/exit_status.h"
#include "tools/common/json.h"
#include "tools/common/progress.h"
#include "tools/common/quantities.h"
#include "tools/common/text.h"
#include "tools/dump/array_text.h"
#include "tools/dump/contents_json.h"
#include "tools/dump/http_server.h"
#include "tools/dump/opened_store.h"
#include "tools/dump/report_page.h"
#include "tools/dump/tensor_values.h"
#include "tools/dump/verbs.h"

namespace cairn::tools {
namespace {

constexpr uint16_t kDefaultPort = 7707;
constexpr size_t kMaxFoundKeys = 100;
constexpr size_t kMaxChanges = 1000;
constexpr size_t kMaxVersions = 500;
constexpr uint32_t kArrayColumns = 100;
/// A distribution covers a sample of this size unless a request asks for everything.
constexpr uint64_t kMaxSampleBytes = 64 << 20;
constexpr uint64_t kMaxValueText = 1 << 20;

// --- The report of a store that may change

/// Threads: all members are safe.
class LiveReport {
 public:
  /// `store` must outlive this object.
  LiveReport(const core::CheckpointStore* store, bool all_steps)
      : store_(store), all_steps_(all_steps), start_(fmt::format("{:x}", NowUnixNs())) {}

  struct State {
    std::string version;  // changes with each commit, delete and compaction
    std::shared_ptr<const kv::Snapshot> snapshot;
  };
  /// Returns the committed state. Errors and cost: see Store::Latest.
  Result<State> Latest() {
    CAIRN_TRY_ASSIGN(auto snapshot, store_->kv().Latest());
    const std::scoped_lock lock(state_mutex_);
    if (snapshot != snapshot_) ++changes_;
    snapshot_ = snapshot;
    return State{fmt::format("{}-{}", start_, changes_), std::move(snapshot)};
  }

  /// Returns ReportJson with a member "live", which is collected again if the store has changed. A
  /// report takes at most a tenth of the time of a core: while one is collected, and until nine
  /// times as long has passed as this took, returns the last one. Errors: see core::CollectReport.
  Result<std::shared_ptr<const std::string>> Current(const core::Progress& progress) {
    CAIRN_TRY_ASSIGN(const State state, Latest());
    std::unique_lock collecting(collect_mutex_, std::try_to_lock);
    if (!collecting) {
      // Only those wait who would get nothing.
      if (auto last = Last().json) return last;
      collecting.lock();
    }
    const Document last = Last();
    if (last.json && (last.version == state.version || Clock::now() < next_collection_)) {
      return last.json;
    }
    const Clock::time_point begin = Clock::now();
    core::ReportOptions options{.progress = progress};
    if (all_steps_) options.max_records = 0;
    // A step that is committed in the meantime belongs to the next version, even if it is in this
    // report.
    const auto report = core::CollectReport(store_->kv(), options);
    const Clock::time_point end = Clock::now();
    next_collection_ = end + 9 * (end - begin);
    CAIRN_TRY(report);
    Json json = ReportJson(*report, /*with_keys=*/true);
    json["live"] = {{"version", state.version}};
    const std::scoped_lock lock(state_mutex_);
    last_ = {state.version, std::make_shared<const std::string>(JsonLine(json))};
    return last_.json;
  }

 private:
  using Clock = std::chrono::steady_clock;
  struct Document {
    std::string version;
    std::shared_ptr<const std::string> json;  // null: none yet
  };

  Document Last() {
    const std::scoped_lock lock(state_mutex_);
    return last_;
  }

  const core::CheckpointStore* store_;
  const bool all_steps_;
  const std::string start_;  // distinguishes this object from objects of other processes

  std::mutex state_mutex_;
  std::shared_ptr<const kv::Snapshot> snapshot_;  // the last one that was seen
  uint64_t changes_ = 0;
  Document last_;

  std::mutex collect_mutex_;  // held by the thread that collects
  Clock::time_point next_collection_;
};

// --- Keys of a step by parts of their names

/// Words that a name contains in any order, without regard to the case of ASCII letters. No words
/// match every name.
class SearchWords {
 public:
  /// kInvalidArgument: more than 1 KiB, or more than 32 words.
  static Result<SearchWords> Parse(std::string query) {
    if (query.size() > 1 << 10) {
      return Fail(ErrorCode::kInvalidArgument, "the words to search for have more than 1 KiB");
    }
    std::ranges::transform(query, query.begin(), LowerAscii);
    std::istringstream text(query);
    SearchWords result;
    for (std::string word; text >> word;) result.words_.insert(word);
    if (result.words_.size() <= 32) return result;
    return Fail(ErrorCode::kInvalidArgument, "there are more than 32 words to search for");
  }
  bool empty() const { return words_.empty(); }
  bool Match(std::string_view name) const {
    const auto equal = [](char a, char b) { return LowerAscii(a) == b; };
    return std::ranges::all_of(words_, [&](const std::string& word) {
      return word.size() <= name.size() && !std::ranges::search(name, word, equal).empty();
    });
  }

 private:
  std::set<std::string> words_;  // in lower case
};

/// Threads: all members are safe.
class KeySearch {
 public:
  /// `store` must outlive this object.
  explicit KeySearch(const core::CheckpointStore* store) : store_(store) {}

  struct Key {
    std::string fqn;
    bool is_tensor = true;
  };
  struct Found {
    std::vector<Key> keys;  // the first ones, in key order
    uint64_t matches = 0;
    uint64_t key_count = 0;  // number of keys in the step
  };
  /// Keeps the names of the last step, up to 128 MiB, so that the next search of this step reads
  /// nothing. Errors: see CheckpointStore::ForEachKey.
  Result<Found> Find(const kv::StepInfo& step, const SearchWords& words, size_t limit) {
    Found found;
    const auto examine = [&](const Key& key) -> Result<void> {
      if (found.key_count++ % kNamesPerCheck == 0 && CancelRequested()) {
        return Fail(ErrorCode::kCancelled, "stopped on request");
      }
      if (!words.Match(key.fqn)) return {};
      ++found.matches;
      if (found.keys.size() < limit) found.keys.push_back(key);
      return {};
    };
    std::unique_lock lock(mutex_);
    if (names_ != nullptr && names_->step.HasRecordsOf(step)) {
      const std::shared_ptr<const Names> names = names_;
      lock.unlock();
      for (const Key& key : names->keys) CAIRN_TRY(examine(key));
      return found;
    }
    names_ = nullptr;
    auto names = std::make_shared<Names>(Names{.step = step});
    size_t kept_bytes = 0;
    const auto add = [&](Key key) -> Result<void> {
      CAIRN_TRY(examine(key));
      kept_bytes += sizeof(Key) + key.fqn.size();
      if (kept_bytes > kMaxKeptBytes) names = nullptr;
      if (names != nullptr) names->keys.push_back(std::move(key));
      return {};
    };
    CAIRN_TRY(store_->ForEachKey(
        step, {},
        [&](const core::TensorInfo& tensor) {
          return tensor.hidden ? Result<void>() : add({tensor.fqn, /*is_tensor=*/true});
        },
        [&](const core::ValueInfo& value) { return add({value.fqn, /*is_tensor=*/false}); }));
    names_ = std::move(names);
    return found;
  }

 private:
  static constexpr size_t kMaxKeptBytes = 128 << 20;  // of names and what belongs to them
  static constexpr uint64_t kNamesPerCheck = 4096;
  struct Names {
    kv::StepInfo step;
    std::vector<Key> keys;
  };

  const core::CheckpointStore* store_;
  std::mutex mutex_;
  // Null: no search yet, or the names of the step are too many.
  std::shared_ptr<const Names> names_;
};

// --- The answers

int HttpStatusOf(const Error& error) {
  switch (error.code) {
    case ErrorCode::kInvalidArgument:
      return 400;
    case ErrorCode::kNotFound:
      return 404;
    case ErrorCode::kUnavailable:
    case ErrorCode::kResourceExhausted:
    case ErrorCode::kCancelled:
      return 503;
    default:
      return 500;
  }
}

/// Text for people, and the exact name for further requests.
Json NamedJson(const std::string& fqn) {
  return {{"fqn", EscapeText(fqn)}, {"key", JsonText(fqn)}};
}

/// A step as text: the numbers of JavaScript are exact only up to 2^53.
std::string StepText(uint64_t step) { return fmt::to_string(step); }

/// Long work ends when the server does.
core::Progress UntilCancelled() {
  return [](uint64_t, uint64_t) { return !CancelRequested(); };
}

Result<std::string> Required(const HttpRequest& request, const std::string& parameter) {
  std::optional<std::string> value = request.Parameter(parameter);
  if (value) return *std::move(value);
  return Fail(ErrorCode::kInvalidArgument, fmt::format("the parameter {} is missing", parameter));
}

/// A change with its name, which is safe to show.
Json NamedChangeJson(const core::KeyChange& change) {
  Json json = NamedJson(change.fqn);
  json.update(ChangeJson(change));
  json["detail"] = EscapeText(change.detail);
  return json;
}

Json HistogramJson(const core::Histogram& histogram) {
  return {{"low", FloatJson(histogram.low)},
          {"width", FloatJson(histogram.width)},
          {"counts", histogram.counts}};
}

Json ShownValueJson(const kv::StepInfo& step, const core::ValueInfo& value) {
  std::string shown = ValueText(value.value);
  const bool is_cut = shown.size() > kMaxValueText;
  shown.resize(FirstBytes(shown, kMaxValueText).size());
  Json json = NamedJson(value.fqn);
  json.update({{"step", StepText(step.step)},
               {"kind", "value"},
               {"type", core::TypeName(value.value)},
               {"truncated", is_cut},
               {"text", std::move(shown)}});
  return json;
}

/// Adds the distribution and the values of the elements that the slice selects.
Result<void> AddValues(const TensorPart& part, const Slice& slice, bool exact, Json& json) {
  const core::DType dtype = part.tensor.dtype;
  CAIRN_TRY_ASSIGN(const bool can_read_all, CanReadAll(part));
  if (can_read_all) {
    CAIRN_TRY_ASSIGN(
        const Distribution distribution,
        MeasureDistribution(part, exact ? UINT64_MAX : kMaxSampleBytes, UntilCancelled()));
    json["elements"] = distribution.elements;
    json["read_elements"] = distribution.read_elements;
    json["statistics"] = StatisticsJson(dtype, distribution.statistics);
    if (distribution.histogram) json["histogram"] = HistogramJson(*distribution.histogram);
  }
  CAIRN_TRY_ASSIGN(const uint64_t elements, core::ElementCount(part.box.sizes));
  const ArrayLayout layout(part.box.sizes, elements <= kMaxShownElements);
  CAIRN_TRY_ASSIGN(const std::vector<std::byte> cells, LoadShown(part, layout));
  json["text"] = ArrayText(dtype, layout, slice.dropped, cells, kArrayColumns);
  return {};
}

/// Answers the requests of the live view (docs/live-view.md lists them).
/// Threads: all members are safe.
class LiveRequests {
 public:
  /// `store` must outlive this object.
  LiveRequests(const core::CheckpointStore* store, bool all_steps)
      : store_(store), report_(store, all_steps), search_(store) {}

  LiveReport& report() { return report_; }
  /// Returns the page, or a JSON document. Errors are documents, too.
  HttpResponse Answer(const HttpRequest& request) {
    if (request.path == "/") return Page();
    auto document = Document(request);
    if (document) return {.body = *std::move(document)};
    const Error& error = document.error();
    Json json = ErrorJson(error);
    json["message"] = EscapeText(error.message);  // it may contain names
    if (!error.key.empty()) json["key"] = EscapeText(error.key);
    return {.status = HttpStatusOf(error), .body = JsonLine({{"error", std::move(json)}})};
  }

 private:
  Result<std::string> Document(const HttpRequest& request) {
    if (request.path == "/api/report") {
      CAIRN_TRY_ASSIGN(const auto report, report_.Current(UntilCancelled()));
      return *report;
    }
    static const std::map<std::string, Result<Json> (LiveRequests::*)(const HttpRequest&)> kOthers =
        {{"/api/state", &LiveRequests::State},
         {"/api/steps", &LiveRequests::Steps},
         {"/api/keys", &LiveRequests::Keys},
         {"/api/key", &LiveRequests::Key},
         {"/api/history", &LiveRequests::History},
         {"/api/diff", &LiveRequests::Diff},
         {"/api/difference", &LiveRequests::Difference}};
    const auto found = kOthers.find(request.path);
    if (found == kOthers.end()) {
      return Fail(ErrorCode::kNotFound, "there is no such page; the first one is /");
    }
    CAIRN_TRY_ASSIGN(const Json json, (this->*found->second)(request));
    return JsonLine(json);
  }

  HttpResponse Page() {
    auto report = report_.Current(UntilCancelled());
    if (!report) {
      return {.status = HttpStatusOf(report.error()),
              .content_type = "text/plain",
              .body = EscapeText(report.error().ToString()) + "\n"};
    }
    return {.content_type = "text/html",
            .body = LivePage(**report),
            .policy = "frame-ancestors 'self'"};  // the page has its own, too
  }

  Result<Json> State(const HttpRequest& /*request*/) {
    CAIRN_TRY_ASSIGN(const LiveReport::State state, report_.Latest());
    Json json = {{"version", state.version}, {"steps", state.snapshot->step_numbers().size()}};
    if (!state.snapshot->step_numbers().empty()) {
      CAIRN_TRY_ASSIGN(const kv::StepInfo latest, state.snapshot->FindStep(std::nullopt));
      json["latest"] = {{"step", StepText(latest.step)},
                        {"saved", std::max<int64_t>(0, latest.created_unix_ns / 1'000'000'000)}};
    }
    json["now"] = NowUnixNs() / 1'000'000'000;
    return json;
  }

  Result<Json> Steps(const HttpRequest& /*request*/) {
    CAIRN_TRY_ASSIGN(const LiveReport::State state, report_.Latest());
    Json tags = Json::array();
    for (const auto& [tag, step] : state.snapshot->tags()) {
      tags.push_back({{"tag", EscapeText(tag)}, {"step", StepText(step)}});
    }
    Json steps = Json::array();
    for (const uint64_t step : state.snapshot->step_numbers()) steps.push_back(StepText(step));
    return Json{{"version", state.version}, {"steps", std::move(steps)}, {"tags", std::move(tags)}};
  }

  /// Returns the step that a parameter names, or the latest one if it is absent.
  Result<kv::StepInfo> FindStep(const HttpRequest& request, const std::string& parameter) {
    CAIRN_TRY_ASSIGN(const LiveReport::State state, report_.Latest());
    const std::optional<std::string> text = request.Parameter(parameter);
    if (!text) return state.snapshot->FindStep(std::nullopt);
    std::optional<uint64_t> step = ParseWhole<uint64_t>(*text);
    if (!step) {
      CAIRN_TRY_ASSIGN(step, state.snapshot->FindTag(*text));
    }
    return state.snapshot->FindStep(step);
  }

  Result<Json> Keys(const HttpRequest& request) {
    CAIRN_TRY_ASSIGN(const kv::StepInfo step, FindStep(request, "step"));
    CAIRN_TRY_ASSIGN(const SearchWords words,
                     SearchWords::Parse(request.Parameter("query").value_or("")));
    CAIRN_TRY_ASSIGN(const KeySearch::Found found, search_.Find(step, words, kMaxFoundKeys));
    Json keys = Json::array();
    for (const KeySearch::Key& key : found.keys) {
      Json json = NamedJson(key.fqn);
      json["kind"] = key.is_tensor ? "tensor" : "value";
      if (key.is_tensor) {
        CAIRN_TRY_ASSIGN(const core::TensorInfo tensor, store_->FindTensor(step, key.fqn));
        json.update({{"dtype", schema::DTypeName(tensor.dtype)},
                     {"shape", ShapeText(tensor.shape)},
                     {"bytes", tensor.nbytes}});
      }
      keys.push_back(std::move(json));
    }
    return Json{{"step", StepText(step.step)},
                {"matches", found.matches},
                {"key_count", found.key_count},
                {"keys", std::move(keys)}};
  }

  Result<Json> Key(const HttpRequest& request) {
    CAIRN_TRY_ASSIGN(const std::string fqn, Required(request, "key"));
    CAIRN_TRY_ASSIGN(const kv::StepInfo step, FindStep(request, "step"));
    CAIRN_TRY_ASSIGN(const FoundKey found, FindKey(*store_, step, fqn));
    if (const auto* const value = std::get_if<core::ValueInfo>(&found)) {
      return ShownValueJson(step, *value);
    }
    return TensorOf(step, std::get<core::TensorInfo>(found), request);
  }

  Result<Json> TensorOf(const kv::StepInfo& step, const core::TensorInfo& tensor,
                        const HttpRequest& request) {
    CAIRN_TRY_ASSIGN(const Slice slice,
                     ParseSlice(request.Parameter("slice").value_or(""), tensor.shape));
    Json json = NamedJson(tensor.fqn);
    json.update({{"step", StepText(step.step)},
                 {"kind", "tensor"},
                 {"dtype", schema::DTypeName(tensor.dtype)},
                 {"shape", ShapeText(tensor.shape)},
                 {"bytes", tensor.nbytes},
                 {"chunks", tensor.chunk_count}});
    if (tensor.alias_of) json["alias_of"] = EscapeText(*tensor.alias_of);
    const TensorPart part{.store = store_, .step = step, .tensor = tensor, .box = slice.box};
    CAIRN_TRY(AddValues(part, slice, request.Parameter("all").has_value(), json));
    return json;
  }

  Result<Json> History(const HttpRequest& request) {
    CAIRN_TRY_ASSIGN(const std::string fqn, Required(request, "key"));
    std::deque<Json> last;  // the last versions, the newest first
    uint64_t count = 0;
    CAIRN_TRY(
        core::FindVersions(store_->kv(), fqn, [&](const core::KeyVersion& version) -> Result<void> {
          if (CancelRequested()) return Fail(ErrorCode::kCancelled, "stopped on request");
          ++count;
          Json json = NamedChangeJson(version.change);
          json["step"] = StepText(version.step.step);
          last.push_front(std::move(json));
          if (last.size() > kMaxVersions) last.pop_back();
          return {};
        }));
    Json versions = Json::array();
    for (Json& version : last) versions.push_back(std::move(version));
    return Json{{"key", JsonText(fqn)}, {"count", count}, {"versions", std::move(versions)}};
  }

  Result<Json> Diff(const HttpRequest& request) {
    CAIRN_TRY_ASSIGN(const kv::StepInfo a, FindStep(request, "a"));
    CAIRN_TRY_ASSIGN(const kv::StepInfo b, FindStep(request, "b"));
    CAIRN_TRY_ASSIGN(const SearchWords words,
                     SearchWords::Parse(request.Parameter("query").value_or("")));
    CAIRN_TRY_ASSIGN(const core::Diff diff, core::CompareSteps(store_->kv(), a.step, b.step));
    std::map<core::KeyChange::Kind, uint64_t> counts;
    uint64_t changed_bytes = 0;
    std::vector<const core::KeyChange*> rows;
    for (const core::KeyChange& change : diff.changes) {
      if (!words.Match(change.fqn)) continue;
      ++counts[change.kind];
      changed_bytes += change.changed_bytes;
      rows.push_back(&change);
    }
    std::ranges::stable_sort(rows, std::ranges::greater(), &core::KeyChange::changed_bytes);
    Json list = Json::array();
    for (const core::KeyChange* change : rows | std::views::take(kMaxChanges)) {
      list.push_back(NamedChangeJson(*change));
    }
    using Kind = core::KeyChange::Kind;
    return Json{{"a", StepText(a.step)},
                {"b", StepText(b.step)},
                {"added", counts[Kind::kAdded]},
                {"removed", counts[Kind::kRemoved]},
                {"changed", counts[Kind::kChanged]},
                // Counts all keys; matching keys are not counted.
                {"unchanged", words.empty() ? Json(diff.unchanged_keys) : Json(nullptr)},
                {"changed_bytes", changed_bytes},
                {"changes", std::move(list)}};
  }

  Result<Json> Difference(const HttpRequest& request) {
    CAIRN_TRY_ASSIGN(const std::string fqn, Required(request, "key"));
    CAIRN_TRY_ASSIGN(const kv::StepInfo a, FindStep(request, "a"));
    CAIRN_TRY_ASSIGN(const kv::StepInfo b, FindStep(request, "b"));
    CAIRN_TRY_ASSIGN(const ValueDifference difference,
                     CompareTensor(*store_, a, b, fqn, UntilCancelled()));
    Json json = NamedJson(fqn);
    json.update({{"a", StepText(a.step)}, {"b", StepText(b.step)}});
    json.update(DifferenceJson(difference));
    return json;
  }

  const core::CheckpointStore* store_;
  LiveReport report_;
  KeySearch search_;
};

// --- The verb

/// Takes the default port, or, if it is in use, any other one.
Result<std::unique_ptr<HttpServer>> StartServer(const DumpRun& run,
                                                const HttpServer::Handler& handler) {
  HttpServerOptions options{.address = run.listen == "localhost" ? "127.0.0.1" : run.listen,
                            .port = static_cast<uint16_t>(run.port.value_or(kDefaultPort)),
                            .hosts = run.hosts};
  auto server = HttpServer::Start(options, handler);
  if (server || run.port || server.error().code != ErrorCode::kConflict) {
    if (!server && server.error().code == ErrorCode::kConflict) {
      server.error().message += "; choose another port, or omit --port";
    }
    return server;
  }
  options.port = 0;
  return HttpServer::Start(options, handler);
}

/// Collects the first report before anybody asks for it. The page shows the same error.
void CollectFirst(LiveReport& report) {
  ProgressLine progress("examining steps", ProgressUnit::kCount);
  const auto collected = report.Current(progress.callback());
  progress.Clear();
  if (!collected && !CancelRequested()) Warn("kv-dump", collected.error().ToString());
}

}  // namespace

Result<int> DumpServe(const DumpRun& run) {
  CAIRN_TRY_ASSIGN(const OpenedStore opened, OpenWithoutStep(run.address, "serve"));
  std::signal(SIGPIPE, SIG_IGN);  // a browser may close a connection at any time
  InstallCancelHandler();
  LiveRequests requests(opened.store.get(), run.all_steps);
  CAIRN_TRY_ASSIGN(
      const std::unique_ptr<HttpServer> server,
      StartServer(run, [&](const HttpRequest& received) { return requests.Answer(received); }));
  const std::string url = fmt::format(
      "http://{}:{}/", run.listen == "0.0.0.0" ? "127.0.0.1" : run.listen, server->port());
  if (run.json) {
    run.out->WriteLine(JsonLine({{"url", url}, {"port", server->port()}}));
  } else {
    run.out->WriteLine(fmt::format("{} at {}", EscapeText(opened.address.store),
                                   run.out->Styled(Style::kBold, url)));
    run.out->WriteLine(run.out->Styled(Style::kDim, "Read-only. Ctrl-C ends the server."));
  }
  if (run.listen != "localhost" && !IsLoopback(run.listen)) {
    Warn("kv-dump", fmt::format("everybody who can reach {} can read the store", run.listen));
  }
  run.out->Flush();
  CollectFirst(requests.report());
  while (!CancelRequested()) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  return kExitSuccess;
}

}  // namespace cairn::tools
