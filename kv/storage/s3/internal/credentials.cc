#include "kv/storage/s3/internal/credentials.h"

#include <arpa/inet.h>
#include <curl/curl.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "kv/io/file_descriptor.h"
#include "kv/storage/s3/internal/curl_library.h"
#include "kv/storage/s3/internal/http_transfer.h"

namespace cairn::kv::internal {
namespace {

using MaybeCredentials = Result<std::optional<S3Credentials>>;  // nothing: it is not configured
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr size_t kMaxOutputBytes = 1 << 20;

std::unexpected<Error> Refuse(std::string message) {
  return Fail(ErrorCode::kFailedPrecondition, std::move(message));
}

// Both halves of a key are needed; one alone is a mistake that would otherwise be hard to find.
MaybeCredentials KeysOrNothing(std::string key_id, std::string secret, std::string token,
                               std::string_view source) {
  if (key_id.empty() && secret.empty()) return std::nullopt;
  if (key_id.empty() || secret.empty()) {
    return Refuse(fmt::format("only one of access key and secret key is in {}", source));
  }
  return S3Credentials{.access_key_id = std::move(key_id),
                       .secret_access_key = std::move(secret),
                       .session_token = std::move(token)};
}

// Returns what a command of the shell writes to standard output. Not popen, which waits without a
// limit.
Result<std::string> RunCommand(const std::string& command, const std::string& source,
                               milliseconds timeout) {
  const Clock::time_point deadline = Clock::now() + timeout;
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    return Fail(SystemError(errno, fmt::format("cannot start {}", source)));
  }
  const FileDescriptor output_end(ends[0]);
  FileDescriptor input_end(ends[1]);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, input_end.get(), STDOUT_FILENO);
  const char* const arguments[] = {"sh", "-c", command.c_str(), nullptr};
  pid_t child = 0;
  const int error = ::posix_spawn(&child, "/bin/sh", &actions, nullptr,
                                  const_cast<char* const*>(arguments), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return Fail(SystemError(error, fmt::format("cannot start {}", source)));
  input_end.Close();
  std::string output;
  bool has_ended = false;
  while (!has_ended && output.size() <= kMaxOutputBytes) {
    const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now());
    pollfd waits{.fd = output_end.get(), .events = POLLIN, .revents = 0};
    if (left.count() <= 0 || ::poll(&waits, 1, static_cast<int>(left.count())) == 0) break;
    char buffer[4096];
    const ssize_t length = ::read(output_end.get(), buffer, sizeof(buffer));
    if (length > 0) output.append(buffer, static_cast<size_t>(length));
    has_ended = length == 0 || (length < 0 && errno != EINTR);
  }
  if (!has_ended) ::kill(child, SIGKILL);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (!has_ended) {
    return Refuse(fmt::format("{} has not ended after {} ms and {} bytes", source, timeout.count(),
                              output.size()));
  }
  if (status == 0) return output;
  return Refuse(
      fmt::format("{} failed with exit status {}; it has written the reason to standard error",
                  source, WIFEXITED(status) ? WEXITSTATUS(status) : -1));
}

// Returns what needs a service that only other tools ask; "" if there is none.
std::string UnsupportedSource(const CredentialContext& context) {
  for (const char* setting :
       {"role_arn", "web_identity_token_file", "sso_session", "sso_start_url"}) {
    if (context.profile.Get(setting).empty()) continue;
    return fmt::format("{} of the AWS profile \"{}\"", setting, context.profile.name);
  }
  constexpr const char* kVariable = "AWS_WEB_IDENTITY_TOKEN_FILE";
  const bool is_used = !context.profile_is_explicit && !context.environment(kVariable).empty();
  return is_used ? kVariable : "";
}

MaybeCredentials ProfileCredentials(const CredentialContext& context) {
  const std::string unsupported = UnsupportedSource(context);
  if (unsupported.empty()) {
    CAIRN_TRY_ASSIGN(std::optional<S3Credentials> keys,
                     KeysOrNothing(context.profile.Get("aws_access_key_id"),
                                   context.profile.Get("aws_secret_access_key"),
                                   context.profile.Get("aws_session_token"),
                                   fmt::format("the AWS profile \"{}\"", context.profile.name)));
    if (keys) return keys;
  }
  const std::string command = context.profile.Get("credential_process");
  if (!command.empty()) {
    const std::string source =
        fmt::format("the credential_process of the AWS profile \"{}\"", context.profile.name);
    CAIRN_TRY_ASSIGN(const std::string output,
                     RunCommand(command, source, context.process_timeout));
    return ParseCredentialsJson(output, source);
  }
  if (unsupported.empty()) return std::nullopt;
  return Refuse(
      fmt::format("{} is not supported without a program that asks AWS: use a profile with "
                  "\"credential_process = aws configure export-credentials --profile {}\", "
                  "or pass credentials=boto3.Session() in Python",
                  unsupported, context.profile.name));
}

std::string PartOfUrl(const std::string& url, CURLUPart part) {
  const CurlLibrary& curl = Curl();
  const std::unique_ptr<CURLU, decltype(curl.url_cleanup)> handle(curl.url(), curl.url_cleanup);
  if (curl.url_set(handle.get(), CURLUPART_URL, url.c_str(), 0) != CURLUE_OK) return {};
  char* text = nullptr;
  if (curl.url_get(handle.get(), part, &text, 0) != CURLUE_OK) return {};
  std::string value(text);
  curl.free(text);
  return value;
}

// Returns whether `host` is a literal address of the machine itself, or its name. Names of other
// machines may begin with numbers ("127.example.com").
bool IsThisMachine(const std::string& host) {
  in_addr ipv4{};
  if (::inet_pton(AF_INET, host.c_str(), &ipv4) == 1) return ::ntohl(ipv4.s_addr) >> 24 == 127;
  return host == "localhost" || host == "[::1]";
}

bool MayBeRepeated(const HttpResponse& response) {
  return response.failure != CURLE_OK || response.status >= 500 || response.status == 429;
}

HttpResponse AskService(HttpRequest request, const CredentialContext& context,
                        milliseconds timeout = milliseconds(5'000), int max_attempts = 5) {
  HttpOptions options;
  options.ca_bundle = context.ca_bundle;
  options.connect_timeout = timeout;
  for (int attempt = 1;; ++attempt) {
    request.deadline = Clock::now() + timeout;
    HttpResponse response = PerformHttpRequest(request, options);
    if (!MayBeRepeated(response) || attempt == max_attempts) return response;
    std::this_thread::sleep_for(PauseBefore(attempt + 1));
  }
}

// kUnavailable, kFailedPrecondition: the status is not 200.
Result<std::string> BodyOf(HttpResponse response, std::string_view service) {
  if (response.failure != CURLE_OK) {
    return Fail(ErrorCode::kUnavailable,
                fmt::format("{} does not answer: {}", service, response.error));
  }
  if (response.status == 200) return std::move(response.body);
  return Fail(MayBeRepeated(response) ? ErrorCode::kUnavailable : ErrorCode::kFailedPrecondition,
              fmt::format("{} answered with status {}", service, response.status));
}

MaybeCredentials ContainerCredentials(const CredentialContext& context) {
  constexpr std::string_view kService = "the credential service of the container";
  const std::string relative = context.environment("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
  std::string url = context.environment("AWS_CONTAINER_CREDENTIALS_FULL_URI");
  if (!relative.empty()) url = "http://169.254.170.2" + relative;
  if (url.empty()) return std::nullopt;
  if (!MayAskForCredentials(url)) {
    return Refuse("AWS_CONTAINER_CREDENTIALS_FULL_URI is neither https:// nor on this machine");
  }
  HttpRequest request{.url = url};
  std::string token = context.environment("AWS_CONTAINER_AUTHORIZATION_TOKEN");
  const std::string path = context.environment("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE");
  if (!path.empty()) {
    token = ReadTextFile(path, "authorization token").value_or("");
    while (token.ends_with('\n') || token.ends_with('\r')) token.pop_back();
    if (token.empty()) {
      return Fail(ErrorCode::kFailedPrecondition,
                  "cannot read the authorization token of the container", path);
    }
  }
  if (token.find_first_of("\r\n") != std::string::npos) {
    return Refuse("the authorization token of the container contains a line break");
  }
  if (!token.empty()) request.headers.push_back("Authorization: " + token);
  CAIRN_TRY_ASSIGN(const std::string document,
                   BodyOf(AskService(std::move(request), context), kService));
  return ParseCredentialsJson(document, kService);
}

MaybeCredentials MachineCredentials(const CredentialContext& context) {
  constexpr std::string_view kService = "the metadata service of the machine";
  std::string disabled = context.environment("AWS_EC2_METADATA_DISABLED");
  std::ranges::transform(disabled, disabled.begin(),
                         [](char c) { return static_cast<char>(c | 0x20); });
  if (disabled == "true") return std::nullopt;
  std::string endpoint = context.environment("AWS_EC2_METADATA_SERVICE_ENDPOINT");
  if (endpoint.empty()) endpoint = "http://169.254.169.254";
  while (endpoint.ends_with('/')) endpoint.pop_back();

  // Elsewhere than on EC2 nothing answers, so this waits for one second only.
  const HttpResponse token =
      AskService({.method = "PUT",
                  .url = endpoint + "/latest/api/token",
                  .headers = {"X-aws-ec2-metadata-token-ttl-seconds: 21600"}},
                 context, milliseconds(1'000), /*max_attempts=*/1);
  if (token.status != 200 || token.body.find_first_of("\r\n") != std::string::npos) {
    return std::nullopt;
  }
  const std::string base = endpoint + "/latest/meta-data/iam/security-credentials/";
  const std::vector<std::string> headers = {"X-aws-ec2-metadata-token: " + token.body};
  HttpResponse response = AskService({.url = base, .headers = headers}, context);
  if (response.status == 404) return std::nullopt;  // the machine has no role
  CAIRN_TRY_ASSIGN(std::string role, BodyOf(std::move(response), kService));
  role.resize(std::min(role.size(), role.find_first_of("\r\n")));
  response = AskService({.url = base + EncodeUri(role, false), .headers = headers}, context);
  CAIRN_TRY_ASSIGN(const std::string document, BodyOf(std::move(response), kService));
  return ParseCredentialsJson(document, kService);
}

// Returns "" if the document has no such text.
std::string TextIn(const nlohmann::json& document, const char* name) {
  const auto found = document.find(name);
  return found != document.end() && found->is_string() ? found->get<std::string>() : std::string();
}

constexpr std::chrono::minutes kRefreshBefore{5};
constexpr std::chrono::seconds kRefreshInterval{20};  // of credentials that expire soon

bool ExpiresWithin(const S3Credentials& credentials, std::chrono::seconds duration) {
  return credentials.expiry && *credentials.expiry <= std::chrono::system_clock::now() + duration;
}

// They become parts of headers, which end at a line break.
Result<S3Credentials> Checked(S3Credentials credentials) {
  if (credentials.access_key_id.empty() || credentials.secret_access_key.empty()) {
    return Fail(ErrorCode::kFailedPrecondition,
                "the source of S3 credentials supplied an empty access key or secret");
  }
  for (const std::string* text :
       {&credentials.access_key_id, &credentials.secret_access_key, &credentials.session_token}) {
    const auto is_control = [](char c) { return static_cast<uint8_t>(c) < 0x20 || c == 0x7f; };
    if (std::ranges::none_of(*text, is_control)) continue;
    return Fail(ErrorCode::kFailedPrecondition,
                "the source of S3 credentials supplied an access key, a secret or a session token "
                "with a line break or another control character");
  }
  return credentials;
}

}  // namespace

bool MayAskForCredentials(const std::string& url) {
  const std::string scheme = PartOfUrl(url, CURLUPART_SCHEME);
  if (scheme == "https") return true;
  if (scheme != "http") return false;
  const std::string host = PartOfUrl(url, CURLUPART_HOST);
  return IsThisMachine(host) || host == "169.254.170.2" || host == "169.254.170.23" ||
         host == "[fd00:ec2::23]";
}

std::optional<std::chrono::system_clock::time_point> ParseTime(const std::string& text) {
  std::tm fields = {};
  const char* rest = ::strptime(text.c_str(), "%Y-%m-%dT%H:%M:%S", &fields);
  if (rest == nullptr) return std::nullopt;
  if (*rest == '.') rest += 1 + std::string_view(rest + 1).find_first_not_of("0123456789");
  const std::string_view zone(rest);
  if (zone != "Z" && zone != "+00:00" && zone != "+0000") return std::nullopt;
  // The clock counts nanoseconds and ends in 2262, but "9999-12-31T23:59:59Z" is a usual time.
  using std::chrono::system_clock;
  constexpr auto kLast =
      std::chrono::floor<std::chrono::seconds>(system_clock::time_point::max().time_since_epoch());
  const std::chrono::seconds seconds(::timegm(&fields));
  return system_clock::time_point(std::clamp(seconds, std::chrono::seconds(0), kLast));
}

Result<S3Credentials> ParseCredentialsJson(std::string_view text, std::string_view source) {
  const nlohmann::json document = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  S3Credentials credentials;
  if (document.is_object()) {
    credentials.access_key_id = TextIn(document, "AccessKeyId");
    credentials.secret_access_key = TextIn(document, "SecretAccessKey");
    credentials.session_token = TextIn(document, "Token");
    if (credentials.session_token.empty()) {
      credentials.session_token = TextIn(document, "SessionToken");
    }
    const std::string expiry = TextIn(document, "Expiration");
    credentials.expiry = ParseTime(expiry);
    if (!expiry.empty() && !credentials.expiry) {
      return Refuse(fmt::format("{} supplied an expiration that is not a time in UTC", source));
    }
  }
  if (credentials.access_key_id.empty() || credentials.secret_access_key.empty()) {
    return Refuse(
        fmt::format("{} supplied no JSON document with AccessKeyId and SecretAccessKey", source));
  }
  return credentials;
}

Result<S3Credentials> FindCredentials(const CredentialContext& context) {
  std::optional<S3Credentials> credentials;
  if (!context.profile_is_explicit) {
    CAIRN_TRY_ASSIGN(credentials,
                     KeysOrNothing(context.environment("AWS_ACCESS_KEY_ID"),
                                   context.environment("AWS_SECRET_ACCESS_KEY"),
                                   context.environment("AWS_SESSION_TOKEN"),
                                   "the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY)"));
  }
  if (!credentials) {
    CAIRN_TRY_ASSIGN(credentials, ProfileCredentials(context));
  }
  for (const auto& source : {&ContainerCredentials, &MachineCredentials}) {
    if (credentials) break;
    CAIRN_TRY_ASSIGN(credentials, source(context));
  }
  if (credentials) return *std::move(credentials);
  return Refuse(
      fmt::format("found no credentials for S3: not in the environment "
                  "(AWS_ACCESS_KEY_ID), the AWS profile \"{}\", or from services of a "
                  "container or an EC2 machine; set them, or choose a profile with "
                  "AWS_PROFILE",
                  context.profile.name));
}

CredentialsCache::CredentialsCache(CredentialsSource source) : source_(std::move(source)) {}

SharedCredentials CredentialsCache::Usable() {
  const MutexLock lock(mutex_);
  if (current_ == nullptr || !ExpiresWithin(*current_, kRefreshBefore)) return current_;
  const bool expired = ExpiresWithin(*current_, std::chrono::seconds(0));
  if (expired || std::chrono::steady_clock::now() >= next_refresh_) return nullptr;
  return current_;
}

Result<SharedCredentials> CredentialsCache::Get() {
  if (SharedCredentials usable = Usable()) return usable;
  const MutexLock source_lock(source_mutex_);
  if (SharedCredentials usable = Usable()) return usable;
  {
    // Some sources supply credentials that expire within five minutes. They are used, but not
    // obtained again for each request. Other threads use them in the meantime.
    const MutexLock lock(mutex_);
    next_refresh_ = std::chrono::steady_clock::now() + kRefreshInterval;
  }
  Result<S3Credentials> obtained = source_();
  if (obtained) obtained = Checked(*std::move(obtained));
  const MutexLock lock(mutex_);
  next_refresh_ = std::chrono::steady_clock::now() + kRefreshInterval;
  if (!obtained) {
    if (current_ != nullptr && !ExpiresWithin(*current_, std::chrono::seconds(0))) {
      return current_;
    }
    return Fail(obtained.error());
  }
  current_ = std::make_shared<const S3Credentials>(*std::move(obtained));
  return current_;
}

void CredentialsCache::Reject(const SharedCredentials& credentials) {
  const MutexLock lock(mutex_);
  if (current_ == credentials) current_ = nullptr;
}

}  // namespace cairn::kv::internal
