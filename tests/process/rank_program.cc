// One rank as a process, for tests in which ranks end, stop or are missing.
//
//   rank_program MODE RANK WORLD_SIZE RENDEZVOUS CONNECT_MS TIMEOUT_MS [OPERATION [VICTIM SIGNAL]]
//
//   exchange   connects, gathers a message from every rank and prints "ok"
//   peer       connects, prints "ready" and after the next line of input calls OPERATION, then
//              Barrier. Prints "ok", or "error CODE MS MESSAGE" for the first call that failed and
//              "then CODE" for one more call. The VICTIM sends SIGNAL to itself when it has
//              received the first bytes of the operation.
//   time       connects and prints the durations of collectives, for docs/communicators.md

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include "core/ranks/gather_v.h"
#include "core/ranks/gloo_communicator.h"

namespace cairn::testing {
namespace {

using core::ByteTarget;
using core::ByteVector;
using core::ByteView;
using core::Communicator;
using std::chrono::steady_clock;

constexpr uint64_t kRangeBytes = 48ull << 20;

void Say(const std::string& line) { std::cout << line << std::endl; }

int64_t MillisecondsSince(steady_clock::time_point begin) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(steady_clock::now() - begin).count();
}

/// Long ranges for any operation: this rank sends ones and receives into zeros.
struct Ranges {
  explicit Ranges(int world_size)
      : sent(kRangeBytes, std::byte{1}),
        received(static_cast<size_t>(world_size), ByteVector(kRangeBytes)) {}

  ByteVector sent;
  std::vector<ByteVector> received;
};

Result<void> Call(Communicator& communicator, const std::string& operation, Ranges& ranges) {
  const std::vector<ByteTarget> targets(ranges.received.begin(), ranges.received.end());
  const std::vector<ByteView> views(ranges.received.size(), ByteView(ranges.sent));
  const bool is_root = communicator.rank() == 0;
  if (operation == "barrier") return communicator.Barrier();
  if (operation == "broadcast") {
    return communicator.Broadcast(is_root ? ranges.sent : ranges.received[0], 0);
  }
  if (operation == "gather") return communicator.Gather(ranges.sent, targets, 0);
  if (operation == "allgather") return communicator.AllGather(ranges.sent, targets);
  if (operation == "scatter") return communicator.Scatter(views, targets[0], 0);
  if (operation == "alltoall") return communicator.AllToAll(views, targets);
  return Fail(ErrorCode::kInvalidArgument, "no such operation: " + operation);
}

/// Waits for the first byte of a message and sends the signal before the rest has arrived.
void StrikeAtFirstBytes(const Ranges& ranges, int own_rank, int signal) {
  const auto has_arrived = [&](size_t from) {
    const volatile std::byte& first = ranges.received[from][0];
    return from != static_cast<size_t>(own_rank) && first == std::byte{1};
  };
  while (true) {
    for (size_t from = 0; from < ranges.received.size(); ++from) {
      if (has_arrived(from)) ::kill(::getpid(), signal);
    }
  }
}

int RunPeer(Communicator& communicator, const std::string& operation, int victim, int signal) {
  Ranges ranges(communicator.world_size());
  Say("ready");
  std::string go;
  std::getline(std::cin, go);
  if (communicator.rank() == victim) {
    std::thread([&] { StrikeAtFirstBytes(ranges, victim, signal); }).detach();
  }
  const auto begin = steady_clock::now();
  Result<void> done = Call(communicator, operation, ranges);
  // Ranks that did not communicate with the victim detect the failure here.
  if (done) done = communicator.Barrier();
  if (done) {
    Say("ok");
    return 0;
  }
  Say(fmt::format("error {} {} {}", ErrorCodeName(done.error().code), MillisecondsSince(begin),
                  done.error().ToString()));
  const Result<void> then = communicator.Barrier();
  Say(fmt::format("then {}", then ? "ok" : ErrorCodeName(then.error().code)));
  return 0;
}

int RunExchange(Communicator& communicator) {
  const std::string mine(static_cast<size_t>(communicator.rank()) * 1000, 'a');
  const auto all = core::AllGatherV(communicator, std::as_bytes(std::span(mine)));
  if (!all) {
    Say("error " + all.error().ToString());
    return 1;
  }
  for (size_t i = 0; i < all->size(); ++i) {
    if ((*all)[i].size() != i * 1000) {
      Say("wrong");
      return 1;
    }
  }
  Say("ok");
  return 0;
}

/// Returns the median of some repetitions, each with the time of the slowest rank.
template <typename Body>
double MedianSeconds(Communicator& communicator, int count, Body&& body) {
  std::vector<double> times;
  for (int i = 0; i < count; ++i) {
    (void)communicator.Barrier();
    const auto begin = steady_clock::now();
    body();
    double mine = std::chrono::duration<double>(steady_clock::now() - begin).count();
    std::vector<double> all(static_cast<size_t>(communicator.world_size()));
    std::vector<ByteTarget> targets;
    for (double& each : all) targets.push_back(std::as_writable_bytes(std::span(&each, 1)));
    (void)communicator.AllGather(std::as_bytes(std::span(&mine, 1)), targets);
    times.push_back(*std::ranges::max_element(all));
  }
  std::ranges::sort(times);
  return times[times.size() / 2];
}

int RunTime(Communicator& communicator) {
  const double barrier = MedianSeconds(communicator, 200, [&] { (void)communicator.Barrier(); });
  if (communicator.rank() == 0) Say(fmt::format("barrier {:.3f} ms", barrier * 1e3));
  constexpr double kGib = 1ull << 30;
  ByteVector large(256ull << 20, std::byte{1});
  const double broadcast =
      MedianSeconds(communicator, 7, [&] { (void)communicator.Broadcast(large, 0); });
  if (communicator.rank() == 0) {
    Say(fmt::format("broadcast of 256 MiB {:.0f} ms, {:.2f} GiB/s per receiver", broadcast * 1e3,
                    static_cast<double>(large.size()) / kGib / broadcast));
  }
  Ranges ranges(communicator.world_size());
  const auto with_ranges = [&](const char* operation) {
    return MedianSeconds(communicator, 7, [&] { (void)Call(communicator, operation, ranges); });
  };
  const double gather = with_ranges("gather");
  const double alltoall = with_ranges("alltoall");
  const double others = communicator.world_size() - 1;
  if (communicator.rank() == 0) {
    const double gib = static_cast<double>(kRangeBytes) / kGib;
    Say(fmt::format("gather of 48 MiB each {:.0f} ms, {:.2f} GiB/s at the root", gather * 1e3,
                    others * gib / gather));
    Say(fmt::format("all to all of 48 MiB each {:.0f} ms, {:.2f} GiB/s per rank", alltoall * 1e3,
                    others * gib / alltoall));
  }
  ByteVector small(64);
  const double small_broadcast =
      MedianSeconds(communicator, 200, [&] { (void)communicator.Broadcast(small, 0); });
  if (communicator.rank() == 0)
    Say(fmt::format("broadcast of 64 bytes {:.3f} ms", small_broadcast * 1e3));
  return 0;
}

int Run(const std::vector<std::string>& arguments) {
  const std::string& mode = arguments[1];
  const auto begin = steady_clock::now();
  auto communicator =
      core::ConnectGloo({.rank = std::stoi(arguments[2]),
                         .world_size = std::stoi(arguments[3]),
                         .rendezvous = arguments[4],
                         .interface = "127.0.0.1",
                         .connect_timeout = std::chrono::milliseconds(std::stoi(arguments[5])),
                         .timeout = std::chrono::milliseconds(std::stoi(arguments[6]))});
  if (!communicator) {
    Say(fmt::format("error {} {} {}", ErrorCodeName(communicator.error().code),
                    MillisecondsSince(begin), communicator.error().ToString()));
    return 1;
  }
  if (mode == "exchange") return RunExchange(**communicator);
  if (mode == "time") return RunTime(**communicator);
  return RunPeer(**communicator, arguments.at(7),
                 arguments.size() > 8 ? std::stoi(arguments[8]) : -1,
                 arguments.size() > 9 ? std::stoi(arguments[9]) : 0);
}

}  // namespace
}  // namespace cairn::testing

int main(int argc, char** argv) {
  return cairn::testing::Run(std::vector<std::string>(argv, argv + argc));
}
