// The communicator contract on NCCL. Connecting has three steps:
//   1. Each rank creates its streams and buffers; the ranks agree on the status.
//   2. The ranks exchange the id of rank 0 and the values that must be equal everywhere.
//   3. Each rank connects; the ranks agree on the status. If one has failed, all release
//      everything.
// Every later failure aborts the communicator of this rank.

#include "cuda/nccl_communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "core/ranks/gather_values.h"
#include "core/ranks/status_agreement.h"
#include "cuda/internal/nccl_transfers.h"

namespace cairn::cuda {
namespace {

using core::ByteTarget;
using core::ByteView;
using core::Communicator;
using core::SplitChoice;
using internal::Deadline;
using internal::DeadlineAfter;
using internal::DeviceScope;
using internal::MemoryRange;
using internal::NcclHandle;
using internal::NcclLibrary;
using internal::NcclTransfers;

/// Limit of the waits after an abort and in the destructor, which are normally short.
constexpr std::chrono::milliseconds kGrace = std::chrono::seconds(5);

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(int rank, int world_size, std::chrono::milliseconds timeout,
                   std::unique_ptr<NcclTransfers> transfers, std::unique_ptr<NcclHandle> nccl)
      : rank_(rank),
        world_size_(world_size),
        timeout_(timeout),
        transfers_(std::move(transfers)),
        nccl_(std::move(nccl)) {}

  ~NcclCommunicator() override {
    const DeviceScope scope(device());
    if (is_broken() || nccl_->stop().is_requested()) transfers_->FreeInBackground();
    if (!is_broken()) nccl_->Close(DeadlineAfter(std::min(timeout_, kGrace)));
    nccl_.reset();
    transfers_.reset();
  }

  int rank() const override { return rank_; }
  int world_size() const override { return world_size_; }
  std::chrono::milliseconds timeout() const override { return timeout_; }
  int device() const override { return transfers_->device(); }

  Result<void> Barrier() override {
    CAIRN_TRY(CheckUsable());
    return Run("Barrier", [&](Deadline deadline) { return transfers_->Barrier(*nccl_, deadline); });
  }

  Result<void> Broadcast(ByteTarget bytes, int root) override {
    CAIRN_TRY(CheckUsable());
    CAIRN_TRY(CheckRoot(Operation::kBroadcast, root));
    CAIRN_TRY_ASSIGN(const MemoryRange range, Locate(bytes));
    return Run("Broadcast", [&](Deadline deadline) {
      return transfers_->Broadcast(*nccl_, rank_, root, range, deadline);
    });
  }

  Result<void> Exchange(Operation operation, std::span<const ByteView> sent,
                        std::span<const ByteTarget> received) override {
    CAIRN_TRY(CheckUsable());
    CAIRN_TRY_ASSIGN(const auto from, LocateAll(sent));
    CAIRN_TRY_ASSIGN(const auto to, LocateAll(received));
    return Run(core::OperationName(operation), [&](Deadline deadline) {
      return transfers_->Exchange(*nccl_, rank_, from, to, deadline);
    });
  }

  Result<std::unique_ptr<Communicator>> Split(uint32_t color, uint32_t key) override {
    CAIRN_TRY(CheckUsable());
    const DeviceScope scope(device());
    // The buffers fit the complete world: the number of ranks of the part is not known yet, and a
    // rank that has no memory must report that before others wait for it. On an error they are
    // freed after the abort, because cudaFree waits for all work of the device, including NCCL's.
    auto transfers = NcclTransfers::Make(device(), world_size_, transfers_->buffer_bytes(),
                                         transfers_->follows());
    auto part =
        SplitBy(DeadlineAfter(timeout_), {color, key, transfers.has_value() ? 1u : 0u}, transfers);
    if (part) return part;
    return Fail(Break("Split", std::move(part).error()));
  }

  void Interrupt() override { nccl_->stop().Request("interrupted on this rank"); }
  // NCCL reports a lost peer to a call only.
  Result<void> CheckPeers() override { return {}; }

 private:
  Result<MemoryRange> Locate(ByteView bytes) const {
    auto range = transfers_->Locate(bytes);
    if (!range) nccl_->stop().NoteFailure();  // the other ranks are waiting in the call
    return range;
  }

  template <typename Range>
  Result<std::vector<MemoryRange>> LocateAll(std::span<const Range> ranges) const {
    std::vector<MemoryRange> located;
    for (const Range bytes : ranges) {
      CAIRN_TRY_ASSIGN(const MemoryRange range, Locate(bytes));
      located.push_back(range);
    }
    return located;
  }

  /// Runs a call with its deadline. An error breaks the communicator.
  template <typename Body>
  Result<void> Run(const char* operation, const Body& body) {
    const DeviceScope scope(device());
    Result<void> done = body(DeadlineAfter(timeout_));
    if (done) return {};
    return Fail(Break(operation, std::move(done).error()));
  }

  /// Aborts the communicator. Returns `error` with information about the call.
  Error Break(const char* operation, Error error) {
    nccl_->stop().NoteFailure();
    nccl_->Abort();
    transfers_->Drain(DeadlineAfter(kGrace));
    error.code = ErrorCode::kUnavailable;
    return Broken(operation, std::move(error));
  }

  Result<std::vector<SplitChoice>> GatherChoices(const SplitChoice& mine, Deadline deadline) {
    return core::GatherValues(world_size_, mine,
                              [&](ByteView own, std::span<const ByteTarget> all) -> Result<void> {
                                const std::vector<ByteView> sent(all.size(), own);
                                CAIRN_TRY_ASSIGN(const auto from, LocateAll<ByteView>(sent));
                                CAIRN_TRY_ASSIGN(const auto to, LocateAll(all));
                                return transfers_->Exchange(*nccl_, rank_, from, to, deadline);
                              });
  }

  /// Takes ownership of `transfers` if it succeeds.
  Result<std::unique_ptr<Communicator>> SplitBy(Deadline deadline, const SplitChoice& choice,
                                                Result<std::unique_ptr<NcclTransfers>>& transfers);

  const int rank_;
  const int world_size_;
  const std::chrono::milliseconds timeout_;
  std::unique_ptr<NcclTransfers> transfers_;
  std::unique_ptr<NcclHandle> nccl_;
};

Result<std::unique_ptr<Communicator>> NcclCommunicator::SplitBy(
    Deadline deadline, const SplitChoice& choice,
    Result<std::unique_ptr<NcclTransfers>>& transfers) {
  CAIRN_TRY_ASSIGN(const auto choices, GatherChoices(choice, deadline));
  if (!transfers) return std::unexpected(transfers.error());
  const auto unready = std::ranges::find(choices, 0u, &SplitChoice::is_ready);
  if (unready != choices.end()) {
    return Fail(ErrorCode::kUnavailable,
                fmt::format("rank {} could not take part", unready - choices.begin()));
  }
  const std::vector<int> members = core::RanksOfColor(choices, choice.color);
  const auto place = static_cast<int>(std::ranges::find(members, rank_) - members.begin());

  // NCCL's colors and keys are ints that must not be negative, so ranks stand for them.
  CAIRN_TRY_ASSIGN(auto part, nccl_->Split(std::ranges::min(members), place, deadline));
  CAIRN_TRY(transfers_->Barrier(*nccl_, deadline));  // all ranks have their part
  return std::make_unique<NcclCommunicator>(place, static_cast<int>(members.size()), timeout_,
                                            *std::move(transfers), std::move(part));
}

Result<void> CheckOptions(const NcclOptions& options) {
  const auto invalid = [](std::string message) {
    return Fail(ErrorCode::kInvalidArgument, std::move(message));
  };
  if (options.timeout.count() <= 0) {
    return invalid(fmt::format("a timeout of {} ms is not above 0", options.timeout.count()));
  }
  int device_count = 0;
  CAIRN_TRY(internal::Check(cudaGetDeviceCount(&device_count), "counting the GPUs"));
  if (options.device < 0 || options.device >= device_count) {
    return invalid(
        fmt::format("there is no device {}; this process sees {}", options.device, device_count));
  }
  return {};
}

/// The objects that a rank creates before it connects through NCCL.
struct Prepared {
  const NcclLibrary* nccl = nullptr;
  std::unique_ptr<NcclTransfers> transfers;
  ncclUniqueId id{};  // set on rank 0
};

Result<Prepared> Prepare(const Communicator& host, const NcclOptions& options) {
  Prepared prepared;
  CAIRN_TRY_ASSIGN(prepared.nccl, NcclLibrary::Open());
  CAIRN_TRY(CheckOptions(options));
  const DeviceScope scope(options.device);
  std::optional<cudaStream_t> follows;
  if (!options.follows_no_stream) follows = static_cast<cudaStream_t>(options.stream);
  CAIRN_TRY_ASSIGN(prepared.transfers, NcclTransfers::Make(options.device, host.world_size(),
                                                           options.buffer_bytes, follows));
  if (host.rank() == 0) {
    const ncclResult_t status = prepared.nccl->GetUniqueId(&prepared.id);
    if (status != ncclSuccess) {
      return Fail(ErrorCode::kUnavailable, fmt::format("creating an id: NCCL reports {}",
                                                       prepared.nccl->GetErrorString(status)));
    }
  }
  return prepared;
}

/// The message that ranks exchange before they connect. All but `id` must be equal.
struct Introduction {
  uint64_t buffer_bytes = 0;
  int version = 0;
  ncclUniqueId id{};
};

/// Exchanges the introductions and returns the id of rank 0.
Result<ncclUniqueId> Introduce(Communicator& host, const Prepared& prepared) {
  const Introduction mine{.buffer_bytes = prepared.transfers->buffer_bytes(),
                          .version = prepared.nccl->version,
                          .id = prepared.id};
  CAIRN_TRY_ASSIGN(const auto all, core::AllGatherValues(host, mine));
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank].buffer_bytes != all[0].buffer_bytes) {
      return Fail(ErrorCode::kInvalidArgument,
                  fmt::format("rank {} gives buffer_bytes = {}, rank 0 {}", rank,
                              all[rank].buffer_bytes, all[0].buffer_bytes));
    }
    if (all[rank].version != all[0].version) {
      return Fail(ErrorCode::kFailedPrecondition,
                  fmt::format("rank {} has NCCL {}, rank 0 {}", rank,
                              internal::FormatNcclVersion(all[rank].version),
                              internal::FormatNcclVersion(all[0].version)));
    }
  }
  return all[0].id;
}

}  // namespace

Result<std::unique_ptr<Communicator>> ConnectNccl(Communicator& host, const NcclOptions& options) {
  auto prepared = Prepare(host, options);
  CAIRN_TRY(core::AgreeOnStatus(host, prepared));
  const DeviceScope scope(options.device);
  CAIRN_TRY_ASSIGN(const ncclUniqueId id, Introduce(host, *prepared));
  // Half of the timeout of `host`: a rank that fails at once waits in AgreeOnStatus, on `host`, for
  // those that fail at their deadline.
  const auto timeout = std::min(
      {options.timeout, options.connect_timeout.value_or(options.timeout), host.timeout() / 2});
  auto nccl =
      NcclHandle::Init(*prepared->nccl, id, host.rank(), host.world_size(), DeadlineAfter(timeout),
                       options.stop ? options.stop : std::make_shared<NcclStop>());
  CAIRN_TRY(core::AgreeOnStatus(host, nccl));
  return std::make_unique<NcclCommunicator>(host.rank(), host.world_size(), options.timeout,
                                            std::move(prepared->transfers), *std::move(nccl));
}

Result<std::string> DescribeNccl() {
  CAIRN_TRY_ASSIGN(const NcclLibrary* const nccl, NcclLibrary::Open());
  return fmt::format("{} ({})", internal::FormatNcclVersion(nccl->version), nccl->path);
}

}  // namespace cairn::cuda
