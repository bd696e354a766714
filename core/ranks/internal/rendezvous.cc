#include "core/ranks/internal/rendezvous.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "core/ranks/internal/message_codec.h"
#include "kv/base/digest.h"
#include "schema/little_endian.h"

namespace cairn::core::internal {
namespace {

std::string FolderOf(const Party& party) { return fmt::format("rendezvous/{}/", party.run_id); }
std::string NameOf(const Party& party, int rank) {
  return fmt::format("{}rank-{}", FolderOf(party), rank);
}

/// Far more than the addresses of a rank for all others.
constexpr uint64_t kMaxRecordBytes = 16 << 20;

/// Puts the object of this rank, which must not exist: a second process of the rank, or an earlier
/// run, is refused.
Result<void> PutOwn(kv::Storage& storage, const Party& party, std::string_view message) {
  const std::vector<std::byte> record =
      EncodeRecord({.rank = static_cast<uint64_t>(party.rank),
                    .world_size = static_cast<uint64_t>(party.world_size),
                    .message = std::string(message)});
  const std::string name = NameOf(party, party.rank);
  const Result<void> put = storage.PutIfAbsentVolatile(name, record);
  if (put || put.error().code != ErrorCode::kConflict) return put;
  // A storage may report a conflict for a call that has succeeded.
  const auto found = storage.Read(name, kMaxRecordBytes);
  if (found && *found == record) return {};
  return Fail(Error{.code = ErrorCode::kFailedPrecondition,
                    .message = "this rank of this run has been here before: a process runs twice, "
                               "or an earlier start died while it connected; give each start "
                               "another run id"}
                  .WithFile(put.error().file));
}

}  // namespace

std::chrono::milliseconds TimeLeft(Deadline deadline) {
  return std::max(std::chrono::milliseconds(0), std::chrono::ceil<std::chrono::milliseconds>(
                                                    deadline - std::chrono::steady_clock::now()));
}

std::vector<std::byte> EncodeRecord(const RendezvousRecord& record) {
  MessageWriter writer;
  writer.Number(record.rank);
  writer.Number(record.world_size);
  writer.Text(record.message);
  std::vector<std::byte> bytes = std::move(writer).Take();
  schema::AppendLittleEndian(bytes, kv::Checksum64(bytes));
  return bytes;
}

Result<RendezvousRecord> DecodeRecord(std::span<const std::byte> bytes) {
  const auto damaged = [] { return Fail(ErrorCode::kDataLoss, "a rendezvous record is damaged"); };
  if (bytes.size() < sizeof(uint64_t)) return damaged();
  const auto body = bytes.first(bytes.size() - sizeof(uint64_t));
  if (schema::GetLittleEndian<uint64_t>(bytes, body.size()) != kv::Checksum64(body)) {
    return damaged();
  }
  MessageReader reader(body);
  RendezvousRecord record{
      .rank = reader.Number(), .world_size = reader.Number(), .message = reader.Text()};
  if (!reader.ok() || !reader.at_end()) return damaged();
  return record;
}

Result<std::vector<std::string>> Meet(kv::Storage& storage, const Party& party,
                                      std::string_view message, Deadline deadline) {
  CAIRN_TRY(PutOwn(storage, party, message));
  std::vector<std::string> found(static_cast<size_t>(party.world_size));
  std::vector<int> missing(found.size());
  std::iota(missing.begin(), missing.end(), 0);
  // A file system does not report files of other hosts, so poll, at first frequently. A request to
  // a server costs more than a look into a directory.
  const std::chrono::milliseconds longest(storage.local_files() == nullptr ? 500 : 32);
  for (std::chrono::milliseconds pause(1);; pause = std::min(2 * pause, longest)) {
    CAIRN_TRY_ASSIGN(const auto listed, storage.List(FolderOf(party)));
    const std::set<std::string> names(listed.begin(), listed.end());
    for (const int peer : std::exchange(missing, {})) {
      const std::string name = NameOf(party, peer);
      const auto bytes = names.contains(name) ? storage.Read(name, kMaxRecordBytes)
                                              : Fail(ErrorCode::kNotFound, "");
      auto record = bytes ? DecodeRecord(*bytes) : std::unexpected(bytes.error());
      if (!record) {  // not complete yet
        missing.push_back(peer);
        continue;
      }
      if (record->rank != static_cast<uint64_t>(peer) || record->world_size != found.size()) {
        return Fail(
            Error{.code = ErrorCode::kFailedPrecondition,
                  .message = fmt::format("written by rank {} of {}, where rank {} of {} "
                                         "was expected",
                                         record->rank, record->world_size, peer, found.size())}
                .WithFile(fmt::format("{}/{}", storage.address(), name)));
      }
      found[static_cast<size_t>(peer)] = std::move(record->message);
    }
    if (missing.empty()) return found;
    if (TimeLeft(deadline).count() == 0) {
      return Fail(Error{.code = ErrorCode::kUnavailable,
                        .message = fmt::format("ranks that did not arrive in time: {} of {}",
                                               fmt::join(missing, ", "), found.size())}
                      .WithFile(fmt::format("{}/{}", storage.address(), FolderOf(party))));
    }
    storage.AwaitChange(FolderOf(party), std::min(pause, TimeLeft(deadline)));
  }
}

Result<void> Forget(kv::Storage& storage, const Party& party) {
  for (int rank = 0; rank < party.world_size; ++rank) {
    CAIRN_TRY(storage.Remove(NameOf(party, rank)));
  }
  return {};
}

}  // namespace cairn::core::internal
