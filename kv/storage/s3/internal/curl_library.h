#pragma once
/// The functions of libcurl that Cairn uses, found in the library when a bucket is first used:
/// libcurl and the libraries that it needs take several milliseconds to load. A build needs only
/// the headers of libcurl.

#include <curl/curl.h>

#include "kv/base/error.h"

namespace cairn::kv::internal {

/// A member has the name of its function without "curl_". `easy_setopt` and `multi_setopt` do not
/// convert values: pass a long, a pointer or a curl_off_t, as the option requires.
struct CurlLibrary {
  /// The first version with every option that Cairn sets.
  static constexpr unsigned kMinVersion = CURL_VERSION_BITS(7, 86, 0);

  decltype(&::curl_global_init) global_init = nullptr;
  decltype(&::curl_version_info) version_info = nullptr;
  decltype(&::curl_free) free = nullptr;

  decltype(&::curl_easy_init) easy_init = nullptr;
  decltype(&::curl_easy_setopt) easy_setopt = nullptr;
  decltype(&::curl_easy_perform) easy_perform = nullptr;
  decltype(&::curl_easy_reset) easy_reset = nullptr;
  decltype(&::curl_easy_strerror) easy_strerror = nullptr;
  decltype(&::curl_easy_cleanup) easy_cleanup = nullptr;
  decltype(&::curl_slist_append) slist_append = nullptr;
  decltype(&::curl_slist_free_all) slist_free_all = nullptr;

  decltype(&::curl_multi_init) multi_init = nullptr;
  decltype(&::curl_multi_setopt) multi_setopt = nullptr;
  decltype(&::curl_multi_add_handle) multi_add_handle = nullptr;
  decltype(&::curl_multi_remove_handle) multi_remove_handle = nullptr;
  decltype(&::curl_multi_perform) multi_perform = nullptr;
  decltype(&::curl_multi_info_read) multi_info_read = nullptr;
  decltype(&::curl_multi_poll) multi_poll = nullptr;
  decltype(&::curl_multi_wakeup) multi_wakeup = nullptr;
  decltype(&::curl_multi_cleanup) multi_cleanup = nullptr;

  decltype(&::curl_url) url = nullptr;
  decltype(&::curl_url_set) url_set = nullptr;
  decltype(&::curl_url_get) url_get = nullptr;
  decltype(&::curl_url_cleanup) url_cleanup = nullptr;
};

/// Opens a library, which is never closed, and initialises it. kFailedPrecondition: it is not
/// installed, too old, or lacks a function; the message names the package.
Result<CurlLibrary> LoadCurlLibrary(const char* library = "libcurl.so.4");

/// Loads the library at the first call, and returns that result at every call. Threads: safe.
Result<const CurlLibrary*> OpenCurlLibrary();

/// Returns the library, for code that runs after OpenCurlLibrary has succeeded. Threads: safe.
const CurlLibrary& Curl();

}  // namespace cairn::kv::internal
