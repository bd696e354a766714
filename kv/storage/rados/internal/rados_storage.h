#pragma once
/// Objects in a namespace of a pool of Ceph's RADOS.
///
/// The requirements of kv/storage/storage.h, and how they are met:
///   - An object exists exactly if its head does (stripe_layout.h). A head is changed by one
///     operation on one RADOS object, which is atomic, and durable on all replicas when it is
///     answered.
///   - PutIfAbsent creates the head exclusively. librados repeats requests with their identity,
///     and OSDs recognize them, so a repeated request does not conflict with itself. Without an
///     answer, a head that exists is a conflict: the caller reads whose it is.
///   - Create and BeginUpload write stripes, and then the head (rados_upload.h).
///   - List enumerates the namespace. Its cost is proportional to the number of placement groups
///     and of RADOS objects in the pool.
///
/// The namespace contains nothing else, except the object of rados_notices.h.

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kv/base/error.h"
#include "kv/storage/rados/internal/object_write.h"
#include "kv/storage/rados/internal/rados_session.h"
#include "kv/storage/rados/internal/rados_settings.h"
#include "kv/storage/storage.h"

namespace cairn::kv::internal {

/// Connects when it is used first. A child that this process forks may use the storage, with a
/// separate connection. It cannot use the queues, uploads and writers of its parent.
class RadosStorage final : public Storage {
 public:
  explicit RadosStorage(RadosSettings settings);
  ~RadosStorage() override;
  RadosStorage(const RadosStorage&) = delete;
  RadosStorage& operator=(const RadosStorage&) = delete;

  const std::string& address() const override { return settings_.address; }
  /// Pools of different clusters are different, even if they have the same name.
  std::string identity() const override;
  Result<void> Put(std::string_view name, std::span<const std::byte> bytes) override;
  Result<void> PutIfAbsent(std::string_view name, std::span<const std::byte> bytes) override;
  Result<std::unique_ptr<ObjectWriter>> Create(std::string_view name) override;
  Result<void> ReadRange(std::string_view name, uint64_t offset_bytes,
                         std::span<std::byte> target) override;
  /// Makes one request for an object of at most 64 KiB.
  Result<std::vector<std::byte>> Read(std::string_view name, uint64_t limit_bytes) override;
  Result<uint64_t> Size(std::string_view name) override;
  Result<std::vector<std::string>> List(std::string_view prefix) override;
  /// Makes two requests, and one per stripe.
  Result<void> Remove(std::string_view name) override;
  /// Removes stripes that no head refers to, that are older than kMinLeftoverAge, and that do not
  /// belong to objects of `end_epoch` or a later one.
  Result<void> RemoveLeftovers(uint32_t end_epoch) override;
  Result<void> RemoveLeftovers(uint32_t end_epoch, std::chrono::seconds min_age);

  TransferSizes transfer_sizes() const override;
  Result<std::unique_ptr<IoQueue>> MakeQueue(uint32_t depth) override;
  /// kInvalidArgument: the parts are longer than 64 MiB, and an OSD may refuse them.
  Result<std::unique_ptr<Upload>> BeginUpload(std::string_view name, uint64_t part_bytes) override;
  /// Returns at once after a put of a root or a part by any process.
  void AwaitChange(std::string_view prefix, std::chrono::milliseconds timeout) override;

 private:
  /// The state of one process.
  struct Connection;

  Result<Connection*> connection();
  Result<void> PutObject(Connection& connection, std::string_view name,
                         std::span<const std::byte> bytes, HeadMode mode);

  const RadosSettings settings_;
  std::atomic<Connection*> connection_ = nullptr;  // owned; the parent's in a forked child
};

/// Opens rados:POOL/NAMESPACE. Sends no request. kInvalidArgument: the address is not valid.
Result<std::shared_ptr<Storage>> OpenRadosStorage(const std::string& address);

}  // namespace cairn::kv::internal
