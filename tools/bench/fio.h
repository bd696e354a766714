#pragma once
/// The speed of the raw device, measured by fio in the same directory and in the same run.

#include <cstdint>
#include <string>

#include "kv/base/error.h"
#include "tools/bench/report.h"

namespace cairn::tools {

/// Reads and writes a new file in the directory, which the destructor removes. The rows have
/// the time that fio states, for writes with the final fsync. kNotFound: fio is not installed.
/// kUnavailable: fio failed; the message has the start of its output.
class Fio {
 public:
  Fio(std::string directory, uint64_t bytes);
  ~Fio();
  Fio(const Fio&) = delete;
  Fio& operator=(const Fio&) = delete;

  /// "fio write": sequential O_DIRECT write of a new file, with blocks of 4 MiB, 8 in flight, and
  /// an fsync at the end.
  Result<BenchRow> Write(uint64_t run) const;
  /// "fio read": sequential O_DIRECT read of the file that Write has left.
  Result<BenchRow> Read(uint64_t run) const;

 private:
  Result<BenchRow> Run(const std::string& direction, uint64_t run) const;
  void RemoveFile() const;

  const std::string directory_;
  const uint64_t bytes_;
  const std::string name_;  // of the file
};

}  // namespace cairn::tools
