// `kv-dump serve`: the live view of a store.

#include <fmt/format.h>

#include <chrono>
#include <csignal>
#include <memory>
#include <thread>

#include "tools/common/exit_status.h"
#include "tools/common/progress.h"
#include "tools/common/text.h"
#include "tools/dump/http_server.h"
#include "tools/dump/live_requests.h"
#include "tools/dump/opened_store.h"
#include "tools/dump/verbs.h"

namespace cairn::tools {
namespace {

constexpr uint16_t kDefaultPort = 7707;

/// Takes the default port, or, if it is in use, any other one.
Result<std::unique_ptr<HttpServer>> StartServer(const ServeRequest& request,
                                                const HttpServer::Handler& handler) {
  HttpServerOptions options{
      .address = request.address == "localhost" ? "127.0.0.1" : request.address,
      .port = static_cast<uint16_t>(request.port.value_or(kDefaultPort)),
      .hosts = request.hosts};
  auto server = HttpServer::Start(options, handler);
  if (server || request.port || server.error().code != ErrorCode::kConflict) {
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

Result<int> DumpServe(const DumpRun& run, const ServeRequest& request) {
  CAIRN_TRY_ASSIGN(const OpenedStore opened, OpenWithoutStep(request.store, "serve"));
  std::signal(SIGPIPE, SIG_IGN);  // a browser may close a connection at any time
  InstallCancelHandler();
  LiveRequests requests(opened.store.get(), request.all_steps);
  CAIRN_TRY_ASSIGN(
      const std::unique_ptr<HttpServer> server,
      StartServer(request, [&](const HttpRequest& received) { return requests.Answer(received); }));
  const std::string url =
      fmt::format("http://{}:{}/", request.address == "0.0.0.0" ? "127.0.0.1" : request.address,
                  server->port());
  if (run.json) {
    run.out->WriteLine(Json({{"url", url}, {"port", uint64_t{server->port()}}}).Line());
  } else {
    run.out->WriteLine(fmt::format("{} at {}", EscapeText(opened.address.store),
                                   run.out->Styled(Style::kBold, url)));
    run.out->WriteLine(run.out->Styled(Style::kDim, "Read-only. Ctrl-C ends the server."));
  }
  if (request.address != "localhost" && !IsLoopback(request.address)) {
    Warn("kv-dump", fmt::format("everybody who can reach {} can read the store", request.address));
  }
  run.out->Flush();
  CollectFirst(requests.report());
  while (!CancelRequested()) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  return kExitSuccess;
}

}  // namespace cairn::tools
