#pragma once
// SPDX-License-Identifier: Apache-2.0
/// Writes one safetensors file.

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "core/interop/safetensors/safetensors_format.h"
#include "kv/base/error.h"

namespace cairn::core {

namespace internal {
class DurableFile;
}

/// Writes to a temporary file, which Finish syncs and renames; a file that is not finished is
/// removed. Threads: one at a time.
class SafetensorsWriter {
 public:
  using Entry = SafetensorsEntry;

  /// Creates the file and writes its header. kInvalidArgument: a dtype or shape that the format
  /// cannot express, two entries of the same name, or a name that is not UTF-8; the error names the
  /// key. kNotFound, kUnavailable, kResourceExhausted: the file cannot be created or written.
  static Result<std::unique_ptr<SafetensorsWriter>> Create(
      const std::string& path, std::span<const Entry> entries,
      const std::map<std::string, std::string>& metadata = {{"format", "pt"}});
  ~SafetensorsWriter();
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  /// Writes the next bytes of the tensors, which follow each other in the order of their entries.
  /// kInvalidArgument: more bytes than the entries have; nothing is written.
  Result<void> Append(std::span<const std::byte> bytes);
  /// Makes the file durable under its name. kInvalidArgument: bytes are missing. Requires that
  /// Finish has not succeeded before.
  Result<void> Finish();

 private:
  SafetensorsWriter();
  std::unique_ptr<internal::DurableFile> file_;
  uint64_t missing_bytes_ = 0;
};

}  // namespace cairn::core
