// Lookup of the functions.

#include "kv/storage/s3/internal/curl_library.h"

#include <fmt/format.h>

#include "kv/storage/internal/shared_library.h"

namespace cairn::kv::internal {
namespace {

constexpr const char* kAdvice =
    "stores at s3:// addresses need libcurl 7.86 or newer; install the package libcurl4 of the "
    "distribution";

void FindAll(SharedLibrary& opened, CurlLibrary& curl) {
  opened.Find("curl_global_init", curl.global_init);
  opened.Find("curl_version_info", curl.version_info);
  opened.Find("curl_free", curl.free);
  opened.Find("curl_easy_init", curl.easy_init);
  opened.Find("curl_easy_setopt", curl.easy_setopt);
  opened.Find("curl_easy_perform", curl.easy_perform);
  opened.Find("curl_easy_reset", curl.easy_reset);
  opened.Find("curl_easy_strerror", curl.easy_strerror);
  opened.Find("curl_easy_cleanup", curl.easy_cleanup);
  opened.Find("curl_slist_append", curl.slist_append);
  opened.Find("curl_slist_free_all", curl.slist_free_all);
  opened.Find("curl_multi_init", curl.multi_init);
  opened.Find("curl_multi_setopt", curl.multi_setopt);
  opened.Find("curl_multi_add_handle", curl.multi_add_handle);
  opened.Find("curl_multi_remove_handle", curl.multi_remove_handle);
  opened.Find("curl_multi_perform", curl.multi_perform);
  opened.Find("curl_multi_info_read", curl.multi_info_read);
  opened.Find("curl_multi_poll", curl.multi_poll);
  opened.Find("curl_multi_wakeup", curl.multi_wakeup);
  opened.Find("curl_multi_cleanup", curl.multi_cleanup);
  opened.Find("curl_url", curl.url);
  opened.Find("curl_url_set", curl.url_set);
  opened.Find("curl_url_get", curl.url_get);
  opened.Find("curl_url_cleanup", curl.url_cleanup);
}

const Result<CurlLibrary>& LoadOnce() {
  // Never freed: threads may use it until the process ends.
  static const Result<CurlLibrary>& loaded = *new Result<CurlLibrary>(LoadCurlLibrary());
  return loaded;
}

}  // namespace

Result<CurlLibrary> LoadCurlLibrary(const char* library) {
  CAIRN_TRY_ASSIGN(SharedLibrary opened, SharedLibrary::Open(library, "of HTTP", kAdvice));
  CurlLibrary curl;
  FindAll(opened, curl);
  // Checked first: an old version explains why a function is missing.
  if (curl.version_info != nullptr) {
    const curl_version_info_data& found = *curl.version_info(CURLVERSION_FIRST);
    if (found.version_num < CurlLibrary::kMinVersion) {
      return opened.Unusable(fmt::format("the library {} is libcurl {}", library, found.version));
    }
  }
  CAIRN_TRY(opened.CheckComplete());
  const CURLcode code = curl.global_init(CURL_GLOBAL_DEFAULT);
  if (code != CURLE_OK) {
    return opened.Unusable(
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
