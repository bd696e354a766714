// Small objects and messages: the identity of a store, the hint, leases, outcomes of attempts, and
// what ranks send to each other.

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "core/collectives/internal/global_state_layout.h"
#include "core/ranks/internal/rendezvous.h"
#include "core/ranks/status_agreement.h"
#include "core/tensor/mesh.h"
#include "core/tensor/sharding.h"
#include "kv/base/digest.h"
#include "kv/io/internal/file.h"
#include "kv/root/internal/lease.h"
#include "kv/root/internal/root_log.h"
#include "kv/state/internal/attempt_outcome.h"
#include "kv/state/internal/store_identity.h"
#include "kv/storage/files/internal/memory_storage.h"
#include "schema/little_endian.h"
#include "tests/fuzz/fuzz_support.h"

namespace cairn::fuzz {
namespace {

using namespace kv::internal;    // NOLINT(google-build-using-namespace): the code under test
using namespace core::internal;  // NOLINT(google-build-using-namespace): the code under test

constexpr char kAttempt[] = "00000001123456780000000000000000-7-0";

void FuzzLease(std::span<const std::byte> bytes) {
  const auto lease = DecodeLease(bytes);
  if (!lease) return;
  const auto once = EncodeLease(*lease);
  CAIRN_FUZZ_CHECK(DecodeLease(once) == lease);
  MemoryStorage storage("fuzz");
  CAIRN_FUZZ_CHECK(storage.Put(LeaseName("s"), bytes).has_value());
  const Result<bool> checked = CheckLease(storage, "s");
  if (!checked) UseError(checked.error());
}

void FuzzHint(std::span<const std::byte> bytes) {
  constexpr uint64_t kNewest = 2;
  MemoryStorage storage("fuzz");
  CAIRN_FUZZ_CHECK(storage.Put(kHintName, bytes).has_value());
  for (uint64_t number = 1; number <= kNewest; ++number) {
    Root next{.number = number, .commit_id = {std::byte(number)}};
    if (number > 1) next.predecessor = Uuid{std::byte(number - 1)};
    const auto object = EncodeRoot(next);
    CAIRN_FUZZ_CHECK(object && storage.Put(RootName(number), *object).has_value());
  }
  // An older root than that of the hint is not the newest, which the search takes a second to find.
  if (ReadHint(storage, Uuid{}).value() > kNewest) return;
  const auto root = FindNewest(storage);
  CAIRN_FUZZ_CHECK(root && root->has_value() && (*root)->number == kNewest);
}

void FuzzOutcome(std::span<const std::byte> bytes) {
  MemoryStorage storage("fuzz");
  const std::string folder = fmt::format("{}{}/", kPendingFolder, kAttempt);
  CAIRN_FUZZ_CHECK(storage.Put(folder + "outcome", bytes).has_value());
  CAIRN_FUZZ_CHECK(storage.Put(folder + "failed", bytes).has_value());
  if (const auto failure = FindFailure(storage, kAttempt)) (void)failure->ToString();
  const auto outcome = FindOutcome(storage, kAttempt);
  if (!outcome) return;
  // What rank 0 publishes about the same outcome is the same outcome.
  MemoryStorage other("fuzz");
  const auto published =
      outcome->generation
          ? PublishCommitted(other, kAttempt, *outcome->generation)
          : PublishFailure(other, kAttempt, 0, outcome->generation.error(), !outcome->discarded);
  CAIRN_FUZZ_CHECK(published.has_value());
  const auto again = FindOutcome(other, kAttempt);
  CAIRN_FUZZ_CHECK(again.has_value());
  CAIRN_FUZZ_CHECK(again->generation.has_value() == outcome->generation.has_value());
  if (outcome->generation) {
    CAIRN_FUZZ_CHECK(*again->generation == *outcome->generation);
  } else {
    CAIRN_FUZZ_CHECK(again->discarded == outcome->discarded);
    CAIRN_FUZZ_CHECK(again->generation.error().code == outcome->generation.error().code);
  }
}

/// The input is the text of CAIRN without its last line, the checksum.
void FuzzIdentity(std::string_view text) {
  std::string object(text);
  object += fmt::format("checksum {:016x}\n", kv::Checksum64(AsBytes(object)));
  MemoryStorage storage("fuzz");
  CAIRN_FUZZ_CHECK(storage.Put(kIdentityName, AsBytes(object)).has_value());
  const auto uuid = ReadIdentity(storage);
  if (!uuid) UseError(uuid.error());
}

/// The input is a record without its checksum.
void FuzzRendezvous(std::span<const std::byte> body) {
  std::vector<std::byte> bytes(body.begin(), body.end());
  schema::AppendLittleEndian(bytes, kv::Checksum64(body));
  const auto record = DecodeRecord(bytes);
  if (!record) return UseError(record.error());
  CAIRN_FUZZ_CHECK(EncodeRecord(*record) == bytes);
}

/// Rank 0 of two. The other rank sends what this rank would send, XOR the input: so an input of
/// zeros is a message that is right.
class HostileRank final : public core::Communicator {
 public:
  explicit HostileRank(Input input) : input_(input) {}
  int rank() const override { return 0; }
  int world_size() const override { return 2; }
  std::chrono::milliseconds timeout() const override { return std::chrono::seconds(1); }
  Result<void> Barrier() override { return {}; }
  Result<void> Broadcast(core::ByteTarget bytes, int root) override {
    if (root != 0) Change(bytes);
    return {};
  }
  Result<void> Exchange(Operation, std::span<const core::ByteView> sent,
                        std::span<const core::ByteTarget> received) override {
    std::ranges::copy(sent[0], received[0].begin());
    const size_t same_bytes = std::min(sent[0].size(), received[1].size());
    std::ranges::fill(std::ranges::copy(sent[0].first(same_bytes), received[1].begin()).out,
                      received[1].end(), std::byte{0});
    Change(received[1]);
    return {};
  }
  Result<std::unique_ptr<core::Communicator>> Split(uint32_t, uint32_t) override {
    return Fail(ErrorCode::kUnimplemented, "there is one group");
  }
  void Interrupt() override {}
  Result<void> CheckPeers() override { return {}; }

 private:
  void Change(core::ByteTarget bytes) {
    const auto taken = input_.Bytes(bytes.size());
    for (size_t i = 0; i < taken.size(); ++i) {
      // Ranks of a job trust the lengths that they announce to each other: a message of 8 bytes is
      // one, and the header of a layout has one after three numbers. They stay below 64 KiB.
      const bool is_length = bytes.size() == sizeof(uint64_t) ||
                             (bytes.size() == 4 * sizeof(uint64_t) && i >= 3 * sizeof(uint64_t));
      if (!is_length || i % sizeof(uint64_t) < 2) bytes[i] ^= taken[i];
    }
  }
  Input input_;
};

void FuzzStatus(Input input) {
  HostileRank communicator(input);
  if (const auto agreed = core::AgreeOnStatus(communicator, {}); !agreed) {
    UseError(agreed.error());
  }
}

/// Exchanges the layout of a state with the other rank.
void FuzzLayout(Input input) {
  const std::vector<float> elements(8);
  core::StateDict state;
  state.root().Tensor("w", {.dtype = core::DType::kFloat32,
                            .shape = {2, 4},
                            .strides = {4, 1},
                            .data = reinterpret_cast<const std::byte*>(elements.data())});
  const auto mesh = core::DeviceMesh::Make({{.name = "dp", .size = 2}}, {0, 1});
  CAIRN_FUZZ_CHECK(mesh.has_value());
  core::Sharding sharding{.global_shape = {4, 4}};
  sharding.mesh = std::make_shared<const core::DeviceMesh>(*mesh);
  sharding.placements = {core::Placement{.kind = core::Placement::Kind::kShard, .dim = 0}};
  state.root().Sharded("s", state.tensors[0], sharding);
  state.root().Value("lr", 0.5);
  const auto leaves = state.Leaves();
  CAIRN_FUZZ_CHECK(leaves.has_value());
  HostileRank communicator(input);
  const auto layout = GlobalStateLayout::Exchange(communicator, state, *leaves, {}, {});
  if (!layout) return UseError(layout.error());
  for (const GlobalStateLayout::Entry& entry : layout->entries()) {
    CAIRN_FUZZ_CHECK(layout->Find(entry.fqn) >= 0);
    for (const uint32_t rank : layout->RanksWith(entry)) {
      CAIRN_FUZZ_CHECK(rank < layout->world_size());
      if (entry.kind == GlobalStateLayout::Entry::Kind::kWhole) continue;
      for (const core::Box& box : layout->BoxesOf(entry, rank)) {
        CAIRN_FUZZ_CHECK(core::BoxFits(box, entry.shape));
      }
    }
  }
}

}  // namespace

void Fuzz(Input input) {
  switch (TakeSelector(input, 7)) {
    case 0:
      return FuzzLease(input.rest());
    case 1:
      return FuzzHint(input.rest());
    case 2:
      return FuzzOutcome(input.rest());
    case 3:
      return FuzzIdentity(input.rest_text());
    case 4:
      return FuzzRendezvous(input.rest());
    case 5:
      return FuzzStatus(input);
    default:
      return FuzzLayout(input);
  }
}

}  // namespace cairn::fuzz
