#pragma once
/// Credentials of a role, from AWS STS.
///
/// AWS_ENDPOINT_URL_STS, or sts.endpoint_url of the profile's services, is the endpoint; by default
/// that of AWS in the region of the bucket.

#include <optional>

#include "kv/error.h"
#include "kv/internal/s3/credential_context.h"
#include "kv/s3_options.h"

namespace cairn::kv::internal {

/// AssumeRoleWithWebIdentity with the token and the role of AWS_WEB_IDENTITY_TOKEN_FILE and
/// AWS_ROLE_ARN, or of the profile. Returns nothing if there are none.
Result<std::optional<S3Credentials>> WebIdentityCredentials(const CredentialContext& context);

/// AssumeRole with role_arn, role_session_name, external_id and duration_seconds of the profile,
/// signed with the credentials of the source.
Result<S3Credentials> AssumeRole(const CredentialContext& context, const S3Credentials& source);

}  // namespace cairn::kv::internal
