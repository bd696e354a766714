#pragma once
/// Where an s3:// store is, and how it is reached: the address and the options, completed by the
/// environment and the profile.

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "kv/base/error.h"
#include "kv/base/s3_options.h"
#include "kv/storage/s3/internal/aws_profile.h"

namespace cairn::kv::internal {

/// S3 accepts no shorter part of an upload, except for the last one.
inline constexpr uint64_t kMinPartBytes = 5 << 20;

/// The parts of "s3://BUCKET/PREFIX?endpoint=URL&region=R&profile=P&addressing=path|virtual".
struct S3Address {
  std::string bucket;
  std::string prefix;  // without '/' at its ends; may be empty
  std::string endpoint;
  std::string region;
  std::string profile;
  S3Addressing addressing = S3Addressing::kAutomatic;
};
/// kInvalidArgument: it is not such an address.
Result<S3Address> ParseS3Address(std::string_view address);
/// Returns "s3://BUCKET/PREFIX", without parameters.
std::string PlainAddress(const S3Address& address);

struct S3Settings {
  std::string bucket;
  std::string prefix;    // prefix of keys: empty, or ends with '/'
  std::string address;   // "s3://BUCKET/PREFIX"
  std::string endpoint;  // "https://s3.eu-west-1.amazonaws.com"; for messages
  std::string base_url;  // URL of the bucket, without '/' at its end
  std::string region;
  std::string ca_bundle;
  bool anonymous = false;
  bool request_digests = true;
  std::chrono::milliseconds timeout{};
  uint64_t part_bytes = 0;
  uint32_t queue_depth = 0;
  uint32_t io_threads = 0;
};
/// Completes `address` and `options`; `profile` is that which they or the environment name.
/// kInvalidArgument: a value is not valid; the message names where it is from.
Result<S3Settings> ResolveS3Settings(const S3Address& address, const S3Options& options,
                                     const AwsProfile& profile, const Environment& environment);

/// Returns whether `region` has only letters, digits, '-' and '_', so that it cannot change the
/// host of a URL that it becomes a part of.
bool IsRegionName(std::string_view region);

/// Encodes all but the characters that AWS's signatures leave as they are: letters, digits, '-',
/// '.', '_' and '~'; and '/' if `keep_slash`.
std::string EncodeUri(std::string_view text, bool keep_slash);

}  // namespace cairn::kv::internal
