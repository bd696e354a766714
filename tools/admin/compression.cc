#include <fmt/format.h>

#include "kv/read/snapshot.h"
#include "kv/store.h"
#include "tools/admin/existing_store.h"
#include "tools/admin/verbs.h"
#include "tools/common/address.h"
#include "tools/common/exit_status.h"
#include "tools/common/json.h"
#include "tools/common/text.h"

namespace cairn::tools {
namespace {

void Show(const std::string& store, bool compress, const CompressionCommand& command, Output& out) {
  if (command.json) {
    WriteJson(out, Json{{"store", JsonText(store)}, {"compress", compress}});
  } else {
    out.WriteLine(compress ? "on: saves compress what they write unless they state otherwise"
                           : "off: saves compress only if they are told to");
  }
}

}  // namespace

Result<void> AdminCompression(const CompressionCommand& command, Output& out) {
  CAIRN_TRY_ASSIGN(const Address address, ParseAddress(command.store));
  if (address.step) {
    return Fail(
        ErrorCode::kInvalidArgument,
        fmt::format("all steps of a store are compressed in the same way; write {} without a step",
                    ShellWord(address.store)));
  }
  if (command.on && command.off) {
    return Fail(ErrorCode::kInvalidArgument, "--on and --off exclude each other; give one of them");
  }
  if (!command.on && !command.off) {
    CAIRN_TRY_ASSIGN(const auto store, kv::Store::Open(address.store, kv::OpenMode::kRead));
    CAIRN_TRY_ASSIGN(const auto snapshot, store->Latest());
    Show(address.store, snapshot->compresses_saves(), command, out);
    return {};
  }
  CAIRN_TRY_ASSIGN(const auto store, OpenExisting(address.store));
  CAIRN_TRY(store->SetCompression(command.on));
  CAIRN_TRY(store->Close());
  Show(address.store, command.on, command, out);
  if (command.on && !command.json) {
    out.WriteLine(fmt::format("kv-admin compact {} --compress compresses what is stored",
                              ShellWord(address.store)));
  }
  return {};
}

Verb CompressionVerb(CompressionCommand& command) {
  return {.name = "compression",
          .usage = "compression STORE [--on] [--off] [--json]",
          .summary = "Shows or sets whether saves compress",
          .arguments = {{.name = "STORE",
                         .target = &command.store,
                         .help = "Directory of the store",
                         .required = true},
                        {.name = "--on",
                         .target = &command.on,
                         .help = "Saves compress, unless they state otherwise"},
                        {.name = "--off",
                         .target = &command.off,
                         .help = "Saves compress only if they are told to"},
                        {.name = "--json",
                         .target = &command.json,
                         .help = "One JSON document instead of text"}},
          .examples = {"kv-admin compression runs/gpt --on", "kv-admin compression runs/gpt"},
          .run = [&](Output& out) { return StatusOf(AdminCompression(command, out)); }};
}

}  // namespace cairn::tools
