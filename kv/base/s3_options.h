#pragma once
// SPDX-License-Identifier: Apache-2.0
/// Options of stores at s3://BUCKET/PREFIX.
///
/// The value of an unset option comes from the address, then from the environment and the profile,
/// as in other AWS tools: AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, AWS_REGION, AWS_DEFAULT_REGION,
/// AWS_PROFILE, AWS_CONFIG_FILE, AWS_SHARED_CREDENTIALS_FILE, AWS_CA_BUNDLE,
/// AWS_REQUEST_CHECKSUM_CALCULATION, AWS_IGNORE_CONFIGURED_ENDPOINT_URLS. Proxies come from the
/// environment (HTTPS_PROXY, NO_PROXY).

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "kv/base/error.h"

namespace cairn::kv {

/// Never part of an error or of a log.
struct S3Credentials {
  std::string access_key_id;
  std::string secret_access_key;
  std::string session_token;  // empty for long-term keys
  /// If set, other credentials are obtained some minutes before.
  std::optional<std::chrono::system_clock::time_point> expiry;
};

enum class S3Addressing {
  kAutomatic,    // as in the profile; otherwise kVirtualHost for AWS, kPath for others
  kPath,         // https://ENDPOINT/BUCKET/KEY
  kVirtualHost,  // https://BUCKET.ENDPOINT/KEY
};

struct S3Options {
  std::string endpoint;  // "https://host:port"; requests are only unencrypted if it is "http://..."
  std::string region;
  std::string profile;
  S3Addressing addressing = S3Addressing::kAutomatic;
  std::string ca_bundle;  // path of a file with certificates; if empty, the system's certificates
  /// If set, the only source of credentials. Called when credentials are needed and after the
  /// server has rejected the previous ones, on any thread, but never concurrently.
  std::function<Result<S3Credentials>()> credentials;
  /// A request fails when this time has passed since its beginning, including retries, and as much
  /// as its bytes take at 128 KiB/s. 0: CAIRN_S3_TIMEOUT (seconds), or else 60 s.
  std::chrono::milliseconds timeout{0};
  /// Length of ranged reads and of parts of uploads; at least 5 MiB. 0: CAIRN_S3_PART_BYTES, or
  /// else 8 MiB.
  uint64_t part_bytes = 0;
};

}  // namespace cairn::kv
