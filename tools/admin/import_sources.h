#pragma once
/// The files that one import reads.

#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "kv/base/error.h"

namespace cairn::tools {

struct ImportSources {
  std::vector<std::string> files;  // each file once, in the order in which it was first named
  std::vector<std::string> indexes;
  std::map<std::string, std::string> promised;  // tensor -> index file that names it
};

/// Resolves what the user named: a file or a directory of torch.distributed.checkpoint stands for
/// itself, a *.index.json for the shards that it lists. kInvalidArgument: another kind of
/// directory. kDataLoss: an index cannot be read, or names a file outside its own directory.
Result<ImportSources> FindImportSources(const std::vector<std::string>& names);

}  // namespace cairn::tools
