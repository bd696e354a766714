#pragma once
/// Answers the requests of the live view (docs/live-view.md lists them).

#include <string>

#include "core/checkpoint_store.h"
#include "kv/base/error.h"
#include "tools/common/json.h"
#include "tools/dump/http_server.h"
#include "tools/dump/key_search.h"
#include "tools/dump/live_report.h"

namespace cairn::tools {

/// Threads: all members are safe.
class LiveRequests {
 public:
  /// `store` must outlive this object.
  LiveRequests(const core::CheckpointStore* store, bool all_steps);

  LiveReport& report() { return report_; }
  /// Returns the page, or a JSON document. Errors are documents, too.
  HttpResponse Answer(const HttpRequest& request);

 private:
  HttpResponse Page();
  Result<Json> State();
  Result<Json> Steps();
  Result<Json> Keys(const HttpRequest& request);
  Result<Json> Key(const HttpRequest& request);
  Result<Json> History(const HttpRequest& request);
  Result<Json> Diff(const HttpRequest& request);
  Result<Json> Difference(const HttpRequest& request);
  Result<Json> TensorOf(const kv::StepInfo& step, const core::TensorInfo& tensor,
                        const HttpRequest& request);
  /// Returns the step that a parameter names, or the latest one if it is absent.
  Result<kv::StepInfo> FindStep(const HttpRequest& request, const std::string& parameter);

  const core::CheckpointStore* store_;
  LiveReport report_;
  KeySearch search_;
};

}  // namespace cairn::tools
