#pragma once
// SPDX-License-Identifier: Apache-2.0
/// Storage of immutable objects: the interface that a store requires from a directory, an object
/// store, or memory. kv/storage/open/open_storage.h opens the storage at an address.
///
/// Names are relative, with '/' between their elements ("roots/fff0.root"). Elements consist of
/// letters, digits, '.', '-' and '_', and do not begin with '.', except for ".metadata". There are
/// no directories: a name needs no preparation, and List is by prefix.
///
/// Every successful write is durable when the call returns, except by PutVolatile, Overwrite and
/// PutIfAbsentVolatile, and every later read in any process sees it. Only List may be late (see
/// there). An error of a write means that it is unknown whether it was performed, except for
/// kConflict of PutIfAbsent; callers find out by reading. Errors name the object in Error::file.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kv/base/error.h"
#include "kv/base/read_range.h"
#include "kv/io/io_queue.h"

namespace cairn::kv {

/// An object that is written in pieces. Before Finish, no reader sees an incomplete object under
/// its name, except in a storage with LocalFiles, where nobody reads a name that no root reaches.
/// Threads: one.
class ObjectWriter {
 public:
  /// Without Finish, discards the object.
  virtual ~ObjectWriter() = default;
  /// kUnavailable, kResourceExhausted: the bytes cannot be written; the object must be discarded.
  virtual Result<void> Append(std::span<const std::byte> bytes) = 0;
  /// Makes the object durable under its name.
  virtual Result<void> Finish() = 0;
};

/// Objects as files, in a storage that is a directory: for direct I/O and memory mapping.
class LocalFiles {
 public:
  virtual ~LocalFiles() = default;
  /// Returns the place of the file with the bytes of object `name`, which need not exist, or of the
  /// directory for "". It is valid as long as the storage. kNotFound: the directory does not exist.
  virtual Result<FilePlace> PlaceOf(std::string_view name) = 0;
  /// Prepares the creation of the file at PlaceOf(name) by the caller.
  virtual Result<void> PrepareFile(std::string_view name) = 0;
  /// Makes the names of files durable that the caller has created, and whose contents it has
  /// synced. They begin with `prefix`, which ends with '/' ("segments/").
  virtual Result<void> SyncNames(std::string_view prefix) = 0;
};

/// An object that write requests of an IoQueue fill. The writes cover it from its beginning without
/// gaps, are submitted in the order of their offsets, and have one length, which the caller
/// chooses. Only the last one may be shorter. A storage whose parts have other lengths gathers the
/// writes; a caller may wait for each write before it submits the next one. Requires that the
/// storage outlives it. Threads: one, and the queue's.
class Upload {
 public:
  /// Called once, with the result of a write, on any thread. Neither waits nor throws.
  using Done = std::move_only_function<void(Result<void>)>;

  /// Without a successful Finish, discards the object. Requires that no request is in flight.
  virtual ~Upload() = default;
  /// Begins a write; for queues. `bytes` must outlive the call of `done`, which is called exactly
  /// once, unless this throws.
  virtual void StartWrite(std::span<const std::byte> bytes, uint64_t offset_bytes, Done done) = 0;
  /// Makes the object durable under its name. Requires that all writes have succeeded.
  virtual Result<void> Finish(uint64_t size_bytes) = 0;
};

/// The requests with which a storage works well.
struct TransferSizes {
  uint64_t request_bytes = 2 << 20;
  uint32_t queue_depth = 5;  // requests for payload in flight
  /// Requests for small objects in flight at once, where each takes long (a network). 1: such
  /// requests are made one after another, in the same order in every run.
  uint32_t small_requests = 1;
  /// Bytes that it is better to read than to begin another request after them.
  uint64_t max_gap_bytes = 4 << 10;
};

/// Threads: all members may run on many threads at once.
class Storage {
 public:
  virtual ~Storage() = default;

  /// For error messages and for people: "/data/run", "memory:test".
  virtual const std::string& address() const = 0;
  /// Distinguishes this storage from others: the address, with the server if several servers have
  /// such addresses. The same in every process that has the same settings.
  virtual std::string identity() const { return address(); }

  /// Creates the object or replaces it, atomically for readers.
  virtual Result<void> Put(std::string_view name, std::span<const std::byte> bytes) = 0;
  /// As Put, but a power failure may undo the call or damage the object. For leases, on which
  /// correctness does not depend.
  virtual Result<void> PutVolatile(std::string_view name, std::span<const std::byte> bytes) {
    return Put(name, bytes);
  }
  /// As PutVolatile, but not repeated if a server is busy, and a mixture of the former bytes and
  /// `bytes` may be visible, and remain. For the hint, which has a fixed length and a checksum.
  virtual Result<void> Overwrite(std::string_view name, std::span<const std::byte> bytes) {
    return PutVolatile(name, bytes);
  }
  /// Creates the object. kConflict: it exists; nothing was changed. Exactly one of several
  /// concurrent calls for one name, on any machine, succeeds. A storage may report kConflict for a
  /// call that succeeded and was repeated below this interface (a lost response), so callers that
  /// need to know read the object.
  virtual Result<void> PutIfAbsent(std::string_view name, std::span<const std::byte> bytes) = 0;
  /// As PutIfAbsent, but a power failure may undo the call or damage the object. For messages
  /// between ranks, which nobody reads after such a failure, and which have checksums.
  virtual Result<void> PutIfAbsentVolatile(std::string_view name,
                                           std::span<const std::byte> bytes) {
    return PutIfAbsent(name, bytes);
  }
  /// Begins to write an object in pieces. Requires a name that nobody else writes.
  virtual Result<std::unique_ptr<ObjectWriter>> Create(std::string_view name) = 0;

  /// Fills `target` from `offset_bytes` on. kNotFound: there is no such object. kDataLoss: it ends
  /// before the range does.
  virtual Result<void> ReadRange(std::string_view name, uint64_t offset_bytes,
                                 std::span<std::byte> target) = 0;
  /// Returns the complete object. kNotFound: there is no such object. kDataLoss: it is longer than
  /// `limit_bytes`. If Put replaces the object during the call, the call may fail with kDataLoss or
  /// return only the beginning of the new bytes, so decoders of such objects verify a checksum. The
  /// default uses Size and ReadRange.
  virtual Result<std::vector<std::byte>> Read(std::string_view name, uint64_t limit_bytes);
  /// Returns the length. kNotFound: there is no such object.
  virtual Result<uint64_t> Size(std::string_view name) = 0;
  /// Returns the names that begin with `prefix`, which ends with '/' or is empty, in no particular
  /// order. A name that was put or removed a short time ago may be missing or present.
  virtual Result<std::vector<std::string>> List(std::string_view prefix) = 0;
  /// Succeeds if there is no such object. The object may exist again after a power failure.
  virtual Result<void> Remove(std::string_view name) = 0;
  /// Removes what writes of crashed processes left and List does not return. Requires that nobody
  /// writes objects of epochs before `end_epoch`. Keeps leftovers of objects of this epoch or a
  /// later one, and everything that does not belong to Cairn. The default removes nothing.
  virtual Result<void> RemoveLeftovers([[maybe_unused]] uint32_t end_epoch) { return {}; }

  /// Returns null if objects are not files.
  virtual LocalFiles* local_files() { return nullptr; }

  /// Returns whether List names every object that was put before the call, and none that was
  /// removed before it. Searches for the newest root then trust a listing that names a root and the
  /// root before it, and make no further requests to check it. A listing that is late nevertheless
  /// is harmless: a reader sees an older root, as if it had looked earlier, and the commit of a
  /// writer is refused because the number of its root is taken.
  virtual bool listings_are_current() const { return false; }
  /// Returns whether this machine has read the roots of a store here before. An open for reading
  /// then checks nothing, and the first use of the store does.
  virtual bool has_been_read() const { return false; }

  // Transfers of payload, if objects are not files. The defaults transfer one request after another
  // with the operations above.

  virtual TransferSizes transfer_sizes() const { return {}; }
  /// Returns a queue for reads of objects and for writes of uploads of this storage, which outlives
  /// it. A read of an object that does not exist completes with kNotFound.
  virtual Result<std::unique_ptr<IoQueue>> MakeQueue(uint32_t depth);
  /// Begins to write an object whose writes have `write_bytes`, except for the last one. Requires a
  /// name that nobody else writes. kInvalidArgument: the storage cannot have such long writes.
  virtual Result<std::unique_ptr<Upload>> BeginUpload(std::string_view name, uint64_t write_bytes);

  /// Waits until a name with this prefix may have been put, at most for `timeout`. May return
  /// early. The default sleeps, so callers of short timeouts poll.
  virtual void AwaitChange(std::string_view prefix, std::chrono::milliseconds timeout);
};

/// Returns the error of a Read of the object `path` (ObjectPath), which is longer than allowed.
Error LongerThanLimit(std::string path, uint64_t size_bytes, uint64_t limit_bytes);
/// Returns the error of a ReadRange from `offset_bytes` on.
Error EndsBeforeRange(std::string path, uint64_t size_bytes, uint64_t offset_bytes);

/// Checks that the storage has not lost an object whose write it acknowledged, before anything
/// refers to it. kUnavailable: the object is absent, or does not have `size_bytes` bytes.
Result<void> CheckStored(Storage& storage, std::string_view name, uint64_t size_bytes);
/// Returns whether the object exists.
Result<bool> ObjectExists(Storage& storage, std::string_view name);

/// Calls `request(i)` for i from 0 to `count` - 1: one after another, or on as many threads as
/// TransferSizes::small_requests of the storage states. Returns the error of the lowest i. After an
/// error, further requests may not be made.
Result<void> ForEachRequest(const Storage& storage, size_t count,
                            const std::function<Result<void>(size_t)>& request);
/// Makes each of the requests in the same way.
Result<void> RunRequests(const Storage& storage,
                         std::initializer_list<std::function<Result<void>()>> requests);

}  // namespace cairn::kv
