#include "core/device/internal/pinned_blocks.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <optional>
#include <string_view>

#include "core/device/device.h"
#include "kv/base/mutex.h"

namespace cairn::core::internal {
namespace {

class DevicePageLocker final : public kv::PageLocker {
 public:
  explicit DevicePageLocker(DeviceBackend* backend) : backend_(backend) {}
  Result<void> Lock(std::span<std::byte> memory) override { return backend_->Pin(memory); }
  void Unlock(std::span<std::byte> memory) override { backend_->Unpin(memory); }

 private:
  DeviceBackend* const backend_;  // owned by the process
};

// Returns nothing if the variable is not set. kInvalidArgument: it is not a number.
Result<std::optional<uint64_t>> NumberFromEnvironment(const char* name) {
  const char* const text = std::getenv(name);
  if (text == nullptr || *text == '\0') return std::nullopt;
  const std::string_view view(text);
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(view.data(), view.data() + view.size(), value);
  if (error != std::errc() || end != view.data() + view.size()) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("{}={} is not a number of bytes", name, view));
  }
  return value;
}

// The number of ranks on this host that the launcher has set; 1 if it has not.
uint64_t RanksOnHost() {
  for (const char* const name : {"LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE",
                                 "MPI_LOCALNRANKS", "SLURM_NTASKS_PER_NODE"}) {
    const auto ranks = NumberFromEnvironment(name);
    if (ranks && ranks->value_or(0) > 0) return **ranks;
  }
  return 1;
}

// The memory limit of the control group; the largest number if there is none.
uint64_t ContainerLimitBytes() {
  uint64_t limit_bytes = std::numeric_limits<uint64_t>::max();
  for (const char* const path :
       {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    std::ifstream file(path);
    if (uint64_t value = 0; file >> value) limit_bytes = std::min(limit_bytes, value);
  }
  return limit_bytes;
}

Result<uint64_t> BudgetBytes() {
  CAIRN_TRY_ASSIGN(const auto given, NumberFromEnvironment("CAIRN_PINNED_BYTES"));
  if (given) return *given;
  const auto pages = static_cast<uint64_t>(std::max(0L, ::sysconf(_SC_PHYS_PAGES)));
  const auto page_bytes = static_cast<uint64_t>(std::max(0L, ::sysconf(_SC_PAGESIZE)));
  return std::min(pages * page_bytes, ContainerLimitBytes()) / 2 / RanksOnHost();
}

}  // namespace

Result<std::shared_ptr<kv::BlockPool>> PinnedBlocks() {
  static Mutex mutex;
  // Never destroyed: at the end of the process, the driver may be unloaded first.
  static auto& pool = *new std::shared_ptr<kv::BlockPool>;
  const MutexLock lock(mutex);
  if (pool != nullptr) return pool;
  CAIRN_TRY_ASSIGN(DeviceBackend* const backend, FindDeviceBackend());
  CAIRN_TRY_ASSIGN(const uint64_t budget_bytes, BudgetBytes());
  const uint64_t blocks = std::min<uint64_t>(budget_bytes / kPinnedBlockBytes, UINT32_MAX);
  if (blocks == 0) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("a budget of {} bytes of page-locked memory (CAIRN_PINNED_BYTES) is "
                            "less than one block; set it to at least {}",
                            budget_bytes, kPinnedBlockBytes));
  }
  pool = std::make_shared<kv::BlockPool>(kPinnedBlockBytes, static_cast<uint32_t>(blocks),
                                         std::make_shared<DevicePageLocker>(backend));
  return pool;
}

}  // namespace cairn::core::internal
