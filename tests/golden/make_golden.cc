// Creates the golden stores of this build's format version: make_golden DIR creates DIR, DIR-pages
// with chunks in several extents, and DIR-ranks with steps that three ranks wrote. Each is created
// once per format version; the result is added to git and never created again.

#include <fmt/format.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kv/base/options.h"
#include "kv/root/internal/root_log.h"
#include "kv/storage/open/open_storage.h"
#include "kv/store.h"
#include "tests/golden/golden_contents.h"

namespace cairn::kv::testing {
namespace {

/// Removes what no step uses at once, to keep the repository small.
Result<std::unique_ptr<Store>> OpenWriter(const std::string& directory) {
  return Store::Open(directory, OpenMode::kWrite, {.grace = std::chrono::milliseconds(0)});
}

Result<void> MakeGolden(const std::string& directory) {
  {
    CAIRN_TRY_ASSIGN(const auto store, OpenWriter(directory));
    for (const auto& [step, version] : {std::pair{10, 0}, {15, 0}, {20, 0}, {20, 1}}) {
      CAIRN_TRY(SaveSample(*store, GoldenStep(step, version), /*overwrite=*/version > 0));
    }
    CAIRN_TRY(store->Delete(std::array<uint64_t, 1>{15}));
    CAIRN_TRY(store->Close());
  }
  CAIRN_TRY_ASSIGN(const auto store, OpenWriter(directory));
  CAIRN_TRY(SaveSample(*store, GoldenStep(30, 0)));
  return store->Close();
}

/// Step 1 is deleted. Its segment remains, because later steps use some of its pages.
Result<void> MakeGoldenPages(const std::string& directory) {
  CAIRN_TRY_ASSIGN(const auto store, OpenWriter(directory));
  for (const uint64_t step : {1, 2, 3}) CAIRN_TRY(SaveSample(*store, PagesGoldenStep(step)));
  CAIRN_TRY(store->Delete(std::array<uint64_t, 1>{1}));
  return store->Close();
}

/// Opens two more ranks.
Result<std::vector<std::unique_ptr<Store>>> OpenOthers(Store& store, const std::string& directory) {
  std::vector<std::unique_ptr<Store>> others;
  for (int i = 0; i < 2; ++i) {
    CAIRN_TRY_ASSIGN(const std::string session, store.OpenSession());
    CAIRN_TRY_ASSIGN(auto other,
                     Store::Open(directory, OpenMode::kJoinSession, {.session = session}));
    others.push_back(std::move(other));
  }
  return others;
}

/// More steps than a root names, of three ranks. The root refers to a page with the older ones.
Result<void> MakeGoldenRanks(const std::string& directory) {
  CAIRN_TRY_ASSIGN(const auto store, OpenWriter(directory));
  CAIRN_TRY_ASSIGN(const auto others, OpenOthers(*store, directory));
  for (const auto& [step, sample] : RanksGoldenSteps()) {
    // All ranks take part only in the first and the last step.
    const bool of_ranks = step == kFirstRanksStep || step == kLastRanksStep;
    CAIRN_TRY(of_ranks ? SaveSampleByRanks(*store, others, sample) : SaveSample(*store, sample));
  }
  CAIRN_TRY(store->Close());
  // Old roots are of no use here, and would be most of the bytes of this store.
  CAIRN_TRY_ASSIGN(const auto storage, OpenStorage(directory));
  CAIRN_TRY_ASSIGN(const auto root, internal::FindNewest(*storage));
  CAIRN_TRY(internal::RemoveOldRoots(*storage, root->number, /*keep=*/3));
  return {};
}

}  // namespace
}  // namespace cairn::kv::testing

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: make_golden DIR\n");
    return 2;
  }
  const std::string directory = argv[1];
  auto made = cairn::kv::testing::MakeGolden(directory);
  if (made) made = cairn::kv::testing::MakeGoldenPages(directory + "-pages");
  if (made) made = cairn::kv::testing::MakeGoldenRanks(directory + "-ranks");
  if (!made) {
    std::fprintf(stderr, "make_golden: %s\n", made.error().ToString().c_str());
    return 2;
  }
  return 0;
}
