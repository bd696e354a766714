#pragma once
/// Objects in a bucket of Amazon S3, or of a server with the same interface.
///
/// The requirements of kv/storage/storage.h, and how they are met:
///   - Put and PutIfAbsent are one PUT each (above 64 MiB, Put is a multipart upload). A PUT is
///     atomic and durable when the server answers, and later reads see it.
///   - PutIfAbsent adds "If-None-Match: *". Servers that do not know this header ignore it, so the
///     put of kStoreIdentityName, which creates a store, tests the server first, with an object
///     ".probe-<16 hexadecimal digits>", and fails with kFailedPrecondition if the server replaces
///     it. RemoveLeftovers removes the object of a process that was killed during the test.
///   - A PUT may be performed twice, because requests are repeated (s3_client.h). The second one of
///     a PutIfAbsent is refused with status 412: kConflict, as the contract allows.
///   - Create and BeginUpload are multipart uploads (s3_upload.h); no reader sees them before
///     Finish.
///
/// A key is PREFIX/NAME. Names that begin with '.', and other keys that are not names, are not
/// listed.

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kv/base/error.h"
#include "kv/base/s3_options.h"
#include "kv/storage/internal/object_names.h"
#include "kv/storage/s3/internal/credentials.h"
#include "kv/storage/s3/internal/s3_client.h"
#include "kv/storage/s3/internal/s3_settings.h"
#include "kv/storage/s3/internal/s3_upload.h"
#include "kv/storage/storage.h"

namespace cairn::kv::internal {

/// A child that this process forks may use the storage, with separate connections. It cannot use
/// the queues, uploads and writers of its parent.
class S3Storage final : public Storage {
 public:
  S3Storage(S3Settings settings, CredentialsSource source);
  ~S3Storage() override;
  S3Storage(const S3Storage&) = delete;
  S3Storage& operator=(const S3Storage&) = delete;

  const std::string& address() const override { return settings_.address; }
  /// Buckets of different endpoints are different, even if they have the same name.
  std::string identity() const override { return settings_.address + " at " + settings_.endpoint; }
  Result<void> Put(std::string_view name, std::span<const std::byte> bytes) override;
  /// kFailedPrecondition: the server ignores the condition.
  Result<void> PutIfAbsent(std::string_view name, std::span<const std::byte> bytes) override;
  Result<std::unique_ptr<ObjectWriter>> Create(std::string_view name) override;
  /// Requests long ranges in parts, several at a time.
  Result<void> ReadRange(std::string_view name, uint64_t offset_bytes,
                         std::span<std::byte> target) override;
  /// Makes one request for objects of at most 16 MiB.
  Result<std::vector<std::byte>> Read(std::string_view name, uint64_t limit_bytes) override;
  Result<uint64_t> Size(std::string_view name) override;
  Result<std::vector<std::string>> List(std::string_view prefix) override;
  Result<void> Remove(std::string_view name) override;
  /// Aborts the uploads of segments, tables and pages that are not complete, and removes the
  /// objects of tests of the server. Leaves uploads and objects with other names as they are.
  Result<void> RemoveLeftovers(uint32_t end_epoch) override;

  TransferSizes transfer_sizes() const override;
  bool listings_are_current() const override { return true; }
  Result<std::unique_ptr<IoQueue>> MakeQueue(uint32_t depth) override;
  Result<std::unique_ptr<Upload>> BeginUpload(std::string_view name, uint64_t write_bytes) override;

  /// Tests whether the server refuses to replace an object with "If-None-Match: *".
  Result<void> CheckConditionalWrites();

 private:
  /// The state of one process.
  struct Connections;

  S3Client& client();
  S3Object ObjectOf(std::string_view name) const;
  Result<void> PutKeyIfAbsent(const S3Object& object, std::span<const std::byte> bytes);
  Result<void> RemoveKey(const S3Object& object);
  Result<void> ReadInParts(std::string_view name, uint64_t offset_bytes,
                           std::span<std::byte> target);
  Result<void> PutInParts(std::string_view name, std::span<const std::byte> bytes);
  Result<void> TestConditionalWrites();
  /// Returns the keys that begin with `prefix`, without the prefix of the store. Includes names
  /// that IsObjectName refuses.
  Result<std::vector<std::string>> ListNames(std::string_view prefix);
  Result<void> AbortUploadsBelow(ObjectKind kind, uint32_t end_epoch);
  Result<void> RemoveProbes();

  const S3Settings settings_;
  const CredentialsSource source_;
  std::atomic<Connections*> connections_;  // owned; the parent's in a forked child
};

/// Opens s3://BUCKET/PREFIX. Sends no request. kInvalidArgument: the address, an option, a profile
/// or a variable of the environment is not valid.
Result<std::shared_ptr<Storage>> OpenS3Storage(const std::string& address,
                                               const S3Options& options);

}  // namespace cairn::kv::internal
