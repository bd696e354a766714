#pragma once
/// How a store is opened, how payload moves, and how an attempt at a step begins.

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace cairn::kv {

enum class OpenMode {
  kRead,   // never changes anything
  kWrite,  // one writer at a time; makes the store if absent
  kJoinSession,   // a rank of a job whose rank 0 has the store open for writing: adds segments and a
           // manifest to steps that rank 0 commits, and never touches the index
};

/// How payload moves. Defaults suit a local disk.
struct IoOptions {
  bool direct = true;              // O_DIRECT where the file system allows it
  bool uring = true;               // io_uring where the kernel allows it, else threads
  uint64_t block_bytes = 4 << 20;  // one request, as large as a chunk
  uint32_t queue_depth = 8;        // blocks in flight; pool = depth * block
};

struct StoreOptions {
  /// Nothing: the defaults above, as the environment variables CAIRN_IO_BLOCK_BYTES,
  /// CAIRN_IO_DEPTH, CAIRN_IO_ENGINE (uring or threads) and CAIRN_IO_DIRECT (0 or 1) change them.
  /// `kv-bench tune` finds what suits a disk.
  std::optional<IoOptions> io;
  /// A reader that finds the index damaged reports it here instead of failing (kv-dump).
  bool tolerate_lost_steps = false;
  /// How long an open may wait for a writer that is just replacing index files.
  std::chrono::milliseconds deadline{10'000};
  /// kJoinSession: what Store::OpenSession of the job's rank 0 said.
  std::string session;
};

/// How an attempt at a step begins (Store::Begin).
struct BeginOptions {
  bool overwrite = false;
  uint32_t rank = 0;
  uint32_t world_size = 1;
  std::string attempt;  // empty: the next one
  /// Until when rank 0 waits for the others' parts, and must have begun to commit.
  std::chrono::steady_clock::time_point deadline = std::chrono::steady_clock::time_point::max();
  /// Until when the others wait for rank 0's word.
  std::chrono::steady_clock::time_point decision_deadline =
      std::chrono::steady_clock::time_point::max();
};

}  // namespace cairn::kv
