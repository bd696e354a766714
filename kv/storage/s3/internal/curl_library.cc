// Lookup of the functions.

#include "kv/storage/s3/internal/curl_library.h"

#include <fmt/format.h>

namespace cairn::kv::internal {
namespace {

constexpr const char* kAdvice =
    "stores at s3:// addresses need libcurl 7.86 or newer; install the package libcurl4 of the "
    "distribution";

constexpr const char* kLibrary = "libcurl.so.4";

Result<CurlLibrary> Load() {
  CAIRN_TRY_ASSIGN(const SharedLibrary opened, SharedLibrary::Open(kLibrary, "of HTTP", kAdvice));
  CurlLibrary curl{.library = opened};
  // Checked first: an old version explains why a function is missing.
  if (curl.version_info != nullptr) {
    const curl_version_info_data& found = *curl.version_info(CURLVERSION_FIRST);
    if (found.version_num < CurlLibrary::kMinVersion) {
      return opened.Unusable(fmt::format("the library {} is libcurl {}", kLibrary, found.version));
    }
  }
  CAIRN_TRY(curl.library.CheckComplete());
  const CURLcode code = curl.global_init(CURL_GLOBAL_DEFAULT);
  if (code != CURLE_OK) {
    return opened.Unusable(
        fmt::format("the library {} does not start: {}", kLibrary, curl.easy_strerror(code)));
  }
  return curl;
}

}  // namespace

const Result<CurlLibrary>& OpenCurlLibrary() {
  // Never freed: threads may use it until the process ends.
  static const Result<CurlLibrary>& loaded = *new Result<CurlLibrary>(Load());
  return loaded;
}

const CurlLibrary& Curl() {
  const Result<CurlLibrary>& loaded = OpenCurlLibrary();
  CAIRN_CHECK(loaded.has_value());
  return *loaded;
}

}  // namespace cairn::kv::internal
