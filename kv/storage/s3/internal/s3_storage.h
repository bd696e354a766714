#pragma once
/// Objects in a bucket of Amazon S3, or of a server with the same interface.
///
/// The requirements of kv/storage/storage.h, and how they are met:
///   - Put and PutIfAbsent are one PUT each (above 64 MiB, Put is a multipart upload). A PUT is
///     atomic and durable when the server answers, and later reads see it.
///   - PutIfAbsent adds "If-None-Match: *". Servers that do not know this header ignore it, so the
///     put of kIdentityName, which creates a store, tests the server first, with an object
///     ".probe-<16 hexadecimal digits>", and fails with kFailedPrecondition if the server replaces
///     it. RemoveLeftovers removes the object of a process that was killed during the test.
///   - A PUT may be performed twice, because requests are repeated (s3_client.h). The second one of
///     a PutIfAbsent is refused with status 412: kConflict, as the contract allows.
///   - Create and BeginUpload are multipart uploads (s3_upload.h); no reader sees them before
///     Finish.
///   - Read makes one request for objects of at most 16 MiB. ReadRange requests long ranges in
///     parts, several at a time.
///   - RemoveLeftovers aborts the uploads of segments, tables and pages that are not complete.
///
/// A key is PREFIX/NAME. Names that begin with '.', and other keys that are not names, are not
/// listed.
///
/// A child that this process forks may use the storage, with separate connections. It cannot use
/// the queues, uploads and writers of its parent.

#include <memory>
#include <string>

#include "kv/base/error.h"
#include "kv/base/s3_options.h"
#include "kv/storage/storage.h"

namespace cairn::kv::internal {

/// Opens s3://BUCKET/PREFIX. Sends no request. kInvalidArgument: the address, an option, a profile
/// or a variable of the environment is not valid.
Result<std::shared_ptr<Storage>> OpenS3Storage(const std::string& address,
                                               const S3Options& options);

}  // namespace cairn::kv::internal
