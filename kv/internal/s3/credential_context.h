#pragma once
/// What the search for credentials depends on.

#include <chrono>
#include <string>

#include "kv/internal/s3/aws_profile.h"
#include "kv/internal/s3/environment.h"

namespace cairn::kv::internal {

struct CredentialContext {
  AwsProfile profile;
  bool profile_is_explicit = false;  // the caller or the address names it
  std::string region;
  std::string ca_bundle;
  Environment environment;
  std::chrono::milliseconds process_timeout{60'000};  // of credential_process
};

}  // namespace cairn::kv::internal
