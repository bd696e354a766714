#pragma once
/// Meeting by files in a directory that all ranks share.

#include <string>
#include <vector>

#include "core/ranks/internal/rendezvous_record.h"

namespace cairn::core::internal {

/// Meet (rendezvous.h) with one file per rank below `directory`; every rank does the same.
Result<std::vector<std::string>> MeetByFile(const std::string& directory, const Party& party,
                                            const std::vector<std::string>& pieces,
                                            Deadline deadline);

/// Removes the files of the run.
Result<void> ForgetFiles(const std::string& directory, const Party& party);

}  // namespace cairn::core::internal
