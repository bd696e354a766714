#pragma once
/// What the search for credentials depends on.

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
};

}  // namespace cairn::kv::internal
