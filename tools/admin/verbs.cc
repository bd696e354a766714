#include "tools/admin/verbs.h"

#include <fmt/format.h>

#include <iterator>

#include "tools/common/address.h"
#include "tools/common/quantities.h"
#include "tools/common/text.h"

namespace cairn::tools {

Argument StoreArgument(std::string& store) {
  return Required("STORE", &store, "Directory of the store");
}

Argument StepArgument(std::string& address) {
  return Required("STORE[@STEP]", &address, "STORE or STORE@STEP; the latest step without @STEP");
}

Argument IntoArgument(uint64_t& step) {
  return RequiredOption("--into", "STEP", &step, "Number of the new step");
}

Argument OverwriteArgument(bool& overwrite) {
  return Flag("--overwrite", overwrite, "Replace the new step atomically if it exists");
}

Argument JsonArgument(bool& json) { return Flag("--json", json, "Print JSON"); }

Argument RateArgument(std::string& rate) {
  return Option("--max-rate", "BYTES", &rate, "Limit of payload per second, such as 100M");
}

std::vector<Argument> Joined(std::vector<Argument> first, std::vector<Argument> more) {
  std::ranges::move(more, std::back_inserter(first));
  return first;
}

Result<uint64_t> ParseRate(const std::string& rate) {
  if (rate.empty()) return 0;
  CAIRN_TRY_ASSIGN(const uint64_t bytes_per_second, ParseBytes(rate));
  if (bytes_per_second > 0) return bytes_per_second;
  return Fail(ErrorCode::kInvalidArgument,
              "--max-rate must be at least one byte per second; write a rate such as 100M");
}

Result<std::string> ParseStore(const std::string& text, std::string_view why) {
  CAIRN_TRY_ASSIGN(Address address, ParseAddress(text));
  if (!address.step) return std::move(address.store);
  return Fail(ErrorCode::kInvalidArgument,
              fmt::format("{}; write {} without a step", why, ShellWord(address.store)));
}

Result<std::unique_ptr<core::CheckpointStore>> OpenExisting(const std::string& store,
                                                            const kv::StoreOptions& options) {
  CAIRN_TRY(core::CheckpointStore::Open(store, kv::OpenMode::kRead, options));
  return core::CheckpointStore::Open(store, kv::OpenMode::kWrite, options);
}

kv::StoreOptions GraceOptions(bool no_grace) {
  kv::StoreOptions options;
  if (no_grace) options.grace = std::chrono::milliseconds(0);
  return options;
}

}  // namespace cairn::tools
