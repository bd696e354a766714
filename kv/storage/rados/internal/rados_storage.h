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
///   - Create and BeginUpload write stripes, and then the head (object_write.h). An object of at
///     most one stripe that Create writes is only a head.
///   - Read makes one request for an object of at most 64 KiB. Remove makes two, and one for each
///     stripe.
///   - List enumerates the namespace. Its cost is proportional to the number of placement groups
///     and of RADOS objects in the pool.
///   - RemoveLeftovers removes stripes that no head refers to (object_write.h).
///   - AwaitChange returns at once after a put of a root or a part by any process.
///
/// The namespace contains nothing else, except an empty object ":changes", on which processes that
/// put a root or a part notify those that wait.
///
/// A storage connects when it is used first. A child that this process forks may use it, with a
/// separate connection. It cannot use the queues, uploads and writers of its parent.

#include <memory>
#include <string>

#include "kv/base/error.h"
#include "kv/storage/storage.h"

namespace cairn::kv::internal {

/// Opens rados:POOL/NAMESPACE. Sends no request. kInvalidArgument: the address is not valid.
Result<std::shared_ptr<Storage>> OpenRadosStorage(const std::string& address);

}  // namespace cairn::kv::internal
