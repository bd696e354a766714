#pragma once
/// The functions of libcurl that Cairn uses, found in the library when a bucket is first used:
/// libcurl and the libraries that it needs take several milliseconds to load. A build needs only
/// the headers of libcurl.

#include <curl/curl.h>

#include "kv/base/error.h"
#include "kv/storage/internal/shared_library.h"

namespace cairn::kv::internal {

/// A member has the name of its function without "curl_". `easy_setopt` and `multi_setopt` do not
/// convert values: pass a long, a pointer or a curl_off_t, as the option requires.
struct CurlLibrary {
  /// The first version with every option that Cairn sets.
  static constexpr unsigned kMinVersion = CURL_VERSION_BITS(7, 86, 0);

  SharedLibrary library;

  decltype(&::curl_global_init) global_init = library.Find("curl_global_init");
  decltype(&::curl_version_info) version_info = library.Find("curl_version_info");
  decltype(&::curl_free) free = library.Find("curl_free");

  decltype(&::curl_easy_init) easy_init = library.Find("curl_easy_init");
  decltype(&::curl_easy_setopt) easy_setopt = library.Find("curl_easy_setopt");
  decltype(&::curl_easy_perform) easy_perform = library.Find("curl_easy_perform");
  decltype(&::curl_easy_getinfo) easy_getinfo = library.Find("curl_easy_getinfo");
  decltype(&::curl_easy_nextheader) easy_nextheader = library.Find("curl_easy_nextheader");
  decltype(&::curl_easy_strerror) easy_strerror = library.Find("curl_easy_strerror");
  decltype(&::curl_easy_cleanup) easy_cleanup = library.Find("curl_easy_cleanup");
  decltype(&::curl_slist_append) slist_append = library.Find("curl_slist_append");
  decltype(&::curl_slist_free_all) slist_free_all = library.Find("curl_slist_free_all");

  decltype(&::curl_multi_init) multi_init = library.Find("curl_multi_init");
  decltype(&::curl_multi_setopt) multi_setopt = library.Find("curl_multi_setopt");
  decltype(&::curl_multi_add_handle) multi_add_handle = library.Find("curl_multi_add_handle");
  decltype(&::curl_multi_remove_handle) multi_remove_handle =
      library.Find("curl_multi_remove_handle");
  decltype(&::curl_multi_perform) multi_perform = library.Find("curl_multi_perform");
  decltype(&::curl_multi_info_read) multi_info_read = library.Find("curl_multi_info_read");
  decltype(&::curl_multi_poll) multi_poll = library.Find("curl_multi_poll");
  decltype(&::curl_multi_wakeup) multi_wakeup = library.Find("curl_multi_wakeup");
  decltype(&::curl_multi_cleanup) multi_cleanup = library.Find("curl_multi_cleanup");

  decltype(&::curl_url) url = library.Find("curl_url");
  decltype(&::curl_url_set) url_set = library.Find("curl_url_set");
  decltype(&::curl_url_get) url_get = library.Find("curl_url_get");
  decltype(&::curl_url_cleanup) url_cleanup = library.Find("curl_url_cleanup");
};

/// Opens the library, which is never closed, and initialises it at the first call. Returns that
/// result at every call. kFailedPrecondition: it is not installed, too old, or lacks a function;
/// the message names the package. Threads: safe.
const Result<CurlLibrary>& OpenCurlLibrary();

/// Returns the library, for code that runs after OpenCurlLibrary has succeeded. Threads: safe.
const CurlLibrary& Curl();

}  // namespace cairn::kv::internal
