// kv-admin: imports, exports, copies, edits, merges and deletes steps, compacts and rebuilds
// stores, and checks storages.

#include <csignal>

#include "tools/admin/verbs.h"
#include "tools/common/command_line.h"
#include "tools/common/progress.h"

int main(int argc, char** argv) {
  using namespace cairn::tools;
  // A closed pipe must not interrupt a save; the failed write is reported at the end.
  std::signal(SIGPIPE, SIG_IGN);
  InstallCancelHandler();
  const CommandLine line = {
      .name = "kv-admin",
      .version = CAIRN_VERSION,
      .summary = "Changes a Cairn store.",
      .usage = "kv-admin VERB STORE ...",
      .verbs = {ImportVerb(),      ExportVerb(),      DeleteVerb(),  TagVerb(),
                UntagVerb(),       PolicyVerb(),      PruneVerb(),   CompactVerb(),
                CompressionVerb(), StatisticsVerb(),  RebuildVerb(), RepairVerb(),
                RenameVerb(),      DropVerb(),        GraftVerb(),   ForkVerb(),
                MergeVerb(),       PushVerb(),        PullVerb(),    MirrorVerb(),
                BisectVerb(),      CheckStorageVerb()},
      .notes =
          "`kv-admin VERB --help` lists the options of a verb, with examples.\n"
          "Exit status: 0 success; 1 damage remains (repair); 2 failure, which leaves the "
          "store as it was, except that steps "
          "which were copied before it remain."};
  return RunProgram(line, argc, argv);
}
