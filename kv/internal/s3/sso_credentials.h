#pragma once
/// Credentials of a role in AWS IAM Identity Center (SSO), with the token that "aws sso login" has
/// stored.
///
/// The profile has sso_account_id and sso_role_name, and sso_start_url and sso_region itself or in
/// the section that sso_session names. AWS_ENDPOINT_URL_SSO replaces the endpoint of AWS.

#include <optional>

#include "kv/error.h"
#include "kv/internal/s3/credential_context.h"
#include "kv/s3_options.h"

namespace cairn::kv::internal {

/// Returns nothing if the profile does not use SSO. Uses the token for the start URL in
/// ~/.aws/sso/cache that expires last. Does not renew it, because each renewal replaces the token
/// for all tools. kFailedPrecondition: there is no token, or it has expired; the error states the
/// command that obtains one.
Result<std::optional<S3Credentials>> SsoCredentials(const CredentialContext& context);

}  // namespace cairn::kv::internal
