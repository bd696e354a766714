// One rank as a process that broadcasts a state and gathers it again.
//
//   state_dict_program RANK WORLD_SIZE RENDEZVOUS TENSOR_BYTES BUFFER_BYTES [DIE_AT_CALL]
//
// Rank 0 has a tensor of TENSOR_BYTES, every rank receives its rows, and the last rank gathers and
// compares them. Prints "ok BROADCAST_KIB GATHER_KIB", the growth of the peak memory of the process
// in each operation, or "error CODE MS MESSAGE". With DIE_AT_CALL the rank kills itself before that
// call of its communicator.

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#include "core/collectives/state_dict_collectives.h"
#include "core/ranks/gloo_communicator.h"

namespace cairn::testing {
namespace {

using namespace cairn::core;  // NOLINT(google-build-using-namespace): a program
using std::chrono::steady_clock;

/// Kills the process at the n-th call.
class DyingCommunicator : public Communicator {
 public:
  DyingCommunicator(Communicator& below, int die_at_call) : below_(below), left_(die_at_call) {}

  int rank() const override { return below_.rank(); }
  int world_size() const override { return below_.world_size(); }
  std::chrono::milliseconds timeout() const override { return below_.timeout(); }
  Result<void> Barrier() override { return Next().Barrier(); }
  Result<void> Broadcast(ByteTarget bytes, int root) override {
    return Next().Broadcast(bytes, root);
  }
  Result<void> Exchange(Operation operation, std::span<const ByteView> sent,
                        std::span<const ByteTarget> received) override {
    return Next().Exchange(operation, sent, received);
  }
  Result<std::unique_ptr<Communicator>> Split(uint32_t color, uint32_t key) override {
    return Next().Split(color, key);
  }
  void Interrupt() override { below_.Interrupt(); }
  Result<void> CheckPeers() override { return below_.CheckPeers(); }

 private:
  Communicator& Next() {
    if (--left_ == 0) ::kill(::getpid(), SIGKILL);
    return below_;
  }
  Communicator& below_;
  int left_;
};

/// Returns the peak memory of this process.
uint64_t PeakKib() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return std::stoull(line.substr(6));
  }
  return 0;
}

uint64_t Word(uint64_t i) { return i * 0x9e3779b97f4a7c15u; }

Result<std::string> Run(Communicator& communicator, uint64_t tensor_bytes, uint64_t buffer_bytes) {
  const auto world_size = static_cast<uint32_t>(communicator.world_size());
  const auto rank = static_cast<uint32_t>(communicator.rank());
  const Shape shape = {tensor_bytes / sizeof(uint64_t) / 16, 16};
  const auto view_of = [](const std::vector<uint64_t>& memory) {
    return TensorView{.dtype = DType::kUInt64,
                      .shape = {memory.size() / 16, 16},
                      .data = reinterpret_cast<const std::byte*>(memory.data())};
  };
  // The complete tensor: on rank 0 before the broadcast, on the last rank after the gather.
  std::vector<uint64_t> memory(rank == 0 || rank == world_size - 1 ? shape[0] * 16 : 0);
  if (rank == 0) {
    for (uint64_t i = 0; i < memory.size(); ++i) memory[i] = Word(i);
  }
  StateDict whole;
  whole.root().Tensor("w", view_of(memory));
  whole.tensors[0].shape = shape;
  CAIRN_TRY_ASSIGN(DeviceMesh mesh, DeviceMesh::Make({{"dp", world_size}}));
  Sharding sharding{.global_shape = shape,
                    .mesh = std::make_shared<const DeviceMesh>(std::move(mesh)),
                    .placements = {Placement::Shard(0)},
                    .parts = {}};
  CAIRN_TRY_ASSIGN(const LocalShard shard,
                   ShardOf(shape, *sharding.mesh, sharding.placements, rank));
  const std::vector<uint64_t> rows(shard.sizes()[0] * 16);
  StateDict local;
  local.root().Sharded("w", view_of(rows), sharding);

  const uint64_t before_kib = PeakKib();
  CAIRN_TRY(
      BroadcastStateDict(whole, StateTarget(local), communicator, {.buffer_bytes = buffer_bytes}));
  const uint64_t broadcast_kib = PeakKib();
  CAIRN_TRY(GatherStateDict(
      local, StateTarget(whole), communicator,
      {.ranks_only = {static_cast<int>(world_size) - 1}, .buffer_bytes = buffer_bytes}));
  const uint64_t gather_kib = PeakKib();
  if (rank == world_size - 1) {
    for (uint64_t i = 0; i < memory.size(); ++i) {
      if (memory[i] != Word(i)) return Fail(ErrorCode::kInternal, fmt::format("wrong word {}", i));
    }
  }
  return fmt::format("ok {} {}", broadcast_kib - before_kib, gather_kib - broadcast_kib);
}

int Main(const std::vector<std::string>& arguments) {
  auto connected = ConnectGloo({.rank = std::stoi(arguments.at(1)),
                                .world_size = std::stoi(arguments.at(2)),
                                .rendezvous = arguments.at(3),
                                .interface = "127.0.0.1",
                                .timeout = std::chrono::hours(1)});
  const auto begin = steady_clock::now();
  Result<std::string> said = Fail(ErrorCode::kUnavailable, "not connected");
  if (connected) {
    DyingCommunicator communicator(**connected,
                                   arguments.size() > 6 ? std::stoi(arguments[6]) : -1);
    said = Run(communicator, std::stoull(arguments.at(4)), std::stoull(arguments.at(5)));
  }
  if (said) {
    std::cout << *said << std::endl;
    return 0;
  }
  const auto ms =
      std::chrono::duration_cast<std::chrono::milliseconds>(steady_clock::now() - begin).count();
  std::cout << fmt::format("error {} {} {}", ErrorCodeName(said.error().code), ms,
                           said.error().ToString())
            << std::endl;
  return 1;
}

}  // namespace
}  // namespace cairn::testing

int main(int argc, char** argv) {
  return cairn::testing::Main(std::vector<std::string>(argv, argv + argc));
}
