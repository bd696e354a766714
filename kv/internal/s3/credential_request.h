#pragma once
/// Requests to services that supply credentials, and what their errors may contain.

#include <chrono>
#include <expected>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kv/error.h"
#include "kv/internal/s3/credential_context.h"
#include "kv/internal/s3/http_request.h"

namespace cairn::kv::internal {

struct ServiceRequest {
  std::string url;
  std::string method = "GET";
  std::vector<std::string> headers;
  std::string body;
  std::optional<HttpSignature> signature;
  bool use_proxy = false;  // if it uses TLS
  std::chrono::milliseconds timeout{5'000};
  int attempts = 5;
};

/// Performs the request, and repeats it, after 50 to 1600 ms, if the service fails or answers that
/// there are too many requests.
HttpResponse AskService(const ServiceRequest& ask, const CredentialContext& context);

/// Describes a response that is not a success. Its body may contain a secret, so only the status is
/// named. kUnavailable: the service does not answer, or there were too many requests.
/// kFailedPrecondition: it refuses.
Error ServiceError(const HttpResponse& response, std::string_view service);

/// Reads a file with a secret on one line. kFailedPrecondition: it cannot be read; the error names
/// `what` and the path.
Result<std::string> ReadSecretFile(const std::string& path, std::string_view what);

/// Returns whether credentials may be requested from the URL, as AWS SDKs do: from any host over
/// TLS, otherwise only from the machine itself and the agents of ECS and EKS.
bool MayAskForCredentials(const std::string& url);

/// Returns "" if the document has no such text.
std::string TextIn(const nlohmann::json& document, const char* name);

/// An error of the configuration.
std::unexpected<Error> RefuseCredentials(std::string message);

}  // namespace cairn::kv::internal
