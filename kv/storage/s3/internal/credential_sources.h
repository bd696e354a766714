#pragma once
/// Where credentials are found, and their order:
///
///   1. AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, unless the caller or the
///      address names a profile;
///   2. the keys of the profile; its credential_process;
///   3. AWS_CONTAINER_CREDENTIALS_RELATIVE_URI or _FULL_URI (ECS, EKS);
///   4. the metadata service of the machine (EC2), unless AWS_EC2_METADATA_DISABLED is "true".
///
/// The first source that is configured is used; if it fails, the others are not tried, because
/// credentials of another identity would be a surprise. For the same reason, a profile or an
/// environment with a role, SSO or a web identity is refused if the profile has no
/// credential_process, through which these are used.

#include "kv/base/error.h"
#include "kv/base/s3_options.h"
#include "kv/storage/s3/internal/credential_services.h"

namespace cairn::kv::internal {

/// Obtains credentials from the first source that is configured. kFailedPrecondition: there is
/// none, it is not supported, or it has no credentials. kUnavailable: it does not answer.
Result<S3Credentials> FindCredentials(const CredentialContext& context);

}  // namespace cairn::kv::internal
