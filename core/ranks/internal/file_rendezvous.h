#pragma once
/// Exchanges messages by files in a directory that all ranks share.

#include <string>
#include <vector>

#include "core/ranks/internal/rendezvous_record.h"

namespace cairn::core::internal {

/// Implements Meet (rendezvous.h) with one file per rank below `directory`.
Result<std::vector<std::string>> MeetByFile(const std::string& directory, const Party& party,
                                            const std::vector<std::string>& messages,
                                            Deadline deadline);

/// Removes the files of the run.
Result<void> ForgetFiles(const std::string& directory, const Party& party);

}  // namespace cairn::core::internal
