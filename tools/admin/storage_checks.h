#pragma once
/// Checks of what Cairn requires of a storage (kv/storage/storage.h, docs/shared-file-systems.md).
///
/// Two machines are simulated by two mounts of one directory. A check that finds no violation does
/// not prove that there is none.

#include <chrono>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "kv/base/error.h"
#include "kv/storage/storage.h"

namespace cairn::tools {

/// "ok"; "note": Cairn works, but users may want to know; or "FAILED": Cairn requires this.
struct CheckResult {
  const char* status = "ok";
  std::string detail;  // measurement or finding

  static CheckResult Ok(std::string detail) { return {"ok", std::move(detail)}; }
  static CheckResult Note(std::string detail) { return {"note", std::move(detail)}; }
  static CheckResult Failed(std::string detail) { return {"FAILED", std::move(detail)}; }
  bool has_failed() const { return std::string_view(status) == "FAILED"; }
};

/// One storage as two machines see it. All objects belong to the checks.
struct CheckedStorages {
  kv::Storage& first;
  kv::Storage& second;
  uint64_t rounds = 200;
  std::chrono::steady_clock::time_point deadline;  // ends a slow check after a few rounds
  /// Returns false to cancel. Called on the thread of the check.
  std::function<bool(uint64_t done, uint64_t total)> progress;
};

struct StorageCheck {
  const char* name;
  /// An error is a failure of the check, except for kCancelled and kResourceExhausted.
  Result<CheckResult> (*run)(const CheckedStorages&);
  bool needs_files = false;  // both storages must have kv::LocalFiles
};

std::span<const StorageCheck> StorageChecks();

}  // namespace cairn::tools
