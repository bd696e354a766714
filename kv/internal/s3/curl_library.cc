// Lookup of the functions.

#include "kv/internal/s3/curl_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <string>
#include <type_traits>
#include <utility>

namespace cairn::kv::internal {
namespace {

constexpr const char* kAdvice =
    "stores at s3:// addresses need libcurl 7.86 or newer; install the package libcurl4 of the "
    "distribution";

std::unexpected<Error> Unusable(std::string what) {
  return Fail(ErrorCode::kFailedPrecondition, fmt::format("{}; {}", what, kAdvice));
}

/// Returns null, or the name of a function that is missing.
const char* FindAll(void* library, CurlLibrary& curl) {
  const char* missing = nullptr;
  const auto find = [&](const char* name, auto& function) {
    function = reinterpret_cast<std::decay_t<decltype(function)>>(::dlsym(library, name));
    if (function == nullptr) missing = name;
  };
  find("curl_global_init", curl.global_init);
  find("curl_version_info", curl.version_info);
  find("curl_free", curl.free);
  find("curl_easy_init", curl.easy_init);
  find("curl_easy_setopt", curl.easy_setopt);
  find("curl_easy_perform", curl.easy_perform);
  find("curl_easy_reset", curl.easy_reset);
  find("curl_easy_strerror", curl.easy_strerror);
  find("curl_easy_cleanup", curl.easy_cleanup);
  find("curl_slist_append", curl.slist_append);
  find("curl_slist_free_all", curl.slist_free_all);
  find("curl_multi_init", curl.multi_init);
  find("curl_multi_setopt", curl.multi_setopt);
  find("curl_multi_add_handle", curl.multi_add_handle);
  find("curl_multi_remove_handle", curl.multi_remove_handle);
  find("curl_multi_perform", curl.multi_perform);
  find("curl_multi_info_read", curl.multi_info_read);
  find("curl_multi_poll", curl.multi_poll);
  find("curl_multi_wakeup", curl.multi_wakeup);
  find("curl_multi_cleanup", curl.multi_cleanup);
  find("curl_url", curl.url);
  find("curl_url_set", curl.url_set);
  find("curl_url_get", curl.url_get);
  find("curl_url_cleanup", curl.url_cleanup);
  return missing;
}

const Result<CurlLibrary>& LoadOnce() {
  // Never freed: threads may use it until the process ends.
  static const Result<CurlLibrary>& loaded = *new Result<CurlLibrary>(LoadCurlLibrary());
  return loaded;
}

}  // namespace

Result<CurlLibrary> LoadCurlLibrary(const char* library) {
  void* const handle = ::dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* const reason = ::dlerror();
    return Unusable(
        fmt::format("cannot open the library of HTTP: {}", reason != nullptr ? reason : library));
  }
  CurlLibrary curl;
  const char* const missing = FindAll(handle, curl);
  // Checked first: an old version explains why a function is missing.
  if (curl.version_info != nullptr) {
    const curl_version_info_data& found = *curl.version_info(CURLVERSION_FIRST);
    if (found.version_num < CurlLibrary::kMinVersion) {
      return Unusable(fmt::format("the library {} is libcurl {}", library, found.version));
    }
  }
  if (missing != nullptr) {
    return Unusable(fmt::format("the library {} has no function {}", library, missing));
  }
  const CURLcode code = curl.global_init(CURL_GLOBAL_DEFAULT);
  if (code != CURLE_OK) {
    return Unusable(
        fmt::format("the library {} does not start: {}", library, curl.easy_strerror(code)));
  }
  return curl;
}

Result<const CurlLibrary*> OpenCurlLibrary() {
  CAIRN_TRY(LoadOnce());
  return &*LoadOnce();
}

const CurlLibrary& Curl() {
  const Result<CurlLibrary>& loaded = LoadOnce();
  CAIRN_CHECK(loaded.has_value());
  return *loaded;
}

}  // namespace cairn::kv::internal
