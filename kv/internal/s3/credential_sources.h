#pragma once
/// Where AWS tools find credentials, and their order:
///
///   1. AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, unless the caller or the
///      address names a profile;
///   2. the role of the profile (role_arn), with the credentials of its source_profile or its
///      credential_source; the keys of a source_profile precede its role;
///   3. AWS_WEB_IDENTITY_TOKEN_FILE with AWS_ROLE_ARN, or those of the profile; the profile's SSO;
///      its keys; its credential_process;
///   4. AWS_CONTAINER_CREDENTIALS_RELATIVE_URI or _FULL_URI (ECS, EKS);
///   5. the metadata service of the machine (EC2), unless AWS_EC2_METADATA_DISABLED is "true".
///
/// The first source that is configured is used; if it fails, the others are not tried, because
/// credentials of another identity would be a surprise. Profiles with mfa_serial are refused,
/// because nobody can type its code.

#include "kv/error.h"
#include "kv/internal/s3/credential_context.h"
#include "kv/s3_options.h"

namespace cairn::kv::internal {

/// Obtains credentials from the first source that is configured. kFailedPrecondition: there is
/// none, or it has no credentials. kUnavailable: it does not answer.
Result<S3Credentials> FindCredentials(const CredentialContext& context);

}  // namespace cairn::kv::internal
