#pragma once
/// The profiles in ~/.aws/config and ~/.aws/credentials.

#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "kv/base/error.h"

namespace cairn::kv::internal {

/// Returns the value of a variable of the environment, "" if it is not set. Tests replace it.
using Environment = std::function<std::string(const char* name)>;
/// Returns the variables of this process.
std::string ProcessEnvironment(const char* name);

/// The settings of one profile. Settings of nested groups have names such as "s3.addressing_style".
/// Values of the credentials file replace values of the config file.
struct AwsProfile {
  std::string name;
  bool exists = false;  // whether one of the files has it
  std::map<std::string, std::string, std::less<>> settings;

  /// Returns "" if the setting is absent.
  std::string Get(std::string_view setting) const;
};

/// The sections of a file in AWS's INI dialect: name of the section, then settings.
using AwsSections =
    std::map<std::string, std::map<std::string, std::string, std::less<>>, std::less<>>;
/// Ignores lines that it does not understand, as other AWS tools do.
AwsSections ParseAwsSections(std::string_view text);

/// Returns the contents of a file; "" if it does not exist. `what` names it in errors.
/// kInvalidArgument: it has more than 4 MiB. kUnavailable: it cannot be read.
Result<std::string> ReadTextFile(const std::string& path, std::string_view what);

/// Reads the profile `name`; if that is empty, the one in AWS_PROFILE, or "default". The settings
/// of its `services` section are included, as "services.s3.endpoint_url". kInvalidArgument: a
/// profile that was named by the caller or by AWS_PROFILE does not exist. kUnavailable: a file
/// exists and cannot be read.
Result<AwsProfile> ReadAwsProfile(const std::string& name, const Environment& environment);

}  // namespace cairn::kv::internal
