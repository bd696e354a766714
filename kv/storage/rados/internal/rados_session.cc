// Parsing of addresses, connections, pools and errors.

#include "kv/storage/rados/internal/rados_session.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>

#include "kv/base/catch_exhaustion.h"
#include "kv/io/internal/file.h"
#include "kv/io/internal/io_environment.h"
#include "kv/storage/internal/object_names.h"

namespace cairn::kv::internal {

namespace {

constexpr size_t kMaxLayouts = 1 << 14;
constexpr std::string_view kScheme = "rados:";
// An OSD refuses writes of more than osd_max_write_size, 90 MiB.
constexpr uint64_t kMinStripeBytes = 64 << 10;
constexpr uint64_t kMaxStripeBytes = 64 << 20;
constexpr uint64_t kMaxTimeoutSeconds = 86'400;

Result<void> SetParameter(std::string_view parameter, RadosSettings* settings) {
  const size_t equals = parameter.find('=');
  const std::string_view name = parameter.substr(0, equals);
  const std::string_view value =
      equals == std::string_view::npos ? std::string_view() : parameter.substr(equals + 1);
  if (value.empty()) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("the parameter \"{}\" of the address has no value", name));
  }
  if (name == "conf") {
    settings->conf = AbsolutePath(std::string(value));  // it is read at the first request
  } else if (name == "id") {
    settings->id = value;
  } else if (name == "data_pool") {
    settings->data_pool = value;
  } else if (name == "stripe") {
    const std::optional<uint64_t> bytes = ParseDecimal(value);
    if (!bytes || *bytes < kMinStripeBytes || *bytes > kMaxStripeBytes) {
      return Fail(ErrorCode::kInvalidArgument,
                  fmt::format("the stripe \"{}\" is not a number of bytes from {} to {}", value,
                              kMinStripeBytes, kMaxStripeBytes));
    }
    settings->stripe_bytes = *bytes;
  } else {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("the parameter \"{}\" of the address is not known; known are conf, "
                            "id, data_pool and stripe",
                            name));
  }
  return {};
}

Error ConnectError(const RadosSettings& settings, std::string_view what, int result) {
  const std::string conf = settings.conf.empty() ? "CEPH_CONF, /etc/ceph/ceph.conf" : settings.conf;
  const char* advice = "check that the monitors of the configuration run and can be reached";
  ErrorCode code = ErrorCode::kUnavailable;
  if (result == -ENOENT || result == -EINVAL) {
    advice = "check that the configuration exists and names monitors and a keyring";
    code = ErrorCode::kFailedPrecondition;
  } else if (result == -EACCES || result == -EPERM) {
    advice = "the cluster refused the user; check id= in the address and its keyring";
  }
  return {.code = code,
          .message = fmt::format("cannot {}: {}; {} (configuration: {}; timeout: {} s)", what,
                                 std::strerror(-result), advice, conf, settings.timeout.count()),
          .file = settings.address};
}

// Sets the timeouts that the configuration leaves at "never", or at more than the connection may
// take.
void SetTimeouts(const RadosApi& api, RadosClusterHandle handle, const RadosSettings& settings) {
  const std::string timeout = std::to_string(settings.timeout.count());
  const bool is_explicit = !EnvironmentVariable("CAIRN_RADOS_TIMEOUT").empty();
  for (const char* option : {"rados_osd_op_timeout", "rados_mon_op_timeout"}) {
    std::array<char, 64> value{};
    const int result = api.conf_get(handle, option, value.data(), value.size());
    const bool is_unset = result < 0 || std::strtod(value.data(), nullptr) <= 0;
    if (is_unset || is_explicit) (void)api.conf_set(handle, option, timeout.c_str());
  }
  (void)api.conf_set(handle, "client_mount_timeout", timeout.c_str());
}

std::string AdviceFor(int result, const RadosSettings& settings) {
  switch (-result) {
    case ETIMEDOUT:
      return fmt::format(
          "the cluster did not answer within the timeout ({} s unless the "
          "configuration has another one); check `ceph -s`",
          settings.timeout.count());
    case EACCES:
    case EPERM:
      return "the capabilities of the user do not allow it";
    case ENOENT:
      return "it does not exist";
    case EEXIST:
      return "it exists";
    case ENOSPC:
    case EDQUOT:
      return "the pool is full or has reached its quota";
    case ESHUTDOWN:
      return "this client is on the blocklist of the cluster; open the store again";
    default:
      return std::strerror(-result);
  }
}

}  // namespace

Result<RadosSettings> ParseRadosAddress(std::string_view address) {
  const size_t question = address.find('?');
  std::string_view place = address.substr(0, question);
  RadosSettings settings;
  CAIRN_CHECK(place.starts_with(kScheme));
  place.remove_prefix(kScheme.size());
  while (place.ends_with('/')) place.remove_suffix(1);
  const size_t slash = place.find('/');
  settings.pool = place.substr(0, slash);
  if (slash != std::string_view::npos) settings.name_space = place.substr(slash + 1);
  if (settings.pool.empty() || settings.name_space.empty() || settings.name_space[0] == '/') {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("the address \"{}\" is not of the form rados:POOL/NAMESPACE", address));
  }
  settings.address = fmt::format("rados:{}/{}", settings.pool, settings.name_space);
  std::string_view parameters;
  if (question != std::string_view::npos) parameters = address.substr(question + 1);
  while (!parameters.empty()) {
    const size_t end = parameters.find('&');
    CAIRN_TRY(SetParameter(parameters.substr(0, end), &settings));
    parameters.remove_prefix(end == std::string_view::npos ? parameters.size() : end + 1);
  }
  CAIRN_TRY_ASSIGN(const uint64_t timeout_s,
                   IntegerVariable("CAIRN_RADOS_TIMEOUT", 1, kMaxTimeoutSeconds, 60));
  settings.timeout = std::chrono::seconds(timeout_s);
  return settings;
}

Result<std::unique_ptr<RadosSession>> RadosSession::Open(const RadosSettings& settings) {
  const auto api = LoadRadosApi();
  if (!api) return Fail(Error(api.error()).WithFile(settings.address));
  std::unique_ptr<RadosSession> session(new RadosSession(settings, *api));
  // librados takes the random numbers that identify a client from a generator per thread. Children
  // that one process forks have copies of its generators, and clusters confuse clients with the
  // same numbers. A new thread has a new generator.
  Result<void> connected;
  constexpr const char* kWhat = "the connection to the Ceph cluster";
  CAIRN_TRY_ASSIGN(std::thread connecting, StartThread(kWhat, [&] {
                     connected = CatchExhaustion(kWhat, [&] { return session->Connect(); });
                   }));
  connecting.join();
  CAIRN_TRY(std::move(connected));
  CAIRN_TRY_ASSIGN(session->heads_, session->OpenPool(settings.pool));
  if (!settings.data_pool.empty() && settings.data_pool != settings.pool) {
    CAIRN_TRY_ASSIGN(session->data_, session->OpenPool(settings.data_pool));
  }
  return session;
}

RadosSession::RadosSession(RadosSettings settings, const RadosApi& api)
    : settings_(std::move(settings)), pid_(::getpid()), api_(api) {}

RadosSession::~RadosSession() {
  CAIRN_CHECK(is_usable());
  for (const auto& [id, pool] : other_pools_) api_.ioctx_destroy(pool);
  if (data_ != nullptr) api_.ioctx_destroy(data_);
  if (heads_ != nullptr) api_.ioctx_destroy(heads_);
  if (cluster_ != nullptr) api_.shutdown(cluster_);
}

Result<void> RadosSession::Connect() {
  int result = api_.create(&cluster_, settings_.id.empty() ? nullptr : settings_.id.c_str());
  if (result < 0) return Fail(ConnectError(settings_, "initialize librados", result));
  result = api_.conf_read_file(cluster_, settings_.conf.empty() ? nullptr : settings_.conf.c_str());
  // Without a file, CEPH_ARGS may contain everything.
  if (result < 0 && (result != -ENOENT || !settings_.conf.empty())) {
    return Fail(ConnectError(settings_, "read the configuration of Ceph", result));
  }
  result = api_.conf_parse_env(cluster_, nullptr);
  if (result < 0) return Fail(ConnectError(settings_, "use CEPH_ARGS", result));
  SetTimeouts(api_, cluster_, settings_);
  result = api_.connect(cluster_);
  if (result < 0) return Fail(ConnectError(settings_, "connect to the Ceph cluster", result));
  return {};
}

bool RadosSession::is_usable() const { return pid_ == ::getpid(); }

Result<RadosIoContext> RadosSession::OpenPool(const std::string& pool) {
  RadosIoContext context = nullptr;
  const int result = api_.ioctx_create(cluster_, pool.c_str(), &context);
  if (result == -ENOENT) {
    return Fail(ErrorCode::kFailedPrecondition,
                fmt::format("the cluster has no pool \"{}\"; create it with "
                            "`ceph osd pool create {}`",
                            pool, pool),
                settings_.address);
  }
  if (result < 0) return Fail(ConnectError(settings_, "open the pool " + pool, result));
  api_.ioctx_set_namespace(context, settings_.name_space.c_str());
  return context;
}

Result<RadosIoContext> RadosSession::Pool(int64_t pool_id) {
  if (pool_id == api_.ioctx_get_id(heads_)) return heads_;
  if (data_ != nullptr && pool_id == api_.ioctx_get_id(data_)) return data_;
  const MutexLock lock(mutex_);
  RadosIoContext& context = other_pools_[pool_id];
  if (context == nullptr) {
    const int result = api_.ioctx_create2(cluster_, pool_id, &context);
    if (result < 0) {
      other_pools_.erase(pool_id);
      return Fail(
          ErrorCode::kUnavailable,
          fmt::format("cannot open the pool {} of stripes: {}", pool_id, std::strerror(-result)),
          settings_.address);
    }
    api_.ioctx_set_namespace(context, settings_.name_space.c_str());
  }
  return context;
}

std::string RadosSession::FileOf(std::string_view name) const {
  return ObjectPath(settings_.address, name);
}

void RadosSession::StartOperation(const std::function<int(RadosCompletion)>& begin,
                                  std::move_only_function<void(int)> done) const {
  struct Call {
    const RadosApi& api;
    std::move_only_function<void(int)> done;
  };
  const auto on_done = [](RadosCompletion completion, void* argument) {
    const std::unique_ptr<Call> call(static_cast<Call*>(argument));
    const int result = call->api.aio_get_return_value(completion);
    call->api.aio_release(completion);
    call->done(result);
  };
  auto call = std::make_unique<Call>(api_, std::move(done));
  RadosCompletion completion = nullptr;
  CAIRN_CHECK(api_.aio_create_completion(call.get(), on_done, nullptr, &completion) == 0);
  const int result = begin(completion);
  if (result >= 0) {
    call.release();  // owned by the callback
    return;
  }
  api_.aio_release(completion);
  call->done(result);
}

Error RadosSession::ForkedError(std::string_view name) const {
  return {.code = ErrorCode::kFailedPrecondition,
          .message = "this process was forked from the one that began the object",
          .file = FileOf(name)};
}

Error RadosSession::MakeError(int result, std::string_view operation, std::string_view name) const {
  ErrorCode code = ErrorCode::kUnavailable;
  if (result == -ENOENT) code = ErrorCode::kNotFound;
  if (result == -EEXIST) code = ErrorCode::kConflict;
  if (result == -ENOSPC || result == -EDQUOT) code = ErrorCode::kResourceExhausted;
  return {.code = code,
          .message = fmt::format("cannot {}: {}", operation, AdviceFor(result, settings_)),
          .file = FileOf(name)};
}

std::optional<StripeLayout> RadosSession::FindLayout(std::string_view name) {
  const MutexLock lock(mutex_);
  const auto found = layouts_.find(name);
  if (found == layouts_.end()) return std::nullopt;
  return found->second;
}

void RadosSession::RememberLayout(std::string_view name, const StripeLayout& layout) {
  const MutexLock lock(mutex_);
  if (layouts_.size() >= kMaxLayouts) layouts_.clear();
  layouts_.insert_or_assign(std::string(name), layout);
}

void RadosSession::ForgetLayout(std::string_view name) {
  const MutexLock lock(mutex_);
  const auto found = layouts_.find(name);
  if (found != layouts_.end()) layouts_.erase(found);
}

bool IsUnknownOutcome(int result) {
  switch (-result) {
    case ETIMEDOUT:
    case ENOTCONN:
    case ESHUTDOWN:
    case ECONNRESET:
    case EIO:
    case EINTR:
      return true;
    default:
      return false;
  }
}

}  // namespace cairn::kv::internal
